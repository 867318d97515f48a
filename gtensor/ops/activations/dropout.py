"""Dropout with a mask that is a function of a seed and an element's index: only the seed is kept.

With ReLU or GELU before it, or a residual sum after it, it is one pass. Of ReLU the output alone
says what was kept: no input is saved, and backward draws no numbers.

The bits are those of NumPy's Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011): Philox4x64-10 with key (seed, 0). Element i of chunk k takes 32 bits of counter block
(i // 8 + 1, k, 0, 0). The GPU computes the same bits, so a seed gives one mask on every device.
"""

from __future__ import annotations

import threading
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gtensor.backend import Device, host
from gtensor.backend.kernels import elementwise
from gtensor.creation.generators import generator
from gtensor.creation.new_tensors import ones
from gtensor.engine.handle.context import again
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.in_place import check_target
from gtensor.engine.tape.levels import vectorizing
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, alike, apart, unary
from gtensor.ops.activations.activation import gelu, relu
from gtensor.ops.arrange.writing import overwrite
from gtensor.ops.define.arguments import sums_in, takes_arrays
from gtensor.ops.define.batching import Inputs, Mapped, aligned, batch_size, in_dtype, spread
from gtensor.ops.define.cpu_tiles import computed_in, masked
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import tiles
from gtensor.ops.define.pointwise import partial, pointwise
from gtensor.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from gtensor.backend.typing import Array, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

_CHUNK = 65536  # elements per counter stream: it defines the mask, so it is not a setting
_SCALE = 2**32
_ENDLESS = 2**63  # more elements than any array has


class _Bits(threading.local):
    """A generator for each thread, whose state is set before each use: a new one takes longer than
    the bits of a few thousand elements."""

    _philox: Any = None  # made at the first use: `numpy.random` is a costly import

    def __call__(self, seed: int, block: int, chunk: int, words: int) -> np.ndarray:
        """So many words of 64 bits, behind counter block (block, chunk, 0, 0)."""
        if self._philox is None:
            self._philox = np.random.Philox(key=0)
        self._philox.state = {  # of sequences, which need not be arrays
            "bit_generator": "Philox",
            "state": {"counter": (block, chunk, 0, 0), "key": (seed, 0)},
            "buffer": (0, 0, 0, 0), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
        drawn: np.ndarray = self._philox.random_raw(words)
        return drawn


_bits = _Bits()


def keep_threshold(p: float) -> int:
    """Elements whose 32 bits are below this are dropped."""
    return min(round(p * _SCALE), _SCALE)


def _kept(seed: int, start: int, count: int, threshold: int) -> np.ndarray:
    """Which of the elements start to start + count of an array are kept."""
    runs, stop = [], start + count
    while start < stop:
        chunk, place = divmod(start, _CHUNK)
        length = min(stop - start, _CHUNK - place)
        block, skipped = divmod(place, 8)
        words = -(-(skipped + length) // 2)
        bits = _bits(seed, block, chunk, words)
        runs.append(bits.view(np.uint32)[skipped:skipped + length] >= threshold)
        start += length
    return runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, bool), *runs])


def _kept_again(seed: int, start: int, count: int, threshold: int, size: int) -> np.ndarray:
    """`_kept` of a mask that repeats after `size` elements."""
    head = _kept(seed, start, min(count, size - start), threshold)
    if head.size == count:
        return head
    whole = _kept(seed, 0, min(count - head.size, size), threshold)
    return np.concatenate([head, np.resize(whole, count - head.size)])


def _dropout_cpu(
    x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "dropout")
    threshold, work = keep_threshold(p), computed_in(x.dtype)
    if threshold == _SCALE:
        out[...] = 0
        return out
    if shared:
        _repeated_cpu(x, out, p, seed, shared)
        return out
    source, target = (a.reshape(-1) if a.flags.c_contiguous else a.flat for a in (x, out))
    step = settings.tile_elements
    for start in range(0, x.size, step):
        part = source[start:start + step].astype(work, copy=False) * work.type(1 / (1 - p))
        masked(part, _kept(seed, start, part.size, threshold), out=part)
        target[start:start + step] = part
    return out


