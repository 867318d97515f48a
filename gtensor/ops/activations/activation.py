"""Activations and their gradients.

Where the derivative follows from the output (relu, leaky_relu, elu, sigmoid) the output is saved
and the input can be freed; the others save their input. Gradients are written over the incoming
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.samples import alike, apart, normal, unary
from gtensor.ops.arrange.writing import overwrite
from gtensor.ops.define.arguments import of_half, takes_arrays
from gtensor.ops.define.fused import formula_of
from gtensor.ops.elementwise.selection import where

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.handle.namespaces import Namespace

_TANH_SCALE = 0.7978845608028654  # sqrt(2 / pi)
_TANH_CUBE = 0.044715


# -- relu ------------------------------------------------------------------------------------------

relu_op = formula_of(
    "relu", lambda ns, x: ns.maximum(x, 0),
    slope=lambda ns, y: ns.where(ns.less_equal(y, 0), 0, 1), of="out",  # this way around NaN passes
    asks=True,
    gradient={
        "by_ops": True, "samples": alike(2, (normal, apart)),
        "reference": lambda torch, g, y: g * (y > 0),
        "doc": "The gradient of y = relu(x): g where y > 0, else 0."},
    samples=unary(apart), reference=lambda torch, x: torch.relu(x),
    doc="max(x, 0), elementwise; NaN passes. Its gradient at 0 is 0.",
)

leaky_relu_op = formula_of(
    "leaky_relu",
    lambda ns, x, *, negative_slope: ns.maximum(x, 0) + negative_slope * ns.minimum(x, 0),
    slope=lambda ns, y, *, negative_slope: ns.where(ns.greater(y, 0), 1, negative_slope), of="out",
    asks=True,
    gradient={
        "by_ops": True, "samples": alike(2, (normal, apart), negative_slope=0.1),
        "reference": lambda torch, g, y, negative_slope: torch.where(y > 0, g, g * negative_slope),
        "doc": "The gradient of y = leaky_relu(x) with a positive slope: g where y > 0, else g "
               "times it."},
    floating=True, samples=unary(apart, negative_slope=0.1),
    reference=lambda torch, x, negative_slope: torch.nn.functional.leaky_relu(x, negative_slope),
    doc="x where x > 0, else x times a positive slope.",
)


# -- elu -------------------------------------------------------------------------------------------

def _elu(ns: Namespace, x: Array, *, alpha: float) -> Array:
    return ns.maximum(x, 0) + alpha * ns.expm1(ns.minimum(x, 0))  # one of the two is 0


elu_op = formula_of(
    "elu", _elu,
    slope=lambda ns, y, *, alpha: ns.where(ns.greater(y, 0), 1, y + alpha), of="out",
    gradient={
        "by_ops": True, "samples": alike(2, (normal, apart), alpha=2.5),
        "reference": lambda torch, g, y, alpha: torch.where(y > 0, g, g * (y + alpha)),
        "doc": "The gradient of y = elu(x) with a positive alpha: g where y > 0, else "
               "g * (y + alpha)."},
    floating=True, samples=unary(apart, alpha=1.5),
    reference=lambda torch, x, alpha: torch.nn.functional.elu(x, alpha),
    doc="x where x > 0, else alpha * (exp(x) - 1), for a positive alpha.",
)

elu_of_half_op = formula_of(
    "elu_of_half", _elu,
    slope=lambda ns, x, *, alpha: ns.where(
        ns.greater(x, 0), 1, alpha * ns.exp(ns.minimum(x, 0))),
    gradient={"by_ops": True, "samples": alike(2, (normal, apart), alpha=2.5),
              "reference": lambda torch, g, x, alpha: g * torch.where(
                  x > 0, 1.0, alpha * torch.exp(x))},
    floating=True, samples=unary(apart, alpha=1.5),
    reference=lambda torch, x, alpha: torch.nn.functional.elu(x, alpha),
    doc="elu of half types. It saves its input: the slope far below 0 is a difference that the "
        "rounded output has lost.",
)


# -- sigmoid and silu ------------------------------------------------------------------------------

sigmoid_op = formula_of(
    "sigmoid", lambda ns, x: ns.sigmoid(x), of="out",
    gradient={
        "by_ops": True, "samples": alike(2), "reference": lambda torch, g, y: g * y * (1 - y),
        "doc": "The gradient of y = sigmoid(x)."},
    floating=True, samples=unary(), reference=lambda torch, x: torch.sigmoid(x),
    doc="1 / (1 + exp(-x)), elementwise.",
)


def _silu_slope(ns: Namespace, x: Array) -> Array:
    s = ns.sigmoid(x)
    return s * (1 + x * (1 - s))


silu_op = formula_of(
    "silu", lambda ns, x: x * ns.sigmoid(x), slope=_silu_slope,
    gradient={
        "by_ops": True, "samples": alike(2),
        "reference": lambda torch, g, x: g * torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x)))},
    floating=True, samples=unary(), reference=lambda torch, x: torch.nn.functional.silu(x),
    doc="x * sigmoid(x), elementwise.",
)


# -- softplus --------------------------------------------------------------------------------------


# `factor` is PyTorch's beta; the engine's `beta` means to accumulate into `out`.


def _softplus(ns: Namespace, x: Array, *, factor: float, threshold: float) -> Array:
    z = factor * x
    smooth = (ns.maximum(z, 0) + ns.log1p(ns.exp(-ns.abs(z)))) / factor  # exp cannot overflow
    return ns.where(ns.greater(z, threshold), x, smooth)


softplus_op = formula_of(
    "softplus", _softplus, autocast="float32",
    slope=lambda ns, x, *, factor, threshold: ns.where(
        ns.greater(x * factor, threshold), 1, ns.sigmoid(x * factor)),
    gradient={
        "by_ops": True, "samples": alike(2, factor=1.5, threshold=20.0),
        "reference": lambda torch, g, x, factor, threshold: g * torch.sigmoid(factor * x)},
    floating=True, samples=unary(factor=1.5, threshold=20.0),
    reference=lambda torch, x, factor, threshold: torch.nn.functional.softplus(
        x, factor, threshold),
    doc="log(1 + exp(factor * x)) / factor, elementwise; x itself where factor * x > threshold.",
)


# -- gelu ------------------------------------------------------------------------------------------


def _gelu(ns: Namespace, x: Array, *, approximate: str) -> Array:
    if approximate == "none":
        return x * ns.normal_cdf(x)
    return 0.5 * (x * (1 + ns.tanh(x * (_TANH_SCALE * _TANH_CUBE * (x * x) + _TANH_SCALE))))


def _gelu_slope(ns: Namespace, x: Array, *, approximate: str) -> Array:
    if approximate == "none":
        return ns.normal_slope(x)
    square = x * x
    t = ns.tanh(x * (_TANH_SCALE * _TANH_CUBE * square + _TANH_SCALE))
    inner = _TANH_SCALE + 3 * _TANH_CUBE * _TANH_SCALE * square
    return 0.5 * ((1 + t) * (1 + x * (1 - t) * inner))


gelu_op = formula_of(
    "gelu", _gelu, slope=_gelu_slope,
    gradient={"samples": alike(2, approximate="none") + alike(2, approximate="tanh")},
    floating=True, samples=unary(approximate="none") + unary(approximate="tanh"),
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


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0), elementwise; NaN passes. The gradient at 0 is 0. Saves its output.

    `inplace`, of every activation and of dropout: the input itself becomes the result, as `x += 1`
    makes x the sum. Its memory is written if nothing else reads it.
    """
    return overwrite(relu_op, input) if inplace else relu_op(input)


