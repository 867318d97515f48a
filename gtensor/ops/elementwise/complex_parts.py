"""Complex values: their parts, conjugate and modulus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, alike, apart, complex_normal, unary
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import cupy_function, ufunc

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__ = ["abs", "conj", "imag", "real"]


def _both() -> list[Sample]:
    return [*unary(), *unary(complex_normal)]


def _part(name: str) -> Path:
    """The path of both devices: a view, of every other number of the memory."""

    def path(x: Array, out: Array | None = None) -> Array:
        if out is None:
            return getattr(x, name)
        out[...] = getattr(x, name)
        return out

    return path


conj = op(
    "conj", cpu=ufunc(np.conjugate), gpu=cupy_function("conj"), complex=True,
    backward=lambda ns, step, g: step.give(0, ns.conj(g) if g.dtype.kind == "c" else g),
    tangent=lambda ns, primals, tangents, out, params: ns.conj(tangents[0]),
    batch=unchanged,
    samples=_both(), reference=lambda torch, x: torch.conj(x).resolve_conj(),
    doc="The complex conjugate, elementwise; real values as they are.",
)

real = op(  # of a complex input the gradient has the real dtype here: the step widens it
    "real", cpu=_part("real"), gpu=_part("real"), view=True, complex=True,
    backward=lambda ns, step, g: step.give(0, g),
    tangent=lambda ns, primals, tangents, out, params: ns.real(tangents[0]),
    batch=unchanged,
    samples=_both(), reference=lambda torch, x: torch.real(x),
    doc="The real part, elementwise: a view of x; of a real x, x itself.",
)

imag_op = op(
    "imag", cpu=_part("imag"), gpu=_part("imag"), view=True, complex=True,
    backward=lambda ns, step, g: step.give(0, ns.multiply(g, 1j)),
    tangent=lambda ns, primals, tangents, out, params: ns.imag(tangents[0]),
    batch=unchanged,
    samples=unary(complex_normal), reference=lambda torch, x: torch.imag(x),
    doc="The imaginary part of a complex tensor, elementwise: a view of x.",
)


@takes_arrays
def imag(x: Tensor, /) -> Tensor:
    """The imaginary part of a complex tensor: a view of x. Raises TypeError if x is real."""
    if x.dtype.kind != "c":
        raise TypeError(f"imag was given a tensor of dtype {x.dtype}; wanted a complex one")
    return imag_op(x)


# -- modulus ---------------------------------------------------------------------------------------


def _direction(ns: Namespace, x: Array) -> Array:
    """x / |x|, and 0 at 0."""
    if x.dtype.kind != "c":
        return ns.sign(x)
    size = ns.abs(x)
    return x / ns.where(ns.equal(size, 0), 1.0, size)


_abs_grad_kernel = elementwise("T g, T x", "T dx", "dx = g * T((x > T(0)) - (x < T(0)))")


def _abs_grad_gpu(g: Array, x: Array, out: Array | None = None) -> Array:
    if x.dtype.kind != "c":
        return _abs_grad_kernel(g, x, out=out)
    return cupy().multiply(g, _direction(cupy(), x), out=out)


abs_grad = fused(
    "abs_grad", lambda ns, g, x: g * _direction(ns, x), gpu=_abs_grad_gpu,
    samples=alike(2, apart), reference=lambda torch, g, x: g * torch.sign(x),
    doc="The gradient of |x|: g in the direction of x, 0 where x is 0.",
)


def _abs_backward(ns: Namespace, step: Step, g: Array) -> None:
    x = step.saved[0]
    step.give(0, ns.abs_grad(g, x, out=None if x.dtype.kind == "c" else step.reuse(g)))


def _abs_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    x, dx = primals[0], tangents[0]
    return ns.real(ns.conj(ns.abs_grad(ns.conj(dx), x))) if x.dtype.kind == "c" else (
        ns.abs_grad(dx, x))


abs = op(
    "abs", cpu=ufunc(np.absolute), gpu=cupy_function("absolute"), complex=True,
    backward=_abs_backward, tangent=_abs_tangent, batch=unchanged, saves={"x": "x"},
    samples=[*unary(apart), *unary(complex_normal)], reference=lambda torch, x: torch.abs(x),
    doc="|x|, elementwise; the gradient at 0 is 0.",
)
