"""The updates of the optimizers: one pass over parameters, their gradients and state, in place.

An update is the path of an optimizer and works on raw arrays: `engine.in_place.write_all` calls it
for many parameters and increases their versions. Both paths follow from a formula
(`ops.build.updates`): tiles on the CPU, one launch for all parameters of a dtype on CUDA. State may
be of a half dtype; the arithmetic is then done in float32. Formulas and their order are PyTorch's;
Lion's are its paper's.

After the optimizers come other passes over all parameters or gradients in place: the moving average
of the weights, clipping, and the removal of a loss scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, elementwise, raw
from gtensor.backend.multi_tensor import MultiTensor, Tensors, block_count, launch_apart
from gtensor.engine.bind import Extras, bind
from gtensor.engine.context import no_grad
from gtensor.engine.op import Op
from gtensor.ops.build.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.build.path_builders import into
from gtensor.ops.build.updates import Update

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.tensor import Tensor

# -- optimizers ------------------------------------------------------------------------------------


def _sgd(
    ns: Any, p: Any, g: Any, buffer: Any, *, rate: Any, weight_decay: Any, momentum: Any,
    dampening: Any, nesterov: bool, maximize: bool, step: Any, first: bool | None, deferred: bool,
) -> Any:
    g = _direction(ns, p, g, weight_decay, maximize, deferred)
    if buffer is None:
        return p - rate * g
    share = 1 - dampening
    if first is None:  # the buffer is 0 at first
        share = ns.where(ns.equal(step, 1), 1.0, share)
    m = g if first else momentum * buffer + share * g
    return p - rate * (g + momentum * m if nesterov else m), m


def _direction(ns: Any, p: Any, g: Any, weight_decay: Any, maximize: bool, deferred: bool) -> Any:
    g = -g if maximize else g
    if weight_decay is None:
        return g
    decayed = g + weight_decay * p
    return ns.where(ns.not_equal(weight_decay, 0), decayed, g) if deferred else decayed


def _adam(
    ns: Any, p: Any, g: Any, first: Any, second: Any, largest: Any, *, rate: Any, beta1: Any,
    beta2: Any, eps: Any, weight_decay: Any, decoupled: bool, maximize: bool, step: Any,
    most: float | None, deferred: bool,
) -> Any:
    """An infinite mean square would stop all later updates of the parameter, so that of a finite
    gradient is at most `most`, and so is the gradient's share of it. Infinities stay."""
    g = _direction(ns, p, g, None if decoupled else weight_decay, maximize, deferred)
    if most is None:
        v = beta2 * second + (1 - beta2) * ns.square(g)
        watched: tuple[Any, ...] = (ns.square(g),)
    else:
        limit = most**0.5 / (1 - beta2)**0.5  # whose share is `most`
        finite = ns.isfinite(g) & ns.isfinite(second)
        g = ns.where(finite, ns.maximum(ns.minimum(g, limit), -limit), g)
        v = beta2 * second + (1 - beta2) * g * g
        v = ns.where(finite, ns.minimum(v, most), v)
        watched = ()
    m = first + (1 - beta1) * (g - first)
    top = v if largest is None else ns.maximum(largest, v)
    if decoupled and weight_decay is not None:
        p = p * (1 - rate * weight_decay)
    correction1, correction2 = 1 - ns.power(beta1, step), 1 - ns.power(beta2, step)
    p = p - rate / correction1 * (m / (ns.sqrt(top) / correction2**0.5 + eps))
    return (p, m, v, *(() if largest is None else (top,)), *watched)


def _lion(
    ns: Any, p: Any, g: Any, m: Any, *, rate: Any, beta1: Any, beta2: Any, weight_decay: Any
) -> Any:
    direction = ns.sign(beta1 * m + (1 - beta1) * g)
    if weight_decay is not None:
        p = p * (1 - rate * weight_decay)
    return p - rate * direction, beta2 * m + (1 - beta2) * g


def _op(update: Update, doc: str, name: str = "") -> Op:
    return Op(name or update.formula.name, inputs="tensors", variadic=True, cpu=update.cpu,
              gpu=update.gpu, backward=None, tangent=None, samples=None, asks=update.asks, doc=doc)


