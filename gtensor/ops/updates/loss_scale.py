"""The loss scale of half precision: gradients divided by it in place, and its next value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.backend import host
from gtensor.backend.kernels import elementwise
from gtensor.backend.multi_tensor import MultiTensor, Tensors, launch_apart
from gtensor.engine.tape.op import Op
from gtensor.ops.define.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.define.path_builders import into

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

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
