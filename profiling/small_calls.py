"""Calls on tensors of about 1,000 elements or fewer, where Python's time counts.

Each is written once, as users write it: `call(library, *tensors)`. Each has a row in
`ladder_overhead.py --only calls`, in microseconds a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS, COLUMNS = 25, 40
MATRIX = (ROWS, COLUMNS)
MOST = 1.5  # x PyTorch's time
Call = Callable[..., Any]


@dataclass(frozen=True)
class SmallCall:
    """A call on tensors of some shapes; NumPy's, the reference, where it is written otherwise."""

    call: Call
    shapes: tuple[tuple[int, ...], ...] = (MATRIX,)
    numpy: Call | None = None
    most: float = MOST
    recorded: bool = True  # whether it has a row on leaves that require a gradient, too

    def arrays(self) -> list[np.ndarray]:
        """What the call is given."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def reference(self) -> np.ndarray:
        """NumPy's result."""
        return np.array(self.numpy(*self.arrays()) if self.numpy else self.call(np, *self.arrays()))

    def run(self, library: Any, recorded: bool) -> Callable[[], Any]:
        """The call of gtensor or PyTorch; `recorded`: on leaves that require a gradient."""
        call = self.call
        given = [library.tensor(a, requires_grad=recorded) for a in self.arrays()]
        return lambda: call(library, *given)


def _add(library: Any, x: Any, y: Any) -> Any:
    x += y
    x -= y
    return x


def _set(library: Any, x: Any, y: Any) -> Any:
    x[1] = y
    return x


def _softmax(x: np.ndarray) -> np.ndarray:
    terms = np.exp(x - x.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


def _norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered ** 2).mean(-1, keepdims=True) + 1e-5) * weight + bias


SMALL_CALLS: dict[str, SmallCall] = {
    "x[3]": SmallCall(lambda library, x: x[3]),
    "x[1, 2]": SmallCall(lambda library, x: x[1, 2]),
    "x[2:9]": SmallCall(lambda library, x: x[2:9]),
    "x[..., None]": SmallCall(lambda library, x: x[..., None]),
    "reshape": SmallCall(lambda library, x: x.reshape(COLUMNS, ROWS)),
    "reshape to a vector": SmallCall(lambda library, x: x.reshape(-1)),
    "flatten": SmallCall(lambda library, x: x.flatten()),
    "permute": SmallCall(lambda library, x: x.permute(1, 0), numpy=np.transpose),
    "x.T": SmallCall(lambda library, x: x.T),
    "squeeze": SmallCall(lambda library, x: x.squeeze(1), ((ROWS, 1, COLUMNS),)),
    "unsqueeze": SmallCall(lambda library, x: x.unsqueeze(1), numpy=lambda x: x[:, None]),
    "x += y and x -= y": SmallCall(_add, (MATRIX, MATRIX), recorded=False),
    "x[1] = y": SmallCall(_set, (MATRIX, (COLUMNS,)), recorded=False),
    "item": SmallCall(lambda library, x: x.item(), ((),), recorded=False),
    "zeros": SmallCall(lambda library: library.zeros(MATRIX), (), recorded=False),
    "ones": SmallCall(lambda library: library.ones(MATRIX), (), recorded=False),
    "stack": SmallCall(lambda library, x, y: library.stack([x, y]), (MATRIX, MATRIX)),
    "concat": SmallCall(lambda library, x, y: library.concat([x, y]), (MATRIX, MATRIX)),
    "matmul": SmallCall(lambda library, x, y: x @ y, ((4, 8), (8, 4))),
    "linear": SmallCall(lambda library, *given: library.nn.functional.linear(*given),
                        ((4, 8), (6, 8), (6,)), lambda x, w, b: x @ w.T + b),
    "softmax": SmallCall(lambda library, x: library.nn.functional.softmax(x, -1), ((4, 8),),
                         _softmax),
    "layer_norm": SmallCall(
        lambda library, x, w, b: library.nn.functional.layer_norm(x, (8,), w, b),
        ((4, 8), (8,), (8,)), _norm),
    "sum": SmallCall(lambda library, x: x.sum()),
    "cumsum": SmallCall(lambda library, x: library.cumsum(x, 0), most=1.3),
}
