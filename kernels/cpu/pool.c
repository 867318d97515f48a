// Max pooling on the CPU over planes (N, C, H, W), contiguous, with the places of the maxima.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include <math.h>

#include "kernel.h"

// Of a plane, windows and taps; `above` and `before` are the padding.
struct windows {
    int64_t height, width, out_height, out_width, kernel_height, kernel_width, down, right, above,
        before, row_step, column_step;
};

// The first of start, start + step, ... that is not negative.
INLINE int64_t first_inside(int64_t start, int64_t step) {
    return start < 0 ? start + (-start + step - 1) / step * step : start;
}

#define NUMBER float
#define NAME(name) name##_float
#include "pool.h"

#define NUMBER double
#define NAME(name) name##_double
#include "pool.h"

const Entry pooling[] = {
    {"max_pool_float32", max_pool_float}, {"max_pool_float64", max_pool_double},
    {"max_unpool_float32", max_unpool_float}, {"max_unpool_float64", max_unpool_double},
    {NULL, NULL}};
