"""Plain calls of every public function with array arguments, found from the public namespaces.

An op's samples serve the function of its name. A function that names parameters otherwise adapts
them (`ADAPTED`); one that is made of several ops has samples of its own (`OWN`). A new public
function that has none of these, and no reason in `WITHOUT`, fails a test by name.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.engine.handle.methods import IN_PLACE
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.tape.samples import (
    Sample,
    apart,
    below,
    boolean,
    complex_normal,
    distinct,
    normal,
    positive,
)
from gtensor.ops.linalg.solving import near_identity
from gtensor.system.foreign_names import ALIASES
from gtensor.testing.cases import samples_of

Function = Callable[..., Any]
L, FFT, SP = gt.linalg, gt.fft, gt.special
NAMESPACES = {"": gt, "linalg.": gt.linalg, "fft.": gt.fft, "special.": SP,
              "ndimage.": gt.ndimage, "nn.functional.": F}


@dataclass(frozen=True)
class Call:
    """A function of tensors and the sample's parameters, by its public name.

    Attributes:
        writes: it writes into its first tensor, which then requires no gradient.
        constants: places of tensors that may not require one.
    """

    name: str
    function: Function
    sample: Sample
    writes: bool = False
    constants: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} of shapes {self.sample.shapes}, {self.sample.params}"


# -- what takes no array -----------------------------------------------------------------------

WITHOUT = {
    "a transform of functions, which has tests of its own": (
        "capture functional_call grad hessian hvp jacfwd jacobian jacrev jvp jvp_batched linearize "
        "per_example_grad value_and_grad vjp vmap"),
    "makes a tensor of numbers": (
        "arange empty eye full linspace logspace ones tril_indices triu_indices zeros "
        "bartlett blackman hamming hanning kaiser fft.fftfreq fft.rfftfreq"),
    "asks about dtypes, or answers one": "can_cast finfo iinfo isdtype result_type",
    "sets or asks for the state of the process": (
        "__array_namespace_info__ cuda_device_count default_device detect_anomaly device "
        "get_default_dtype get_num_threads is_grad_enabled listen manual_seed set_default_device "
        "set_default_dtype set_num_threads stream visible_devices"),
    "defines an op": "d op",
    "its result has no values": "empty_like",
}
METHODS_WITHOUT = {
    "makes the tensor the result, which has tests of its own": " ".join(
        f"{name}_" for name in IN_PLACE),
    "of a tape, which has tests of its own": (
        "backward detach register_hook register_post_accumulate_grad_hook requires_grad_ "
        "retain_grad requires_grad grad is_leaf data"),
    "a fact about the tensor": "device dtype nbytes ndim shape size array __len__ __hash__",
    "Python's or an exchange protocol, which has tests of its own": (
        "__array_namespace__ __class__ __copy__ __deepcopy__ __cuda_array_interface__ __dlpack__ "
        "__dlpack_device__ __buffer__ __dir__ __doc__ __format__ __getattr__ __getstate__ __init__ "
        "__init_subclass__ __new__ __reduce__ __reduce_ex__ __repr__ __sizeof__ __str__ "
        "__subclasshook__ __annotations__ __module__ __slots__ __weakref__ __array_ufunc__ "
        "__array_function__ __getattribute__ __setattr__ __delattr__"),
}


def without(table: dict[str, str]) -> set[str]:
    """All names of a table of reasons."""
    return {name for names in table.values() for name in names.split()}


# -- samples -----------------------------------------------------------------------------------


def _s(*shapes: tuple[int, ...] | None, draw: Any = normal, **params: Any) -> Sample:
    return Sample(shapes, draw, params)


def _invertible(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Matrices far from a singular one."""
    a = rng.standard_normal(shape)
    return a + 4 * np.eye(*shape[-2:]) if len(shape) > 1 else a


def _probability(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.1, 0.9, shape)


