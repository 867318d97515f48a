// Stand-ins for the half classes of CuPy's elementwise kernels, with the same conversions: implicit
// from and to float, explicit from other numbers, assignable from anything that converts
// explicitly.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename Storage>
class gt_half_class {
  Storage data;

 public:
  __device__ gt_half_class() {}
  __device__ gt_half_class(float value) : data(value) {}
  explicit __device__ gt_half_class(bool value) : data(float(value)) {}
  explicit __device__ gt_half_class(double value) : data(float(value)) {}
  explicit __device__ gt_half_class(int value) : data(float(value)) {}
  explicit __device__ gt_half_class(unsigned int value) : data(float(value)) {}
  explicit __device__ gt_half_class(long long value) : data(float(value)) {}
  explicit __device__ gt_half_class(unsigned long long value) : data(float(value)) {}
  __device__ operator float() const { return static_cast<float>(data); }
  gt_half_class &operator=(const gt_half_class &) = default;
  gt_half_class(const gt_half_class &) = default;
  template <typename Value>
  __device__ gt_half_class &operator=(const Value &value) {
    return *this = static_cast<gt_half_class>(value);
  }
  template <typename Value>
  __device__ gt_half_class &operator+=(const Value &value) {
    return *this = *this + value;
  }
  template <typename Value>
  __device__ gt_half_class &operator-=(const Value &value) {
    return *this = *this - value;
  }
  template <typename Value>
  __device__ gt_half_class &operator*=(const Value &value) {
    return *this = *this * value;
  }
  template <typename Value>
  __device__ gt_half_class &operator/=(const Value &value) {
    return *this = *this / value;
  }
};

typedef gt_half_class<__half> float16;
typedef gt_half_class<__nv_bfloat16> bfloat16;
