// Max and average pooling over two spatial axes, forward and backward.
//
// Layout: contiguous (planes, H, W) with planes = N * C; outputs (planes, OH, OW). out_h and out_w
// are the caller's (floor or ceiling), with every window starting inside the input or its left
// padding.
// Traffic: forward reads KH * KW per output (mostly cached), writes 1 (max: and 4 bytes of index);
// backward reads one gradient per window that holds the element, writes 1.
// Backward gathers: each input element sums over the windows that hold it, in a fixed order,
// without atomics. Sums are in gt_float<T>.
#include "half.cuh"

// The first and one past the last window (along one axis) that hold position `at`, for windows of
// `size` taps `dilation` apart, `step` apart, starting at -pad.
__device__ inline gt_index gt_first_window(gt_index at, gt_index size, gt_index step, gt_index pad,
                                           gt_index dilation) {
  const gt_index before = at + pad - (size - 1) * dilation;
  return before <= 0 ? 0 : (before + step - 1) / step;
}

__device__ inline gt_index gt_end_window(gt_index at, gt_index step, gt_index pad,
                                         gt_index windows) {
  const gt_index end = (at + pad) / step + 1;
  return end < windows ? end : windows;
}

// y = the window's maximum, argmax = its flat index in the plane (h * W + w). Padding never wins;
// NaN does, the last one of a window as in PyTorch.
template <typename T>
__global__ void max_pool2d_forward(const T *x, T *y, int *argmax, gt_index planes, gt_index h,
                                   gt_index w, gt_index kernel_h, gt_index kernel_w, gt_index out_h,
                                   gt_index out_w, gt_index step_h, gt_index step_w, gt_index pad_h,
                                   gt_index pad_w, gt_index dilation_h, gt_index dilation_w) {
  typedef gt_float<T> F;
  const gt_index outputs = planes * out_h * out_w;
  for (gt_index at = gt_thread(); at < outputs; at += gt_threads()) {
    const gt_index plane = at / out_w / out_h;
    gt_index top = at / out_w % out_h * step_h - pad_h;
    gt_index left = at % out_w * step_w - pad_w;
    const gt_index bottom = top + (kernel_h - 1) * dilation_h;
    const gt_index right = left + (kernel_w - 1) * dilation_w;
    while (top < 0) top += dilation_h;
    while (left < 0) left += dilation_w;
    F best = -gt_infinity<F>();
    gt_index where = top * w + left;
    for (gt_index row = top; row <= bottom && row < h; row += dilation_h) {
      for (gt_index column = left; column <= right && column < w; column += dilation_w) {
        const F value = gt_up(x[(plane * h + row) * w + column]);
        if (value > best || value != value) {
          best = value;
          where = row * w + column;
        }
      }
    }
    y[at] = gt_down<T>(best);
    argmax[at] = static_cast<int>(where);
  }
}

// argmax has `shared` planes, for the first planes of g, for as many behind them, and so on.
template <typename T>
__global__ void max_pool2d_backward(const T *g, const int *argmax, T *dx, gt_index planes,
                                    gt_index h, gt_index w, gt_index kernel_h, gt_index kernel_w,
                                    gt_index out_h, gt_index out_w, gt_index step_h,
                                    gt_index step_w, gt_index pad_h, gt_index pad_w,
                                    gt_index dilation_h, gt_index dilation_w, gt_index accumulate,
                                    gt_index shared) {
  typedef gt_float<T> F;
  const gt_index elements = planes * h * w;
  for (gt_index at = gt_thread(); at < elements; at += gt_threads()) {
    const gt_index column = at % w;
    const gt_index row = at / w % h;
    const gt_index plane = at / w / h;
    const int *places = argmax + plane % shared * out_h * out_w;
    const gt_index end_h = gt_end_window(row, step_h, pad_h, out_h);
    const gt_index end_w = gt_end_window(column, step_w, pad_w, out_w);
    F sum = accumulate ? gt_up(dx[at]) : F(0);
    const gt_index start_h = gt_first_window(row, kernel_h, step_h, pad_h, dilation_h);
    const gt_index start_w = gt_first_window(column, kernel_w, step_w, pad_w, dilation_w);
    for (gt_index oh = start_h; oh < end_h; ++oh) {
      for (gt_index ow = start_w; ow < end_w; ++ow) {
        const gt_index from = oh * out_w + ow;
        if (places[from] == row * w + column) sum += gt_up(g[plane * out_h * out_w + from]);
      }
    }
    dx[at] = gt_down<T>(sum);
  }
}

