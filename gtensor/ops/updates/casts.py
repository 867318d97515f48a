"""Casts of many arrays at once: on CUDA one launch for all of a dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gtensor.backend.multi_tensor import MultiTensor, Tensors, launch_apart
from gtensor.engine.tape.op import Op

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, CudaArray

cast_kernel = MultiTensor("cast", """
template <typename L, typename X, int tensors, int rows>
__global__ void __launch_bounds__(GT_BLOCK)
gt_cast(const gt_table<2, 1, tensors, rows> table) {
  const int tensor = gt_tensor_of_block(table);
  L *to = static_cast<L *>(table.at[0][tensor]);
  const X *from = static_cast<const X *>(table.at[1][tensor]);
  constexpr int W = 16 / gt_widest<L, X>();
  const gt_range range = gt_range_of_block(table, tensor);
  gt_index done = range.begin;
  if (gt_aligned<W>(to) && gt_aligned<W>(from)) {
    done += (range.end - range.begin) / W * W;
#pragma unroll 4  // of all 8, ptxas spills a register
    for (gt_index i = range.begin + threadIdx.x * W; i < done; i += GT_BLOCK * W) {
      gt_few<X, W> given;
      gt_few<L, W> made;
      given.read(from + i);
      for (int w = 0; w < W; ++w) made.values[w] = gt_down<L>(gt_float<L>(gt_up(given.values[w])));
      made.write(to + i);
    }
  }
  for (gt_index i = done + threadIdx.x; i < range.end; i += GT_BLOCK)
    to[i] = gt_down<L>(gt_float<L>(gt_up(from[i])));
}
""", "LX", 2, 1)


def _cast_cpu(*arrays: Array, out: tuple[Array, ...]) -> tuple[Array, ...]:
    for target, value in zip(out, arrays[len(out):], strict=True):
        target[...] = value
    return out


def _cast_gpu(*arrays: Array, out: tuple[Array, ...]) -> tuple[Array, ...]:
    values = arrays[len(out):]
    for dtype in dict.fromkeys([value.dtype for value in values]):
        some = [i for i, value in enumerate(values) if value.dtype == dtype]
        launch_apart([[out[i] for i in some], [values[i] for i in some]], (0,), _launch)
    return out


def _launch(some: Sequence[Sequence[CudaArray]], which: Sequence[int]) -> None:
    cast_kernel(Tensors(some, [0] * len(which), [(0.0,)]))


cast = Op("cast", inputs="tensors", variadic=True, cpu=_cast_cpu, gpu=_cast_gpu, backward=None,
          tangent=None, samples=None,
          doc="Arrays in another dtype: the targets, of one dtype, are written.")
