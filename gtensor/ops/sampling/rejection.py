"""Draws by proposals that are accepted or rejected, from bits that follow from an element's key.

Word n of a key is that of SplitMix64 started there (Steele, Lea, Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014): a function of both numbers, so CPU and GPU have the
same bits in any order. The keys are drawn on the host, from gtensor's generator. Everything is
computed in float64, so values differ between devices by the roundings of logarithms and the like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.kernels import elementwise
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below
from gtensor.ops.define.batching import broadcasting
from gtensor.ops.define.cpu_tiles import whole_tiles
from gtensor.ops.define.path_builders import promoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtensor.backend.typing import Array, Path
    from gtensor.engine.tape.op import Op
    from gtensor.engine.tape.samples import Draw

# `draw(keys, *parameters)` of vectors, and `attempt(bits, *parameters)` -> (values, accepted).
Sampler = Callable[..., np.ndarray]
Attempt = Callable[..., tuple[np.ndarray, np.ndarray]]

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Bits:
    """The words of the elements' keys, one after another."""

    def __init__(self, keys: np.ndarray, used: int = 0) -> None:
        self.keys = keys
        self.used = used

    def uniform(self) -> np.ndarray:
        """The next word of each, as a number in (0, 1): a multiple of 2**-53, never 0 or 1."""
        self.used += 1
        z = self.keys + np.uint64(self.used * _GOLDEN % 2**64)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            z ^= z >> np.uint64(shift)
            z *= np.uint64(factor)
        z ^= z >> np.uint64(31)
        z >>= np.uint64(12)
        return (z.view(np.int64) + 0.5) * 2.0**-52

    def normal(self) -> np.ndarray:
        """Standard normal values, of two words (Box and Muller, 1958)."""
        radius = np.sqrt(-2 * np.log(self.uniform()))
        return radius * np.cos(2 * np.pi * self.uniform())


def accepted(bits: Bits, attempt: Attempt, *parameters: np.ndarray) -> np.ndarray:
    """The first value of each element that its attempts accept."""
    values, good = attempt(bits, *parameters)
    left = np.flatnonzero(~good)
    while left.size:
        bits = Bits(bits.keys[~good], bits.used)
        parameters = tuple([p[~good] for p in parameters])
        found, good = attempt(bits, *parameters)
        values[left[good]] = found[good]
        left = left[~good]
    return values


def by_cases(
    keys: np.ndarray, parameters: Sequence[np.ndarray],
    cases: Sequence[tuple[np.ndarray, Sampler]],
) -> np.ndarray:
    """Each element by the first case whose condition holds; NaN where none does."""
    values = np.full(keys.shape, np.nan)
    due = np.ones(keys.shape, bool)
    for condition, draw in cases:
        chosen = np.flatnonzero(due & condition)
        if chosen.size == keys.size:
            return draw(keys, *parameters)
        if chosen.size:
            values[chosen] = draw(keys[chosen], *[p[chosen] for p in parameters])
            due[chosen] = False
    return values


def _on_cpu(name: str, draw: Sampler) -> Path:
    def path(*arrays: Array, out: Array | None = None, **params: Any) -> Array:
        *given, keys = np.broadcast_arrays(*arrays)
        if out is None:
            out = host().empty(keys.shape, np.result_type(*[a.dtype for a in given]), name)
        with np.errstate(all="ignore"):
            for tile in whole_tiles(keys.shape):
                parts = [a[tile].astype(np.float64).reshape(-1) for a in given]
                some = keys[tile]
                found = draw(some.astype(np.int64).view(np.uint64).reshape(-1), *parts, **params)
                out[tile] = found.reshape(some.shape)
        return out

    return path


def _on_gpu(name: str, count: int, params: Sequence[str]) -> Path:
    letters = "abcd"[:count]
    given = "".join([f", {p}" for p in params])
    values = ", ".join([f"double(gt_up({x}))" for x in letters])
    kernel = elementwise(
        ", ".join([*[f"T {x}" for x in letters], "int64 key", *[f"bool {p}" for p in params]]),
        "T y", f"y = T(gt_float<T>(gt_{name}(key, {values}{given})))", "sampling.cuh", f"gt_{name}")

    def path(*arrays: Array, out: Array | None = None, **chosen: Any) -> Array:
        *parameters, keys = arrays
        return kernel(*promoted(*parameters), keys.astype(np.int64, copy=False),
                      *[chosen[p] for p in params], out=out)

    return path


def sampler(
    name: str, draw: Sampler, inputs: str, draws: tuple[Draw, ...], doc: str,
    params: Sequence[dict[str, Any]] = ({},),
) -> Op:
    """Register the op of a sampler, whose kernel is `gt_<name>` of kernels/sampling.cuh.

    Args:
        draw: `draw(keys, *parameters, **params)` on the CPU, of vectors: keys uint64, else float64.
        inputs: the names of the parameters, which broadcast against each other and the keys.
        draws: of each parameter's samples.
        params: of the samples, each of all names.
    """
    count = len(draws)
    samples = [
        Sample(shapes, (*draws, below(2**62)), chosen) for chosen in params for shapes in (
            ((7,),) * (count + 1), ((2, 1, 3),) * count + ((2, 4, 3),), ((0, 3),) * (count + 1),
            ((),) * (count + 1))]
    return op(name, inputs=f"{inputs} keys", cpu=_on_cpu(name, draw),
              gpu=_on_gpu(name, count, list(params[0])), backward=None, tangent=None,
              batch=broadcasting, samples=samples, doc=doc)
