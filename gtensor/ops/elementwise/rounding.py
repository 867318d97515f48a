"""Functions that are constant almost everywhere, and the remainder.

Their derivative is 0 where it exists, and gtensor uses 0 elsewhere, as PyTorch does.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import alike, apart, binary, normal, unary
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import cupy_function, placed, settled, ufunc
from gtensor.ops.define.pointwise import identity, partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.handle.tensor import Operand, Tensor

__all__ = ["ceil", "floor", "floor_divide", "remainder", "round", "sign", "trunc"]

ZERO = partial("", lambda ns, g, out: ns.zero_gradient(g, out=out))
"""The derivative is 0: zeros even where g is infinite, and nothing saved."""


def _zeros_path(device: Device, g: Array, out: Array | None = None) -> Array:
    if out is None:
        out = device.empty(g.shape, g.dtype, "zero_gradient")
    out[...] = 0
    return out


zero_gradient = op(
    "zero_gradient", **placed(_zeros_path), backward=pointwise(ZERO), complex=True,
    samples=unary(), reference=lambda torch, g: g.detach() * 0,
    doc="Zeros of g's shape and dtype: the gradient of what is constant almost everywhere.",
)


def _constant(
    name: str, reference: Path, doc: str, cpu: Path | None = None, gpu: Path | None = None
) -> Op:
    function = getattr(np, name)
    return op(name, inputs="x", cpu=cpu or ufunc(function), gpu=gpu or cupy_function(name),
              backward=pointwise(ZERO), samples=unary(), reference=reference,
              doc=f"{doc} Its gradient is 0.")


_nearest, _copied = ufunc(np.rint), ufunc(np.floor)  # floor copies integers and booleans


def _round_cpu(x: Array, out: Array | None = None) -> Array:
    return _nearest(x, out) if x.dtype.kind in "fVc" else _copied(x, out)


def _whole_gpu(name: str) -> Path:
    """CuPy's function of that name; integers and booleans, which it would make floats, as is."""

    def path(x: Array, out: Array | None = None) -> Array:
        if x.dtype.kind in "fVc":
            return getattr(cupy(), name)(x, out=out)
        return settled(x.copy(), out)

    return path


floor = _constant("floor", lambda torch, x: torch.floor(x),
                  "The largest whole number up to x; integers as they are.",
                  gpu=_whole_gpu("floor"))
ceil = _constant("ceil", lambda torch, x: torch.ceil(x),
                 "The smallest whole number from x on; integers as they are.",
                 gpu=_whole_gpu("ceil"))
trunc = _constant("trunc", lambda torch, x: torch.trunc(x),
                  "x without its fraction; integers as they are.", gpu=_whole_gpu("trunc"))
_round = _constant("round", lambda torch, x: torch.round(x),
                  "The nearest whole number, a half to the even one; integers as they are.",
                  _round_cpu, _whole_gpu("rint"))


@takes_arrays
def round(x: Operand, /, decimals: int = 0) -> Tensor:
    """The nearest whole number, a half to the even one; or of so many decimals. Gradient 0.

    Integers are as they are. Negative decimals round to tens, hundreds, ...
    """
    decimals = index(decimals)
    if not decimals:
        return _round(x)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return recorded.divide(_round(recorded.multiply(x, scale)), scale)
    return recorded.multiply(_round(recorded.divide(x, scale)), scale)


sign = _constant("sign", lambda torch, x: torch.sign(x),
                 "-1, 0 or 1 by the sign of x; x / |x| of a complex x; NaN of NaN (PyTorch: 0).")

floor_divide = op(
    "floor_divide", cpu=ufunc(np.floor_divide), gpu=cupy_function("floor_divide", "fV", elementwise(
        "T x1, T x2", "T y", "y = gt_floor_divide(x1, x2)", "division.cuh")),
    backward=pointwise(ZERO, ZERO),
    samples=binary(normal, apart),
    reference=lambda torch, a, b: torch.div(a, b, rounding_mode="floor"),
    doc="The largest whole number up to x1 / x2, elementwise with broadcasting. Its gradient is 0. "
        "Integers divided by 0 are 0, with a warning on the CPU; PyTorch raises.",
)

remainder_grad = fused(
    "remainder_grad", lambda ns, g, x1, x2: -(g * ns.floor_divide(x1, x2)),
    gpu=elementwise("T g, T x1, T x2", "T dx", "dx = -(gt_up(g) * gt_floor_divide(x1, x2))",
                    "division.cuh", name="gt_remainder_grad"),
    samples=alike(3, (normal, normal, apart)),
    reference=lambda torch, g, a, b: -(g * torch.div(a, b, rounding_mode="floor")),
    doc="The gradient of the remainder with respect to the divisor x2.",
)

remainder = op(
    "remainder", cpu=ufunc(np.remainder), gpu=cupy_function("remainder", "fV", elementwise(
        "T x1, T x2", "T y", "y = gt_remainder(x1, x2)", "division.cuh")),
    backward=pointwise(
        identity,
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.remainder_grad(g, x1, x2, out=out))),
    samples=binary(normal, apart), reference=lambda torch, a, b: torch.remainder(a, b),
    doc="x1 - x2 * floor(x1 / x2), elementwise with broadcasting: it has the sign of x2.",
)
