"""What captured steps prepare of linear maps on the CPU."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

import gtensor.nn  # noqa: F401  which defines the ops
from gtensor.engine.tape.op import registry


def fact(a: Any) -> Any:
    return a if a is None else SimpleNamespace(
        shape=a.shape, dtype=a.dtype, contiguous=a.flags.c_contiguous, dense=a.flags.forc)


def parts(made: Any) -> list[tuple[Any, ...]]:
    made = made if isinstance(made, tuple) else (made,)
    return [(a.shape, a.dtype, a.strides, a.tobytes()) for a in made]


def test_prepared_paths_have_the_same_bits(rng: np.random.Generator) -> None:
    """Of rows with any leading axes, in some layouts; those that are not prepared are told."""
    served = set()
    for lead, dtype, turned in product([(6,), (1, 5), (3, 2, 4), (0, 3), (1,)], ["f4", "f8", "f2"],
                                       [False, True]):
        def drawn(*shape: int, dtype: str = dtype, turned: bool = turned) -> np.ndarray:
            a = rng.standard_normal(shape[::-1] if turned else shape).astype(dtype)
            return a.T if turned else a

        x, weight, bias, g = drawn(*lead, 16), drawn(8, 16), drawn(8), drawn(*lead, 8)
        for name, given in (("linear", (x, weight, None)), ("linear", (x, weight, bias)),
                            ("linear_sum", (x, weight, bias, g)), ("linear_grads", (g, x)),
                            ("linear_grad_weight", (g, x))):
            path = registry[name].cpu
            run = getattr(path, "func", path).prepare(*map(fact, given))
            if run is not None:
                served.add((name, len(lead), dtype, turned))
                assert parts(run(*given)) == parts(path(*given)), (name, lead, dtype, turned)
    assert served >= {(name, n, dtype, False) for name, n, dtype in product(
        ("linear", "linear_sum", "linear_grads", "linear_grad_weight"), (1, 2, 3), ("f4", "f8"))}
    assert {key[1] for key in served if key[3]} == {1, 2}  # of two axes, or empty ones
    assert not {key for key in served if key[2] == "f2"}
