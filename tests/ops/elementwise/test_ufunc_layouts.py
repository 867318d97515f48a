"""NumPy's ufuncs over layouts: those gtensor uses are right in NumPy, or `paths.into` writes them.

Values into strided buffers are held against those on contiguous memory, and what lies between the
elements of a buffer against what it was. On a NumPy or a processor that goes wrong elsewhere, a
test fails and names the ufunc: it belongs into `paths.MISWRITTEN`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.tape.op import registry
from gtensor.ops.define import path_builders
from gtensor.settings import settings

PACKAGE = Path(gt.__file__).parent
DTYPES = [np.dtype(c) for c in "?bBhHiIqQefdFD"] + [np.dtype(ml_dtypes.bfloat16)]
GUARD = 0xAB  # in every byte that no element of a buffer owns
SIZES = (67,)  # several vectors of any width, and a rest
STEPS = (*range(1, 18), -1, -4, -8)  # elements from one to the next: columns of as many columns
MANY_SIZES = (1, 2, 3, 5, 8, 16, 17, 33, 67)
MANY_STEPS = (*range(1, 18), *range(-17, 0))


def _texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def used() -> list[np.ufunc]:
    """The ufuncs that gtensor's text names as `x.name`, and those behind the paths of ops."""
    names = {name for text in _texts().values() for name in re.findall(r"\.([a-z]\w*)", text)}
    found = {vars(np).get(name) for name in names}
    found |= {getattr(op.cpu, "plain", None) for op in registry.values()}
    ufuncs = [f for f in found if isinstance(f, np.ufunc)]
    return sorted((f for f in ufuncs if f.nout == 1 and f.signature is None),
                  key=lambda f: f.__name__)


USED = used()


def _draw(rng: np.random.Generator, dtype: np.dtype, size: int) -> np.ndarray:
    if dtype.kind == "b":
        return rng.random(size) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 7, size).astype(dtype)
    values = rng.standard_normal(size) * (1 if dtype.kind != "c" else 1 + 1j)
    values[rng.random(size) < 0.1] = np.inf
    values[rng.random(size) < 0.1] = np.nan
    return values.astype(dtype)


def _apart(values: np.ndarray, step: int) -> np.ndarray:
    """The values, `step` elements apart; a negative step: from the last on."""
    space = np.zeros(values.size * abs(step), values.dtype)
    view = space[::step][:values.size]
    view[...] = values
    return view


def _wrong(write: Callable[[np.ndarray], Any], wanted: np.ndarray, step: int) -> bool:
    """Whether `write(out)` leaves other values, or writes between the elements of `out`."""
    space = np.full(wanted.nbytes * abs(step), GUARD, np.uint8)
    out = space.view(wanted.dtype)[::step][:wanted.size]
    write(out)
    if not _equal(out, wanted):
        return True
    # what the elements own is set back; then every byte is as it was
    np.lib.stride_tricks.as_strided(
        space[-wanted.itemsize:] if step < 0 else space, (wanted.size, wanted.itemsize),
        (out.strides[0], 1))[...] = GUARD
    return bool((space != GUARD).any())


def _equal(given: np.ndarray, wanted: np.ndarray) -> bool:
    """To rounding: loops over vectors and over elements may differ in the last digits."""
    if wanted.dtype.kind not in "fcV":
        return np.array_equal(given, wanted)
    if wanted.dtype.kind == "V":
        given, wanted = given.astype(np.float32), wanted.astype(np.float32)
    tolerance = 1e-2 if wanted.itemsize <= 2 or given.dtype == np.float32 else 1e-6
    return np.allclose(given, wanted, tolerance, 1e-6, equal_nan=True)


