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
// im2col_beside also moves a second array of images, y (N, O, P) to (O, N, P): with columns
// (C*KH*KW, N, P) they are the two factors of the weight's gradient. It reads 1 and writes 1 of y.
// Indices have 32 bits where all of them fit: a division of 64 bits takes about 70 instructions.
#include "half.cuh"

// Indices from here on may not fit into an int, with a launch's threads added.
#define GT_MOST_INDICES (1 << 30)

// Index is int or gt_index.
template <typename Index, typename T>
__device__ inline void gt_im2col(const T *x, T *columns, Index n, Index c, Index h, Index w,
                                 Index kernel_h, Index kernel_w, Index out_h, Index out_w,
                                 Index step_h, Index step_w, Index pad_h, Index pad_w,
                                 Index dilation_h, Index dilation_w, Index stride_n,
                                 Index stride_k, Index stride_p) {
  const Index positions = out_h * out_w;
  const Index taps = c * kernel_h * kernel_w;
  const Index entries = n * taps * positions;
  const Index step = static_cast<Index>(gt_threads());
  for (Index entry = static_cast<Index>(gt_thread()); entry < entries; entry += step) {
    const Index p = entry % positions, matrix_row = entry / positions;
    const Index k = matrix_row % taps, image = matrix_row / taps;
    const Index kw = k % kernel_w, tap_row = k / kernel_w;
    const Index kh = tap_row % kernel_h, channel = tap_row / kernel_h;
    const Index row = p / out_w * step_h - pad_h + kh * dilation_h;
    const Index column = p % out_w * step_w - pad_w + kw * dilation_w;
    const bool inside = row >= 0 && row < h && column >= 0 && column < w;
    columns[image * stride_n + k * stride_k + p * stride_p] =
        inside ? x[((image * c + channel) * h + row) * w + column] : gt_down<T>(0);
  }
}

// moved (outputs, n, positions) = y (n, outputs, positions).
template <typename Index, typename T>
__device__ inline void gt_images_behind(const T *y, T *moved, Index outputs, Index n,
                                        Index positions) {
  const Index values = outputs * n * positions;
  const Index step = static_cast<Index>(gt_threads());
  for (Index value = static_cast<Index>(gt_thread()); value < values; value += step) {
    const Index p = value % positions, line = value / positions;
    const Index image = line % n, output = line / n;
    moved[value] = y[(image * outputs + output) * positions + p];
  }
}

template <typename Index, typename T>
__device__ inline void gt_col2im(const T *columns, T *x, Index n, Index c, Index h, Index w,
                                 Index kernel_h, Index kernel_w, Index out_h, Index out_w,
                                 Index step_h, Index step_w, Index pad_h, Index pad_w,
                                 Index dilation_h, Index dilation_w, Index stride_n,
                                 Index stride_k, Index stride_p, bool accumulate) {
  typedef gt_float<T> F;
  const Index elements = n * c * h * w;
  const Index step = static_cast<Index>(gt_threads());
  for (Index at = static_cast<Index>(gt_thread()); at < elements; at += step) {
    const Index column = at % w, line = at / w;
    const Index row = line % h, plane = line / h;
    const Index channel = plane % c, image = plane / c;
    F sum = accumulate ? gt_up(x[at]) : F(0);
    for (Index kh = 0; kh < kernel_h; ++kh) {
      const Index from_row = row + pad_h - kh * dilation_h;  // oh * step_h, if there is such oh
      if (from_row < 0 || from_row % step_h != 0 || from_row / step_h >= out_h) continue;
      for (Index kw = 0; kw < kernel_w; ++kw) {
        const Index from_column = column + pad_w - kw * dilation_w;
        if (from_column < 0 || from_column % step_w != 0 || from_column / step_w >= out_w) continue;
        const Index k = (channel * kernel_h + kh) * kernel_w + kw;
        const Index p = from_row / step_h * out_w + from_column / step_w;
        sum += gt_up(columns[image * stride_n + k * stride_k + p * stride_p]);
      }
    }
    x[at] = gt_down<T>(sum);
  }
}

// Calls work with the arguments as int, if the indices of images and columns are small, else as
// they are.
template <typename Work, typename... Sizes>
__device__ inline void gt_by_indices(gt_index elements, gt_index entries, Work work,
                                     Sizes... sizes) {
  if (elements < GT_MOST_INDICES && entries < GT_MOST_INDICES)
    work(static_cast<int>(sizes)...);
  else
    work(sizes...);
}

template <typename T>
__global__ void im2col(const T *x, T *columns, gt_index n, gt_index c, gt_index h, gt_index w,
                       gt_index kernel_h, gt_index kernel_w, gt_index out_h, gt_index out_w,
                       gt_index step_h, gt_index step_w, gt_index pad_h, gt_index pad_w,
                       gt_index dilation_h, gt_index dilation_w, gt_index stride_n,
                       gt_index stride_k, gt_index stride_p) {
  gt_by_indices(
      n * c * h * w, n * c * kernel_h * kernel_w * out_h * out_w,
      [=](auto... sizes) { gt_im2col(x, columns, sizes...); }, n, c, h, w, kernel_h, kernel_w,
      out_h, out_w, step_h, step_w, pad_h, pad_w, dilation_h, dilation_w, stride_n, stride_k,
      stride_p);
}

// The columns of x as im2col makes them, and moved (O, N, P) = y (N, O, P).
template <typename T>
__global__ void im2col_beside(const T *x, T *columns, const T *y, T *moved, gt_index outputs,
                              gt_index n, gt_index c, gt_index h, gt_index w, gt_index kernel_h,
                              gt_index kernel_w, gt_index out_h, gt_index out_w, gt_index step_h,
                              gt_index step_w, gt_index pad_h, gt_index pad_w,
                              gt_index dilation_h, gt_index dilation_w, gt_index stride_n,
                              gt_index stride_k, gt_index stride_p) {
  const gt_index entries = n * c * kernel_h * kernel_w * out_h * out_w;
  const gt_index values = n * outputs * out_h * out_w;
  gt_by_indices(
      n * c * h * w, entries > values ? entries : values,
      [=](auto wide, auto count, auto positions, auto... sizes) {
        gt_im2col(x, columns, count, sizes...);
        gt_images_behind(y, moved, wide, count, positions);
      },
      outputs, n, out_h * out_w, c, h, w, kernel_h, kernel_w, out_h, out_w, step_h, step_w, pad_h,
      pad_w, dilation_h, dilation_w, stride_n, stride_k, stride_p);
}

// x (+)= the sum over all column entries that im2col read from each element of x.
template <typename T>
__global__ void col2im(const T *columns, T *x, gt_index n, gt_index c, gt_index h, gt_index w,
                       gt_index kernel_h, gt_index kernel_w, gt_index out_h, gt_index out_w,
                       gt_index step_h, gt_index step_w, gt_index pad_h, gt_index pad_w,
                       gt_index dilation_h, gt_index dilation_w, gt_index stride_n,
                       gt_index stride_k, gt_index stride_p, gt_index accumulate) {
  gt_by_indices(
      n * c * h * w, n * c * kernel_h * kernel_w * out_h * out_w,
      [=](auto... sizes) { gt_col2im(columns, x, sizes..., accumulate != 0); }, n, c, h, w,
      kernel_h, kernel_w, out_h, out_w, step_h, step_w, pad_h, pad_w, dilation_h, dilation_w,
      stride_n, stride_k, stride_p);
}

// Launch: a thread to a column entry (im2col, im2col_beside: and to a value of y) or to an image
// element (col2im).
