// Number types shared by all kernels.
//
// A value of storage type T is computed with in gt_float<T>: float for the half types (and for
// float), double for double. The primary template also covers the half classes that CuPy's
// elementwise kernels use, so that one device function serves both kinds of kernel.
#pragma once

typedef long long gt_index;  // all index arithmetic is 64-bit: tensors may exceed 2^31 elements

template <typename T>
struct gt_float_of {
  typedef float type;
};

template <>
struct gt_float_of<double> {
  typedef double type;
};

template <typename T>
using gt_float = typename gt_float_of<T>::type;

// The type that a formula computes in that is meant for complex numbers, too: T, float for halves.
template <typename T, bool half = sizeof(T) == 2>
struct gt_number_of {
  typedef T type;
};

template <typename T>
struct gt_number_of<T, true> {
  typedef float type;
};

template <typename T>
using gt_number = typename gt_number_of<T>::type;

// The value in its compute type.
template <typename T>
__device__ inline gt_float<T> gt_up(T value) {
  return static_cast<gt_float<T>>(value);
}

// A value of compute type, rounded to storage type T.
template <typename T>
__device__ inline T gt_down(gt_float<T> value) {
  return static_cast<T>(value);
}

// Infinity and NaN: NVRTC has no <math.h> macros for them.
template <typename F>
__device__ inline F gt_infinity() {
  return static_cast<F>(__longlong_as_double(0x7ff0000000000000LL));
}

template <typename F>
__device__ inline F gt_nan() {
  return static_cast<F>(__longlong_as_double(0x7ff8000000000000LL));
}

// The 64-bit number of this thread and of all threads, in one-dimensional launches.
__device__ inline gt_index gt_thread() {
  return static_cast<gt_index>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline gt_index gt_threads() {
  return static_cast<gt_index>(gridDim.x) * blockDim.x;
}