def update_of(op: Op) -> Update:
    """The update whose paths an op has."""
    found: Update = op.gpu.__self__  # type: ignore[attr-defined]
    return found


_DECAY = ("weight_decay",)
sgd = _op(Update("sgd", _sgd, {1: "sgd_momentum"}, neglected=_DECAY, counted=True),
          "One step of stochastic gradient descent, in place.")
adam = _op(Update("adam", _adam, {3: "amsgrad"}, neglected=_DECAY, counted=True),
           "One step of Adam, or AdamW if `decoupled`, in place; a third state is AMSGrad's.")
lion = _op(Update("lion", _lion, neglected=_DECAY, counted=True),
           "One step of Lion, in place.")

# -- moving average and clipping -------------------------------------------------------------------


_average = Update("average", lambda ns, average, value, *, weight: average + weight * (
    value - average), quiet=True)
_scale = Update("scale", lambda ns, gradient, factor: gradient * factor,  # an infinite norm gives
                uniform=True, quiet=True)                                 # inf * 0, which is NaN
_clip = Update("clip", lambda ns, gradient, limit: ns.minimum(ns.maximum(gradient, -limit), limit),
               uniform=True, quiet=True)


average = _op(_average, "average += weight * (value - average), in place; the average's dtype is "
              "float32 or wider.")
scale = _op(_scale, "gradient *= factor, in place; the factor, 0-d, is the last input (float64 on "
            "CUDA).", "scale_gradient")
clip = _op(_clip, "Each element of the gradient at most the limit in size, in place; NaN stays "
           "NaN.", "clip_gradient")


TINY = 1e-6  # PyTorch's guard against a norm of 0


def _norm_cpu(
    *gradients: Array, order: float, most: float = inf, out: None = None
) -> tuple[Array, Array]:
    total = 0.0
    for gradient in gradients:
        wide = computed_in(gradient.dtype)
        for key in whole_tiles(gradient.shape):
            part = gradient[key].reshape(-1).astype(wide, copy=False)  # a tile at most is copied
            total = _combined(total, part, order)
    norm = np.asarray(total if order == inf else total ** (1 / order), _norm_dtype(gradients))
    factor = np.asarray(1.0, norm.dtype)
    if most < inf:
        with np.errstate(invalid="ignore"):
            np.minimum(norm.dtype.type(most) / (norm + norm.dtype.type(TINY)), factor, out=factor)
    return norm, factor


def _norm_dtype(gradients: Sequence[Array]) -> np.dtype:
    return np.result_type(*[computed_in(gradient.dtype) for gradient in gradients])


def _combined(total: float, part: Array, order: float) -> float:
    """The norm (without its root) of what was seen so far and of `part`; NaN stays NaN."""
    if order == inf:
        return float(np.maximum(total, abs(part).max(initial=0)))
    with np.errstate(over="ignore", invalid="ignore"):
        more = float(_power_sum(part, order))
        if not isfinite(more):  # squares of float32 overflow from 1.8e19 on
            more = float(_power_sum(part.astype(np.float64), order))
    return total + more


def _power_sum(part: Array, order: float) -> Any:
    return np.dot(part, part) if order == 2 else (abs(part) ** order).sum()


# A block sums (or compares) its elements in double, always in one order.
_PARTS = """
template <typename G, int tensors, int rows>
__global__ void __launch_bounds__(GT_BLOCK)
gt_{name}(const gt_table<1, 1, tensors, rows> table, double *parts) {{
  __shared__ double cells[GT_BLOCK];
  const int tensor = gt_tensor_of_block(table);
  const G *at = static_cast<const G *>(table.at[0][tensor]);
  {setup}const {combine} combine;
  double total = 0;
  auto add = [&](G value) {{
    const double x = fabs(static_cast<double>(gt_up(value)));
    total = combine(total, {term});
  }};
  constexpr int W = 16 / sizeof(G);
  const gt_range range = gt_range_of_block(table, tensor);
  gt_index done = range.begin;
  if (gt_aligned<W>(at)) {{
    done += (range.end - range.begin) / W * W;
    for (gt_index i = range.begin + threadIdx.x * W; i < done; i += GT_BLOCK * W) {{
      gt_few<G, W> few;
      few.read(at + i);
      for (int w = 0; w < W; ++w) add(few.values[w]);
    }}
  }}
  for (gt_index i = done + threadIdx.x; i < range.end; i += GT_BLOCK) add(at[i]);
  total = gt_block_reduce(total, cells, combine);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}}
"""