def _inner(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Places between elements, where splines have slopes."""
    return rng.integers(0, 3, shape) + rng.uniform(0.2, 0.8, shape)


def _turning(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.eye(*shape[-2:]) + rng.uniform(0.1, 0.2, shape)


def _sign(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """1 or -1."""
    return np.where(rng.uniform(size=shape) < 0.5, -1.0, 1.0)


def _seeded(function: Function) -> Function:
    """The function with the same draws in every call."""
    def call(*tensors: gt.Tensor, **params: Any) -> Any:
        with gt.random.seeded(7):
            return function(*tensors, **params)

    return call


def _on_a_copy(function: Function) -> Function:
    """The function that writes into its input, on one of its own."""
    return lambda x: function(x.clone())


def _of_heavy_diagonals(function: Function) -> Function:
    """The function of matrices far from a singular one, in every layout."""
    def call(x: gt.Tensor, **params: Any) -> Any:
        if x.ndim > 1:
            x = x + 4 * gt.eye(*x.shape[-2:], dtype=x.dtype, device=x.device)
        return function(x, **params)

    return call


def _list_of(function: Function) -> Function:
    return lambda *tensors, **params: function(list(tensors), **params)


def _along_dim(function: Function) -> Function:
    """The function whose dim stands between its tensors."""
    return lambda x, *tensors, dim: function(x, dim, *tensors)


_IMAGE, _SIGNAL = (2, 4, 5, 6), (2, 4, 7)
_LOSS = [_s((3, 5), (3, 5), reduction="mean"), _s((7,), (7,), reduction="none"),
         _s((2, 3), (2, 3), reduction="sum")]
_NORMED = [_s((4, 3), (3,), (3,)), _s((3, 2, 4), (2,), (2,))]
_ONE_FFT = [_s((2, 6)), _s((5,), n=7), _s((3, 4), axis=0, norm="ortho")]
_BACK_FFT = [_s((2, 6), draw=complex_normal), _s((5,), n=7), _s((3, 4), axis=0, norm="ortho")]
_MANY_FFT = [_s((2, 3, 4), axes=(-2, -1)), _s((3, 4))]

# name -> its function of tensors, or None for itself, and samples
OWN: dict[str, tuple[Function | None, Sequence[Sample]]] = {
    "asarray": (None, [_s((2, 3)), _s((5,), copy=True)]),
    "tensor": (None, [_s((2, 3)), _s((5,), draw=below(9))]),
    "from_dlpack": (lambda x: gt.from_dlpack(x.detach()), [_s((2, 3)), _s((5,), draw=below(9))]),
    "zeros_like": (None, [_s((2, 3)), _s((5,))]),
    "ones_like": (None, [_s((2, 3)), _s((5,))]),
    "full_like": (None, [_s((2, 3), fill_value=2.5)]),
    "broadcast_arrays": (None, [_s((2, 1), (3,)), _s((), (4,))]),
    "meshgrid": (None, [_s((2,), (3,)), _s((2,), (3,), indexing="ij")]),
    "diff": (None, [_s((2, 5)), _s((6, 2), axis=0, n=2), _s((5,))]),
    "diff with ends": (lambda x, a, b: gt.diff(x, prepend=a, append=b), [
        _s((2, 5), (2, 1), (2, 1))]),
    "einsum": (lambda *tensors, subscripts: gt.einsum(subscripts, *tensors), [
        _s((2, 3), (3, 5), subscripts="ij,jk->ik"), _s((4, 2, 3), (4, 3), subscripts="bij,bj->bi"),
        _s((3, 3), subscripts="ii->i"), _s((2, 3), subscripts="...i->..."),
        _s((2, 3), (5, 3), (5,), subscripts="ij,kj,k->i")]),
    "expand_dims": (None, [_s((2, 3), axis=-1), _s((4,), axis=0)]),
    "flatten": (None, [_s((2, 3, 4)), _s((2, 3, 4), start_dim=-2)]),
    "matrix_transpose": (None, [_s((2, 3)), _s((2, 3, 4))]),
    "moveaxis": (lambda x, source, destination: gt.moveaxis(x, source, destination), [
        _s((2, 3, 4), source=-1, destination=-3), _s((2, 3), source=(0, 1), destination=(1, 0))]),
    "pow": (None, [
        _s((2, 3), (2, 3), draw=(positive, normal)), _s((5,), (), draw=(positive, apart)),
        _s((4,), (4,), draw=(below(5), below(3)))]),
    "squeeze": (None, [_s((2, 1, 3), axis=-2)]),
    "stack": (_list_of(gt.stack), [_s((2, 3), (2, 3), axis=-1), _s((4,), (4,))]),
    "take": (None, [_s((4, 3), (5,), draw=(normal, below(3)), axis=-1),
                    _s((4,), (2, 2), draw=(normal, below(4)), axis=0)]),
    "tensordot": (None, [_s((2, 3, 4), (3, 4, 5)), _s((2, 3), (3, 5), axes=1),
                         _s((2, 3), (5, 3), axes=((1,), (1,)))]),
    "tile": (lambda x, repetitions: gt.tile(x, repetitions), [
        _s((2, 3), repetitions=(2, 1)), _s((3,), repetitions=(2, 2))]),
    "topk": (None, [_s((3, 5), draw=distinct, k=2), _s((7,), draw=distinct, k=3, largest=False)]),
    "unique_all": (None, [_s((3, 4), draw=below(4)), _s((7,))]),
    "unique_counts": (None, [_s((3, 4), draw=below(4)), _s((7,))]),
    "unique_inverse": (None, [_s((3, 4), draw=below(4)), _s((7,))]),
    "unique_values": (None, [_s((3, 4), draw=below(4)), _s((7,))]),
    "unstack": (None, [_s((3, 4)), _s((2, 3), axis=-1)]),
    "repeat of counts": (lambda x, counts: gt.repeat(x, counts, axis=0), [
        _s((4, 3), (4,), draw=(normal, below(3)))]),
    "searchsorted": (lambda x, y, side: gt.searchsorted(gt.sort(x), y, side=side), [
        _s((6,), (3, 4), side="left"), _s((6,), (5,), side="right")]),
    # -- compositions
    "allclose": (None, [_s((2, 3), (2, 3)), _s((4,), (4,), atol=3.0)]),
    "isclose": (None, [_s((2, 3), (2, 3), atol=1.0), _s((4,), ())]),
    "isin": (None, [_s((2, 3), (4,), draw=below(6)), _s((5,), (2, 2), draw=below(3), invert=True)]),
    "nan_to_num": (None, [_s((2, 3)), _s((4,), draw=below(9))]),
    "convolve": (None, [_s((7,), (3,)), _s((4,), (6,), mode="same")]),
    "correlate": (None, [_s((7,), (3,)), _s((4,), (6,), mode="same")]),
    "cumulative_trapezoid": (lambda *x, **params: gt.cumulative_trapezoid(*x, **params), [
        _s((2, 5), dx=0.5), _s((3, 4), (4,), initial=0.0), _s((4, 2), axis=0)]),
    "gradient": (None, [_s((2, 5)), _s((6, 2), axis=0), _s((5,))]),
    "interp": (lambda x, xp, fp: gt.interp(x, gt.sort(xp), fp), [_s((3, 2), (5,), (5,))]),
    "trapezoid": (lambda *tensors, **params: gt.trapezoid(*tensors, **params), [
        _s((2, 5), dx=0.5), _s((3, 4), (4,)), _s((4, 2), axis=0)]),
    "fmod": (None, [_s((2, 3), (2, 3), draw=(normal, apart)), _s((4,), (), draw=(normal, apart))]),
    "lerp": (None, [_s((2, 3), (2, 3), ()), _s((4,), (4,), (4,))]),
    "diag": (None, [_s((4,)), _s((3, 4), k=1), _s((3,), k=-2)]),
    "diag_embed": (None, [_s((2, 4)), _s((3,), offset=-1), _s((2, 3), dim1=0, dim2=-2)]),
    "kron": (None, [_s((2, 3), (3, 2)), _s((3,), (2, 2))]),
    "argwhere": (None, [_s((3, 4), draw=below(2)), _s((5,), draw=below(2))]),
    "hstack": (_list_of(gt.hstack), [_s((2, 3), (2, 2)), _s((3,), (4,))]),
    "vstack": (_list_of(gt.vstack), [_s((2, 3), (1, 3)), _s((3,), (3,))]),
    "swapaxes": (lambda x, axes: gt.swapaxes(x, *axes), [_s((2, 3, 4), axes=(-1, -3))]),
    "unique": (None, [_s((3, 4), draw=below(4)), _s((7,), return_counts=True)]),
    "bincount": (None, [_s((9,), draw=below(4))]),
    "digitize": (lambda x, bins, right: gt.digitize(x, gt.sort(bins), right), [
        _s((3, 4), (5,), right=False), _s((6,), (3,), right=True)]),
    "histogram": (lambda x, **params: gt.histogram(x, **params).hist, [
        _s((3, 4), bins=5), _s((9,), bins=4, range=(-1.0, 1.0), density=True)]),
    "histogram of weights": (lambda x, weights: gt.histogram(
        x, 3, (-1.0, 1.0), weights=weights).hist, [_s((3, 4), (3, 4))]),
    "histogramdd": (lambda x: gt.histogramdd(x, (2, 3)).hist, [_s((9, 2))]),
    "cummax": (lambda x, **params: gt.cummax(x, **params)[:2], [
        _s((3, 5), draw=distinct, dim=-1), _s((4, 2), draw=distinct, dim=-2)]),
    "cummin": (lambda x, **params: gt.cummin(x, **params)[:2], [_s((3, 5), draw=distinct, dim=-1)]),
    "logcumsumexp": (None, [_s((3, 5), dim=-1), _s((4, 2), dim=-2)]),
    "cdist": (None, [_s((2, 3, 4), (5, 4)), _s((27, 2), (3, 2)), _s((3, 2), (4, 2), p=1.0)]),
    "renorm": (lambda x, p, dim, maxnorm: gt.renorm(x, p, dim, maxnorm), [
        _s((3, 4), p=2.0, dim=-1, maxnorm=1.0), _s((2, 3, 2), p=1.0, dim=-2, maxnorm=3.0)]),
    "nansum": (None, [_s((3, 4)), _s((2, 3), axis=-1)]),
    "nanmean": (None, [_s((3, 4)), _s((2, 3), axis=-1, keepdims=True)]),
    "nanmedian": (None, [_s((3, 5), draw=distinct), _s((2, 6), draw=distinct, axis=-1)]),
    "nanquantile": (lambda x, q, **params: gt.nanquantile(x, q, **params), [
        _s((3, 5), draw=distinct, q=0.3), _s((2, 6), draw=distinct, q=(0.2, 1.0), axis=-1)]),
    "corrcoef": (None, [_s((3, 7))]),
    "cov": (None, [_s((3, 5)), _s((6,), correction=0.0)]),
    "median": (None, [_s((3, 5), draw=distinct), _s((2, 6), draw=distinct, axis=-1)]),
    "percentile": (lambda x, q: gt.percentile(x, q), [_s((3, 5), draw=distinct, q=30)]),
    "quantile": (lambda x, q, **params: gt.quantile(x, q, **params), [
        _s((3, 5), draw=distinct, q=0.3), _s((2, 6), draw=distinct, q=(0.2, 1.0), axis=-1)]),
    # -- scattering
    **{name: (_along_dim(getattr(gt, name)), [
        _s((4, 3), (2, 3), (5, 3), draw=(normal, below(4), normal), dim=0),
        _s((2, 5), (2, 7), (2, 7), draw=(normal, below(5), normal), dim=1)])
       for name in ("scatter", "scatter_add")},
    "scatter_reduce": (
        lambda x, index, src, *, reduce: gt.scatter_reduce(x, 0, index, src, reduce), [
            _s((4, 3), (5, 3), (5, 3), draw=(normal, below(4), normal), reduce=reduce)
            for reduce in ("amax", "mean")]),
    "index_add": (_along_dim(gt.index_add), [
        _s((4, 3), (5,), (5, 3), draw=(normal, below(4), normal), dim=0)]),
    "put_along_axis": (lambda x, indices, values: gt.put_along_axis(x, indices, values, axis=1), [
        _s((2, 4), (2, 3), (2, 1), draw=(normal, below(4), normal))]),
    "masked_scatter": (None, [_s((3, 4), (4,), (12,), draw=(normal, boolean, normal))]),
    **{name: (None, [_s((5, 2), (5,), draw=(normal, below(3)), num_segments=4)])
       for name in ("segment_max", "segment_min", "segment_sum")},
    # -- products and linear algebra
    "linalg.gemm_into": (None, [_s((2, 5), (2, 3), (3, 5), alpha=2.0, beta=0.5),
                                _s((3, 5), (2, 3), (5, 2), transpose_a=True, transpose_b=True)]),
    "linalg.matrix_norm": (None, [_s((2, 3, 4)), _s((3, 4), ord=1), _s((4, 3), ord=2),
                                  _s((3, 4), ord="nuc"), _s((3, 4), ord=-np.inf)]),
    "linalg.cond": (_of_heavy_diagonals(L.cond), [
        _s((3, 4)), _s((2, 3, 3), p=1), _s((4, 2), p=-2)]),
    "linalg.cholesky_solve": (lambda b, a, upper: L.cholesky_solve(b, a, upper), [
        _s((3, 2), (3, 3), draw=(normal, near_identity), upper=False),
        _s((2, 3, 2), (3, 3), draw=(normal, near_identity), upper=True)]),
    "linalg.lstsq": (lambda x, y: L.lstsq(x, y)[:2], [
        _s(*shapes, draw=(_invertible, normal)) for shapes in (
            ((4, 3), (4,)), ((2, 3, 4), (2, 3, 2)), ((3, 3), (2, 3, 1)))]),
    "linalg.norm": (None, [_s((2, 3)), _s((3, 4), ord=1), _s((2, 4, 3), ord=2, axis=(-1, -2)),
                           _s((2, 4), ord=3, axis=-1, keepdims=True)]),
    "linalg.solve_triangular": (None, [
        _s((3, 3), (3,), draw=(near_identity, normal)),
        _s((2, 3, 3), (3, 2), draw=(near_identity, normal), upper=False, unitriangular=True),
        _s((3, 3), (2, 3), draw=(near_identity, normal), left=False)]),
    "linalg.matrix_power": (lambda x, n: L.matrix_power(x, n), [
        _s((3, 3), n=3), _s((2, 3, 3), n=0), _s((3, 3), draw=_invertible, n=-2)]),
    "linalg.matrix_rank": (None, [_s((3, 4)), _s((2, 3, 3))]),
    "linalg.outer": (None, [_s((3,), (4,))]),
    "linalg.pinv": (None, [_s((2, 3)), _s((2, 4, 3)), _s((3, 3), draw=_invertible)]),
    "linalg.trace": (None, [_s((3, 4)), _s((2, 3, 3), offset=1), _s((3, 3), draw=below(9))]),
    # -- Fourier transforms
    **{f"fft.{name}": (None, _ONE_FFT) for name in ("fft", "ifft", "rfft", "ihfft")},
    "istft": (None, [_s((2, 5, 4), draw=complex_normal, n_fft=8, center=False),
                     _s((4, 5), draw=complex_normal, n_fft=7, hop_length=3)]),
    "stft": (None, [_s((2, 18), n_fft=8), _s((19,), n_fft=7, hop_length=3, center=False)]),
    "stft with a window": (lambda x, window: gt.stft(x, 6, 2, 5, window, pad_mode="constant"), [
        _s((2, 11), (5,))]),
    **{f"fft.{name}": (None, _BACK_FFT) for name in ("irfft", "hfft")},
    **{f"fft.{name}": (None, _MANY_FFT) for name in (
        "fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2", "hfftn",
        "ihfftn", "hfft2", "ihfft2")},
    **{f"fft.{name}": (None, [_s((2, 5), axes=-1), _s((2, 5))])
       for name in ("fftshift", "ifftshift")},
    # -- special functions
    **{f"special.{name}": (None, [_s((2, 3), draw=positive)]) for name in (
        "digamma", "entr", "gammaln", "softplus_inverse")},
    **{f"special.{name}": (None, [_s((2, 3), draw=_probability)]) for name in (
        "erfinv", "logit", "ndtri")},
    **{f"special.{name}": (None, [_s((2, 3))]) for name in (
        "erfc", "erfcx", "expit", "i0", "i0e", "i1", "i1e", "log_ndtr", "ndtr", "sinc")},
    **{f"special.{name}": (None, [_s((2, 3), (3,), draw=positive)]) for name in (
        "xlogy", "xlog1py")},
    "special.polygamma": (lambda x, n: SP.polygamma(n, x), [_s((2, 3), draw=positive, n=1)]),
    "special.zeta": (lambda x, q: SP.zeta(gt.add(x, 1.5), q), [_s((2, 3), (3,), draw=positive)]),
    # -- images
    "ndimage.map_coordinates": (None, [
        _s((4, 5), (2, 3), draw=(normal, _inner), order=1, mode="mirror"),
        _s((4, 5), (2, 2, 3), draw=(normal, _inner), mode="grid-wrap")]),
    "ndimage.affine_transform": (None, [
        _s((4, 5), (2, 2), (2,), draw=(normal, _turning, _inner), mode="reflect"),
        _s((5, 4), (2,), (), draw=(normal, _inner, _inner), order=1, cval=0.5,
           mode="grid-constant")]),
    "ndimage.gaussian_filter": (None, [_s((4, 5), sigma=0.8), _s((7,), sigma=1.0, order=1),
                                       _s((3, 4), sigma=1.5, mode="constant", cval=0.5)]),
    "ndimage.spline_filter": (None, [_s((5, 4)), _s((6,), order=5, mode="reflect")]),
    "ndimage.zoom": (lambda x, zoom, **params: gt.ndimage.zoom(x, zoom, **params), [
        _s((4, 5), zoom=1.7), _s((6,), zoom=0.5, order=1, mode="grid-constant", grid_mode=True)]),
    # -- neural networks
    "nn.functional.abn": (None, [*_NORMED, _s((4, 3), (3,), (3,), (3,), (3,), draw=positive,
                                              training=False)]),
    "nn.functional.inplace_abn": (None, [
        _s((4, 3), (3,), (3,), draw=(normal, positive, normal)),
        _s((3, 2, 4), (2,), (2,), draw=(normal, positive, normal), activation="identity")]),
    "nn.functional.batch_norm": (
        lambda x, w, b, mean=None, var=None, **params: F.batch_norm(x, mean, var, w, b, **params), [
            _s((4, 3), (3,), (3,), training=True), _s((3, 2, 4), (2,), (2,), training=True),
            _s((4, 3), (3,), (3,), (3,), (3,), draw=positive)]),
    "nn.functional.batch_norm_act": (
        lambda x, w, b: F.batch_norm_act(x, None, None, w, b, training=True), _NORMED),
    "nn.functional.adaptive_avg_pool1d": (None, [_s(_SIGNAL, output_size=3)]),
    "nn.functional.adaptive_avg_pool2d": (None, [_s(_IMAGE, output_size=(3, 2))]),
    "nn.functional.adaptive_max_pool2d": (None, [_s(_IMAGE, draw=distinct, output_size=(3, 2))]),
    "nn.functional.avg_pool1d": (None, [_s(_SIGNAL, kernel_size=3, stride=2, padding=1)]),
    "nn.functional.avg_pool2d": (None, [_s(_IMAGE, kernel_size=3, stride=2, padding=1)]),
    "nn.functional.max_pool1d": (None, [_s(_SIGNAL, draw=distinct, kernel_size=3, stride=2)]),
    "nn.functional.max_pool2d": (None, [_s(_IMAGE, draw=distinct, kernel_size=2)]),
    "nn.functional.interpolate": (None, [
        _s(_IMAGE, scale_factor=2, mode="bilinear"), _s(_SIGNAL, size=5, mode="linear"),
        _s(_IMAGE, size=(3, 8)), _s(_IMAGE, size=(3, 4), mode="area")]),
    "nn.functional.conv2d": (None, [
        _s((2, 3, 5, 4), (4, 3, 3, 3), (4,), padding=1),
        _s((1, 4, 7, 6), (2, 2, 3, 2), None, stride=(2, 3), groups=2),
        _s((2, 3, 4, 4), (2, 3, 1, 1), (2,)), _s((2, 3, 5, 4), (6, 1, 2, 3), None, groups=3)]),
    "nn.functional.prelu": (None, [_s((2, 3, 4), (3,), draw=apart), _s((7,), (1,), draw=apart)]),
    "nn.functional.conv1d": (None, [_s((2, 4, 7), (3, 4, 2), (3,), padding=1),
                                    _s((2, 4, 7), (6, 2, 3), None, groups=2, stride=2)]),
    "nn.functional.conv_transpose1d": (None, [_s((2, 4, 7), (4, 3, 2), (3,), stride=2)]),
    "nn.functional.conv_transpose2d": (None, [_s((2, 4, 5, 6), (4, 3, 2, 2), (3,), stride=2),
                                              _s((2, 4, 3, 5), (4, 1, 2, 3), None, groups=2)]),
    "nn.functional.feed_forward": (None, [
        _s((4, 3), (6, 3), (6,), (5, 6), (5,), activation="gelu_tanh"),
        _s((2, 4, 3), (6, 3), None, (5, 6), None)]),
    "nn.functional.group_norm": (None, [_s((2, 6, 5), num_groups=3)]),
    "nn.functional.group_norm with weights": (
        lambda x, w, b: F.group_norm(x, 2, w, b), [_s((3, 4, 5), (4,), (4,))]),
    "nn.functional.layer_norm": (
        lambda x, w, b: F.layer_norm(x, w.shape, w, b), [
            _s((3, 5), (5,), (5,)), _s((2, 3, 4), (3, 4), (3, 4))]),
    "nn.functional.rms_norm": (
        lambda x, w: F.rms_norm(x, w.shape, w), [_s((3, 5), (5,)), _s((2, 3, 4), (3, 4))]),
    "nn.functional.glu": (None, [_s((3, 6)), _s((4, 3), dim=0)]),
    "nn.functional.normalize": (None, [_s((3, 5), dim=-1), _s((3, 5), p=1.0)]),
    "nn.functional.cosine_similarity": (None, [_s((3, 5), (3, 5)), _s((7,), (7,), dim=-1)]),
    **{f"nn.functional.{name}": (None, [_s((3, 5), draw=apart), _s((7,), draw=apart)])
       for name in ("celu", "hardshrink", "softshrink", "tanhshrink")},
    "nn.functional.threshold": (None, [_s((3, 5), draw=apart, threshold=0.1, value=2.0)]),
    "nn.functional.threshold_": (lambda x: F.threshold_(x.clone(), 0.1, 2.0), [
        _s((3, 5), draw=apart)]),
    **{f"nn.functional.{name}_": (_on_a_copy(getattr(F, f"{name}_")), [_s((3, 5), draw=apart)])
       for name in ("celu", "elu", "hardtanh", "leaky_relu", "relu", "selu")},
    "nn.functional.softmin": (None, [_s((3, 5), dim=-1), _s((4,), dim=0)]),
    "nn.functional.gumbel_softmax": (_seeded(F.gumbel_softmax), [_s((3, 5)), _s((4, 2), dim=0)]),
    **{f"nn.functional.dropout{n}d": (_seeded(getattr(F, f"dropout{n}d")), [
        _s((3, 4, *(2,) * n), p=0.4)]) for n in (1, 2, 3)},
    "nn.functional.instance_norm": (None, [_s((2, 3, 5)), _s((2, 3, 4, 2), eps=0.1)]),
    "nn.functional.pixel_shuffle": (None, [_s((8, 2, 3), upscale_factor=2),
                                           _s((2, 4, 3, 1), upscale_factor=2)]),
    "nn.functional.pixel_unshuffle": (None, [_s((2, 4, 6), downscale_factor=2)]),
    "nn.functional.channel_shuffle": (None, [_s((2, 6, 3), groups=3)]),
    "nn.functional.unfold": (None, [_s((2, 3, 5, 4), kernel_size=2, padding=1),
                                    _s((2, 5, 4), kernel_size=(3, 2), dilation=(2, 1))]),
    "nn.functional.fold": (None, [_s((2, 12, 4), output_size=(3, 3), kernel_size=2)]),
    "nn.functional.pairwise_distance": (None, [
        _s((3, 5), (3, 5), eps=0.0), _s((3, 5), (5,), p=1.0, eps=0.0),
        _s((4, 2), (4, 2), keepdim=True, eps=0.0)]),
    "nn.functional.triplet_margin_loss": (None, [
        _s((4, 5), (4, 5), (4, 5), eps=0.0, reduction="none"),
        _s((4, 5), (4, 5), (4, 5), eps=0.0, swap=True, reduction="none")]),
    "nn.functional.margin_ranking_loss": (None, [_s((7,), (7,), (7,), margin=0.3)]),
    "nn.functional.cosine_embedding_loss": (None, [
        _s((4, 5), (4, 5), (4,), draw=(normal, normal, _sign), margin=-0.3, reduction="none")]),
    "nn.functional.hinge_embedding_loss": (None, [
        _s((3, 4), (3, 4), draw=(normal, _sign), reduction="sum")]),
    "nn.functional.soft_margin_loss": (None, [_s((3, 4), (3, 4), draw=(normal, _sign))]),
    "nn.functional.poisson_nll_loss": (None, [
        _s((3, 4), (3, 4), draw=(normal, positive)),
        _s((3, 4), (3, 4), draw=positive, log_input=False, reduction="none")]),
    "nn.functional.gaussian_nll_loss": (None, [
        _s((3, 4), (3, 4), (3, 4), draw=(normal, normal, positive)),
        _s((3, 4), (3, 4), (3,), draw=(normal, normal, positive), full=True)]),
    "nn.functional.relu6": (None, [_s((3, 5)), _s(())]),
    "nn.functional.pad": (None, [
        _s((3, 5), pad=(1, 2), value=1.5), _s((2, 3, 5), pad=(1, 2), mode="reflect"),
        _s((2, 3, 5), pad=(2, 1), mode="circular"), _s((2, 3, 5), pad=(2, 1), mode="replicate"),
        _s((2, 5), pad=(-1, 2))]),
    "nn.functional.one_hot": (None, [_s((4,), draw=below(3), num_classes=3)]),
    "nn.functional.rotary_embedding": (
        lambda x, c, s, **params: F.rotary_embedding(
            x, *(gt.astype(t, gt.float32) if x.dtype.itemsize == 2 else t for t in (c, s)),
            **params), [_s((2, 3, 2, 6), (3, 3), (3, 3)), _s((3, 2, 4), (3, 2), (3, 2), heads=1)]),
    "nn.functional.scaled_dot_product_attention": (None, [
        _s((2, 4, 3), (2, 5, 3), (2, 5, 6)), _s((4, 3), (5, 3), (5, 6), is_causal=True),
        _s((2, 4, 3), (2, 5, 3), (2, 5, 6), (4, 5)),
        _s((2, 4, 3), (2, 5, 3), (2, 5, 6), (2, 4, 5), draw=(normal, normal, normal, boolean))]),
    "nn.functional.nll_loss": (None, [
        _s((5, 3), (5,), draw=(normal, below(3))),
        _s((5, 3), (5,), (3,), draw=(normal, below(3), positive), reduction="sum"),
        _s((2, 3, 4), (2, 4), draw=(normal, below(3)), reduction="none")]),
    "nn.functional.cross_entropy of probabilities": (
        F.cross_entropy, [_s((5, 3), (5, 3), draw=(normal, positive), label_smoothing=0.1)]),
    "nn.functional.binary_cross_entropy": (None, [
        _s((3, 5), (3, 5), draw=_probability), _s((3, 5), (3, 5), (5,), draw=_probability)]),
    "nn.functional.binary_cross_entropy_with_logits": (None, [
        _s((3, 5), (3, 5), draw=(normal, _probability)),
        _s((3, 5), (3, 5), (5,), draw=(normal, _probability, positive), reduction="sum")]),
    **{f"nn.functional.{name}": (None, _LOSS)
       for name in ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss")},
}

# name -> the op whose samples it takes, and the function of the op's inputs and parameters
ADAPTED: dict[str, tuple[str, Function]] = {
    "astype": ("astype", lambda x, dtype: gt.astype(x, dtype)),
    "concat": ("concat", lambda *tensors, axis, sizes: gt.concat(tensors, axis)),
    "flip": ("flip", lambda x, axes: gt.flip(x, axis=axes)),
    "repeat": ("repeat", lambda x, axis, count: gt.repeat(x, count, axis=axis)),
    "roll": ("roll", lambda x, shifts: gt.roll(x, shifts, axis=tuple(range(-len(shifts), 0)))),
    "stack": ("stack", lambda *tensors, axis: gt.stack(tensors, axis)),
    "linalg.svd": ("svd", lambda x, full: L.svd(x, full_matrices=full)),
    "linalg.vector_norm": ("vector_norm", lambda x, axis, keepdims, order: L.vector_norm(
        x, axis=axis, keepdims=keepdims, ord=order)),
    "nn.functional.embedding": ("embedding", lambda weight, indices, padding_idx: F.embedding(
        indices, weight, padding_idx)),
    "nn.functional.hardtanh": ("hardtanh", lambda x, lowest, highest: F.hardtanh(
        x, lowest, highest)),
    "nn.functional.log_softmax": ("log_softmax", lambda x, axis: F.log_softmax(x, axis)),
    "nn.functional.softmax": ("softmax", lambda x, axis: F.softmax(x, axis)),
    "nn.functional.softplus": ("softplus", lambda x, factor, threshold: F.softplus(
        x, factor, threshold)),
}

CLASS_WEIGHTS = ("nn.functional.cross_entropy", "nn.functional.nll_loss")  # the third tensor

# -- methods and operators of Tensor ---------------------------------------------------------------

_OPERATORS = {  # the operator of two tensors -> its op
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "matmul": "matmul",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "eq": "equal", "ne": "not_equal", "lt": "less",
    "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}
_UNARY = {  # the method of one tensor -> its op
    "__abs__": "abs", "__neg__": "negative", "__pos__": "positive", "__invert__": "bitwise_invert",
    **{name: name for name in (
        "abs", "clone", "conj", "exp", "log", "relu", "round", "sigmoid", "sqrt", "tanh")},
}
_KEYS: tuple[Any, ...] = (
    (slice(1, 3),), (..., -1), (None, 0), (slice(None, None, -1), slice(None, None, 2)),
    ([0, 2, 2],), (slice(None), np.array([[0, 1], [3, 0]])))


def _dunder(name: str) -> str:
    return f"__{name}__"


def _written(x: gt.Tensor, value: gt.Tensor, key: Any) -> gt.Tensor:
    x[key] = value
    return x


def _method(name: str) -> Function:
    """The method of the first tensor, with the other tensors and the parameters."""
    return lambda x, *others, **params: getattr(x, name)(*others, **params)


def _reflected(name: str) -> Function:
    """The reflected operator, which Python calls only where the first operand is no Tensor."""
    return lambda x, y: getattr(y, _dunder("r" + name))(x)


def _in_place(name: str) -> Function:
    return getattr(operator, "i" + name)  # type: ignore[no-any-return]


TENSOR: dict[str, tuple[Function, Sequence[Sample], bool]] = {
    "T": (lambda x: x.T, [_s((2, 3))], False),
    "mT": (lambda x: x.mT, [_s((2, 3, 4))], False),
    "real": (lambda x: x.real, [_s((2, 3), draw=complex_normal), _s((5,))], False),
    "imag": (lambda x: x.imag, [_s((2, 3), draw=complex_normal)], False),
    "reshape": (lambda x, shape: x.reshape(shape), [_s((2, 6), shape=(3, -1))], False),
    "permute_dims": (lambda x, axes: x.permute_dims(axes), [_s((2, 3), axes=(1, 0))], False),
    "to": (lambda x: x.to(x.device), [_s((2, 3))], False),
    "to_device": (lambda x: x.to_device(x.device), [_s((2, 3))], False),
    "numpy": (lambda x: x.detach().numpy(), [_s((2, 3)), _s((4,), draw=below(9))], False),
    "tolist": (lambda x: x.tolist(), [_s((2, 3))], False),
    "item": (lambda x: x.item(), [_s((1, 1))], False),
    "__array__": (lambda x: np.asarray(x.detach().to("cpu")), [_s((2, 3))], False),
    "__bool__": (bool, [_s((1,))], False),
    "__int__": (int, [_s(())], False),
    "__index__": (operator.index, [_s((), draw=below(9))], False),
    "__float__": (float, [_s(())], False),
    "__complex__": (complex, [_s(())], False),
    "__iter__": (lambda x: list(x), [_s((3, 2))], False),
    "__round__": (lambda x: round(x, 1), [_s((2, 3))], False),
    "__divmod__": (lambda x, y: divmod(x, y)[0], [_s((2, 3), (2, 3), draw=apart)], False),
    "__rdivmod__": (lambda y, x: y.__rdivmod__(x)[1], [_s((2, 3), (2, 3), draw=apart)], False),
    "__getitem__": (lambda x, key: x[key], [_s((4, 5), key=key) for key in _KEYS], False),
    "__setitem__": (_written, [_s((4, 5), (5,), key=(slice(1, 3),)), _s((4, 5), (), key=(..., -1)),
                               _s((4, 5), (3, 5), key=([0, 3, 2],))], True),
}


def _tensor_calls() -> dict[str, list[Call]]:
    """Of methods and operators of `Tensor` that are not themselves public functions."""
    found = {f"Tensor.{name}": [Call(f"Tensor.{name}", function, s, writes) for s in samples]
             for name, (function, samples, writes) in TENSOR.items()}
    for method, op in _UNARY.items():
        found[f"Tensor.{method}"] = [
            Call(f"Tensor.{method}", _method(method), s) for s in samples_of(registry[op])
            if not s.params]
    for name, op in _OPERATORS.items():
        samples = samples_of(registry[op])
        for prefix, function, writes in (
                ("", _method(_dunder(name)), False), ("r", _reflected(name), False),
                ("i", None, True)):
            method = f"__{prefix}{name}__"
            if hasattr(gt.Tensor, method):
                fitting = [s for s in samples if not writes or s.shapes[0] == s.shapes[1]]
                found[f"Tensor.{method}"] = [
                    Call(f"Tensor.{method}", function or _in_place(name), s, writes)
                    for s in fitting or [_s((3, 3), (3, 3))]]
    return found


# -- what is called --------------------------------------------------------------------------------


def public_functions() -> dict[str, Function]:
    """Every public function by name, once: `linalg.matmul` is `matmul`."""
    found: dict[str, Function] = {}
    seen: set[int] = set()
    for prefix, namespace in NAMESPACES.items():
        for name in namespace.__all__:
            function = getattr(namespace, name)
            own = id(inspect.unwrap(function)) if callable(function) else 0
            if own and not isinstance(function, type) and own not in seen:
                seen.add(own)
                found[prefix + name] = function
    return found


def public_methods() -> set[str]:
    """Methods, operators and properties of Tensor that are not public functions themselves."""
    shared = {id(inspect.unwrap(f)) for f in public_functions().values()}
    return {name for name in dir(gt.Tensor)
            if (not name.startswith("_") or name.startswith("__"))
            and name not in ALIASES["gtensor.Tensor"]  # at its first use it becomes a method
            and id(inspect.unwrap(inspect.getattr_static(gt.Tensor, name))) not in shared}


def _samples_of_its_op(name: str, function: Function) -> list[Sample]:
    """Those of the op with the function's name whose parameters the function takes."""
    op = function if isinstance(function, Op) else registry.get(name.rpartition(".")[2])
    if op is None or op.samples is None:
        return []
    if function is op:
        return samples_of(op)
    return [s for s in samples_of(op) if _takes(function, s)]


def _takes(function: Function, sample: Sample) -> bool:
    try:
        inspect.signature(function).bind(*sample.shapes, **sample.params)
    except TypeError:
        return False
    return True


@cache
def calls() -> dict[str, list[Call]]:
    """The plain calls of every public function with array arguments, by name."""
    left = without(WITHOUT)
    found: dict[str, list[Call]] = {}
    for name, function in public_functions().items():
        if name in left:
            continue
        if name in ADAPTED:
            op, adapted = ADAPTED[name]
            found[name] = [Call(name, adapted, s) for s in samples_of(registry[op])]
        elif name not in OWN:
            found[name] = [Call(name, function, s) for s in _samples_of_its_op(name, function)]
    for name, (own, samples) in OWN.items():
        function = own or public_functions()[name]
        found[name] = [Call(name, function, s, name == "linalg.gemm_into") for s in samples]
    for name in CLASS_WEIGHTS:
        found[name] = [replace(c, constants=(2,)) for c in found[name]]
    return {**found, **_tensor_calls()}
