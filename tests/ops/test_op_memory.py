"""No op allocates more than its output: every op, forward and backward, on large inputs.

An op's samples are scaled up until their arrays are large, and tiles small beside them. What is new
at the peak, in the arena and behind its back together, may be the output and the extras that the op
declares (forward) or the gradients (backward), and a few tiles. What takes more stands in
`EXCEPTIONS` with the reason; an exception that is no longer needed fails, too.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import gtensor as gt
import gtensor.nn.functional  # registers its ops
from gtensor.backend import host
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.tensor import FLOATING
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.index_keys import Key
from gtensor.ops.arrange.index_keys import sample as indexed_sample
from gtensor.ops.conv import paths
from gtensor.testing.cases import samples_of

pytestmark = pytest.mark.thorough
TILE = 2048  # elements: small, so that even a mask of the output's size is many tiles
LARGE = 128 * TILE  # elements of the largest array of a scaled sample, at least
MOST = 8 * LARGE
SCRATCH = 10 * TILE * 4 + 96 * 1024  # bytes: tiles, the buffers of NumPy's casts, Python's objects
MATRICES, IMAGES, ROWS = (256, 32, 32), (4, 16, 64, 64), (512, 512)


def _orders(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape).argsort(-1)


def _own(*shapes: Any, draws: Any = None, **params: Any) -> dict[str, Any]:
    """What replaces shapes, draws and some parameters of an op's first sample."""
    return {"shapes": shapes, "params": params} | ({"draws": draws} if draws else {})


def _indexed(shapes: Any, key: Key, **params: Any) -> dict[str, Any]:
    """The same of an op with a key."""
    own = indexed_sample(shapes, key, **params)
    return {"shapes": own.shapes, "params": own.params, "draws": own.draws}


# Where scaling finds nothing, or something odd: planes of six elements, a matrix of a row.
OWN: dict[str, dict[str, Any]] = {
    **{name: _own(MATRICES) for name in (
        "cholesky", "cofactor", "det", "eigh", "eigvalsh", "inv", "inverse_or_nan", "qr",
        "qr_complete", "slogdet", "svd", "svdvals")},
    "pinv": _own(MATRICES, ()), "solve": _own(MATRICES, MATRICES),
    "cofactor_change": _own(MATRICES, MATRICES),
    "undiagonal": _own((512,), shape=ROWS),
    "unslice": _own((500, 256), key=(slice(2, 502), slice(0, 512, 2)), shape=ROWS),
    "gather": _indexed(((1024, 512),), (np.arange(0, 1024, 2),)),
    "scatter_add": _indexed(((1024, 512),), (np.arange(1024) % 512,), shape=ROWS),
    "last_writes": _indexed((), (np.arange(LARGE) % 512,), shape=(512,)),
    "put_order": _own(ROWS, ROWS, draws=(normal, _orders), axis=-1, size=512),
    "pick_class": _own((2048, 128), (2048,), classes=128),
    "place_class": _own((2048,), (2048,), classes=128),
    "class_targets": _own((2048,), classes=128, dtype=np.dtype(np.float32)),
    "embedding_grad": _own((2048, 128), (2048,), rows=2048),
    "resample": _own((64, 3, 2048), axis=-2),
    "conv2d": _own(IMAGES, (16, 16, 3, 3), (16,)),
    "conv2d_grad_input": _own(IMAGES, (16, 16, 3, 3), (16,), size=(66, 66)),
    "conv2d_grad_weight": _own((4, 16, 62, 62), IMAGES, kernel=(3, 3)),
    "fft_c2r": _own((512, 257), axes=(1,), size=512),
    "searchsorted": _own((LARGE,), (1000,), None, draws=normal),
    "spline_spread": _own((LARGE,), (1, LARGE), shape=(512,)),
    "lstm": _own((512, 16, 32), (16, 32), (16, 32), (128, 32), (128, 32), (128,), (128,)),
    "gru": _own((512, 16, 32), (16, 32), (96, 32), (96, 32), (96,), (96,)),
    "avg_pool2d_grad": _own((4, 16, 32, 32), size=(64, 64)),
}


FORWARD, BACKWARD, HALF = "forward", "backward", "forward in float16"

