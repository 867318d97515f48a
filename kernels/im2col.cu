// im2col and col2im for convolution as matrix multiplication, two spatial axes.
//
// Layout: images contiguous (N, C, H, W). The column matrix has an entry for each image n, each tap
// k = (c * KH + kh) * KW + kw and each output position p = oh * OW + ow, at
//     n * stride_n + k * stride_k + p * stride_p
// so one kernel serves (N, C*KH*KW, P) [K*P, P, 1], (C*KH*KW, N, P) [P, N*P, 1] and (N, P, C*KH*KW)
// [P*K, 1, K]. Entries over the padding are 0.
// Traffic per column entry: im2col reads 1 (mostly cached), writes 1; col2im reads 1.
// col2im gathers: each image element sums its own contributions in gt_float<T>, in a fixed order
// and without atomics, so results repeat bit for bit.
#include "half.cuh"

template <typename T>
__global__ void im2col(const T *x, T *columns, gt_index n, gt_index c, gt_index h, gt_index w,
                       gt_index kernel_h, gt_index kernel_w, gt_index out_h, gt_index out_w,
                       gt_index step_h, gt_index step_w, gt_index pad_h, gt_index pad_w,
                       gt_index dilation_h, gt_index dilation_w, gt_index stride_n,
                       gt_index stride_k, gt_index stride_p) {
  const gt_index positions = out_h * out_w;
  const gt_index taps = c * kernel_h * kernel_w;
  const gt_index entries = n * taps * positions;
  for (gt_index entry = gt_thread(); entry < entries; entry += gt_threads()) {
    const gt_index p = entry % positions;
    const gt_index k = entry / positions % taps;
    const gt_index image = entry / positions / taps;
    const gt_index kw = k % kernel_w;
    const gt_index kh = k / kernel_w % kernel_h;
    const gt_index channel = k / kernel_w / kernel_h;
    const gt_index row = p / out_w * step_h - pad_h + kh * dilation_h;
    const gt_index column = p % out_w * step_w - pad_w + kw * dilation_w;
    const bool inside = row >= 0 && row < h && column >= 0 && column < w;
    columns[image * stride_n + k * stride_k + p * stride_p] =
        inside ? x[((image * c + channel) * h + row) * w + column] : gt_down<T>(0);
  }
}

// x (+)= the sum over all column entries that im2col read from each element of x.
template <typename T>
__global__ void col2im(const T *columns, T *x, gt_index n, gt_index c, gt_index h, gt_index w,
                       gt_index kernel_h, gt_index kernel_w, gt_index out_h, gt_index out_w,
                       gt_index step_h, gt_index step_w, gt_index pad_h, gt_index pad_w,
                       gt_index dilation_h, gt_index dilation_w, gt_index stride_n,
                       gt_index stride_k, gt_index stride_p, gt_index accumulate) {
  typedef gt_float<T> F;
  const gt_index elements = n * c * h * w;
  for (gt_index at = gt_thread(); at < elements; at += gt_threads()) {
    const gt_index column = at % w;
    const gt_index row = at / w % h;
    const gt_index channel = at / w / h % c;
    const gt_index image = at / w / h / c;
    F sum = accumulate ? gt_up(x[at]) : F(0);
    for (gt_index kh = 0; kh < kernel_h; ++kh) {
      const gt_index from_row = row + pad_h - kh * dilation_h;  // oh * step_h, if there is such oh
      if (from_row < 0 || from_row % step_h != 0 || from_row / step_h >= out_h) continue;
      for (gt_index kw = 0; kw < kernel_w; ++kw) {
        const gt_index from_column = column + pad_w - kw * dilation_w;
        if (from_column < 0 || from_column % step_w != 0 || from_column / step_w >= out_w) continue;
        const gt_index k = (channel * kernel_h + kh) * kernel_w + kw;
        const gt_index p = from_row / step_h * out_w + from_column / step_w;
        sum += gt_up(columns[image * stride_n + k * stride_k + p * stride_p]);
      }
    }
    x[at] = gt_down<T>(sum);
  }
}

// Launch: a thread to a column entry (im2col) or to an image element (col2im).
