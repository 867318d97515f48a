// Matrix products into memory that exists, in any layout: out = activate(alpha * a @ b + bias +
// residual + beta * out), with what is not finite in a and b counted as 0 if asked.
//
// Layout: a (..., m, k), b (..., k, n), out and residual (..., m, n), bias (n), any strides
// (gt_product in matmul_into.cuh). residual and bias may be NULL; residual may be out.
// Traffic: naive, a and b are read once for every element of out.
// out, and residual where it is not NULL, are gt_float<T> if wide. *scale, where it is not NULL, is
// a factor of alpha: a double if double_scale, else a float.
#include "activation.cuh"
#include "matmul_into.cuh"

template <typename F>
struct gt_activation_of {
  gt_index code;
  F parameter;

  __device__ F operator()(F value) const { return gt_activate(code, value, parameter); }
};

template <typename T>
__global__ void matmul_into_naive(const T *a, const T *b, void *out, const void *residual,
                                  const T *bias, gt_product product, gt_index elements,
                                  double alpha, const void *scale, gt_index double_scale,
                                  double beta, gt_index activation, double parameter,
                                  gt_index clean, gt_index wide) {
  typedef gt_float<T> F;
  const F factor = F(alpha * gt_scale(scale, double_scale));
  const gt_ending<T, gt_activation_of<F>> ending = {
      out, residual, bias, factor, F(beta), wide != 0, {activation, F(parameter)}};
  gt_naive_product(a, b, product, elements, clean != 0, ending);
}
