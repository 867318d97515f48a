"""How many Python functions of gtensor a small op calls: times depend on the machine, calls do not.

Counted are calls of functions whose code lies in gtensor, text that it compiled included, in the
third call of each program; calls into C and into NumPy are not.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.nn import functional as F

PACKAGE = str(Path(gt.__file__).parent)


@contextlib.contextmanager
def counted(switches: bool = False) -> Iterator[Counter[str]]:
    """The calls of gtensor's functions within, by name and line; a generator counts per value.

    `switches`: also blocks of `contextlib`, and of CuPy's devices, which call cudaSetDevice.
    """
    found: Counter[str] = Counter()

    def listen(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not any(
                part in code.co_filename for part in (f"{PACKAGE}/hostcuda", "(formula ")):
            found[f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"] += 1
        elif switches and event == "call" and (code.co_filename, code.co_name) == (
                contextlib.__file__, "__enter__"):
            found["contextlib"] += 1
        elif switches and getattr(argument, "__qualname__", "").startswith("Device."):
            found[argument.__qualname__] += 1

    gc.collect()  # no finalizer of an earlier test's runs within
    before = sys.getprofile()
    sys.setprofile(listen)
    try:
        yield found
    finally:
        sys.setprofile(before)


def calls(program: Callable[[], Any], switches: bool = False) -> Counter[str]:
    """Of the program's third call; the first two write short paths and fill caches."""
    program()
    program()
    with counted(switches) as found:
        program()
    return found


def leaf(*shape: int, device: str = "cpu") -> gt.Tensor:
    rng = np.random.default_rng(0)
    return gt.tensor(rng.standard_normal(shape).astype(np.float32), device=device,
                     requires_grad=True)


def product() -> Callable[[], Any]:
    x, w = leaf(4, 3), leaf(3, 5)
    return lambda: x @ w


def addition(*shape: int) -> Callable[[], Any]:
    x, y = leaf(*shape), leaf(*shape)
    return lambda: x + y


def gelu(*shape: int) -> Callable[[], Any]:
    x = leaf(*shape)
    return lambda: F.gelu(x)


def cross_entropy() -> Callable[[], Any]:
    logits, target = leaf(8, 10), gt.tensor(np.arange(8), device="cpu")
    return lambda: F.cross_entropy(logits, target)


def backward_of(records: int) -> Callable[[], Any]:
    """The forward pass is counted, too: a call for each but the last, which makes a sum."""
    w = leaf(32)

    def program() -> None:
        y = w
        for _ in range(records - 1):
            y = y * w
        w.grad = None
        y.sum().backward()

    return program


def step_of_adamw(*shapes: tuple[int, ...]) -> Callable[[], Any]:
    parameters = [leaf(*shape) for shape in shapes]
    optimizer = gt.optim.AdamW(parameters, lr=1e-3)
    for p in parameters:
        p.grad = gt.tensor(np.ones(p.shape, np.float32), device="cpu")
    return optimizer.step


LARGE = 256, 256  # of two tiles


@pytest.mark.parametrize(("program", "most"), [
    (product, 10),
    (partial(addition, 4, 3), 1),
    (partial(addition, *LARGE), 4),
    (partial(gelu, 4, 3), 5),
    (partial(gelu, *LARGE), 14),
    (cross_entropy, 28),
    (partial(backward_of, 1), 49),
    (partial(backward_of, 2), 61),
    (partial(backward_of, 10), 173),
    (partial(step_of_adamw, (4, 3), (3,)), 28),
    (partial(step_of_adamw, LARGE, LARGE), 39),
], ids=["product", "addition", "large-addition", "gelu", "large-gelu", "cross_entropy",
        "one-record", "two-records", "ten-records", "adamw", "large-adamw"])
def test_an_op_calls_few_functions(program: Callable[[], Callable[[], Any]], most: int) -> None:
    found = calls(program())
    assert found.total() <= most, "\n".join(f"{n} {name}" for name, n in found.most_common())


def cuda_addition() -> Callable[[], Any]:
    x, y = leaf(32, device="cuda"), leaf(32, device="cuda")
    return lambda: gt.add(x, y)


def cuda_backward() -> Callable[[], Any]:
    x, y = leaf(32, device="cuda"), leaf(32, device="cuda")
    seed = gt.ones((32,), device="cuda")

    def program() -> None:
        x._node.grad = y._node.grad = None
        gt.add(x, y).backward(seed)

    return program


def cuda_exponential() -> Callable[[], Any]:
    x = leaf(32, device="cuda").detach()
    return lambda: gt.exp(x)


def cuda_array() -> Callable[[], Any]:
    gt.device("cuda")
    import cupy

    return lambda: cupy.empty(32, np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(("program", "most"), [
    (cuda_addition, 6),
    (cuda_backward, 48),
    (cuda_exponential, 5),
    (cuda_array, 2),
])
def test_an_op_on_cuda_calls_few_functions_and_switches_no_device(
    program: Callable[[], Callable[[], Any]], most: int,
) -> None:
    found = calls(program(), switches=True)
    assert found.total() <= most, "\n".join(f"{n} {name}" for name, n in found.most_common())
    assert not [name for name in found if name.startswith(("Device.", "contextlib"))]


@pytest.mark.gpu
def test_a_switch_of_the_device_is_counted() -> None:
    gt.device("cuda")
    import cupy

    def program() -> None:
        with cupy.cuda.Device(0):
            pass

    assert any(name.startswith("Device.") for name in calls(program, switches=True))


def test_a_layer_of_calls_in_the_package_is_counted() -> None:
    program = addition(4, 3)
    before = calls(program).total()
    for folder, more in ((f"{PACKAGE}/engine", 1), (str(Path(__file__).parent), 0)):
        names: dict[str, Any] = {"under": program}
        exec(compile("def layer(): return under()", f"{folder}/layer.py", "exec"), names)
        assert calls(names["layer"]).total() == before + more
