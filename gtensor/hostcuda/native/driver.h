// The frame of the driver's functions. They share all state with the runtime's, and its error codes:
// where both have one, its number is the same.
#pragma once

#include "state.h"

namespace hostcuda {

inline CUresult translated(cudaError_t error) {
    return error == cudaErrorInvalidConfiguration ? CUDA_ERROR_INVALID_VALUE : CUresult(error);
}

// An error of the driver is not the runtime's last one.
template <class Body> CUresult without_context(Body body) {
    cudaError_t before = thread().last_error;
    cudaError_t error = call(body);
    thread().last_error = before;
    return translated(error);
}

template <class Body> CUresult with_context(Body body) {
    return without_context([&](Held &held) {
        if (!thread().context) return cudaError_t(CUDA_ERROR_INVALID_CONTEXT);
        return cudaError_t(body(held));
    });
}

// A function of the runtime's that does the same.
template <class Function, class... Arguments>
CUresult as_runtime(Function function, Arguments... arguments) {
    if (!thread().context) return CUDA_ERROR_INVALID_CONTEXT;
    cudaError_t before = thread().last_error;
    cudaError_t error = function(arguments...);
    thread().last_error = before;
    return translated(error);
}

}  // namespace hostcuda
