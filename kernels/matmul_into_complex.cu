// The products of matmul_into.cu for complex numbers of real type gt_float<T>: without activation;
// alpha and beta have an imaginary part.
//
// Layout, traffic and arguments: as in matmul_into.cu.
#include "matmul_into.cuh"

struct gt_no_activation {
  template <typename F>
  __device__ F operator()(F value) const {
    return value;
  }
};

template <typename T>
__global__ void matmul_into_complex_naive(
    const gt_complex<gt_float<T>> *a, const gt_complex<gt_float<T>> *b, void *out,
    const void *residual, const gt_complex<gt_float<T>> *bias, gt_product product,
    gt_index elements, double alpha, double alpha_imaginary, const void *scale,
    gt_index double_scale, double beta, double beta_imaginary, gt_index clean) {
  typedef gt_float<T> F;
  const double factor = gt_scale(scale, double_scale);
  const gt_ending<gt_complex<F>, gt_no_activation> ending = {
      out,
      residual,
      bias,
      gt_complex<F>(F(alpha * factor), F(alpha_imaginary * factor)),
      gt_complex<F>(F(beta), F(beta_imaginary)),
      false,
      {}};
  gt_naive_product(a, b, product, elements, clean != 0, ending);
}
