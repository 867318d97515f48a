"""Discrete Fourier transforms, over NumPy's and CuPy's, with gradients through complex values.

Three ops transform without changing sizes: complex to complex, real to the half spectrum, and back.
Each is linear, so its gradient is its adjoint: the conjugate transform with the scale of the same
side, that is, the inverse with "backward" and "forward" exchanged. The half spectrum lacks the
conjugates of its interior bins, so the inverse counts these bins twice: the adjoints of the real
transforms weight them by 1/2 and 2. Padding and truncation are ops before the transform.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, complex_normal, normal
from gtensor.ops.arrange.shape import (
    along,
    axis_index,
    from_end,
    linear_tangent,
    resized,
)
from gtensor.ops.define.arguments import given_axis
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.flops import of_transform
from gtensor.ops.define.path_builders import on_gpu, placed, settled
from gtensor.ops.linalg.matrix_products import is_half

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

__all__: list[str] = []  # the functions are public in gtensor.fft

Axes = tuple[int, ...]
Ints: TypeAlias = Sequence[int] | None
Norm = Literal["backward", "ortho", "forward"]
_OTHER_SIDE: dict[str, Norm] = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


# -- the three transforms --------------------------------------------------------------------------


def _complex_of(dtype: np.dtype) -> np.dtype:
    return np.result_type(np.float32 if is_half(dtype) else dtype, np.complex64)


def _computed(x: Array) -> Array:
    """Half types are transformed in float32."""
    return x.astype(np.float32) if is_half(x.dtype) else x


def _on_gpu(device: Device, cpu: str, x: Array, out: Array | None, **options: Any) -> Array:
    """By CuPy's function of that name, which has no `out`."""
    if x.size == 0:  # which CuPy refuses: NumPy knows the shape
        empty = np.empty(x.shape, _computed(x).dtype)
        return settled(device.from_numpy(getattr(np.fft, cpu)(empty, **options)), out)
    device.order_transforms()
    return settled(getattr(cupy().fft, cpu)(_computed(x), **options), out)


