// What the kernels of matmul_into.cu and matmul_into_complex.cu are made of: the layouts of a
// product's arrays, and what becomes of a sum of products.
//
// Layout: any strides, in elements. The index space has rows, columns, the inner axis, and up to
// GT_BATCH_AXES batch axes; each axis has a step for every array, 0 where the array repeats.
#pragma once

#include "complex.cuh"
#include "half.cuh"

#define GT_BATCH_AXES 6  // `BATCH_AXES` in gtensor/backend/matmul_kernel.py repeats it

// Elements from one index of an axis to the next.
struct gt_steps {
  gt_index a, b, out, residual, bias;
};

struct gt_axis {
  gt_index length;
  gt_steps steps;
};

__device__ inline void gt_go(gt_steps &at, const gt_steps &steps, gt_index count) {
  at.a += count * steps.a;
  at.b += count * steps.b;
  at.out += count * steps.out;
  at.residual += count * steps.residual;
  at.bias += count * steps.bias;
}

// The axes of a product. Batch axes stand innermost first; those left over have length 1.
struct gt_product {
  gt_axis rows, columns, inner, batch[GT_BATCH_AXES];
};

// Where the matrices of a batch index begin.
__device__ inline gt_steps gt_matrices(const gt_product &product, gt_index index) {
  gt_steps at = {0, 0, 0, 0, 0};
  for (int axis = 0; axis < GT_BATCH_AXES && index > 0; ++axis) {
    gt_go(at, product.batch[axis].steps, index % product.batch[axis].length);
    index /= product.batch[axis].length;
  }
  return at;
}

// The factor that a device holds: 1 without one.
__device__ inline double gt_scale(const void *scale, gt_index is_double) {
  if (!scale) return 1;
  return is_double ? *static_cast<const double *>(scale) : *static_cast<const float *>(scale);
}

// What becomes of a sum: activate(alpha * sum + bias + residual + beta * out). out and residual are
// gt_float<T> if wide, else T. out is read only if beta is not 0.
template <typename T, typename Activate>
struct gt_ending {
  typedef gt_float<T> F;
  void *out;
  const void *residual;  // or NULL
  const T *bias;         // or NULL
  F alpha, beta;
  bool wide;
  Activate activate;

  __device__ F at(const void *from, gt_index index) const {
    return wide ? static_cast<const F *>(from)[index] : gt_up(static_cast<const T *>(from)[index]);
  }

  __device__ void operator()(F sum, const gt_steps &place) const {
    F value = alpha * sum;
    if (bias) value += gt_up(bias[place.bias]);
    if (residual) value += at(residual, place.residual);
    if (beta != F(0)) value += beta * at(out, place.out);
    value = activate(value);
    if (wide)
      static_cast<F *>(out)[place.out] = value;
    else
      static_cast<T *>(out)[place.out] = gt_down<T>(value);
  }
};

// An element of an input; 0 for what is not finite, if clean.
template <typename T>
__device__ inline gt_float<T> gt_input_of(T stored, bool clean) {
  const gt_float<T> value = gt_up(stored);
  return clean && !gt_finite(value) ? gt_float<T>(0) : value;
}

// A thread to an element of out.
template <typename T, typename Ending>
__device__ inline void gt_naive_product(const T *a, const T *b, const gt_product &product,
                                        gt_index elements, bool clean, const Ending &ending) {
  for (gt_index index = gt_thread(); index < elements; index += gt_threads()) {
    const gt_index row = index / product.columns.length % product.rows.length;
    gt_steps at = gt_matrices(product, index / product.columns.length / product.rows.length);
    gt_go(at, product.rows.steps, row);
    gt_go(at, product.columns.steps, index % product.columns.length);
    gt_float<T> sum(0);
    for (gt_index k = 0; k < product.inner.length; ++k)
      sum += gt_input_of(a[at.a + k * product.inner.steps.a], clean) *
             gt_input_of(b[at.b + k * product.inner.steps.b], clean);
    ending(sum, at);
  }
}