# Passes, ops with how many *units* they take beyond what is their due (a unit is the largest array
# among inputs and output), and why.
EXCEPTIONS: list[tuple[tuple[str, ...], dict[str, float], str]] = [
    ((FORWARD,), {
        "cholesky": 4, "qr": 2.6, "qr_complete": 2.6, "eigh": 4, "eigvalsh": 3.1, "svd": 2,
        "svdvals": 2.1, "solve": 5, "inv": 3, "det": 2, "slogdet": 2,
        "cofactor": 6.2, "cofactor_change": 11.4, "inverse_or_nan": 3, "pinv": 5.1,
    }, "LAPACK overwrites its input, so it is handed copies, and answers new arrays"),
    ((HALF,), {
        "cholesky": 11, "qr": 7.1, "qr_complete": 7.1, "eigh": 10.8, "eigvalsh": 8.1, "svd": 6,
        "svdvals": 6.1, "solve": 15, "inv": 9, "det": 6, "slogdet": 6.1,
        "cofactor": 15.3, "cofactor_change": 27.7, "inverse_or_nan": 9, "pinv": 13.2,
        "scaled_triangles": 4,
    }, "the same in float32, which is two units each time"),
    ((BACKWARD,), {
        "cholesky": 9, "qr": 5, "eigh": 3.3, "svd": 4, "solve": 6, "inv": 1.1, "det": 7.2,
        "slogdet": 4, "cofactor": 11.4, "cofactor_change": 15.4, "inverse_or_nan": 1.1, "pinv": 6.1,
    }, "a chain of products of matrices; none can be written over its factors"),
    ((FORWARD, HALF), {"binomial_draw": 0.14, "gamma_draw": 0.14, "poisson_draw": 0.16,
                       "truncated_draw": 0.12},
     "words of 64 bits of a tile's elements, and what their branches compute"),
    ((FORWARD,), {"gamma_slope": 0.29}, "the same"),
    ((HALF,), {"gamma_slope": 0.58}, "the same"),
    ((FORWARD,), {"extreme_at": 0.28}, "the places of a tile's values"),
    ((HALF,), {"extreme_at": 0.56}, "the same"),
    ((BACKWARD,), {"extreme_at": 3.2}, "which values are extreme, and how many at a place"),
    ((FORWARD,), {"expm": 13.1}, "powers of the matrix, two sums of them, and LAPACK's copies"),
    ((HALF,), {"expm": 29.1}, "the same in float32"),
    ((BACKWARD,), {"expm": 64.1}, "the same of a matrix of twice as many rows"),
    ((BACKWARD,), {"feed_forward": 0.9}, "the gradient of the hidden values, which is no input's"),
    ((BACKWARD,), {"lstm": 4, "gru": 4}, "the gradients of all steps' gates, which are no input's"),
    ((HALF,), {"lstm": 12.2, "gru": 12.3}, "the sequence, its gates and its states in float32"),
    ((HALF,), {"scatter_add": 3.1, "scatter_along_axis": 0.9},
     "summed in a float32 copy of the output"),
    ((FORWARD, HALF), {"argmax": 1, "argmin": 1}, "NumPy searches a copy with the axis last"),
    ((FORWARD, HALF), {"last_writes": 2.1}, "the number of each write, and of the last one there"),
    ((FORWARD, HALF), {"nonzero": 1}, "NumPy answers one array per axis, unknown in length before"),
    ((FORWARD, HALF), {"unique_table": 5.2, "unique_values": 1}, "sorts a copy, and its order"),
    ((FORWARD, HALF), {"max_pool2d_places": 0.3}, "the largest values so far, beside their places"),
    ((HALF,), {"fft_r2c": 1}, "NumPy transforms no halves: a float32 copy"),
    ((BACKWARD,), {"fft_r2c": 1}, "the spectrum of g, which is not ours, with its middle halved"),
]
ALLOWED = {(name, which): units for passes, ops, _ in EXCEPTIONS
           for which in passes for name, units in ops.items()}


# -- scaling ---------------------------------------------------------------------------------------


def scaled(op: Op) -> Scaled:
    """The op with large inputs. Raises AssertionError if no sample can be scaled up."""
    if op.name in OWN:
        first, own = samples_of(op)[0], OWN[op.name]
        whole = replace(first, **{**own, "params": {**first.params, **own["params"]}})
        found = _tried(op, whole)
        assert found is not None, f"the shapes of {op.name} in OWN do not fit it"
        return found
    for sample in sorted(samples_of(op), key=_rank):
        for candidate in scalings(sample):
            found = _tried(op, candidate)
            if found is not None:
                return found
    raise AssertionError(f"no sample of {op.name} can be scaled up; give it shapes in OWN")


def _rank(sample: Sample) -> tuple[bool, bool, int]:
    """Equal shapes first, then those with a leading axis in common, then those with many axes."""
    shapes = [shape for shape in sample.shapes if shape]
    return (len(set(shapes)) != 1, len({shape[0] for shape in shapes}) != 1,
            -max(map(len, shapes), default=0))