def _inputs(
    function: np.ufunc, values: list[np.ndarray], step: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """The operands `step` apart; of two also one contiguous, or one number, and one twice."""
    a = _apart(values[0], step)
    if function.nin == 1:
        yield (a,)
        return
    b = _apart(values[1], step)
    yield from ((a, b), (a, values[1]), (values[0], b), (a, values[1][0]), (values[0][0], b),
                (a, a))


def _writer(function: np.ufunc) -> Callable[..., Any]:
    """How gtensor has the ufunc write: `write(*inputs, out)`."""
    if function.nin == 1:
        return path_builders.into(function)
    return lambda x1, x2, out: function(x1, x2, out=out)


def scan(
    function: np.ufunc, sizes: Iterable[int], steps: Iterable[int],
    outs: Callable[[int], Iterable[int]],
) -> list[str]:
    """Where a written buffer differs from `function(*inputs)` on contiguous memory."""
    rng, write, found = np.random.default_rng(0), _writer(function), []
    for dtype in DTYPES:
        try:
            function.resolve_dtypes((dtype,) * function.nin + (None,) * function.nout)
        except (TypeError, ValueError):
            continue
        for size, step in product(sizes, steps):
            values = [_draw(rng, dtype, size) for _ in range(function.nin)]
            for inputs in _inputs(function, values, step):
                wanted = np.asarray(function(*[np.array(x) for x in inputs]))
                wrong: list[Any] = [out for out in outs(step) if _wrong(
                    lambda out, inputs=inputs: write(*inputs, out), wanted, out)]
                if inputs[0].ndim and dtype == wanted.dtype:
                    target = _apart(values[0], step)
                    write(*[target if x is inputs[0] else x for x in inputs], target)
                    wrong += [] if _equal(target, wanted) else ["the input"]
                found += [f"{dtype} of {size}, {step} apart, into {w}" for w in wrong]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("function", USED, ids=lambda f: f.__name__)
@np.errstate(all="ignore")
def test_ufuncs_write_any_layout(function: np.ufunc) -> None:
    assert not scan(function, SIZES, STEPS, lambda step: (2, step))


@pytest.mark.slow
@pytest.mark.parametrize("function", USED, ids=lambda f: f.__name__)
@np.errstate(all="ignore")
def test_ufuncs_write_many_layouts(function: np.ufunc) -> None:
    assert not scan(function, MANY_SIZES, MANY_STEPS,
                    lambda step: (1, 2, 3, 4, 7, 8, 16, 17, -1, -2, -8, step))


@pytest.mark.parametrize("function", path_builders.MISWRITTEN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("tile", [7, 1 << 15])
def test_what_is_written_around_numpy_may_lie_anyhow(function: np.ufunc, tile: int) -> None:
    """Matrices by rows and columns, broadcast inputs, overlapping memory, casts."""
    values = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    wanted, write = function(values), path_builders.into(function)
    for order in ("C", "F"):
        for back in (slice(None), slice(None, None, -1)):
            x = np.zeros((20, 8, 4), np.float32, order)[back, ::-1, 0]
            x[...] = values
            for out in (np.zeros((20, 16), wanted.dtype, order)[:, ::2], np.zeros_like(wanted).T):
                with settings.override(tile_elements=tile):
                    given = write(x if out.shape == x.shape else x.T, out)
                assert given is out
                np.testing.assert_array_equal(out if out.shape == x.shape else out.T, wanted)
    column = np.zeros((20, 4), np.float32)[:, :1]
    column[:, 0] = values[:, 0]
    spread = np.zeros((20, 6), wanted.dtype)[:, ::2]
    write(column, spread)
    np.testing.assert_array_equal(spread, np.repeat(wanted[:, :1], 3, 1))
    if wanted.dtype == values.dtype:
        with settings.override(tile_elements=tile):
            shared = np.repeat(values, 4)
            write(shared[:-4:4], shared[4::4])  # every element is read before it is written
        np.testing.assert_array_equal(shared[4::4], wanted.ravel()[:-1])
        wide = np.zeros((20, 16))[:, ::2]
        write(values[:, ::-1], wide)
        np.testing.assert_array_equal(wide, wanted[:, ::-1])


def _writes_listed(node: ast.AST) -> bool:
    """Whether it gives a listed ufunc an `out`, other than through a rule's namespace."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and vars(np).get(node.func.attr) in path_builders.MISWRITTEN
            and (len(node.args) > 1 or any(k.arg == "out" for k in node.keywords))
            and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "ns"))


def test_no_listed_ufunc_is_given_a_buffer_but_by_into() -> None:
    assert not [f"{path}:{node.lineno}" for path, text in _texts().items()
                for node in ast.walk(ast.parse(text)) if _writes_listed(node)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_of_a_column_that_was_subtracted(dtype: str) -> None:
    """The rule of `1 - a` may write over its gradient, here a column of as many as an item has
    bytes."""
    columns = np.dtype(dtype).itemsize
    w = gt.random.normal((6, columns), dtype=dtype)
    ones = [gt.ones(6, dtype=dtype)] * (columns - 1)
    for function in (lambda a: 1 - a, lambda a: -a):
        a = gt.zeros(6, dtype=dtype, requires_grad=True)
        (gt.stack([function(a), *ones], axis=1) * w).sum().backward()
        assert a.grad is not None
        np.testing.assert_array_equal(a.grad.numpy(), -w.numpy()[:, 0])
