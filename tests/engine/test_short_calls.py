"""What a public function does by its short text is what its general form does.

A listener of ops makes each call take the general form: the same values, sharing, versions,
records and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


class Nothing:
    def op_begins(self, event: object) -> None:
        """Only there."""


def tensors(dtype: str, how: str) -> list[gt.Tensor]:
    """Some of each shape: contiguous, strided or of one element broadcast; leaves or their outputs.
    """
    made = []
    for array in (X, X[0], X[0, 0], X[0, 0, 0]):
        array = array.astype(dtype)
        x = gt.tensor(array, requires_grad=how != "plain")
        if how == "strided":
            x = gt.tensor(np.asfortranarray(np.repeat(array[None], 2, 0)), requires_grad=True)[1]
        elif how == "output":
            x = x * 1
        made.append(x)
    return made


VIEWS: dict[str, Callable[[gt.Tensor], Any]] = {
    **{f"x[{key!r}]": lambda x, key=key: x[key] for key in (
        0, -1, 7, None, ..., slice(1, None), slice(None, None, -1), slice(9, 2), (), (0, 1),
        (slice(None), 1), (..., None), (..., ...), (0, ..., slice(0, 0)), (0, 0, 0, 0), True,
        np.int64(1), (np.int64(0), 1), slice(np.int64(1), None), 1.0, "a", [0, 1],
        (slice(None), [1, 0]))},
    **{f"reshape{shape}": lambda x, shape=shape: x.reshape(*shape) for shape in (
        (4, -1), ((4, 6),), ([-1, 2],), (-1,), (-2,), (24,), ((),), (), (np.int64(4), 6), (5, -1),
        (-1, -1), (None,), ("a",), (4.0, 6), (True, 24), (0, -1))},
    **{f"permute{axes}": lambda x, axes=axes: x.permute_dims(*axes) for axes in (
        (2, 0, 1), (-1, 0, 1), ((1, 0, 2),), ([1, 0, 2],), (1, 0), (0,), (), (0, 0, 1), (3, 0, 1),
        (None,), (np.int64(2), 0, 1), (np.uint8(2), 0, 1), (1.0, 0, 2), (True, False, 2))},
    "gt.permute_dims": lambda x: gt.permute_dims(x, range(x.ndim)),
    "permute": lambda x: x.permute(1, 0), "view": lambda x: x.view(-1, 2),
    "view of a dtype": lambda x: x.view(gt.float64),
    "T": lambda x: x.T, "mT": lambda x: x.mT, "flatten": lambda x: gt.flatten(x),
    "flatten(0.0)": lambda x: x.flatten(0.0), "flatten(1)": lambda x: x.flatten(1),
    **{f"reshape by {shape!r}, {copy}": lambda x, shape=shape, copy=copy: gt.reshape(
        x, shape, copy=copy) for shape in ((6, 4), -1, [2, 12], -2, None, "24")
       for copy in (None, True, False)},
    **{f"{name}({axis!r})": lambda x, name=name, axis=axis: getattr(gt, name)(x, axis)
       for name in ("squeeze", "expand_dims")
       for axis in (0, 1, -1, 2, 4, -3, None, (0, 1), 1.0, True)},
    "stack": lambda x: gt.stack([x, x]), "stack -1": lambda x: gt.stack((x, x, x), -1),
    "stack 1": lambda x: gt.stack([x, x], 1), "stack 1.0": lambda x: gt.stack([x, x], 1.0),
    "stack of others": lambda x: gt.stack([x, x[..., None]]), "stack 9": lambda x: gt.stack([x], 9),
    "stack of none": lambda x: gt.stack([]), "stack once": lambda x: gt.stack(t for t in (x, x)),
    "stack dim": lambda x: gt.stack([x, x], dim=1), "stack list": lambda x: gt.stack([x, 1.0]),
    "concat": lambda x: gt.concat([x, x]), "concat -1": lambda x: gt.concat((x, x[..., :1]), -1),
    "concat None": lambda x: gt.concat([x, x], None),
    "concat of others": lambda x: gt.concat([x, x[..., :1]], 0),
    "concat of two dtypes": lambda x: gt.concat([x, x.astype(gt.float64)], 0),
    "concat in another order": lambda x: gt.concat([x.mT, x.mT], 0),
}
VALUES: dict[str, Callable[[gt.Tensor], Any]] = {
    "2": lambda x: 2, "1.5": lambda x: 1.5, "nan": lambda x: float("nan"), "True": lambda x: True,
    "large": lambda x: 10 ** 400, "row": lambda x: x[..., :1].detach(), "itself": lambda x: x,
    "reversed": lambda x: x[::-1], "outer": lambda x: x[None], "clone": lambda x: x.clone(),
    "array": lambda x: x.detach().numpy() + 1, "other dtype": lambda x: x.astype(gt.float64),
    "misfit": lambda x: gt.ones((7,), dtype=x.dtype), "text": lambda x: "a",
}


def write(form: str, x: gt.Tensor, value: Any) -> gt.Tensor:
    if form == "+=":
        x += value
    elif form == "*=":
        x *= value
    else:
        x[0 if form == "first" else ...] = value
    return x


def outcome(function: Callable[..., Any], *given: Any) -> Any:
    """What a call gives, or raises, and what it leaves of its argument."""
    x = given[0]
    try:
        with np.errstate(all="ignore"):
            y = function(*given)
    except Exception as error:
        return type(error), str(error)
    record = y._node
    loss = gt.sum(y * y) if record is not None and gt.is_grad_enabled() else None
    found = (y.numpy().tobytes(), y.dtype, y.shape, y._array.strides, y._storage is x._storage,
             y._version, y._storage.made, x._version, x._storage.version,
             None if record is None or record.op is None else (
                 record.op.name, record.params, record.mask, record.where().rpartition(":")[0]))
    return found, None if loss is None else gt.grad(loss, [x])[0].numpy().tobytes()


@pytest.mark.parametrize("how", ["plain", "leaf", "output", "strided"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_a_view_or_a_joined_tensor(dtype: str, how: str) -> None:
    if dtype == "int64" and how != "plain":
        pytest.skip("no gradient")
    for name, function in VIEWS.items():
        for x, same in zip(tensors(dtype, how), tensors(dtype, how), strict=True):
            short = outcome(function, x)
            with gt.listen(Nothing()):
                assert outcome(function, same) == short, (name, x.shape)


@pytest.mark.parametrize("form", ["+=", "*=", "first", "all"])
@pytest.mark.parametrize("how", ["plain", "output", "strided"])
def test_a_write(how: str, form: str) -> None:
    for dtype in ("float32", "float64", "int64", "bfloat16"):
        if dtype == "int64" and how != "plain":
            continue
        for name, value in VALUES.items():
            for x, same in zip(tensors(dtype, how), tensors(dtype, how), strict=True):
                with gt.set_grad_enabled(how == "output"):
                    short = written(form, x, value)
                    with gt.listen(Nothing()):
                        assert written(form, same, value) == short, (name, dtype, x.shape)


def written(form: str, x: gt.Tensor, value: Callable[[gt.Tensor], Any]) -> Any:
    try:
        given = value(x)
    except Exception as error:
        return type(error)
    return outcome(lambda x: write(form, x, given), x), x.detach().numpy().tobytes()


def test_the_comparison_can_fail() -> None:
    x = gt.ones((2, 3))
    assert outcome(lambda x: x[0], x) != outcome(lambda x: x[0].clone(), gt.ones((2, 3)))
