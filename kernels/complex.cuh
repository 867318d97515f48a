// Complex numbers in raw kernels: what products of matrices need of them.
//
// gt_complex<F> lies in memory as NumPy's complex64 (float) and complex128 (double) do. It is its
// own compute type. Layout: none. Traffic: that of the caller.
#pragma once

#include "number.cuh"

template <typename F>
struct gt_complex {
  F real, imaginary;

  gt_complex() = default;
  __device__ explicit gt_complex(F real, F imaginary = 0) : real(real), imaginary(imaginary) {}

  __device__ gt_complex &operator+=(const gt_complex &other) {
    real += other.real;
    imaginary += other.imaginary;
    return *this;
  }
  __device__ bool operator!=(const gt_complex &other) const {
    return real != other.real || imaginary != other.imaginary;
  }
};

template <typename F>
__device__ inline gt_complex<F> operator*(const gt_complex<F> &x, const gt_complex<F> &y) {
  return gt_complex<F>(x.real * y.real - x.imaginary * y.imaginary,
                       x.real * y.imaginary + x.imaginary * y.real);
}

template <typename F>
struct gt_float_of<gt_complex<F>> {
  typedef gt_complex<F> type;
};

// sum += x * y
template <typename F>
__device__ inline void gt_add_product(F &sum, F x, F y) {
  sum += x * y;
}

template <typename F>
__device__ inline void gt_add_product(gt_complex<F> &sum, gt_complex<F> x, gt_complex<F> y) {
  sum.real += x.real * y.real;
  sum.real -= x.imaginary * y.imaginary;
  sum.imaginary += x.real * y.imaginary;
  sum.imaginary += x.imaginary * y.real;
}

// The number of these parts; F without an imaginary part has the real one only.
template <typename F>
struct gt_from_parts {
  static __device__ F made(double real, double) { return F(real); }
};

template <typename F>
struct gt_from_parts<gt_complex<F>> {
  static __device__ gt_complex<F> made(double real, double imaginary) {
    return gt_complex<F>(F(real), F(imaginary));
  }
};