def _c2c_cpu(x: Array, *, axes: Axes, inverse: bool, norm: Norm, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(x.shape, _complex_of(x.dtype), "fft_c2c")
    transform = np.fft.ifftn if inverse else np.fft.fftn
    return transform(_computed(x), axes=axes, norm=norm, out=out)


def _c2c_gpu(
    device: Device, x: Array, *, axes: Axes, inverse: bool, norm: Norm, out: Array | None = None
) -> Array:
    return _on_gpu(device, "ifftn" if inverse else "fftn", x, out, axes=axes, norm=norm)


def _c2c_backward(ns: Namespace, step: Step, g: Array) -> None:
    params = step.params
    step.give(0, ns.fft_c2c(g, axes=params["axes"], inverse=not params["inverse"],
                            norm=_OTHER_SIDE[params["norm"]]))


fft_c2c = op(
    "fft_c2c", flops=of_transform, cpu=_c2c_cpu, gpu=on_gpu(_c2c_gpu), complex=True, floating=True,
    backward=_c2c_backward, tangent=linear_tangent("fft_c2c"), batch=unchanged,
    samples=[Sample((shape,), complex_normal, {"axes": axes, "inverse": back, "norm": norm})
             for shape, axes, back, norm in (((5,), (-1,), False, "backward"),
                                             ((3, 4), (-2, -1), True, "ortho"),
                                             ((0, 3), (-1,), False, "forward"))],
    doc="The discrete Fourier transform over axes, or its inverse; of complex or real values.",
)


def _r2c_cpu(x: Array, *, axes: Axes, norm: Norm, out: Array | None = None) -> Array:
    if out is None:
        shape = resized(x.shape, axes[-1], x.shape[axes[-1]] // 2 + 1)
        out = host().empty(shape, _complex_of(x.dtype), "fft_r2c")
    return np.fft.rfftn(_computed(x), axes=axes, norm=norm, out=out)


def _r2c_gpu(
    device: Device, x: Array, *, axes: Axes, norm: Norm, out: Array | None = None
) -> Array:
    return _on_gpu(device, "rfftn", x, out, axes=axes, norm=norm)


def _r2c_backward(ns: Namespace, step: Step, g: Array) -> None:
    (*others, last), norm = step.params["axes"], _OTHER_SIDE[step.params["norm"]]
    size, spectrum = step.shape(0)[last], g
    if others:
        spectrum = ns.fft_c2c(g, axes=tuple(others), inverse=True, norm=norm)
    halved = ns.fft_interior(spectrum, axis=last, size=size, factor=0.5,
                             out=spectrum if others else step.reuse(g))
    step.give(0, ns.fft_c2r(halved, axes=(last,), size=size, norm=norm))


fft_r2c = op(
    "fft_r2c", flops=of_transform, cpu=_r2c_cpu, gpu=on_gpu(_r2c_gpu), complex=True, floating=True,
    backward=_r2c_backward, tangent=linear_tangent("fft_r2c"), batch=unchanged,
    samples=[Sample((shape,), normal, {"axes": axes, "norm": norm})
             for shape, axes, norm in (((5,), (-1,), "backward"), ((3, 4), (-2, -1), "ortho"),
                                       ((0, 3), (-1,), "forward"))],
    doc="The discrete Fourier transform of real values over axes: the half of the spectrum along "
        "the last of them that the other half is the conjugate of.",
)


def _sizes_back(x: Array, axes: Axes, size: int) -> Axes:
    return (*(x.shape[a] for a in axes[:-1]), size)


def _c2r_cpu(x: Array, *, axes: Axes, size: int, norm: Norm, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(resized(x.shape, axes[-1], size), _real_of(x.dtype), "fft_c2r")
    return np.fft.irfftn(_computed(x), s=_sizes_back(x, axes, size), axes=axes, norm=norm, out=out)


def _real_of(dtype: np.dtype) -> np.dtype:
    return np.finfo(_complex_of(dtype)).dtype


def _c2r_gpu(
    device: Device, x: Array, *, axes: Axes, size: int, norm: Norm, out: Array | None = None
) -> Array:
    if x.dtype.kind != "c":  # CuPy chooses its transform by the layout, before it converts x
        x = _computed(x).astype(_complex_of(x.dtype), order="C")
    return _on_gpu(device, "irfftn", x, out, s=_sizes_back(x, axes, size), axes=axes, norm=norm)


def _c2r_backward(ns: Namespace, step: Step, g: Array) -> None:
    axes, size = step.params["axes"], step.params["size"]
    spectrum = ns.fft_r2c(g, axes=axes, norm=_OTHER_SIDE[step.params["norm"]])
    step.give(0, ns.fft_interior(spectrum, axis=axes[-1], size=size, factor=2.0, out=spectrum))


def _torch_c2r(torch: Any, x: Any, axes: Axes, size: int, norm: Norm) -> Any:
    if x.numel() == 0:  # which PyTorch refuses
        return torch.zeros(resized(x.shape, axes[-1], size), dtype=torch.float64)
    return torch.fft.irfftn(x, _sizes_back(x, axes, size), axes, norm)


fft_c2r = op(
    "fft_c2r", flops=of_transform, cpu=_c2r_cpu, gpu=on_gpu(_c2r_gpu), complex=True, floating=True,
    backward=_c2r_backward, tangent=linear_tangent("fft_c2r"), batch=unchanged,
    samples=[Sample((shape,), complex_normal, {"axes": axes, "size": size, "norm": norm})
             for shape, axes, size, norm in (((3,), (-1,), 5, "backward"),
                                             ((3, 3), (-2, -1), 4, "ortho"),
                                             ((0, 2), (-1,), 3, "forward"))],
    reference=_torch_c2r,
    doc="Real values from half a spectrum, `size` of them along the last axis: undoes fft_r2c.",
)


def _interior_path(
    device: Device, x: Array, *, axis: int, size: int, factor: float, out: Array | None = None
) -> Array:
    if out is None:
        out = device.copy(x, label="fft_interior")
    elif out is not x:
        out[...] = x
    out[along(axis, 1, (size + 1) // 2)] *= factor
    return out


fft_interior = op(
    "fft_interior", **placed(_interior_path), complex=True,
    backward=lambda ns, step, g: step.give(
        0, ns.fft_interior(g, **step.params, out=step.reuse(g))),
    tangent=linear_tangent("fft_interior"), batch=unchanged,
    samples=[Sample((shape,), normal, {"axis": axis, "size": size, "factor": 0.5})
             for shape, axis, size in (((4,), -1, 6), ((2, 3), -1, 5), ((1, 2), -2, 1),
                                       ((0, 2), -1, 2))],
    doc="Half a spectrum with the bins that stand for two multiplied by a factor: all but the "
        "first, and the last if `size`, of the whole spectrum, is even.",
)


# -- sizes and norms -------------------------------------------------------------------------------


def _checked_norm(norm: str | None, name: str) -> Norm:
    found = "backward" if norm is None else norm
    if found not in _OTHER_SIDE:
        raise ValueError(f"{name} was given norm={norm!r}; wanted 'backward', 'ortho' or 'forward'")
    return _OTHER_SIDE[_OTHER_SIDE[found]]


def _axes_and_sizes(x: Tensor, s: Ints, axes: Ints, name: str) -> tuple[Axes, Axes]:
    """Axes counted from the end, in their order, and how long each is to be transformed."""
    for option, given in (("s", s), ("axes", axes)):
        if given is not None and not isinstance(given, Iterable):
            raise TypeError(f"{name} was given {option}={given!r}; wanted a sequence of whole "
                            "numbers, or None")
    if axes is None:
        count = x.ndim if s is None else len(s)
        axes = range(x.ndim - count, x.ndim)
    found = tuple(from_end(axis_index(a, x.ndim, name), x.ndim) for a in axes)
    sizes = tuple(x.shape[a] for a in found) if s is None else tuple(index(n) for n in s)
    if not found or len(set(found)) < len(found) or len(sizes) != len(found):
        raise ValueError(f"{name} over axes {tuple(axes)} with sizes {sizes} of a tensor of shape "
                         f"{x.shape}; wanted different axes, and one size for each")
    return found, sizes


def _resized(x: Tensor, axes: Axes, sizes: Axes, name: str) -> Tensor:
    """x cut, or filled up with zeros, at the end of each axis."""
    if any(n < 1 for n in sizes):
        raise ValueError(f"{name} over {sizes} points along axes {tuple(a % x.ndim for a in axes)} "
                         f"of a tensor of shape {x.shape}; wanted at least 1")
    for axis, size in zip(axes, sizes, strict=True):
        if size < x.shape[axis]:
            x = recorded.slice(x, key=along(axis, None, size))
        elif size > x.shape[axis]:
            key = along(axis, None, x.shape[axis])
            x = recorded.unslice(x, key=key, shape=resized(x.shape, axis, size))
    return x


def _complex_transform(
    x: Tensor, s: Ints, axes: Ints, norm: str | None, name: str, inverse: bool
) -> Tensor:
    x, side = asarray(x), _checked_norm(norm, name)
    found, sizes = _axes_and_sizes(x, s, axes, name)
    return fft_c2c(_resized(x, found, sizes, name), axes=found, inverse=inverse, norm=side)


def _real_transform(x: Tensor, s: Ints, axes: Ints, norm: str | None, name: str) -> Tensor:
    x, side = asarray(x), _checked_norm(norm, name)
    if x.dtype.kind == "c":
        raise TypeError(f"{name} was given a tensor of dtype {x.dtype}; wanted real values")
    found, sizes = _axes_and_sizes(x, s, axes, name)
    return fft_r2c(_resized(x, found, sizes, name), axes=found, norm=side)


def _back_to_real(x: Tensor, s: Ints, axes: Ints, norm: str | None, name: str) -> Tensor:
    """Without sizes, an even number of points along the last axis."""
    x, side = asarray(x), _checked_norm(norm, name)
    found, sizes = _axes_and_sizes(x, s, axes, name)
    if s is None:
        sizes = (*sizes[:-1], 2 * (sizes[-1] - 1))
    if sizes[-1] < 1:
        raise ValueError(f"{name} to {sizes[-1]} points along axis {found[-1] % x.ndim} of a "
                         f"tensor of shape {x.shape}; wanted at least 1")
    bins = (*sizes[:-1], sizes[-1] // 2 + 1)
    return fft_c2r(_resized(x, found, bins, name), axes=found, size=sizes[-1], norm=side)


def _one(n: int | None) -> tuple[int, ...] | None:
    return None if n is None else (n,)


# -- public functions ------------------------------------------------------------------------------


def _along(axes: Ints, dim: int | Ints) -> Ints:
    """The axes, by either name. Raises TypeError for both names."""
    if dim is None:
        return axes
    if axes is not None and tuple(axes) not in ((-1,), (-2, -1)):  # which are defaults
        given_axis("the transform", axes, dim)
    return (dim,) if isinstance(dim, int) else dim


def fft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward", *,
    dim: int | None = None,
) -> Tensor:
    """The discrete Fourier transform along `axis`: sum over t of x[t] exp(-2 pi i k t / n).

    Args:
        x: complex or real; float32 gives complex64, float64 complex128.
        n: number of points; x is cut or filled up with zeros at its end. By default all of x.
        norm: where 1/n goes: "backward" (on the inverse), "forward" (on this one), or "ortho" (its
            root on both); None is "backward".
        dim: PyTorch's name of the axis.

    Raises ValueError for fewer than one point, an axis that does not exist, another norm.
    """
    return _complex_transform(x, _one(n), _along((axis,), dim), norm, "fft", False)


def ifft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward", *,
    dim: int | None = None,
) -> Tensor:
    """The inverse of `fft` along `axis`; parameters as there.

    The result is complex. Raises ValueError for n below 1 and an unknown `norm`.
    """
    return _complex_transform(x, _one(n), _along((axis,), dim), norm, "ifft", True)


def fftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`fft` along several axes (all by default), `s` points along each.

    `s` and `axes` are of one length; with `s` alone they are the last axes. The result is complex.
    Raises ValueError for another length, sizes below 1 and an unknown `norm`.
    """
    return _complex_transform(x, s, _along(axes, dim), norm, "fftn", False)


def ifftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """The inverse of `fftn`.

    The result is complex. Raises ValueError for sizes below 1 and an unknown `norm`.
    """
    return _complex_transform(x, s, _along(axes, dim), norm, "ifftn", True)


def rfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward", *,
    dim: int | None = None,
) -> Tensor:
    """`fft` of real values: the first n // 2 + 1 bins, of which the others are conjugates.

    Raises TypeError for complex values.
    """
    return _real_transform(x, _one(n), _along((axis,), dim), norm, "rfft")


def irfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward", *,
    dim: int | None = None,
) -> Tensor:
    """Real values from half a spectrum: the inverse of `rfft` to n points.

    By default n = 2 * (bins - 1); give n for an odd number of points. The imaginary part of bin 0,
    and of bin n / 2, counts as zero.
    """
    return _back_to_real(x, _one(n), _along((axis,), dim), norm, "irfft")


def rfftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`rfft` along the last of several axes (all by default), then `fft` along the others.

    The last axis has s[-1] // 2 + 1 bins. Raises TypeError for a complex x, ValueError for sizes
    below 1.
    """
    return _real_transform(x, s, _along(axes, dim), norm, "rfftn")


def irfftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """The inverse of `rfftn`, to `s` points; by default an even number along the last axis.

    The result is real. Raises ValueError for sizes below 1 and an unknown `norm`.
    """
    return _back_to_real(x, s, _along(axes, dim), norm, "irfftn")


def fft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`fftn` along the last two axes.

    The result is complex. Raises ValueError as `fftn` does.
    """
    return fftn(x, s=s, axes=axes, norm=norm, dim=dim)


def ifft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`ifftn` along the last two axes: the inverse of `fft2`.

    The result is complex. Raises ValueError as `ifftn` does.
    """
    return ifftn(x, s=s, axes=axes, norm=norm, dim=dim)


def rfft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`rfftn` along the last two axes.

    The last axis has n // 2 + 1 bins. Raises as `rfftn` does.
    """
    return rfftn(x, s=s, axes=axes, norm=norm, dim=dim)


def irfft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`irfftn` along the last two axes: the inverse of `rfft2`, where `s` are its points.

    The result is real. Raises ValueError as `irfftn` does.
    """
    return irfftn(x, s=s, axes=axes, norm=norm, dim=dim)


def hfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward", *,
    dim: int | None = None,
) -> Tensor:
    """The real spectrum, n bins, of a signal with x[-t] = conj(x[t]), of which half is given.

    By default n = 2 * (bins - 1); give n for an odd number. Raises ValueError for n below 1 and an
    unknown `norm`.
    """
    side = _OTHER_SIDE[_checked_norm(norm, "hfft")]
    return _back_to_real(recorded.conj(asarray(x)), _one(n), _along((axis,), dim), side, "hfft")


def ihfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward", *,
    dim: int | None = None,
) -> Tensor:
    """The inverse of `hfft`: half of the signal whose spectrum is the real x.

    The result has n // 2 + 1 complex values. Raises TypeError for a complex x, ValueError for n
    below 1.
    """
    side = _OTHER_SIDE[_checked_norm(norm, "ihfft")]
    return recorded.conj(_real_transform(x, _one(n), _along((axis,), dim), side, "ihfft"))


def hfftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`hfft` along the last of several axes (all by default), after `fft` along the others.

    SciPy's and PyTorch's. The result is real, of `s` points; by default an even number along the
    last axis. Raises ValueError for sizes below 1 and an unknown `norm`.
    """
    side = _OTHER_SIDE[_checked_norm(norm, "hfftn")]
    return _back_to_real(recorded.conj(asarray(x)), s, _along(axes, dim), side, "hfftn")


def ihfftn(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """The inverse of `hfftn`: half of the signal whose spectrum is the real x.

    The last axis has s[-1] // 2 + 1 complex values. Raises TypeError for a complex x, ValueError
    for sizes below 1.
    """
    side = _OTHER_SIDE[_checked_norm(norm, "ihfftn")]
    return recorded.conj(_real_transform(x, s, _along(axes, dim), side, "ihfftn"))


def hfft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`hfftn` along the last two axes.

    The result is real. Raises ValueError as `hfftn` does.
    """
    return hfftn(x, s=s, axes=axes, norm=norm, dim=dim)


def ihfft2(
    x: Tensor, /, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1),
    norm: str | None = "backward", *, dim: int | Sequence[int] | None = None,
) -> Tensor:
    """`ihfftn` along the last two axes: the inverse of `hfft2`, where `s` are its points.

    The result is complex. Raises as `ihfftn` does.
    """
    return ihfftn(x, s=s, axes=axes, norm=norm, dim=dim)
