"""Clipping gradients, in place: by each element's size, or by the norm of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, raw
from gtensor.backend.multi_tensor import MultiTensor, Tensors, block_count
from gtensor.engine.handle.context import no_grad
from gtensor.engine.run.bind import Extras, bind
from gtensor.engine.tape.op import Op
from gtensor.ops.define.cpu_tiles import computed_in, whole_tiles
from gtensor.ops.define.updates import Update, update_op

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.tensor import Tensor

_scale = Update("scale", lambda ns, gradient, factor: gradient * factor,  # an infinite norm gives
                uniform=True, quiet=True)                                 # inf * 0, which is NaN
_clip = Update("clip", lambda ns, gradient, limit: ns.minimum(ns.maximum(gradient, -limit), limit),
               uniform=True, quiet=True)
scale = update_op(_scale, "gradient *= factor, in place; the factor, 0-d, is the last input "
                  "(float64 on CUDA).", "scale_gradient")
clip = update_op(_clip, "Each element of the gradient at most the limit in size, in place; NaN "
                 "stays NaN.", "clip_gradient")

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