def scalings(sample: Sample) -> Iterator[Sample]:
    """The sample with all lengths times a factor, or those of one axis; in its parameters too.

    A length of 1 is broadcast, and stays. The last two axes may be matrices, which grow together.
    """
    shapes = [shape for shape in sample.shapes if shape]
    biggest = max(shapes, key=prod, default=())
    axes = sum(n > 1 for n in biggest)
    if not axes or not prod(biggest):
        return
    missing = LARGE / prod(biggest)
    places = {None: range(2, max(map(max, shapes)) + 1)} | {
        axis: {shape[axis] for shape in shapes if len(shape) > axis}
        for axis in range(max(1, len(biggest) - 2))}
    for axis, lengths in places.items():
        factor = ceil(missing ** (1 / axes)) if axis is None else ceil(missing)
        for params in (sample.params, _longer(sample.params, lengths, factor)):
            yield replace(sample, params=params, shapes=tuple(
                shape and tuple(n * factor if n > 1 and axis in (None, k) else n
                                for k, n in enumerate(shape))
                for shape in sample.shapes))


def _longer(value: Any, lengths: Collection[int], factor: int) -> Any:
    """Parameters with these lengths times the factor, where they may be of a shape."""
    if isinstance(value, dict):
        return {k: _longer(v, lengths, factor) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_longer(v, lengths, factor) for v in value)
    return value * factor if type(value) is int and value in lengths else value


@dataclass
class Scaled:
    """An op with large inputs: raw arrays, floats in float32."""

    op: Op
    arrays: list[Any]
    params: dict[str, Any]
    result: tuple[Any, ...]  # the output, and the extras

    @classmethod
    def of(cls, op: Op, arrays: list[Any], params: dict[str, Any]) -> Scaled:
        """With the result computed."""
        result = op.cpu(*arrays, **params)
        return cls(op, arrays, params, result if isinstance(result, tuple) else (result,))

    def half(self) -> Scaled:
        """The same in float16."""
        arrays = [a.astype(np.float16) if a is not None and a.dtype == np.float32 else a
                  for a in self.arrays]
        return self.of(self.op, arrays, self.params)

    @property
    def unit(self) -> int:
        """Bytes of the largest array among inputs and output."""
        return max(a.nbytes for a in (*self.arrays, self.result[0]) if a is not None)

    @property
    def floats(self) -> list[int]:
        """The inputs that a gradient is asked of; none if the op has no rule of its own."""
        kinds = FLOATING + "c" * self.op.complex if self.op.backward is not None else ""
        return [i for i, a in enumerate(self.arrays) if a is not None and a.dtype.kind in kinds]

    def forward(self) -> int:
        """Bytes at the peak of the CPU path beside the output and the declared extras."""
        new = 0 if self.op.view else sum(a.nbytes for a in self.result)
        return peak(lambda: self.op.cpu(*self.arrays, **self.params)) - new

    def backward(self) -> int:
        """Bytes at the peak of the backward rule beside its saves and the gradients."""
        inputs = [None if a is None else
                  _leaf(a) if i in self.floats else gt.tensor(a)
                  for i, a in enumerate(self.arrays)]
        wanted: list[Any] = [inputs[i] for i in self.floats]
        output = self.op(*inputs, **self.params)
        upstream = gt.tensor(np.random.default_rng(1).standard_normal(output.shape), output.dtype)

        def walk() -> Any:
            return gt.grad([output], wanted, [upstream], retain_graph=True, allow_unused=True)

        new = sum(g.nbytes for g in walk() if g is not None)
        return peak(walk) - new


def _leaf(a: np.ndarray) -> gt.Tensor:
    """A tensor that requires a gradient; also a complex one, which users cannot make."""
    leaf = gt.tensor(a)
    leaf._node = Leaf(leaf.shape, leaf.dtype, leaf._device)
    return leaf


def _tried(op: Op, sample: Sample) -> Scaled | None:
    if max((prod(shape) for shape in sample.shapes if shape is not None), default=0) > MOST:
        return None
    arrays = [None if a is None else a.astype(_SINGLE.get(a.dtype, a.dtype))
              for a in sample.arrays(np.random.default_rng(0))]
    try:
        found = Scaled.of(op, arrays, sample.params)
    except (ValueError, IndexError, TypeError, MemoryError):
        return None
    largest = max(a.size for a in (*arrays, found.result[0]) if a is not None)
    return found if LARGE <= largest <= MOST else None


_SINGLE = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}


def peak(function: Callable[[], Any]) -> int:
    """Bytes that are new at the peak of a call: those of the arena, and those behind its back."""
    gt.memory.reset_peak("cpu")
    before = gt.memory.stats("cpu").allocated
    tracemalloc.start()
    try:
        function()
        behind = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return gt.memory.stats("cpu").peak_allocated - before + behind


