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

// Narrow `range` to the windows along a row whose tap at `left` of the first one lies inside.
INLINE void narrow(const struct windows *w, int64_t left, int64_t *range) {
    int64_t from = left < 0 ? (-left + w->right - 1) / w->right : 0;
    int64_t to = w->width > left ? (w->width - left + w->right - 1) / w->right : 0;
    range[0] = from > range[0] ? from : range[0];
    range[1] = to < range[1] ? to : range[1];
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

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
