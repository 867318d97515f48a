// The gradient of a convolution's weight without columns, for groups whose weights are few: of
// images with one channel, or of depthwise convolutions. As a product of matrices it would be as
// thin as a group, and the columns larger than the images by as many times as the window has taps.
//
// Layout: images contiguous, x (N, C, H, W) and g (N, O, OH, OW); out (O, C / groups * KH * KW) in
// gt_float<T>, in im2col's order of taps. A block takes an output channel and GT_TAPS taps, its
// threads share the positions of all images: sums in registers, then one over the block. The order
// is fixed, so results repeat bit for bit. A tap over the padding multiplies by 0.
// Traffic: reads 1 of g for each GT_TAPS taps, and 1 of x (mostly cached) for each tap and output
// channel of a group; writes the weights.
// Indices have 32 bits: images have fewer than 2^31 elements, with a block's threads added.
#include "half.cuh"
#include "reduce.cuh"

#define GT_TAPS 9  // a window of 3 x 3

template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    conv_weight_gradient(const T *g, const T *x, gt_float<T> *out, gt_index n, gt_index c,
                         gt_index h, gt_index w, gt_index kernel_h, gt_index kernel_w,
                         gt_index out_h, gt_index out_w, gt_index step_h, gt_index step_w,
                         gt_index pad_h, gt_index pad_w, gt_index dilation_h, gt_index dilation_w,
                         gt_index outputs, gt_index groups, gt_index accumulate) {
  typedef gt_float<T> F;
  __shared__ F cells[GT_BLOCK / 32];
  const int height = h, width = w, columns = out_w, positions = out_h * out_w;
  const int window = kernel_h * kernel_w, channels = c / groups, taps = channels * window;
  const int output = blockIdx.x, first = blockIdx.y * GT_TAPS;
  const int plane = height * width, image_step = c * plane;
  const T *const group = x + output / (outputs / groups) * channels * plane;
  int down[GT_TAPS], across[GT_TAPS], start[GT_TAPS];
  F sums[GT_TAPS];
#pragma unroll
  for (int k = 0; k < GT_TAPS; ++k) {
    const int tap = first + k < taps ? first + k : first;  // beyond the last one: not written
    down[k] = tap % window / kernel_w * dilation_h;
    across[k] = tap % window % kernel_w * dilation_w;
    start[k] = tap / window * plane;
    sums[k] = 0;
  }
  const int values = n * positions;
  for (int at = threadIdx.x; at < values; at += blockDim.x) {
    const int image = at / positions, p = at % positions;
    const int top = p / columns * step_h - pad_h, left = p % columns * step_w - pad_w;
    const F grad = gt_up(g[(image * static_cast<int>(outputs) + output) * positions + p]);
    const T *const here = group + image * image_step;
#pragma unroll
    for (int k = 0; k < GT_TAPS; ++k) {
      const int row = top + down[k], column = left + across[k];
      const bool inside = row >= 0 && row < height && column >= 0 && column < width;
      sums[k] += grad * (inside ? gt_up(here[start[k] + row * width + column]) : F(0));
    }
  }
#pragma unroll
  for (int k = 0; k < GT_TAPS; ++k) {
    const F sum = gt_warps_reduce(sums[k], cells, gt_sum());
    if (threadIdx.x == 0 && first + k < taps) {
      F *const place = out + output * taps + first + k;
      *place = accumulate ? *place + sum : sum;
    }
  }
}

// Launch: grid (O, ceil(taps / GT_TAPS)), block (<= GT_BLOCK, a multiple of 32).
