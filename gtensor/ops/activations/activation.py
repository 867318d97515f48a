"""Activations and their gradients.

Where the derivative follows from the output (relu, leaky_relu, elu, sigmoid) the output is saved
and the input can be freed; the others save their input. Gradients are written over the incoming
one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.kernels import elementwise
from gtensor.engine.namespaces import recorded
from gtensor.engine.op import op
from gtensor.engine.samples import alike, apart, normal, unary
from gtensor.engine.tensor import Tensor
from gtensor.ops.build.cpu_tiles import computed_in, masked, select_into, tile_size, whole_tiles
from gtensor.ops.build.fused import fused
from gtensor.ops.build.path_builders import tiled
from gtensor.ops.build.pointwise import partial, pointwise
from gtensor.ops.elementwise.erf import erf_values, extended, sigmoid_values
from gtensor.ops.elementwise.selection import where

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.typing import Namespace

_HEADER = "activation.cuh"
_ROOT_HALF = 0.7071067811865476  # 1 / sqrt(2)
_DENSITY_AT_0 = 0.3989422804014327  # 1 / sqrt(2 pi)
_TANH_SCALE = 0.7978845608028654  # sqrt(2 / pi)
_TANH_CUBE = 0.044715


def _kernel(name: str, inputs: str, call: str) -> Any:
    """The elementwise kernel of one function of activation.cuh; parameters arrive by name."""
    output = "dx" if "g" in inputs.split(", ")[0].split() else "y"
    return elementwise(inputs, f"T {output}", f"{output} = gt_{call}", _HEADER, f"gt_{name}")


# -- relu ------------------------------------------------------------------------------------------


def _relu_cpu(x: Array, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "relu")
    return np.maximum(x, x.dtype.type(0), out=out)


def _relu_grad_formula(ns: Namespace, g: Array, y: Array) -> Array:
    return ns.where(ns.less_equal(y, 0), 0.0, g)  # this way around NaN passes


def _relu_grad_cpu(g: Array, y: Array, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(g.shape, g.dtype, "relu_grad")
    zero = y.dtype.type(0)
    a, b, result = (x if x.ndim else x.reshape(1) for x in (g, y, out))
    for tile in whole_tiles(a.shape):
        dropped = np.less_equal(b[tile], zero)
        masked(a[tile], np.logical_not(dropped, out=dropped), result[tile])
    return out


relu_grad = op(
    "relu_grad", cpu=_relu_grad_cpu, backward=None, tangent=None,
    gpu=_kernel("relu_grad", "T g, T y", "relu_grad_from_output(g, y)"),
    composed=functools.partial(_relu_grad_formula, recorded),
    samples=alike(2, (normal, apart)), reference=lambda torch, g, y: g * (y > 0),
    doc="The gradient of y = relu(x): g where y > 0, else 0.",
)

relu_op = op(
    "relu", cpu=_relu_cpu, gpu=_kernel("relu", "T x", "relu(x)"),
    backward=pointwise(partial("out", lambda ns, g, y, out: ns.relu_grad(g, y, out=out))),
    samples=unary(apart), reference=lambda torch, x: torch.relu(x),
    doc="max(x, 0), elementwise; NaN passes. Its gradient at 0 is 0.",
)


# -- leaky relu ------------------------------------------------------------------------------------


def _leaky_relu_cpu(x: Array, *, negative_slope: float, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "leaky_relu")
    larger = np.maximum if negative_slope <= 1 else np.minimum
    scratch = host().workspace(tile_size(x.shape), computed_in(x.dtype))
    for tile in whole_tiles(x.shape):
        scaled = scratch(0, x[tile].shape)
        np.multiply(x[tile], scaled.dtype.type(negative_slope), out=scaled)
        if scaled.dtype == x.dtype:
            larger(x[tile], scaled, out=out[tile])
        else:
            out[tile] = larger(x[tile], scaled, out=scaled)
    return out


def _leaky_relu_grad_formula(ns: Namespace, g: Array, y: Array, *, negative_slope: float) -> Array:
    return ns.where(ns.greater(y, 0), g, g * negative_slope)


def _leaky_relu_grad_cpu(
    g: Array, y: Array, *, negative_slope: float, out: Array | None = None
) -> Array:
    if out is None:
        out = host().empty(g.shape, g.dtype, "leaky_relu_grad")
    a, b, result = (x if x.ndim else x.reshape(1) for x in (g, y, out))
    scratch = host().workspace(tile_size(a.shape), computed_in(g.dtype), 2)
    for tile in whole_tiles(a.shape):
        scaled, change = scratch(0, a[tile].shape), scratch(1, a[tile].shape)
        np.multiply(a[tile], scaled.dtype.type(negative_slope), out=scaled)
        if scaled.dtype == a.dtype:
            select_into(result[tile], b[tile] > 0, a[tile], scaled, change)
        else:
            change[...] = a[tile]
            result[tile] = select_into(scaled, b[tile] > 0, change, scaled, change)
    return out


leaky_relu_grad = op(
    "leaky_relu_grad", cpu=_leaky_relu_grad_cpu, backward=None, tangent=None,
    composed=functools.partial(_leaky_relu_grad_formula, recorded),
    gpu=_kernel("leaky_relu_grad", "T g, T y, float64 negative_slope",
                "leaky_relu_grad_from_output(g, y, negative_slope)"),
    samples=alike(2, (normal, apart), negative_slope=0.1),
    reference=lambda torch, g, y, negative_slope: torch.where(y > 0, g, g * negative_slope),
    doc="The gradient of y = leaky_relu(x) with a positive slope: g where y > 0, else g times it.",
)

leaky_relu_op = op(
    "leaky_relu", cpu=_leaky_relu_cpu, floating=True,
    gpu=_kernel("leaky_relu", "T x, float64 negative_slope", "leaky_relu(x, negative_slope)"),
    backward=pointwise(partial("out", lambda ns, g, y, out, negative_slope: ns.leaky_relu_grad(
        g, y, negative_slope=negative_slope, out=out))),
    samples=unary(apart, negative_slope=0.1),
    reference=lambda torch, x, negative_slope: torch.nn.functional.leaky_relu(x, negative_slope),
    doc="x where x > 0, else x times a positive slope.",
)


# -- elu -------------------------------------------------------------------------------------------

elu_grad = fused(
    "elu_grad",
    extended(lambda ns, g, y, *, alpha: ns.where(ns.greater(y, 0), g, g * (y + alpha))),
    gpu=_kernel("elu_grad", "T g, T y, float64 alpha", "elu_grad_from_output(g, y, alpha)"),
    samples=alike(2, (normal, apart), alpha=2.5),
    reference=lambda torch, g, y, alpha: torch.where(y > 0, g, g * (y + alpha)),
    doc="The gradient of y = elu(x) with a positive alpha: g where y > 0, else g * (y + alpha).",
)

elu_op = op(
    "elu", inputs="x", floating=True,
    cpu=tiled("elu", extended(lambda ns, x, *, alpha: ns.where(
        ns.greater(x, 0), x, alpha * ns.expm1(ns.minimum(x, 0))))),
    gpu=_kernel("elu", "T x, float64 alpha", "elu(x, alpha)"),
    backward=pointwise(partial("out", lambda ns, g, y, out, alpha: ns.elu_grad(
        g, y, alpha=alpha, out=out))),
    samples=unary(apart, alpha=1.5),
    reference=lambda torch, x, alpha: torch.nn.functional.elu(x, alpha),
    doc="x where x > 0, else alpha * (exp(x) - 1), for a positive alpha.",
)


# -- sigmoid and silu ------------------------------------------------------------------------------

sigmoid_grad = fused(
    "sigmoid_grad", lambda ns, g, y: g * (1 - y) * y,
    gpu=_kernel("sigmoid_grad", "T g, T y", "sigmoid_grad_from_output(g, y)"),
    samples=alike(2), reference=lambda torch, g, y: g * (1 - y) * y,
    doc="The gradient of y = sigmoid(x).",
)

sigmoid_op = op(
    "sigmoid", inputs="x", cpu=tiled("sigmoid", lambda ns, x: sigmoid_values(x)), floating=True,
    gpu=_kernel("sigmoid", "T x", "sigmoid(x)"),
    backward=pointwise(partial("out", lambda ns, g, y, out: ns.sigmoid_grad(g, y, out=out))),
    samples=unary(), reference=lambda torch, x: torch.sigmoid(x),
    doc="1 / (1 + exp(-x)), elementwise.",
)


def _silu_grad_formula(ns: Namespace, g: Array, x: Array) -> Array:
    s = ns.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


silu_grad = fused(
    "silu_grad", extended(_silu_grad_formula),
    gpu=_kernel("silu_grad", "T g, T x", "silu_grad(g, x)"),
    samples=alike(2), doc="The gradient of silu(x).",
    reference=lambda torch, g, x: g * torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
)

silu_op = op(
    "silu", inputs="x", cpu=tiled("silu", lambda ns, x: x * sigmoid_values(x)), floating=True,
    gpu=_kernel("silu", "T x", "silu(x)"),
    backward=pointwise(partial("x", lambda ns, g, x, out: ns.silu_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: torch.nn.functional.silu(x),
    doc="x * sigmoid(x), elementwise.",
)


# -- softplus --------------------------------------------------------------------------------------


# `factor` is PyTorch's beta; the engine's `beta` means to accumulate into `out`.


def _softplus_formula(ns: Namespace, x: Array, *, factor: float, threshold: float) -> Array:
    z = factor * x
    smooth = (ns.maximum(z, 0) + ns.log1p(ns.exp(-ns.abs(z)))) / factor  # exp cannot overflow
    return ns.where(ns.greater(z, threshold), x, smooth)


softplus_grad = fused(
    "softplus_grad",
    extended(lambda ns, g, x, *, factor, threshold: ns.where(
        ns.greater(x * factor, threshold), g, g * ns.sigmoid(x * factor))),
    gpu=_kernel("softplus_grad", "T g, T x, float64 factor, float64 threshold",
                "softplus_grad(g, x, factor, threshold)"),
    samples=alike(2, factor=1.5, threshold=20.0),
    reference=lambda torch, g, x, factor, threshold: g * torch.sigmoid(factor * x),
    doc="The gradient of softplus(x).",
)

softplus_op = op(
    "softplus", inputs="x", cpu=tiled("softplus", extended(_softplus_formula)), floating=True,
    gpu=_kernel("softplus", "T x, float64 factor, float64 threshold",
                "softplus(x, factor, threshold)"),
    backward=pointwise(partial("x", lambda ns, g, x, out, factor, threshold: ns.softplus_grad(
        g, x, factor=factor, threshold=threshold, out=out))),
    samples=unary(factor=1.5, threshold=20.0),
    reference=lambda torch, x, factor, threshold: torch.nn.functional.softplus(
        x, factor, threshold),
    doc="log(1 + exp(factor * x)) / factor, elementwise; x itself where factor * x > threshold.",
)


# -- gelu ------------------------------------------------------------------------------------------


def _gelu_formula(ns: Namespace, x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        y = x * x
        y *= _TANH_CUBE * _TANH_SCALE
        y += _TANH_SCALE
        y *= x
        y = np.tanh(y)
    else:
        y = erf_values(_ROOT_HALF * x)
    y += 1
    y *= x
    y *= 0.5
    return y


def _gelu_grad_formula(ns: Namespace, g: Array, x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        t = ns.tanh(_TANH_SCALE * (x + _TANH_CUBE * (x * x * x)))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBE * (x * x))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = _DENSITY_AT_0 * ns.exp(-0.5 * (x * x))
    return g * (0.5 * (1 + ns.erf(_ROOT_HALF * x)) + x * density)


def _by_approximation(exact: Any, by_tanh: Any) -> Path:
    def path(*arrays: Array, approximate: str, out: Array | None = None) -> Array:
        return (by_tanh if approximate == "tanh" else exact)(*arrays, out=out)

    return path


gelu_grad = fused(
    "gelu_grad", extended(_gelu_grad_formula),
    gpu=_by_approximation(_kernel("gelu_grad", "T g, T x", "gelu_grad(g, x)"),
                          _kernel("gelu_tanh_grad", "T g, T x", "gelu_tanh_grad(g, x)")),
    samples=alike(2, approximate="none") + alike(2, approximate="tanh"),
    doc="The gradient of gelu(x).",
)

gelu_op = op(
    "gelu", inputs="x", cpu=tiled("gelu", _gelu_formula), floating=True,
    gpu=_by_approximation(_kernel("gelu", "T x", "gelu(x)"),
                          _kernel("gelu_tanh", "T x", "gelu_tanh(x)")),
    backward=pointwise(partial("x", lambda ns, g, x, out, approximate: ns.gelu_grad(
        g, x, approximate=approximate, out=out))),
    samples=unary(approximate="none") + unary(approximate="tanh"),
    reference=lambda torch, x, approximate: torch.nn.functional.gelu(x, approximate=approximate),
    doc="x times the normal distribution function of x, exact or by its tanh approximation.",
)


# -- an activation by name, for fused ops ----------------------------------------------------------

THRESHOLD = 20.0  # softplus in a fused op: PyTorch's default

ACTIVATIONS: dict[str, tuple[Path, Path]] = {
    "identity": (lambda ns, x, p, out=None: x, lambda ns, g, x, p, out=None: g),
    "relu": (
        lambda ns, x, p, out=None: ns.relu(x, out=out),
        lambda ns, g, x, p, out=None: ns.relu_grad(g, x, out=out)),
    "leaky_relu": (
        lambda ns, x, p, out=None: ns.leaky_relu(x, negative_slope=p, out=out),
        lambda ns, g, x, p, out=None: ns.leaky_relu_grad(g, x, negative_slope=p, out=out)),
    "elu": (
        lambda ns, x, p, out=None: ns.elu(x, alpha=p, out=out),
        lambda ns, g, x, p, out=None: ns.elu_grad(g, ns.elu(x, alpha=p), alpha=p, out=out)),
    "gelu": (
        lambda ns, x, p, out=None: ns.gelu(x, approximate="none", out=out),
        lambda ns, g, x, p, out=None: ns.gelu_grad(g, x, approximate="none", out=out)),
    "gelu_tanh": (
        lambda ns, x, p, out=None: ns.gelu(x, approximate="tanh", out=out),
        lambda ns, g, x, p, out=None: ns.gelu_grad(g, x, approximate="tanh", out=out)),
    "sigmoid": (
        lambda ns, x, p, out=None: ns.sigmoid(x, out=out),
        lambda ns, g, x, p, out=None: ns.sigmoid_grad(g, ns.sigmoid(x), out=out)),
    "softplus": (
        lambda ns, x, p, out=None: ns.softplus(x, factor=p, threshold=THRESHOLD, out=out),
        lambda ns, g, x, p, out=None: ns.softplus_grad(
            g, x, factor=p, threshold=THRESHOLD, out=out)),
    "tanh": (
        lambda ns, x, p, out=None: ns.tanh(x, out=out),
        lambda ns, g, x, p, out=None: ns.tanh_grad(g, ns.tanh(x), out=out)),
    "silu": (
        lambda ns, x, p, out=None: ns.silu(x, out=out),
        lambda ns, g, x, p, out=None: ns.silu_grad(g, x, out=out)),
}
"""name -> (activation, its gradient from the input), of a namespace and one parameter.

