// The ending of a product of real numbers (matmul_into.cuh): with an activation.
//
// Layout: none. Traffic: that of the ending.
#pragma once

#include "activation.cuh"
#include "matmul_into.cuh"

template <typename F>
class gt_activation_of {
  const gt_index code;
  const F parameter;

 public:
  __device__ explicit gt_activation_of(const gt_settings &how)
      : code(how.activation), parameter(F(how.parameter)) {}

  template <int W>
  __device__ void operator()(F (&values)[W]) const {
    gt_apply(code, values, [this](gt_index activation, F &value) {
      value = gt_activate(activation, value, parameter);
    });
  }
};

template <typename T>
using gt_real_ending = gt_ending<T, gt_activation_of<gt_float<T>>>;