def _parts(name: str, term: str, combine: str = "gt_sum", setup: str = "") -> MultiTensor:
    text = _PARTS.format(name=name, term=term, combine=combine, setup=setup)
    return MultiTensor(name, text, "G", 1, 1)


_SQUARES = _parts("norm_squares", "x * x")
_SIZES = _parts("norm_sizes", "x")
_POWERS = _parts("norm_powers", "pow(x, order)",
                 setup="const double order = gt_option(table, tensor, 0);\n  ")
_LARGEST = _parts("norm_largest", "x", "gt_max")
_KINDS = {2.0: _SQUARES, 1.0: _SIZES, inf: _LARGEST}
NORMS = _SQUARES, _SIZES, _POWERS, _LARGEST
_norm_of_parts = raw("gradient_norm.cu", "gradient_norm")


def _norm_gpu(
    *gradients: Array, order: float, most: float = inf, out: None = None
) -> tuple[Array, Array]:
    """Two launches for gradients of one dtype: sums of blocks, and the norm of these."""
    xp = cupy()
    kernel = _KINDS.get(order, _POWERS)
    parts = xp.empty(max(1, block_count(gradients)), np.float64)
    blocks = 0
    for dtype in dict.fromkeys([gradient.dtype for gradient in gradients]):
        given = [xp.ascontiguousarray(g) for g in gradients if g.dtype == dtype]
        kernel(Tensors([given], [0] * len(given), [(order,)]), blocks_at=parts[blocks:])
        blocks += block_count(given)
    norm, factor = xp.empty((), _norm_dtype(gradients)), xp.empty((), np.float64)
    _norm_of_parts[norm.dtype](
        (1,), (BLOCK,), (parts, blocks, float(order), float(most), norm, factor))
    return norm, factor


norm = Op("gradient_norm", cpu=_norm_cpu, gpu=_norm_gpu, backward=None, tangent=None, samples=None,
          variadic=True, extras="factor",
          doc="The norm of all arrays together, 0-d, float32 or wider. The extra result is the "
          "factor by which clipping to `most` multiplies, 0-d, on CUDA float64.")


def total_norm(
    tensors: Sequence[Tensor], order: float = 2.0, most: float = inf
) -> tuple[Tensor, Tensor]:
    """The norm of all tensors together, and the factor that clips it to `most`; not recorded."""
    kept = Extras()
    with no_grad():
        found = bind(norm, tuple(tensors), {"order": order, "most": most}, kept)
    return found, kept.extras[0]


# -- the loss scale --------------------------------------------------------------------------------


_is_finite = into(np.isfinite)
_Unscaling: TypeAlias = "tuple[Array, Array]"  # tiles: whether elements are finite, wide ones


def _unscale_asks(*arrays: Array, out: tuple[Array, ...]) -> _Unscaling:
    size, dtype = max([tile_size(gradient.shape) for gradient in out]), computed_in(out[0].dtype)
    return np.empty(size, np.bool_), host().empty(
        (size if dtype != out[0].dtype else 0,), dtype, "workspace")


def _unscale_cpu(
    *arrays: Array, out: tuple[Array, ...], work: _Unscaling | None = None
) -> tuple[Array, ...]:
    finite, wide = work or _unscale_asks(*arrays, out=out)
    *gradients, found = out
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = wide.dtype.type(np.float32(np.float64(1) / np.float64(arrays[-1])))  # of 0: inf
        for gradient in gradients:
            for key in whole_tiles(gradient.shape):
                part = gradient[key]
                if not _is_finite(part, finite[:part.size].reshape(part.shape)).all():
                    found[...] = 1
                if part.dtype == wide.dtype:
                    np.multiply(part, inverse, out=part)
                else:
                    copy = wide[:part.size].reshape(part.shape)
                    copy[...] = part
                    np.multiply(copy, inverse, out=copy)
                    part[...] = copy
    return out