The parameter is leaky_relu's slope, elu's alpha, softplus' beta. `out` may be x or g; identity
returns x or g itself.
"""


# -- public functions ------------------------------------------------------------------------------


def relu(input: Tensor) -> Tensor:
    """max(input, 0), elementwise; NaN passes. The gradient at 0 is 0. Saves its output."""
    return relu_op(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """input where positive, else input * negative_slope. With a positive slope saves its output."""
    if negative_slope > 0:
        return leaky_relu_op(input, negative_slope=float(negative_slope))
    return where(input > 0, input, input * negative_slope) if negative_slope else relu(input)


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """input where positive, else alpha * (exp(input) - 1). With a positive alpha saves its output.

    Source: Clevert et al., "Fast and accurate deep network learning by exponential linear units",
    2015.
    """
    if alpha > 0:
        return elu_op(input, alpha=float(alpha))
    return where(input > 0, input, alpha * (recorded.exp(recorded.minimum(input, 0)) - 1))


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function of it, exact or by tanh (approximate="tanh").

    Source: Hendrycks and Gimpel, "Gaussian error linear units", 2016.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu was given approximate={approximate!r}; wanted 'none' or 'tanh'")
    return gelu_op(input, approximate=approximate)


def silu(input: Tensor) -> Tensor:
    """input * sigmoid(input), elementwise."""
    return silu_op(input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)), elementwise. Saves its output."""
    return sigmoid_op(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold."""
    if not beta > 0:
        raise ValueError(f"softplus was given beta={beta}; wanted a positive number")
    return softplus_op(input, factor=float(beta), threshold=float(threshold))
