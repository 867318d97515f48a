"""The exponential of matrices, by Pade's approximation of a scaled matrix, squared again.

Its derivative in a direction E is a block of the exponential of [[A, E], [0, A]], so that gradients
and tangents of every order are exponentials of larger matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.batching import unchanged
from gtensor.ops.linalg.decompositions import leaning
from gtensor.ops.linalg.matrix_products import (
    adjoint,
    gpu_factors,
    matrices,
    matrix_paths,
)

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # expm is public in gtensor.linalg

# Of the approximants [m/m]: the largest 1-norm for which the error is below 2**-53, coefficients.
_APPROXIMANTS = (
    (1.495585217958292e-2, (120., 60., 12., 1.)),
    (2.539398330063230e-1, (30240., 15120., 3360., 420., 30., 1.)),
    (9.504178996162932e-1, (17297280., 8648640., 1995840., 277200., 25200., 1512., 56., 1.)),
    (2.097847961257068, (17643225600., 8821612800., 2075673600., 302702400., 30270240., 2162160.,
                         110880., 3960., 90., 1.)),
    (5.371920351148152, (64764752532480000., 32382376266240000., 7771770303897600.,
                         1187353796428800., 129060195264000., 10559470521600., 670442572800.,
                         33522128640., 1323241920., 40840800., 960960., 16380., 182., 1.)))


def _expm_path(xp: ModuleType, x: Array) -> Array:
    """Each matrix has its number of squarings; a batch has one approximant."""
    if not x.size:
        return x.copy()
    sizes = xp.abs(x).sum(axis=-2).max(axis=-1)
    largest = float(sizes.max())  # waits for a GPU
    if not np.isfinite(largest):
        return xp.where(xp.isfinite(sizes)[..., None, None], _expm_path(
            xp, xp.where(xp.isfinite(sizes)[..., None, None], x, 0)), np.nan).astype(x.dtype)
    bound, terms = next((a for a in _APPROXIMANTS if largest <= a[0]), _APPROXIMANTS[-1])
    halvings = xp.maximum(xp.ceil(xp.log2(xp.maximum(sizes / bound, 1))), 0)[..., None, None]
    result = _approximant(xp, x * (0.5 ** halvings).astype(x.real.dtype), terms)
    for turn in range(int(halvings.max())):
        result = xp.where(turn < halvings, result @ result, result)
    return result


def _approximant(xp: ModuleType, x: Array, terms: tuple[float, ...]) -> Array:
    """p(x) / p(-x), p with these coefficients from the lowest on."""
    unit = xp.eye(x.shape[-1], dtype=x.dtype)
    square = x @ x
    power, even, odd = unit, terms[0] * unit, terms[1] * unit
    for i in range(2, len(terms), 2):
        power = power @ square if i > 2 else square
        even, odd = even + terms[i] * power, odd + terms[i + 1] * power
    odd = x @ odd
    solve = np.linalg.solve if isinstance(x, np.ndarray) else gpu_factors().solve
    return solve(even - odd, even + odd)


def _block(ns: Namespace, x: Any, direction: Any) -> Any:
    """The derivative at x in a direction: the corner of the exponential of both."""
    n = x.shape[-1]
    none = ns.multiply(x, 0.0)
    upper = ns.concat(x, direction, axis=-1, sizes=(n, n))
    lower = ns.concat(none, x, axis=-1, sizes=(n, n))
    both = ns.concat(upper, lower, axis=-2, sizes=(n, n))
    return ns.slice(ns.expm(both), key=(..., slice(0, n), slice(n, None)))


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, _block(ns, adjoint(ns, step.saved[0]), g))


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    return _block(ns, primals[0], tangents[0])


def _scattered(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Matrices whose norms need different numbers of squarings."""
    return leaning(rng, shape) * rng.uniform(0.05, 3, (*shape[:-2], 1, 1))


_expm = op(
    "expm", **matrix_paths("expm", _expm_path), floating=True, complex=True, saves={"x": "x"},
    backward=_backward, tangent=_tangent, batch=unchanged,
    samples=[Sample((s,), _scattered) for s in (
        (1, 1, 1), (1, 3, 3), (4, 2, 2), (0, 2, 2), (2, 0, 0))],
    reference=lambda torch, x: torch.linalg.matrix_exp(x),
    doc="The exponential of square matrices.",
)


def expm(x: Tensor, /) -> Tensor:
    """The exponential I + x + x @ x / 2 + ... of square matrices (..., n, n). SciPy's.

    Gradients of every order are exponentials of matrices of 2n rows; complex matrices have them,
    too. A matrix that is not finite gives NaN. Waits for a GPU, to read the norm.

    Raises LinAlgError (a ValueError) unless x is square. Source: Higham, "The scaling and squaring
    method for the matrix exponential revisited", 2005.

        gt.linalg.expm(gt.tensor([[0.0, 1.0], [0.0, 0.0]]))            # [[1, 1], [0, 1]]
    """
    return _expm(matrices(x, "expm", square=True))