unscale_kernel = MultiTensor("unscale", """
template <typename G, int tensors, int rows>
__global__ void __launch_bounds__(GT_BLOCK)
gt_unscale(const gt_table<1, 1, tensors, rows> table, const float *scale, float *found) {
  typedef gt_float<G> F;
  const int tensor = gt_tensor_of_block(table);
  G *at = static_cast<G *>(table.at[0][tensor]);
  const F inverse = static_cast<float>(1.0 / static_cast<double>(*scale));
  bool finite = true;
  auto update = [&](G &value) {
    const F given = gt_up(value);
    finite = finite && given - given == F(0);
    value = gt_down<G>(given * inverse);
  };
  constexpr int W = 16 / sizeof(G);
  const gt_range range = gt_range_of_block(table, tensor);
  gt_index done = range.begin;
  if (gt_aligned<W>(at)) {
    done += (range.end - range.begin) / W * W;
    for (gt_index i = range.begin + threadIdx.x * W; i < done; i += GT_BLOCK * W) {
      gt_few<G, W> few;
      few.read(at + i);
      for (int w = 0; w < W; ++w) update(few.values[w]);
      few.write(at + i);
    }
  }
  for (gt_index i = done + threadIdx.x; i < range.end; i += GT_BLOCK) update(at[i]);
  if (!finite) atomicExch(found, 1.0f);
}
""", "G", 1, 1)


def _unscale_gpu(*arrays: Array, out: tuple[Array, ...]) -> tuple[Array, ...]:
    *gradients, found = out
    launch_apart([gradients], (0,), lambda some, which: unscale_kernel(
        Tensors(some, [0] * len(which), [(0.0,)]), arrays[-1], found))
    return out


unscale = Op("unscale_gradient", inputs="tensors", variadic=True, cpu=_unscale_cpu,
             gpu=_unscale_gpu, backward=None, tangent=None, samples=None, asks=_unscale_asks,
             doc="Gradients divided by the loss scale, the last input, in place; the last target "
             "becomes 1 if an element is infinite or NaN.")


def _update_scale_cpu(
    *arrays: Array, out: tuple[Array, ...], growth: float, backoff: float, interval: int
) -> tuple[Array, ...]:
    scale, tracker, found = out
    if found:
        scale[...] = np.maximum(scale * np.float32(backoff), np.finfo(np.float32).tiny)
        tracker[...] = found[...] = 0
    else:
        tracker += 1
        if tracker == interval:
            tracker[...] = 0
            with np.errstate(over="ignore"):
                grown = scale * np.float32(growth)
            if np.isfinite(grown):
                scale[...] = grown
    return out


_update_scale_kernel = elementwise(
    "float64 growth, float64 backoff, int64 interval",
    "float32 scale, int32 tracker, float32 found", """
const bool bad = found != 0.0f;
const bool full = !bad && tracker + 1 == interval;
const float grown = scale * static_cast<float>(bad ? backoff : growth);
const float least = 1.17549435e-38f;  // from a scale of 0 none would grow again
scale = bad ? (grown > least ? grown : least) : full && grown - grown == 0.0f ? grown : scale;
tracker = bad || full ? 0 : tracker + 1;
found = 0.0f""", None, "gt_update_scale")


def _update_scale_gpu(*arrays: Array, out: tuple[Array, ...], **params: Any) -> tuple[Array, ...]:
    _update_scale_kernel(out=out, **params)
    return out


update_scale = Op(
    "update_scale", inputs="tensors", variadic=True, cpu=_update_scale_cpu, gpu=_update_scale_gpu,
    backward=None, tangent=None, samples=None,
    doc="The next loss scale, in place: targets are scale, steps since it changed, and whether an "
    "infinity was found, which becomes 0.")