def _repeated_cpu(x: Array, out: Array, p: float, seed: int, shared: int) -> None:
    """One mask for the arrays of all leading axes: a tile of it at a time."""
    work, start = computed_in(x.dtype), 0
    limit = max(1, settings.tile_elements // max(1, prod(x.shape[:shared])))
    for key in tiles(x.shape[shared:], limit):
        place = (*(slice(None),) * shared, *key, ...)
        part = x[place].astype(work, copy=False) * work.type(1 / (1 - p))
        count = prod(part.shape[shared:])
        kept = _kept(seed, start, count, keep_threshold(p)).reshape(part.shape[shared:])
        out[place] = masked(part, kept, out=part)
        start += count


# `(i + first) % size` is the element's place.
_MASKED = """
unsigned long long e = i + first;
if (e >= size) e %= size;
y = gt_bits(seed, e) < threshold ? T(0) : T(gt_up(x) * gt_float<T>(scale));
"""
_kernel = elementwise(
    "T x, uint64 seed, uint64 first, uint64 size, uint64 threshold, float64 scale", "T y", _MASKED,
    "philox.cuh", "gt_dropout")


def _dropout_gpu(
    x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    """The seed may be in device memory, 0-d."""
    size = max(1, prod(x.shape[shared:]))
    return _kernel(x, seed, 0, size, keep_threshold(p), keep_factor(p), out=out)


def keep_factor(p: float) -> float:
    """The factor of kept elements."""
    return 1 / (1 - p) if keep_threshold(p) < _SCALE else 0.0


def keep_factors(
    device: Device, shape: tuple[int, ...], first: int, p: float, seed: Any, dtype: DTypeLike,
    size: int = _ENDLESS,
) -> Array:
    """The dropout factors of elements of `shape`, from number `first` on of a larger array.

    After `size` elements the mask repeats.
    """
    if device.type == "cpu":
        kept = _kept_again(seed, first % size, prod(shape), keep_threshold(p), size)
        return np.multiply(kept.reshape(shape), keep_factor(p), dtype=dtype)
    factors = device.workspace(prod(shape), dtype)(0, shape)
    factors[...] = 1
    return _kernel(factors, seed, first, size, keep_threshold(p), keep_factor(p), out=factors)


def _scaled(ns: Namespace, x: Any, factors: Any) -> Any:
    """x times dropout factors; 0 where the factor is 0, also of infinities and NaN."""
    return ns.multiply(ns.where(ns.not_equal(factors, 0.0), x, 0.0), factors)


def _same_mask(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """A seed is one mask, so all examples have it; `vmap` draws others with `randomness`."""
    return run(*inputs, **{**params, "shared": params.get("shared", 0) + 1})


_same_mask.writes = True  # type: ignore[attr-defined]

dropout_op = op(
    "dropout", cpu=_dropout_cpu, gpu=_dropout_gpu,
    backward=pointwise(partial(
        "", lambda ns, g, out, p, seed, shared=0: ns.dropout(
            g, p=p, seed=seed, shared=shared, out=out))),
    batch=_same_mask,
    samples=[*unary(p=0.3, seed=7), *unary(p=0.3, seed=7, shared=1)[1:3]],
    doc="x with a share p of its elements 0 and the others divided by 1 - p. Parameters: p, seed, "
        "shared (how many leading axes repeat one mask).",
)


class _Seeds:
    """The seeds of a captured graph, in device memory; a call draws them anew, for a replay.

    A seed is known by the value that the capture drew: a function that runs again within the
    capture (`checkpoint`) draws the same values, and gets the same places.
    """

    def __init__(self, device: Device, empty: Callable[..., Array]) -> None:
        self._device = device
        self._empty = empty
        self._places: dict[int, Array] = {}
        self._buffers: list[Array] = []

    def place_of(self, value: int) -> Array:
        """The seed, 0-d."""
        found = self._places.get(value)
        if found is None:
            place = len(self._places) % _SEEDS
            if place == 0:
                self._buffers.append(self._empty((_SEEDS,), np.uint64, "seeds"))
            found = self._places[value] = self._buffers[-1][place, ...]
        return found

    def __call__(self) -> None:
        drawn = [_draw() for _ in self._places]
        for k, buffer in enumerate(self._buffers):
            some = drawn[k * _SEEDS:(k + 1) * _SEEDS]
            self._device.upload(buffer[:len(some)], some)


_SEEDS = 64  # in a buffer


def _draw() -> int:
    return int(generator().integers(2**63))


@again
def fresh_seed(device: Device) -> int | Array:
    """A seed from the generator that `gtensor.manual_seed` sets.

    While a graph is captured it is an array in the device's memory. Before each replay it is drawn,
    so that replays have the masks that the same steps without a graph would have.
    """
    replays = device.replays()
    if replays is None:
        return _draw()
    seeds = replays.functions.setdefault(_Seeds, _Seeds(device, replays.empty))
    return cast("_Seeds", seeds).place_of(_draw())


def check_probability(name: str, what: str, p: float) -> None:
    """Raise ValueError unless p is a probability."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{name} was given {what}={p}; wanted a probability from 0 to 1")


@takes_arrays
def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *,
    seed: int | None = None,
) -> Tensor:
    """Each element 0 with probability p, else divided by 1 - p; the input itself if not training.

    The mask follows from `seed` and is never stored. By default the seed is drawn from the
    generator that `gtensor.manual_seed` sets; within `vmap` its `randomness` decides.
    With `inplace` the input itself becomes the result.

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting",
    2014.

    Raises TypeError for an input that is not floating or a seed that is no integer, ValueError for
    a p outside of 0 to 1 or a seed outside of 64 bits.
    """
    check_probability("dropout", "p", p)
    if seed is not None:
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise TypeError(f"dropout was given seed={seed!r}; wanted an integer or None")
        seed = seed.__index__()
        if not 0 <= seed < 1 << 64:  # what kernels take
            raise ValueError(f"dropout was given seed={seed}; wanted 0 to 2**64 - 1")
    if input.dtype.kind not in "fV":
        raise TypeError(f"dropout was given an input of dtype {input.dtype}; wanted a "
                        "floating-point dtype")
    if not training or p == 0.0:
        return input
    if seed is None and vectorizing():
        if inplace:
            return overwrite(dropout, input, p)
        from gtensor.engine.transforms.batched import drawn

        return _scaled(recorded, input, drawn("dropout", input.shape, lambda shape: dropout_op(
            ones(shape, dtype=input.dtype, device=input.device), p=float(p),
            seed=fresh_seed(input.device))))
    if inplace:
        check_target("dropout", input)  # before a seed is drawn
    chosen: Any = fresh_seed(input.device) if seed is None else seed
    if inplace:
        return overwrite(dropout_op, input, p=float(p), seed=chosen)
    return dropout_op(input, p=float(p), seed=chosen)


# -- in one pass with an activation before it ------------------------------------------------------

_GIVEN = "uint64 seed, uint64 size, uint64 threshold, float64 scale"
_DROPS = "gt_drops(i, seed, size, threshold)"


def _numbers(x: Array, p: float, seed: Any, shared: int) -> tuple[Any, ...]:
    """What the kernels take after their arrays."""
    return seed, max(1, prod(x.shape[shared:])), keep_threshold(p), keep_factor(p)


_RELU = elementwise(
    f"T x, {_GIVEN}", "T y", f"y = {_DROPS} ? T(0) : T(gt_relu(x) * gt_float<T>(scale))",
    "dropout.cuh", "gt_relu_dropout")


def _relu_cpu(
    x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    out = host().empty(x.shape, x.dtype, "relu_dropout") if out is None else out
    raw["cpu"].relu(x, out=out)
    return raw["cpu"].dropout(out, p=p, seed=seed, shared=shared, out=out)


def _relu_gpu(
    x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    made: Array = _RELU(x, *_numbers(x, p, seed, shared), out=out)
    return made


fused(
    "relu_dropout_grad",
    lambda ns, g, y, *, factor: ns.where(ns.less_equal(y, 0), 0, g * factor),
    samples=alike(2, apart, factor=1.25),
    reference=lambda torch, g, y, factor: torch.where(y > 0, g * factor, 0 * g),
    doc="The gradient of y = relu_dropout(x): g times a factor where y > 0, else 0.")

relu_dropout = op(
    "relu_dropout", cpu=_relu_cpu, gpu=_relu_gpu,
    backward=pointwise(partial("out", lambda ns, g, y, out, p, seed, shared=0: (
        ns.relu_dropout_grad(g, y, factor=keep_factor(p), out=out)))),
    batch=_same_mask,
    samples=[*unary(apart, p=0.3, seed=7), *unary(apart, p=0.3, seed=7, shared=1)[1:3]],
    doc="dropout(relu(x)). Saves its output. Parameters as of dropout.",
)


_GELU = elementwise(
    f"T x, {_GIVEN}", "T y", f"y = {_DROPS} ? T(0) : T(gt_gelu(x) * gt_float<T>(scale))",
    "dropout.cuh", "gt_gelu_dropout")
_GELU_GRAD = elementwise(
    f"T g, T x, {_GIVEN}", "T y",
    f"y = {_DROPS} ? T(0) : T(gt_gelu_grad(g, x) * gt_float<T>(scale))",
    "dropout.cuh", "gt_gelu_dropout_grad")


def _gelu_cpu(
    x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    out = host().empty(x.shape, x.dtype, "gelu_dropout") if out is None else out
    raw["cpu"].gelu(x, approximate="none", out=out)
    return raw["cpu"].dropout(out, p=p, seed=seed, shared=shared, out=out)


def _gelu_gpu(
    x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    made: Array = _GELU(x, *_numbers(x, p, seed, shared), out=out)
    return made


def _gelu_grad_cpu(
    g: Array, x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    kept = raw["cpu"].dropout(g, p=p, seed=seed, shared=shared, out=out)
    return raw["cpu"].gelu_grad(
        kept, x, approximate="none", out=kept if out is None else out)


def _gelu_grad_gpu(
    g: Array, x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    made: Array = _GELU_GRAD(g, x, *_numbers(g, p, seed, shared), out=out)
    return made


def _gelu_grad_composed(
    g: Tensor, x: Tensor, *, p: float, seed: int, shared: int = 0
) -> Any:
    return recorded.gelu_grad(dropout_op(g, p=p, seed=seed, shared=shared), x, approximate="none")


def _mask_of_all(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """One mask for all examples, of inputs that all have their axis then."""
    size = batch_size(inputs, mapped)
    whole = [spread(ns, x, m, size) for x, m in zip(
        aligned(ns, inputs, mapped), mapped, strict=True)]
    return run(*whole, **{**params, "shared": params.get("shared", 0) + 1})


op(
    "gelu_dropout_grad", cpu=_gelu_grad_cpu, gpu=_gelu_grad_gpu, backward=None, tangent=None,
    composed=_gelu_grad_composed, batch=_mask_of_all, samples=alike(2, p=0.3, seed=7),
    doc="The gradient of gelu_dropout(x).",
)

gelu_dropout = op(
    "gelu_dropout", cpu=_gelu_cpu, gpu=_gelu_gpu,
    backward=pointwise(partial("x", "gelu_dropout_grad")), batch=_same_mask,
    samples=[*unary(p=0.3, seed=7), *unary(p=0.3, seed=7, shared=1)[1:3]],
    doc="dropout(gelu(x)). Parameters as of dropout.",
)


# -- in one pass with a sum after it ---------------------------------------------------------------

_SUM = elementwise(
    f"T x, U branch, {_GIVEN}", "T y",
    f"y = {_DROPS} ? x : T(gt_up(x) + gt_float<T>(gt_up(branch)) * gt_float<T>(scale))",
    "dropout.cuh", "gt_dropout_sum")


def _sum_cpu(
    x: Array, branch: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    kept = raw["cpu"].dropout(branch, p=p, seed=seed, shared=shared)
    same = kept.dtype == x.dtype and kept.ndim > 0
    made: Array = raw["cpu"].add(x, kept, out=kept if out is None and same else out)
    return made


def _sum_gpu(
    x: Array, branch: Array, *, p: float, seed: int | Array, shared: int = 0,
    out: Array | None = None,
) -> Array:
    made: Array = _SUM(x, branch, *_numbers(branch, p, seed, shared), out=out)
    return made


def _sum_backward(ns: Namespace, step: Step, g: Array) -> None:
    params = step.params
    if not step.needs(1):
        step.give(0, g)
        return
    if step.needs(0):
        step.lend(0, g)
    own: Any = step.parents[1]
    step.give(1, ns.dropout(in_dtype(ns, g, own.dtype), **params))


def _sum_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    moved, branch = tangents
    if branch is None:
        return moved
    kept = in_dtype(ns, ns.dropout(branch, **params), out.dtype)
    return kept if moved is None else ns.add(moved, kept)


dropout_sum = op(
    "dropout_sum", cpu=_sum_cpu, gpu=_sum_gpu, backward=_sum_backward, tangent=_sum_tangent,
    batch=_mask_of_all,
    samples=[Sample((shape, shape), params={"p": 0.3, "seed": 7}) for shape in (
        (7,), (3, 5), (2, 0), ())],
    doc="x + dropout(branch), of one shape; the branch may have a lower dtype. Parameters as of "
        "dropout.",
)


# -- functions of layers ---------------------------------------------------------------------------

_AFTER = {"relu": relu_dropout, "gelu": gelu_dropout}


def activated_dropout(x: Tensor, activation: str, p: float) -> Tensor:
    """dropout(activation(x)) with "relu" or exact "gelu", in training."""
    if p == 0.0 or vectorizing():  # whose `randomness` decides
        return dropout(relu(x) if activation == "relu" else gelu(x), p)
    return _AFTER[activation](x, p=float(p), seed=fresh_seed(x.device))


def residual_dropout(x: Tensor, branch: Tensor, p: float) -> Tensor:
    """x + dropout(branch), in training."""
    fits = x.shape == branch.shape and sums_in(x.dtype, branch.dtype)
    if p == 0.0 or vectorizing() or not fits:
        return x + dropout(branch, p)
    return dropout_sum(x, branch, p=float(p), seed=fresh_seed(x.device))
