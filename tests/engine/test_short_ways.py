"""The written call of every op is `bind`, unrolled: the same values, records and errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.run.bind import bind
from gtensor.engine.tape.op import registry

SHORT = [name for name, op in registry.items() if op.samples]
NUMBERS = [2, -1.5, 0, 0.0, float("nan"), True]


def outcome(function, *given):
    """What a call gives, or raises, in a form that compares."""
    try:
        y = function(*given)
    except Exception as error:
        return type(error), str(error).partition("(")[0]
    record = y._node
    kept = None if record is None else (
        record.op.name, record.mask, len(record.guards),
        [None if s is None else np.asarray(s).tobytes() for s in record.saved])
    return y.numpy().tobytes(), y.dtype, y.shape, kept


def inputs(op, sample, requires):
    arrays = sample.arrays(np.random.default_rng(1))
    return [gt.asarray(a) if not (requires and a.dtype.kind == "f")
            else gt.tensor(a, requires_grad=True) for a in arrays]


@pytest.mark.parametrize("requires", [False, True])
@pytest.mark.parametrize("name", SHORT)
def test_the_short_way_is_the_long_way(name, requires):
    op = registry[name]
    for sample in list(op.samples() if callable(op.samples) else op.samples):
        if None in sample.shapes:
            continue
        given = inputs(op, sample, requires)
        assert outcome(partial(op, **sample.params), *given) == outcome(
            bind, op, tuple(given), sample.params)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "power", "less", "maximum"])
def test_numbers_beside_tensors(name, number):
    op = registry[name]
    for dtype in ("float32", "float64", "int64", "bfloat16", "complex64"):
        x = gt.tensor([1, 2, 3], dtype=dtype)
        for given in ((x, number), (number, x)):
            with np.errstate(all="ignore"):
                assert outcome(op, *given) == outcome(bind, op, given, {})


def test_the_comparison_can_fail():
    op, x = registry["exp"], gt.tensor([1.0])
    assert outcome(op, x) != outcome(bind, registry["log"], (x,), {})


@pytest.mark.parametrize("number", [np.float64(2), np.float32(0.5), np.int32(3), np.bool_(True)])
def test_numpy_scalars_alone_are_numbers(number):
    assert gt.sqrt(number).tolist() == gt.sqrt(number.item()).tolist()
    assert gt.add(number, number).tolist() == (gt.asarray(number) + number).tolist()


@pytest.mark.parametrize("number", [np.float64(2), np.float32(0.5), np.int32(3), np.bool_(True)])
def test_numpy_scalars_beside_leaves_are_numbers(number):
    for op in ("multiply", "divide", "power", "maximum", "atan2"):
        x = gt.tensor([1.5, 2.5], dtype=gt.float64, requires_grad=True)
        for first in (False, True):
            given = (number, x) if first else (x, number)
            plain = (number.item(), x) if first else (x, number.item())
            grads = [gt.grad(registry[op](*g).sum(), [x])[0].tolist() for g in (given, plain)]
            assert grads[0] == grads[1]
