"""Images of any number of axes: sampling by splines, affine maps, zooms and Gaussian filters.

    turned = gt.ndimage.affine_transform(image, [[0.8, -0.6], [0.6, 0.8]], order=1)
    smooth = gt.ndimage.gaussian_filter(image, 2.0)

The functions of `scipy.ndimage` by its names, arguments and values, without `output`. Gradients of
every order reach the image, and coordinates, matrices and offsets: for registration, tomography and
learned warps. All axes are the image's: `gt.vmap` takes batches. Integers become the default dtype
first; half types are computed in float32.

Beyond the edges of (a b c d) the modes read, with the mode of SciPy in its sense:

| mode | beyond the left edge | beyond the right edge |
|---|---|---|
| "reflect", "grid-mirror" | d c b a | d c b a |
| "mirror" | d c b | c b a |
| "nearest" | a a a a | d d d d |
| "grid-wrap" | a b c d | a b c d |
| "wrap" | the period is one less than the size; of filters "grid-wrap" | |
| "constant" | `cval` from the edge on | `cval` |
| "grid-constant" | `cval` from one step beyond the edge on | `cval` |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.creation.dtypes import finfo, float32, result_type
from gtensor.creation.new_tensors import arange, asarray
from gtensor.nn.functional import pad
from gtensor.ops import reshape, where
from gtensor.ops.arrange.shape import axis_indices, broadcast_to
from gtensor.ops.define.arguments import floats, of_half, takes_arrays, want_number
from gtensor.ops.pool.mixing import matrix as matrix_of
from gtensor.ops.pool.resample import resample
from gtensor.ops.pool.spline_sampling import MOST_AXES, MOST_ORDER, spline_sample
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
else:
    __getattr__, __dir__ = _late(__name__)

__all__ = ["affine_transform", "gaussian_filter", "map_coordinates", "spline_filter", "zoom"]

_MODES = ("constant", "grid-constant", "grid-mirror", "grid-wrap", "mirror", "nearest", "reflect",
          "wrap")
_PADDED = 12  # elements by which SciPy, too, continues an image before it is filtered


def _image(
    name: str, input: Tensor, order: int | None, mode: str, cval: float = 0.0
) -> Tensor:
    """The image in a dtype that is computed in. Raises what the functions say they raise."""
    want_number(name, cval=cval)
    if input.dtype.kind == "c":
        raise TypeError(f"{name} of a tensor of dtype {input.dtype}; wanted real numbers, such as "
                        "those of gt.real(x) and gt.imag(x)")
    if not 1 <= input.ndim <= MOST_AXES:
        raise ValueError(f"{name} of a tensor of shape {input.shape}; wanted 1 to {MOST_AXES} "
                         "dimensions")
    if not input.size:
        raise ValueError(f"{name} of a tensor of shape {input.shape}; wanted an element or more")
    if order is not None and not 0 <= order <= MOST_ORDER:
        raise ValueError(f"{name} was given order={order}; wanted 0 to {MOST_ORDER}")
    if mode not in _MODES:
        raise ValueError(f"{name} was given mode={mode!r}; wanted one of "
                         f"{', '.join(map(repr, _MODES))}")
    x = floats(input)
    return x.astype(float32) if of_half(x) else x


# -- coefficients of splines -----------------------------------------------------------------------


_POLES = {  # of the inverse filter, inside of the unit circle
    2: (-0.171572875253809902396622551580603843,),
    3: (-0.267949192431122706472553658494127633,),
    4: (-0.361341225900220177092212841325675255, -0.013725429297339121360331226939128204),
    5: (-0.430575347099973791851434783493520110, -0.043096288203264653822712376822550182)}


@takes_arrays
def spline_filter(input: Tensor, order: int = 3, *, mode: str = "mirror") -> Tensor:
    """The coefficients of the spline of that order that has the values of `input` at its places.

    What `map_coordinates` does first; with these and prefilter=False it is done once for several
    calls. Its `mode` is theirs, "mirror" for "constant". Orders 0 and 1 copy.

    Raises ValueError for an order beyond 0 to 5 and an unknown mode, TypeError for complex numbers.
    """
    x = _image("spline_filter", input, order, mode)
    return _filtered(x, order, mode).astype(floats(input).dtype)


def _filtered(x: Tensor, order: int, mode: str) -> Tensor:
    """Of the continued image, the convolution with the inverse of the spline (Unser, 1999)."""
    if order > 1:
        weights = _inverse(order, float(finfo(x.dtype).eps))
        beyond = "reflect" if mode in ("reflect", "grid-mirror", "nearest") else (
            "grid-wrap" if mode == "grid-wrap" else "mirror")
        for axis, size in enumerate(x.shape):
            if size > 1:
                made = ("correlation", size, beyond, *weights)
                x = resample(x, axis=axis - x.ndim, matrix=made, transposed=False)
    return x


@cache
def _inverse(order: int, rounding: float) -> tuple[float, ...]:
    """The filter whose convolution with the spline at whole numbers is 1: a power for each pole.

    Cut where it is lost in rounding.
    """
    found = np.ones(1)
    for pole in _POLES[order]:
        reach = int(np.ceil(np.log(rounding / 64) / np.log(-pole)))
        powers = pole ** np.abs(np.arange(-reach, reach + 1))
        found = np.convolve(found, powers * (-(1 - pole) * (1 - 1 / pole) * pole / (1 - pole**2)))
    return tuple(float(w) for w in found)


def _coefficients(
    x: Tensor, order: int, mode: str, cval: float, prefilter: bool
) -> tuple[Tensor, int, str]:
    """The coefficients, by how much they were padded at each end, and the mode beyond them."""
    filtered = prefilter and order > 1
    padded = 0
    if mode == "grid-constant" or mode == "nearest" and filtered:
        padded, sides = _PADDED, (_PADDED,) * (2 * x.ndim)
        x = pad(x, sides, value=cval) if mode == "grid-constant" else pad(x, sides, "replicate")
    coefficients = _filtered(x, order, mode) if filtered else x
    return coefficients, padded, {"grid-constant": "nearest", "grid-mirror": "reflect"}.get(
        mode, mode)


# -- sampling --------------------------------------------------------------------------------------


@takes_arrays
def map_coordinates(
    input: Tensor, coordinates: Tensor, *, order: int = 3, mode: str = "constant",
    cval: float = 0.0, prefilter: bool = True,
) -> Tensor:
    """The image at places between its elements, by splines: a tensor of coordinates.shape[1:].

    Args:
        input: the image (n0, n1, ...), 1 to 6 axes.
        coordinates: (axes, ...), places in elements: 0 is the first, n - 1 the last. float32 has
            places beyond 4096 elements to 1/4000 of one. NaN where they are NaN.
        order: of the splines, 0 (the nearest) to 5. The image has order - 1 derivatives by the
            coordinates, the gradient being that of its formula beyond.
        mode: what lies beyond the edges, see the namespace.
        cval: what "constant" reads there.
        prefilter: False if the input is of `spline_filter`'s coefficients.

    Raises ValueError for another number of coordinates than axes, an order beyond 0 to 5 and an
    unknown mode, TypeError for complex numbers.

        gt.ndimage.map_coordinates(gt.arange(4.0), gt.tensor([[0.5, 2.0]]), order=1)   # [0.5, 2]
    """
    x = _image("map_coordinates", input, order, mode, cval)
    if not coordinates.ndim or coordinates.shape[0] != x.ndim:
        raise ValueError(f"map_coordinates was given coordinates of shape {coordinates.shape} for "
                         f"an input of shape {input.shape}; wanted ({x.ndim}, ...)")
    if coordinates.dtype.kind == "c":
        raise TypeError(f"map_coordinates was given coordinates of dtype {coordinates.dtype}; "
                        "wanted real numbers")
    found = _sampled(x, reshape(coordinates, (x.ndim, -1)), order, mode, cval, prefilter)
    return reshape(found, coordinates.shape[1:]).astype(floats(input).dtype, copy=False)


def _sampled(
    x: Tensor, coordinates: Tensor, order: int, mode: str, cval: float, prefilter: bool
) -> Tensor:
    """The image at coordinates (axes, points)."""
    coefficients, padded, beyond = _coefficients(x, order, mode, cval, prefilter)
    dtype = result_type(coefficients, coordinates) if coordinates.dtype.kind == "f" else x.dtype
    places = coordinates.astype(dtype, copy=False)
    return spline_sample(coefficients.astype(dtype, copy=False), places + padded if padded else
                         places, order=order, mode=beyond, cval=float(cval),
                         derivative=(0,) * x.ndim)


@takes_arrays
def affine_transform(
    input: Tensor, matrix: Tensor, offset: Tensor | float = 0.0,
    output_shape: Sequence[int] | None = None, *, order: int = 3, mode: str = "constant",
    cval: float = 0.0, prefilter: bool = True,
) -> Tensor:
    """The image whose element o is that of `input` at matrix @ o + offset.

    Args:
        input: the image (n0, n1, ...), 1 to 6 axes.
        matrix: (axes, axes of the result); a vector is a diagonal; (axes, axes + 1) or
            (axes + 1, axes + 1) are homogeneous, with the offset in the last column.
        offset: one number, or one for each axis; with a homogeneous matrix it has no effect.
        output_shape: of the result, by default that of the input.
        order, mode, cval, prefilter: as of `map_coordinates`.

    Gradients reach the image, the matrix and the offset. Raises ValueError as `map_coordinates`,
    and for a matrix, an offset or a shape that does not fit.

        gt.ndimage.affine_transform(image, gt.eye(2), gt.tensor([0.5, 0.0]))   # moved up by 1/2
    """
    x = _image("affine_transform", input, order, mode, cval)
    axes = x.ndim
    shift = offset if not isinstance(offset, (int, float)) else float(offset)
    if matrix.ndim == 2 and matrix.shape[1] == axes + 1 and matrix.shape[0] in (axes, axes + 1):
        shift, matrix = matrix[:axes, axes], matrix[:axes, :axes]
    shape = x.shape if output_shape is None else tuple(index(n) for n in output_shape)
    diagonal = matrix.ndim == 1
    fits = matrix.shape == (axes,) if diagonal else matrix.ndim == 2 and matrix.shape[0] == axes
    across = axes if diagonal else matrix.shape[-1] if matrix.ndim else 0
    if not fits or across != len(shape) or min(shape, default=0) < 0:
        raise ValueError(f"affine_transform was given a matrix of shape {matrix.shape} for an "
                         f"input of shape {input.shape} and a result of shape {shape}; wanted "
                         f"({axes}, {len(shape)}), or a vector of {axes} for as many axes")
    if not isinstance(shift, float) and shift.shape not in ((), (axes,)):
        raise ValueError(f"affine_transform was given an offset of shape {shift.shape}; wanted one "
                         f"number, or ({axes},)")
    matrix = floats(matrix)
    place: Any = shift if isinstance(shift, float) or not shift.ndim else reshape(
        shift, (axes, *(1,) * len(shape)))
    for b, n in reversed([*enumerate(shape)]):  # the last sum alone is as large as the result
        steps = reshape(arange(n, dtype=matrix.dtype, device=x.device),
                        (n, *(1,) * (len(shape) - b - 1)))
        own = arange(axes, device=x.device) == b
        each = where(own, matrix, 0) if diagonal else matrix[:, b]
        place = place + reshape(each, (axes, *(1,) * len(shape))) * steps
    places = reshape(broadcast_to(place, (axes, *shape)), (axes, -1))
    found = _sampled(x, places, order, mode, cval, prefilter)
    return reshape(found, shape).astype(floats(input).dtype, copy=False)


# -- along one axis after another ------------------------------------------------------------------


@takes_arrays
def zoom(
    input: Tensor, zoom: float | Sequence[float], *, order: int = 3, mode: str = "constant",
    cval: float = 0.0, prefilter: bool = True, grid_mode: bool = False,
) -> Tensor:
    """The image with round(n * zoom) elements along each axis, by splines.

    Args:
        input: the image (n0, n1, ...), 1 to 6 axes.
        zoom: one factor, or one for each axis.
        order, mode, cval, prefilter: as of `map_coordinates`.
        grid_mode: whether the edges of the first and last elements stay where they are, and not
            their middles; "grid-constant" and "grid-wrap" are the modes that fit.

    Each axis is resampled after the other, (order + 1) products an element. Raises ValueError as
    `map_coordinates`, and for another number of factors than axes.

        gt.ndimage.zoom(gt.tensor([0.0, 2.0]), 1.5, order=1)           # [0, 1, 2]
    """
    x = _image("zoom", input, order, mode, cval)
    factors = _each("zoom", "zoom", zoom, x.ndim)
    if not all(0 <= f < float("inf") for f in factors):
        raise ValueError(f"zoom was given zoom={zoom}; wanted finite factors of 0 or more")
    sizes = tuple(round(n * f) for n, f in zip(x.shape, factors, strict=True))
    coefficients, padded, beyond = _coefficients(x, order, mode, cval, prefilter)
    outside: Any = None
    for axis, (old, new) in enumerate(zip(x.shape, sizes, strict=True)):
        made = ("spline zoom", old, new, order, beyond, bool(grid_mode), padded)
        coefficients = resample(coefficients, axis=axis - x.ndim, matrix=made, transposed=False)
        lost = np.asarray(matrix_of(made, False).row_sums() == 0)
        if mode == "constant" and cval and lost.any():
            each = reshape(asarray(lost, device=x.device), (new, *(1,) * (x.ndim - axis - 1)))
            outside = each if outside is None else outside | each
    found = coefficients if outside is None else where(outside, float(cval), coefficients)
    return found.astype(floats(input).dtype, copy=False)


@takes_arrays
def gaussian_filter(
    input: Tensor, sigma: float | Sequence[float], order: int | Sequence[int] = 0, *,
    mode: str | Sequence[str] = "reflect", cval: float = 0.0, truncate: float = 4.0,
    radius: int | Sequence[int] | None = None, axes: Sequence[int] | None = None,
) -> Tensor:
    """The image convolved with a Gaussian, or with a derivative of it, along each axis.

    Args:
        input: the image, 1 to 6 axes.
        sigma: the standard deviation in elements, or one for each axis; 0 leaves an axis as it is.
        order: of the derivative, 0 for none, or one for each axis.
        mode: what lies beyond the edges, see the namespace, or one for each axis.
        cval: what "constant" reads there.
        truncate: the filter's reach in standard deviations.
        radius: its reach in elements, which replaces that, or one for each axis.
        axes: the axes, all by default.

    Raises ValueError for an unknown mode, a negative sigma, order or radius, and another number of
    them than axes; TypeError for complex numbers.

        gt.ndimage.gaussian_filter(gt.eye(5), 1.0, mode="constant")
    """
    x = _image("gaussian_filter", input, None, "reflect", cval)
    places = range(x.ndim) if axes is None else axis_indices(axes, x.ndim, "gaussian_filter")
    rows = [_each("gaussian_filter", label, given, len(places)) for label, given in (
        ("sigma", sigma), ("order", order), ("mode", mode), ("radius", radius))]
    for axis, width, degree, beyond, reach in zip(places, *rows, strict=True):
        if not isinstance(beyond, str):
            raise TypeError(f"gaussian_filter was given a mode of type {type(beyond).__name__}; "
                            f"wanted one of {', '.join(map(repr, _MODES))}")
        if beyond not in _MODES or not 0 <= width < float("inf") or degree < 0 or (
                reach is not None and reach < 0):
            raise ValueError(f"gaussian_filter was given sigma={width}, order={degree}, "
                             f"mode={beyond!r} and radius={reach}; wanted 0 or more, and one of "
                             f"{', '.join(map(repr, _MODES))}")
        if width > 1e-15:
            far = int(truncate * width + 0.5) if reach is None else index(reach)
            x = _correlated(x, axis, _gaussian(float(width), index(degree), far), beyond, cval)
    return x.astype(floats(input).dtype, copy=x is input)


def _each(name: str, label: str, given: Any, count: int) -> list[Any]:
    """One value for all axes, or one for each."""
    row = given.tolist() if getattr(given, "ndim", 0) else given
    if not isinstance(row, (list, tuple)):
        return [row] * count
    if len(row) != count:
        raise ValueError(f"{name} was given {label}={given} for {count} axes; wanted one for all, "
                         "or one for each")
    return list(row)


@cache
def _gaussian(sigma: float, order: int, radius: int) -> tuple[float, ...]:
    """The weights of the elements from -radius to radius on: those of a convolution, turned."""
    x = np.arange(-radius, radius + 1)
    weights = np.array([exp(-0.5 * (t / sigma) ** 2) for t in x.tolist()])
    weights /= weights.sum()
    terms = np.zeros(order + 1)  # of the polynomial that a derivative multiplies it by
    terms[0] = 1
    for _ in range(order):
        rest = np.append(terms[1:] * np.arange(1, order + 1), 0)
        terms = rest - np.insert(terms, 0, 0)[:-1] / sigma**2
    factors = np.polynomial.polynomial.polyval(x, terms)
    return tuple(float(w) for w in (weights * factors)[::-1])


def _correlated(
    x: Tensor, axis: int, weights: tuple[float, ...], mode: str, cval: float
) -> Tensor:
    """The sums of weighted neighbours along an axis."""
    size, constant = x.shape[axis], mode in ("constant", "grid-constant")
    beyond = {"wrap": "grid-wrap", "grid-mirror": "reflect"}.get(
        mode, "constant" if constant else mode)
    made = ("correlation", size, beyond, *weights)
    found = resample(x, axis=axis - x.ndim, matrix=made, transposed=False)
    if constant and cval:
        missing = cval * (sum(weights) - matrix_of(made, False).row_sums())
        found = found + reshape(asarray(missing, x.dtype, device=x.device),
                                (size, *(1,) * (x.ndim - axis - 1)))
    return found


_enter(globals())