@takes_arrays
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where positive, else input * negative_slope. With a positive slope saves its output.

    Elementwise. Source: Maas et al., "Rectifier nonlinearities improve neural network acoustic
    models", 2013.
    """
    if negative_slope > 0:
        if inplace:
            return overwrite(leaky_relu_op, input, negative_slope=float(negative_slope))
        return leaky_relu_op(input, negative_slope=float(negative_slope))
    if inplace:
        return overwrite(leaky_relu, input, negative_slope)
    return where(input > 0, input, input * negative_slope) if negative_slope else relu(input)


@takes_arrays
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where positive, else alpha * (exp(input) - 1).

    With a positive alpha saves its output, of half types its input, as their output has lost the
    slope.

    Source: Clevert et al., "Fast and accurate deep network learning by exponential linear units",
    2015.
    """
    if alpha > 0:
        chosen = elu_of_half_op if of_half(input) else elu_op
        if inplace:
            return overwrite(chosen, input, alpha=float(alpha))
        return chosen(input, alpha=float(alpha))
    if inplace:
        return overwrite(elu, input, alpha)
    return where(input > 0, input, alpha * (recorded.exp(recorded.minimum(input, 0)) - 1))


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function of it, exact or by tanh (approximate="tanh").

    Source: Hendrycks and Gimpel, "Gaussian error linear units", 2016.

    Raises ValueError for another `approximate`.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f"gelu was given approximate={approximate!r}; wanted 'none' or 'tanh'")
    return gelu_op(input, approximate=approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input * sigmoid(input), elementwise."""
    return overwrite(silu_op, input) if inplace else silu_op(input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)), elementwise. Saves its output."""
    return sigmoid_op(input)


@takes_arrays
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold.

    Raises ValueError for a beta that is not positive.
    """
    if not beta > 0:
        raise ValueError(f"softplus was given beta={beta}; wanted a positive number")
    return softplus_op(input, factor=float(beta), threshold=float(threshold))
