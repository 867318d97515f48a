// Kernels over rows, for one real type and one set of instructions; rows.c includes it for each.
//
// Given: REAL, INT (the integer of its size), FLOAT (1 for float, 0 for double), BYTES (of a
// vector), LANES (numbers of a vector), TARGET (attributes of functions) and NAME(word) (names
// here).

#include "rows_vectors.h"
#include "rows_softmax.h"
#include "rows_norms.h"

// -- running sums ---------------------------------------------------------------------------------

#define CHAINS 4  // rows at a time: an addition waits for the one before it, in its own row only

// Running sums of rows, from the end if `reverse`; one after the other, as in NumPy. -0 changes no
// number, 0 would change -0.
HERE void NAME(cumulative_sum)(
    const REAL *x, REAL *y, int64_t n, int64_t reverse, int64_t begin, int64_t end
) {
    for (int64_t i = begin; i < end; i += CHAINS) {
        const int64_t at = reverse ? n - 1 : 0, step = reverse ? -1 : 1;
        const REAL *a = x + i * n + at;
        REAL *b = y + i * n + at;
        if (end - i < CHAINS) {
            for (int64_t k = 0; k < end - i; k++) {
                REAL total = (REAL)-0.0;
                for (int64_t j = 0, c = 0; j < n; j++, c += step)
                    b[k * n + c] = total += a[k * n + c];
            }
            continue;
        }
        REAL p = (REAL)-0.0, q = p, r = p, s = p;
        for (int64_t j = 0; j < n; j++, a += step, b += step) {
            b[0] = p += a[0];
            b[n] = q += a[n];
            b[2 * n] = r += a[2 * n];
            b[3 * n] = s += a[3 * n];
        }
    }
}

#undef CHAINS

// -- rows of a table ------------------------------------------------------------------------------

// Rows [begin, end) of a table: the sums of the rows of g, `count`, whose index they are, in their
// order. With `add` to what is there; else rows of no index become 0. seen is a byte for each row.
HERE void NAME(embedding_grad)(
    const REAL *g, const int64_t *indices, REAL *table, char *seen, int64_t count, int64_t n,
    int64_t padding, int64_t add, int64_t begin, int64_t end
) {
    memset(seen + begin, add != 0, end - begin);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = indices[i];
        if (row < begin || row >= end || row == padding) continue;
        const REAL *from = g + i * n;
        REAL *to = table + row * n;
        if (!seen[row]) {
            memcpy(to, from, n * sizeof(REAL));
            seen[row] = 1;
            continue;
        }
#define BODY(LOAD, STORE) STORE(to, LOAD(to) + LOAD(from));
        EACH(BODY);
#undef BODY
    }
    for (int64_t row = begin; row < end; row++)
        if (!seen[row]) memset(table + row * n, 0, n * sizeof(REAL));
}

// -- what a range of a job does -------------------------------------------------------------------

#define P(i) ((void *)call->arrays[i])
#define I(i) (call->sizes[i])
#define F(i) (call->numbers[i])
#define RANGE(name, ...)                                                                     \
    static TARGET void NAME(name##_range)(const Call *call, int64_t begin, int64_t end) {    \
        NAME(name)(__VA_ARGS__, begin, end);                                                 \
    }

RANGE(softmax, P(0), P(1), I(0))
RANGE(softmax_grad, P(0), P(1), P(2), I(0))
RANGE(log_softmax, P(0), P(1), I(0))
RANGE(log_softmax_grad, P(0), P(1), P(2), I(0))
RANGE(attention, P(0), P(1), P(2), P(3), I(0), I(1), I(2), I(3))
RANGE(attention_grad, P(0), P(1), P(2), P(3), I(0), I(1), I(2), I(3))
RANGE(cumulative_sum, P(0), P(1), I(0), I(1))
RANGE(embedding_grad, P(0), P(1), P(2), P(3), I(0), I(1), I(2), I(3))
RANGE(row_norm, P(0), P(1), P(2), P(3), P(4), P(5), F(0), I(0))
RANGE(row_norm_grad, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(0), I(1), I(2), I(3))
RANGE(group_norm, P(0), P(1), P(2), P(3), P(4), P(5), F(0), I(0), I(1), I(2))
RANGE(group_norm_grad, P(0), P(1), P(2), P(3), P(4), P(5), P(6), F(0), I(0), I(1), I(2), I(3))
RANGE(batch_norm, P(0), P(1), P(2), P(3), P(4), P(5), F(0), F(1), I(0), I(1), I(2), I(3), I(4))
RANGE(batch_norm_grad, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), F(0), F(1), F(2), I(0),
      I(1), I(2), I(3), I(4), I(5), I(6))

#undef RANGE
#undef P
#undef I
#undef F
#undef V
#undef B
#undef HERE
#undef SPAN
#undef LOWEST
#undef HIGHEST
#undef ROUNDER
#undef LN2_HIGH
#undef LN2_LOW
#undef BIAS
#undef MANTISSA
#undef NEAR
#undef TILE
#undef WHOLE
#undef LEFT
#undef PUT_WHOLE
#undef PUT_LEFT
#undef EACH
#undef SUM
#undef SUMS
#undef FOLD
#undef TURNED
#undef AT
#undef PUT_WHOLE_DOUBLE
#undef PUT_LEFT_DOUBLE
#undef START
#undef FLUSH
#undef ADD
#undef STOP
#undef START_BOTH
#undef FLUSH_BOTH
#undef ADD_BOTH
#undef STOP_BOTH
#undef WHOLE_OR
#undef LEFT_OR