// The divisor of an average pooling window: its taps inside the input, or also those in the padding
// (but never those past it), as in PyTorch.
__device__ inline gt_index gt_average_divisor(gt_index top, gt_index left, gt_index kernel_h,
                                              gt_index kernel_w, gt_index h, gt_index w,
                                              gt_index pad_h, gt_index pad_w,
                                              gt_index count_include_pad) {
  gt_index bottom = top + kernel_h < h + pad_h ? top + kernel_h : h + pad_h;
  gt_index right = left + kernel_w < w + pad_w ? left + kernel_w : w + pad_w;
  if (!count_include_pad) {
    top = top < 0 ? 0 : top;
    left = left < 0 ? 0 : left;
    bottom = bottom < h ? bottom : h;
    right = right < w ? right : w;
  }
  return (bottom - top) * (right - left);
}

template <typename T>
__global__ void avg_pool2d_forward(const T *x, T *y, gt_index planes, gt_index h, gt_index w,
                                   gt_index kernel_h, gt_index kernel_w, gt_index out_h,
                                   gt_index out_w, gt_index step_h, gt_index step_w, gt_index pad_h,
                                   gt_index pad_w, gt_index count_include_pad) {
  typedef gt_float<T> F;
  const gt_index outputs = planes * out_h * out_w;
  for (gt_index at = gt_thread(); at < outputs; at += gt_threads()) {
    const gt_index plane = at / out_w / out_h;
    const gt_index top = at / out_w % out_h * step_h - pad_h;
    const gt_index left = at % out_w * step_w - pad_w;
    F sum = 0;
    for (gt_index row = top < 0 ? 0 : top; row < top + kernel_h && row < h; ++row)
      for (gt_index column = left < 0 ? 0 : left; column < left + kernel_w && column < w; ++column)
        sum += gt_up(x[(plane * h + row) * w + column]);
    const gt_index divisor = gt_average_divisor(top, left, kernel_h, kernel_w, h, w, pad_h, pad_w,
                                                count_include_pad);
    y[at] = gt_down<T>(sum / F(divisor));
  }
}

template <typename T>
__global__ void avg_pool2d_backward(const T *g, T *dx, gt_index planes, gt_index h, gt_index w,
                                    gt_index kernel_h, gt_index kernel_w, gt_index out_h,
                                    gt_index out_w, gt_index step_h, gt_index step_w,
                                    gt_index pad_h, gt_index pad_w, gt_index count_include_pad,
                                    gt_index accumulate) {
  typedef gt_float<T> F;
  const gt_index elements = planes * h * w;
  for (gt_index at = gt_thread(); at < elements; at += gt_threads()) {
    const gt_index column = at % w;
    const gt_index row = at / w % h;
    const gt_index plane = at / w / h;
    const gt_index end_h = gt_end_window(row, step_h, pad_h, out_h);
    const gt_index end_w = gt_end_window(column, step_w, pad_w, out_w);
    F sum = accumulate ? gt_up(dx[at]) : F(0);
    const gt_index start_h = gt_first_window(row, kernel_h, step_h, pad_h, 1);
    const gt_index start_w = gt_first_window(column, kernel_w, step_w, pad_w, 1);
    for (gt_index oh = start_h; oh < end_h; ++oh) {
      for (gt_index ow = start_w; ow < end_w; ++ow) {
        const gt_index divisor =
            gt_average_divisor(oh * step_h - pad_h, ow * step_w - pad_w, kernel_h, kernel_w, h, w,
                               pad_h, pad_w, count_include_pad);
        sum += gt_up(g[(plane * out_h + oh) * out_w + ow]) / F(divisor);
      }
    }
    dx[at] = gt_down<T>(sum);
  }
}

// Launch: a thread to an output (forward) or to an input element (backward).
