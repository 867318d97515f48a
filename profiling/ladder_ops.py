"""Every elementwise and reduction op of the registry against the NumPy (CuPy) one would write.

    python profiling/ladder_ops.py                      # all of them, at 1e3 and 1e6 elements
    python profiling/ladder_ops.py --only "exp 1000"    # one op at one size
    python profiling/ladder_ops.py --device cuda        # against CuPy, for information

An op names the NumPy function that its CPU path computes: a ufunc, or the formula of a fused op
evaluated on whole arrays. Reductions are paired by the standard's names. The last figure says how
many ops miss the target, which is 1.5 times NumPy's time and 1 microsecond.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Figure, Options, Part, main
from workloads import values

import gtensor as gt
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define import formula_numpy

SIZES = (1_000, 1_000_000)
MOST, BESIDE = 1.5, 1e-6
REDUCTIONS = {  # gtensor's name -> NumPy's
    "sum": "sum", "prod": "prod", "mean": "mean", "max": "max", "min": "min", "std": "std",
    "var": "var", "any": "any", "all": "all", "argmax": "argmax", "argmin": "argmin",
    "count_nonzero": "count_nonzero", "cumulative_sum": "cumsum", "cumulative_prod": "cumprod",
}


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """One part per op and size, and the count of those that miss."""
    device = gt.device(options.device)
    gt.set_default_device(device)
    done: list[Ladder] = []
    for size in SIZES:
        for name, op in registry.items():
            plain = counterpart(op, device.xp)
            if plain is not None:
                yield f"{name} {size}", lambda op=op, plain=plain, size=size: climb(
                    done, elementwise(op, plain, size))
        for name in REDUCTIONS:
            yield f"{name} {size}", lambda n=name, size=size: climb(done, reduction(n, size))
    if options.device == "cpu":
        yield "ops over the target", lambda: [missed(done)]


def counterpart(op: Op, xp: Any) -> Callable[..., Any] | None:
    """The library's function that the op's CPU path stands for; None if it has none."""
    plain = getattr(op.cpu, "plain", None)
    if isinstance(plain, partial):  # a formula of the namespace
        whole = partial(plain.func, numpy_functions() if xp is np else cupy_functions())
        try:
            elementwise(op, whole, 1).reference()
        except AttributeError:  # it has a function that the library lacks
            return None
        return whole
    return plain if xp is np or plain is None else getattr(xp, plain.__name__, None)


def numpy_functions() -> Any:
    """NumPy's functions by the names of ops, and SciPy's where it has none."""
    from scipy import special

    return SimpleNamespace(**{**vars(formula_numpy.plain), "erf": special.erf})


def cupy_functions() -> Any:
    """CuPy's functions by the names of ops, with those that lie elsewhere in it."""
    import cupy
    from cupyx.scipy import special

    return SimpleNamespace(**{**vars(cupy), "erf": special.erf, "sigmoid": special.expit})


def climb(done: list[Ladder], ladder: Ladder) -> Iterator[Part]:
    """The ladder, remembered for the count."""
    done.append(ladder)
    yield ladder


def missed(done: list[Ladder]) -> Figure:
    """How many of the ladders miss their target, and which."""
    names = [la.name for la in done if not all(la.met(t) for t in la.targets)]
    return Figure("ops over the target", len(names), 0, f"of {len(done)}", ", ".join(names))


def elementwise(op: Op, plain: Callable[..., Any], size: int) -> Ladder:
    """An op called with tensors, and the library's function with the arrays."""
    assert op.samples is not None
    sample = next(iter(op.samples() if callable(op.samples) else op.samples))
    arrays = drawn(replace(sample, shapes=tuple(
        None if shape is None else (size,) for shape in sample.shapes)))
    own = partial(op, **sample.params) if sample.params else op
    plain = partial(plain, **sample.params) if sample.params else plain
    return pair(f"{op.name} {size}", own, lambda: plain(*arrays), arrays)


def drawn(sample: Sample) -> list[Any]:
    """Arrays of the device with values as the sample draws them; floats in float32."""
    found = sample.arrays(np.random.default_rng(0))
    return [None if a is None else placed(a.astype(np.float32) if a.dtype == np.float64 else a)
            for a in found]


def placed(array: np.ndarray) -> Any:
    """The array on the device that is measured."""
    return gt.default_device().from_numpy(array)


def reduction(name: str, size: int) -> Ladder:
    """A reduction of a whole tensor, and NumPy's."""
    rng = np.random.default_rng(0)
    x = placed(rng.uniform(0.9, 1.1, size).astype(np.float32))
    plain = getattr(gt.default_device().xp, REDUCTIONS[name])
    return pair(f"{name} {size}", getattr(gt, name), lambda: plain(x), [x])


def pair(
    name: str, own: Callable[..., Any], plain: Callable[[], Any], arrays: list[Any]
) -> Ladder:
    """A ladder of the two, with the target."""
    tensors = [None if a is None else gt.asarray(a) for a in arrays]
    device = gt.default_device()
    ladder = Ladder(name, plain, tolerance=1e-4, device=device.type)
    ladder.rung("gtensor", lambda: own(*tensors), result=values)
    library = device.xp.__name__
    ladder.rung(library, plain)
    if device.type == "cpu":
        ladder.target("gtensor", library, MOST, BESIDE)
    else:
        ladder.compare("gtensor", library)
    return ladder


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_ops"))