# -- the tests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Many small matrices are slower by threads; what was reserved goes back at the end."""
    with threadpool_limits(1):
        yield
    gt.memory.empty_cache("cpu")


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small tiles, and all arrays that ops ask for from the arena, which refuses odd scalings."""
    monkeypatch.setattr(paths, "WORKSPACE_BYTES", 16 * TILE * 4)
    gt.memory.set_limit(1 << 29, "cpu")
    with gt.settings.override(tile_elements=TILE, arena_min_bytes=0), np.errstate(all="ignore"):
        yield
    gt.memory.set_limit(None, "cpu")


def judge(name: str, which: str, excess: int, unit: int) -> None:
    """Fail if the excess is more than scratch, or not what the exception for it says."""
    units = ALLOWED.get((name, which), 0)
    assert excess <= units * unit + SCRATCH, (
        f"{name}, {which}: {excess} bytes beyond its due, {excess / unit:.2f} of the largest array "
        f"({unit} bytes); {units} and {SCRATCH} bytes of scratch are allowed")
    assert not units or excess > max(SCRATCH, (units - 1) * unit), (
        f"{name}, {which}: {excess} bytes beyond its due, {excess / unit:.2f} of the largest array "
        f"({unit} bytes); its exception says {units}: lower it, or take it out of EXCEPTIONS")


@pytest.mark.parametrize("name", sorted(n for n, op in registry.items() if op.samples is not None))
def test_an_op_allocates_its_output_and_its_rule_the_gradients(name: str) -> None:
    case = scaled(registry[name])
    judge(name, FORWARD, case.forward(), case.unit)
    if case.floats:
        judge(name, BACKWARD, case.backward(), case.unit)
    if any(a is not None and a.dtype == np.float32 for a in case.arrays):
        half = case.half()
        judge(name, HALF, half.forward(), half.unit)


def test_the_exceptions_are_of_ops_that_are_measured() -> None:
    measured = {name for name, op in registry.items() if op.samples is not None}
    assert {name for name, _ in ALLOWED} | set(OWN) <= measured
    assert len(ALLOWED) == sum(len(ops) * len(passes) for passes, ops, _ in EXCEPTIONS)


# -- the checker -----------------------------------------------------------------------------------


def _exp(x: Any, out: Any = None) -> Any:
    return np.exp(x, out=host().empty(x.shape, x.dtype, "exp") if out is None else out)


def _rule(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.multiply(g, step.saved[0]))


def _excess(cpu: Any = _exp, backward: Any = _rule) -> tuple[Scaled, int, int]:
    own = Op("own_exp", cpu=cpu, gpu=cpu, backward=backward, tangent=None, samples=[(3, 5)],
             saves={"x": "out"})
    case = scaled(own)
    return case, case.forward(), case.backward()


def _copies(x: Any, out: Any = None) -> Any:
    return _exp(x.copy(), out)


def _copies_in_the_arena(x: Any, out: Any = None) -> Any:
    return _exp(host().copy(x), out)


def _makes_a_mask(x: Any, out: Any = None) -> Any:
    return np.exp(x, out=_exp(x, out), where=x > -100)


def _rule_in_two_steps(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.multiply(ns.multiply(g, 1.0), step.saved[0]))


def test_an_op_without_temporaries_passes() -> None:
    case, forward, backward = _excess()
    judge("own_exp", FORWARD, forward, case.unit)
    judge("own_exp", BACKWARD, backward, case.unit)
    assert case.unit >= LARGE * 4


@pytest.mark.parametrize("path", [_copies, _copies_in_the_arena, _makes_a_mask])
def test_a_temporary_of_a_path_is_found(path: Any) -> None:
    case, forward, _ = _excess(cpu=path)
    with pytest.raises(AssertionError, match="own_exp, forward: .* bytes beyond its due"):
        judge("own_exp", FORWARD, forward, case.unit)


def test_a_temporary_of_a_rule_is_found() -> None:
    case, _, backward = _excess(backward=_rule_in_two_steps)
    with pytest.raises(AssertionError, match="own_exp, backward: .* bytes beyond its due"):
        judge("own_exp", BACKWARD, backward, case.unit)


@pytest.mark.parametrize(("units", "excess"), [(1.0, 0), (3.0, 1.5), (1.0, 1.5)])
def test_an_exception_must_be_needed_and_enough(
    units: float, excess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALLOWED, ("own_exp", FORWARD), units)
    unit = LARGE * 4
    with pytest.raises(AssertionError, match="beyond its due"):
        judge("own_exp", FORWARD, int(excess * unit), unit)
    judge("own_exp", FORWARD, int(units * unit), unit)


def test_an_op_that_cannot_be_scaled_is_named() -> None:
    own = Op("own_exp", cpu=_exp, gpu=_exp, backward=None, tangent=None, samples=[()])
    with pytest.raises(AssertionError, match="no sample of own_exp can be scaled up"):
        scaled(own)
