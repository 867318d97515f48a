// Kernels over rows, for one real type and one set of instructions; rows.c includes it for each.
//
// Given: REAL, INT (the integer of its size), FLOAT (1 for float, 0 for double), BYTES (of a vector),
// LANES (numbers of a vector), TARGET (attributes of functions) and NAME(word) (names here).
//
// Sums are made in vectors of totals, which take SPAN numbers each, and then in double: few numbers
// meet one after the other, and their order is fixed. Vectors are the compiler's own type, so that
// nothing needs to be reassociated for them. Comparisons of NaN raise the invalid flag, so
// kernels whose users would see it compare bits.

typedef REAL NAME(vector) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)),
                                         may_alias));
typedef INT NAME(bits) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)),
                                      may_alias));
#define V NAME(vector)
#define B NAME(bits)
#define HERE static inline __attribute__((always_inline)) TARGET

#define SPAN (16 * LANES)  // numbers that one vector of totals takes

HERE V NAME(load)(const REAL *p) { return *(const V *)p; }
HERE void NAME(store)(REAL *p, V v) { *(V *)p = v; }
HERE V NAME(all)(REAL a) { return a - (V){0}; }

HERE V NAME(select)(B mask, V yes, V no) { return (V)((mask & (B)yes) | (~mask & (B)no)); }

// The first n, less than LANES, of a vector of numbers, and the rest 0.
#if BYTES == 64 && FLOAT
HERE V NAME(load_part)(const REAL *p, int64_t n) {
    return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
HERE void NAME(store_part)(REAL *p, V v, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
#elif BYTES == 64
HERE V NAME(load_part)(const REAL *p, int64_t n) {
    return (V)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}
HERE void NAME(store_part)(REAL *p, V v, int64_t n) {
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)v);
}
#elif BYTES == 32 && FLOAT
HERE V NAME(load_part)(const REAL *p, int64_t n) {
    return (V)_mm256_maskload_ps(p, *(const __m256i_u *)(rows_first + 8 - n));
}
HERE void NAME(store_part)(REAL *p, V v, int64_t n) {
    _mm256_maskstore_ps(p, *(const __m256i_u *)(rows_first + 8 - n), (__m256)v);
}
#elif BYTES == 32
HERE V NAME(load_part)(const REAL *p, int64_t n) {
    return (V)_mm256_maskload_pd(p, *(const __m256i_u *)(rows_first + 8 - 2 * n));
}
HERE void NAME(store_part)(REAL *p, V v, int64_t n) {
    _mm256_maskstore_pd(p, *(const __m256i_u *)(rows_first + 8 - 2 * n), (__m256d)v);
}
#else
HERE V NAME(load_part)(const REAL *p, int64_t n) {
    V v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}
HERE void NAME(store_part)(REAL *p, V v, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = v[i];
}
#endif

// All bits of the first n, of LANES, and none of the rest.
HERE B NAME(first)(int64_t n) {
    static const INT from[2 * LANES] = {[0 ... LANES - 1] = -1};
    return *(const B *)(from + LANES - n);
}

// The larger numbers; of a NaN in p, q.
HERE V NAME(larger)(V p, V q) { return NAME(select)((B)(p > q), p, q); }

// The vector turned by k, a power of two.
#define AT(i, k) (((i) + k) & (LANES - 1))
#if LANES == 2
#define TURNED(v, k) __builtin_shufflevector(v, v, AT(0, k), AT(1, k))
#elif LANES == 4
#define TURNED(v, k) __builtin_shufflevector(v, v, AT(0, k), AT(1, k), AT(2, k), AT(3, k))
#elif LANES == 8
#define TURNED(v, k) __builtin_shufflevector(v, v, AT(0, k), AT(1, k), AT(2, k), AT(3, k), \
    AT(4, k), AT(5, k), AT(6, k), AT(7, k))
#else
#define TURNED(v, k) __builtin_shufflevector(v, v, AT(0, k), AT(1, k), AT(2, k), AT(3, k), \
    AT(4, k), AT(5, k), AT(6, k), AT(7, k), AT(8, k), AT(9, k), AT(10, k), AT(11, k), \
    AT(12, k), AT(13, k), AT(14, k), AT(15, k))
#endif

// COMBINE over the numbers of a vector.
#if LANES == 16
#define FOLD(v, COMBINE) v = COMBINE(v, TURNED(v, 8)); v = COMBINE(v, TURNED(v, 4)); \
    v = COMBINE(v, TURNED(v, 2)); v = COMBINE(v, TURNED(v, 1))
#elif LANES == 8
#define FOLD(v, COMBINE) v = COMBINE(v, TURNED(v, 4)); v = COMBINE(v, TURNED(v, 2)); \
    v = COMBINE(v, TURNED(v, 1))
#elif LANES == 4
#define FOLD(v, COMBINE) v = COMBINE(v, TURNED(v, 2)); v = COMBINE(v, TURNED(v, 1))
#else
#define FOLD(v, COMBINE) v = COMBINE(v, TURNED(v, 1))
#endif

HERE REAL NAME(total)(V v) {
#define PLUS(p, q) (p + q)
    FOLD(v, PLUS);
#undef PLUS
    return v[0];
}

// LOAD(p) and STORE(p, v) of a whole vector and of what is left of a row of n numbers, at j.
#define WHOLE(p) NAME(load)((p) + j)
#define LEFT(p) NAME(load_part)((p) + j, n - j)
#define WHOLE_OR(p, rest) WHOLE(p)  // `rest` after the last number of a row, not 0
#define LEFT_OR(p, rest) NAME(select)(NAME(first)(n - j), LEFT(p), NAME(all)(rest))
#define PUT_WHOLE(p, v) NAME(store)((p) + j, v)
#define PUT_LEFT(p, v) NAME(store_part)((p) + j, v, n - j)


// totals[j:] += v, in double.
typedef double NAME(doubles) __attribute__((vector_size(LANES * sizeof(double)), aligned(8)));
#define PUT_WHOLE_DOUBLE(p, v) \
    (*(NAME(doubles) *)((p) + j) += __builtin_convertvector(v, NAME(doubles)))
#define PUT_LEFT_DOUBLE(p, v) for (int64_t k = 0; k < n - j; k++) (p)[j + k] += (v)[k]

// Each vector of a row of n numbers.
#define EACH(BODY)                                                             \
    do {                                                                       \
        int64_t j = 0;                                                             \
        for (; j + LANES <= n; j += LANES) { BODY(WHOLE, PUT_WHOLE) }          \
        if (j < n) { BODY(LEFT, PUT_LEFT) }                                    \
    } while (0)

// Sums over rows of n numbers: START, ADD(TERM) for each row, STOP(first). TERM(LOAD, p) makes a
// vector p of a row; it is 0 where the numbers are 0 that LEFT puts after the last one. Vectors of
// totals take SPAN numbers each, and are then added to a double.
#define START V s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}; double summed = 0; int64_t used = 0;
#define FLUSH                                                                  \
    summed += NAME(total)((s0 + s1) + (s2 + s3));                                 \
    s0 = s1 = s2 = s3 = (V){0};                                                \
    used = 0;
#define ADD(TERM)                                                              \
    {                                                                          \
        int64_t j = 0;                                                             \
        while (j + LANES <= n) {                                               \
            const int64_t from = j, room = 4 * SPAN - used;                        \
            const int64_t stop = n - j < room ? n : j + room;                      \
            while (j + 4 * LANES <= stop) {                                    \
                { V p; TERM(WHOLE, p) s0 += p; } j += LANES;                   \
                { V p; TERM(WHOLE, p) s1 += p; } j += LANES;                   \
                { V p; TERM(WHOLE, p) s2 += p; } j += LANES;                   \
                { V p; TERM(WHOLE, p) s3 += p; } j += LANES;                   \
            }                                                                  \
            for (; j + LANES <= stop; j += LANES) { V p; TERM(WHOLE, p) s0 += p; } \
            used += j - from;                                                  \
            if (used >= 4 * SPAN) { FLUSH }                                    \
        }                                                                      \
        if (j < n) { V p; TERM(LEFT, p) s3 += p; used += LANES; }              \
        if (used > 4 * SPAN - LANES) { FLUSH }                                 \
    }
#define STOP(first) FLUSH first = summed;
#define SUM(first, TERM) do { START ADD(TERM) STOP(first) } while (0)

// The same of two sums: TERMS(LOAD, p, q).
#define START_BOTH V s0 = {0}, s1 = {0}, t0 = {0}, t1 = {0}; double summed = 0, summed_too = 0; int64_t used = 0;
#define FLUSH_BOTH                                                             \
    summed += NAME(total)(s0 + s1);                                               \
    summed_too += NAME(total)(t0 + t1);                                             \
    s0 = s1 = t0 = t1 = (V){0};                                                \
    used = 0;
#define ADD_BOTH(TERMS)                                                        \
    {                                                                          \
        int64_t j = 0;                                                             \
        while (j + LANES <= n) {                                               \
            const int64_t from = j, room = 2 * SPAN - used;                        \
            const int64_t stop = n - j < room ? n : j + room;                      \
            while (j + 2 * LANES <= stop) {                                    \
                { V p, q; TERMS(WHOLE, p, q) s0 += p; t0 += q; } j += LANES;   \
                { V p, q; TERMS(WHOLE, p, q) s1 += p; t1 += q; } j += LANES;   \
            }                                                                  \
            for (; j + LANES <= stop; j += LANES) {                            \
                V p, q; TERMS(WHOLE, p, q) s0 += p; t0 += q;                   \
            }                                                                  \
            used += j - from;                                                  \
            if (used >= 2 * SPAN) { FLUSH_BOTH }                               \
        }                                                                      \
        if (j < n) { V p, q; TERMS(LEFT, p, q) s1 += p; t1 += q; used += LANES; } \
        if (used > 2 * SPAN - LANES) { FLUSH_BOTH }                            \
    }
#define STOP_BOTH(first, second) FLUSH_BOTH first = summed; second = summed_too;
#define SUMS(first, second, TERMS)                                             \
    do { START_BOTH ADD_BOTH(TERMS) STOP_BOTH(first, second) } while (0)

// -- exp ------------------------------------------------------------------------------------------

#if FLOAT
#define LOWEST -104.0f  // below: 0
#define HIGHEST 89.0f   // above: infinite
#define ROUNDER 12582912.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define BIAS 127
#define MANTISSA 23
#else
#define LOWEST -746.0
#define HIGHEST 710.0
#define ROUNDER 6755399441055744.0
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define BIAS 1023
#define MANTISSA 52
#endif

// exp(x) / 2^k where k, the whole number nearest to x / ln 2, is added to `magic`: its last bits
// then are those of k. Minimax polynomial; of double, Taylor's.
HERE V NAME(mantissa)(V x, V magic, V *shifted) {
    *shifted = x * (REAL)1.44269504088896340736 + magic;
    const V whole = *shifted - magic;
    V r = x - whole * (REAL)LN2_HIGH;
    r = r - whole * (REAL)LN2_LOW;
#if FLOAT
    V p = r * 0x1.6a2352p-10f + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
#else
    V p = r * (1 / 6227020800.0) + 1 / 479001600.0;
    p = p * r + 1 / 39916800.0;
    p = p * r + 1 / 3628800.0;
    p = p * r + 1 / 362880.0;
    p = p * r + 1 / 40320.0;
    p = p * r + 1 / 5040.0;
    p = p * r + 1 / 720.0;
    p = p * r + 1 / 120.0;
    p = p * r + 1 / 24.0;
    p = p * r + 1 / 6.0;
    p = p * r + 0.5;
#endif
    p = p * r + 1;
    return p * r + 1;
}

// exp(x) within an ulp for x <= 40, denormal results and NaN included. What is below LOWEST is
// computed at 0, since results that vanish take long.
HERE V NAME(exponential)(V x) {
    const B below = (B)(x < NAME(all)((REAL)LOWEST));
    V k, p = NAME(mantissa)((V)((B)x & ~below), NAME(all)((REAL)(ROUNDER + BIAS + 64)), &k);
    p = p * (V)((B)k << MANTISSA) * (REAL)0x1p-64;  // 2^(k + 64) is a normal number
    return (V)((B)p & ~below);
}

// Whether |x| > limit: by bits, since a comparison of a NaN would raise the invalid flag.
HERE B NAME(beyond)(B size, REAL limit) {
    const B a = (B)NAME(all)(limit), b = (B)NAME(all)((REAL)INFINITY);
    return (B)(size > a) & (B)(size <= b);
}

// The same for all x, without the invalid flag of a NaN: 2^k in two factors.
HERE V NAME(any_exponential)(V x) {
    const B sign = (B)((B)x < (B){0}), size = (B)x & ~(B)NAME(all)((REAL)-0.0);
    const B below = sign & NAME(beyond)(size, (REAL)-LOWEST);
    const B above = ~sign & NAME(beyond)(size, (REAL)HIGHEST);
    const V magic = NAME(all)((REAL)(ROUNDER + BIAS));
    x = NAME(select)(above, NAME(all)((REAL)HIGHEST), (V)((B)x & ~below));
    V k, p = NAME(mantissa)(x, magic, &k);
    const V half = (k - magic) * (REAL)0.5 + magic;
    p *= (V)((B)half << MANTISSA);
    p *= (V)(((B)k - (B)half + BIAS) << MANTISSA);
    return (V)((B)p & ~below);
}

// -- softmax --------------------------------------------------------------------------------------

// The largest of n numbers, which may miss a NaN; -infinity of none.
HERE REAL NAME(maximum)(const REAL *x, int64_t n) {
    const V lowest = NAME(all)((REAL)-INFINITY);
    V a = lowest, b = lowest, c = lowest, d = lowest;
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        a = NAME(larger)(NAME(load)(x + j), a);
        b = NAME(larger)(NAME(load)(x + j + LANES), b);
        c = NAME(larger)(NAME(load)(x + j + 2 * LANES), c);
        d = NAME(larger)(NAME(load)(x + j + 3 * LANES), d);
    }
    for (; j + LANES <= n; j += LANES) a = NAME(larger)(NAME(load)(x + j), a);
    if (j < n) b = NAME(larger)(LEFT_OR(x, (REAL)-INFINITY), b);
    a = NAME(larger)(NAME(larger)(a, b), NAME(larger)(c, d));
    FOLD(a, NAME(larger));
    return a[0];
}

// What softmax subtracts from a row before exp: its maximum, or 0, which takes no bits, where the
// exponentials then neither overflow nor lose bits of any quotient above 2^-123.
HERE REAL NAME(origin)(REAL top) { return top >= -2 && top <= 16 ? 0 : top; }

// y = exp(x - origin); the sum. y may be x.
HERE double NAME(exponentials)(const REAL *x, REAL *y, int64_t n, REAL origin) {
    double total = 0;
    int64_t j = 0;
    while (j + LANES <= n) {
        V a = {0}, b = {0};
        const int64_t stop = j + 2 * SPAN < n ? j + 2 * SPAN : n;
        for (; j + 2 * LANES <= stop; j += 2 * LANES) {
            const V p = NAME(exponential)(NAME(load)(x + j) - origin);
            const V q = NAME(exponential)(NAME(load)(x + j + LANES) - origin);
            NAME(store)(y + j, p);
            NAME(store)(y + j + LANES, q);
            a += p;
            b += q;
        }
        for (; j + LANES <= stop; j += LANES) {
            const V p = NAME(exponential)(NAME(load)(x + j) - origin);
            NAME(store)(y + j, p);
            a += p;
        }
        total += NAME(total)(a + b);
    }
    if (j < n) {
        const V p = NAME(exponential)(LEFT(x) - origin);
        NAME(store_part)(y + j, p, n - j);
        total += NAME(total)((V)((B)p & NAME(first)(n - j)));
    }
    return total;
}

// A quotient of each number of a vector and `total`, a sum of numbers like them.
#if FLOAT
#define QUOTIENTS(total) const REAL high = (REAL)(1 / total), low = (REAL)(1 / total - high);
#define QUOTIENT(e) (e * high + e * low)
#else
#define QUOTIENTS(total) const REAL high = total;
#define QUOTIENT(e) (e / high)
#endif

// A row of at most two vectors, which stays in registers.
HERE void NAME(short_softmax)(const REAL *x, REAL *y, int64_t n) {
    const V lowest = NAME(all)((REAL)-INFINITY);
    const int64_t left = n > LANES ? n - LANES : n, j = n - left;
    const B part = left < LANES ? NAME(first)(left) : (B)(lowest == lowest);
    V p = lowest, q = left < LANES ? NAME(load_part)(x + j, left) : NAME(load)(x + j);
    if (j) p = NAME(load)(x);
    V tops = NAME(larger)(p, NAME(select)(part, q, lowest));
    FOLD(tops, NAME(larger));
    const REAL origin = NAME(origin)(tops[0]);
    q = (V)((B)NAME(exponential)(q - origin) & part);
    if (j) p = NAME(exponential)(p - origin);
    else p = (V){0};
    const double total = NAME(total)(p + q);
    QUOTIENTS(total)
    if (j) NAME(store)(y, QUOTIENT(p));
    if (left < LANES) NAME(store_part)(y + j, QUOTIENT(q), left);
    else NAME(store)(y + j, QUOTIENT(q));
}

HERE void NAME(softmax)(const REAL *x, REAL *y, int64_t n, int64_t begin, int64_t end) {
    x += begin * n; y += begin * n;
    for (int64_t i = begin; i < end; i++, x += n, y += n) {
        if (n <= 2 * LANES) {
            NAME(short_softmax)(x, y, n);
            continue;
        }
        const double total = NAME(exponentials)(x, y, n, NAME(origin)(NAME(maximum)(x, n)));
        QUOTIENTS(total)
#define BODY(LOAD, STORE) const V e = LOAD(y); STORE(y, QUOTIENT(e));
        EACH(BODY);
#undef BODY
    }
}

#undef QUOTIENTS
#undef QUOTIENT

HERE void NAME(softmax_grad)(const REAL *g, const REAL *y, REAL *d, int64_t n, int64_t begin, int64_t end) {
    g += begin * n; y += begin * n; d += begin * n;
    for (int64_t i = begin; i < end; i++, g += n, y += n, d += n) {
        double product = 0;
#define TERM(LOAD, p) p = LOAD(g) * LOAD(y);
        SUM(product, TERM);
#undef TERM
        const REAL shift = (REAL)product;
#define BODY(LOAD, STORE) STORE(d, (LOAD(g) - shift) * LOAD(y));
        EACH(BODY);
#undef BODY
    }
}

HERE void NAME(log_softmax)(const REAL *x, REAL *y, int64_t n, int64_t begin, int64_t end) {
    x += begin * n; y += begin * n;
    for (int64_t i = begin; i < end; i++, x += n, y += n) {
        const REAL top = NAME(maximum)(x, n);
        double total = 0;
        int64_t j = 0;
        while (j + LANES <= n) {
            V a = {0}, b = {0};
            const int64_t stop = j + 2 * SPAN < n ? j + 2 * SPAN : n;
            for (; j + 2 * LANES <= stop; j += 2 * LANES) {
                a += NAME(exponential)(NAME(load)(x + j) - top);
                b += NAME(exponential)(NAME(load)(x + j + LANES) - top);
            }
            for (; j + LANES <= stop; j += LANES) a += NAME(exponential)(NAME(load)(x + j) - top);
            total += NAME(total)(a + b);
        }
        if (j < n) {
            const V p = NAME(exponential)(LEFT(x) - top);
            total += NAME(total)((V)((B)p & NAME(first)(n - j)));
        }
        const REAL level = (REAL)log(total);
#define BODY(LOAD, STORE) STORE(y, LOAD(x) - top - level);
        EACH(BODY);
#undef BODY
    }
}

HERE void NAME(log_softmax_grad)(
    const REAL *g, const REAL *y, REAL *d, int64_t n, int64_t begin, int64_t end
) {
    g += begin * n; y += begin * n; d += begin * n;
    for (int64_t i = begin; i < end; i++, g += n, y += n, d += n) {
        double sum = 0;
#define TERM(LOAD, p) p = LOAD(g);
        SUM(sum, TERM);
#undef TERM
        const REAL share = (REAL)sum;
#define BODY(LOAD, STORE) STORE(d, LOAD(g) - NAME(any_exponential)(LOAD(y)) * share);
        EACH(BODY);
#undef BODY
    }
}

// -- rows of attention ----------------------------------------------------------------------------

// How many of n keys row i of matrices with `length` rows sees: row 0 sees `first` and one more.
HERE int64_t NAME(seen)(int64_t i, int64_t n, int64_t length, int64_t causal, int64_t first) {
    const int64_t seen = first + i % length + 1;
    return !causal || seen > n ? n : seen < 0 ? 0 : seen;
}

// Scores of matrices (length, n), in place: exp(score - largest), 0 where a key is not seen. Largest,
// at least `before` unless that is null, and total of each row are written.
HERE void NAME(attention)(
    REAL *scores, const REAL *before, REAL *largest, REAL *total, int64_t n, int64_t length,
    int64_t causal, int64_t first, int64_t begin, int64_t end
) {
    for (int64_t i = begin; i < end; i++) {
        REAL *x = scores + i * n;
        const int64_t seen = NAME(seen)(i, n, length, causal, first);
        REAL top = NAME(maximum)(x, seen);
        if (before && before[i] > top) top = before[i];
        largest[i] = top;
        total[i] = (REAL)NAME(exponentials)(x, x, seen, top == (REAL)-INFINITY ? 0 : top);
        if (seen < n) memset(x + seen, 0, (n - seen) * sizeof(REAL));
    }
}

// The same with known largest scores; and change = (change - shift) * scores, unless it is null.
HERE void NAME(attention_grad)(
    REAL *scores, const REAL *largest, REAL *changes, const REAL *shifts, int64_t all,
    int64_t length, int64_t causal, int64_t first, int64_t begin, int64_t end
) {
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = NAME(seen)(i, all, length, causal, first);
        REAL *x = scores + i * all, *change = changes ? changes + i * all : 0;
        const REAL top = largest[i], shift = changes ? shifts[i] : 0;
        if (change) {
#define BODY(LOAD, STORE)                                                                    \
    const V p = NAME(exponential)(LOAD(x) - top);                                            \
    STORE(x, p);                                                                             \
    STORE(change, (LOAD(change) - shift) * p);
            EACH(BODY);
#undef BODY
        } else {
#define BODY(LOAD, STORE) STORE(x, NAME(exponential)(LOAD(x) - top));
            EACH(BODY);
#undef BODY
        }
        if (n == all) continue;
        memset(x + n, 0, (all - n) * sizeof(REAL));
        if (change) memset(change + n, 0, (all - n) * sizeof(REAL));
    }
}

// -- layer norm and RMS norm ----------------------------------------------------------------------

#if FLOAT
#define NEAR 0x1p-30  // (256 ulp)^2
#else
#define NEAR 0x1p-88
#endif

// Mean and biased variance of `rows` rows of n numbers, `stride` numbers apart. The mean is that of
// the numbers plus that of what is left of them.
//
// Returns a step: the mean minus the center that numbers are to be subtracted from before it. It is
// 0 unless the deviation is a few ulp of the mean; then the sum of deviations from the rounded mean
// is exact, and equal numbers have variance 0.
HERE REAL NAME(moments)(
    const REAL *x, int64_t rows, int64_t stride, int64_t n, REAL *center, double *variance
) {
    const double count = (double)rows * n;
    double first, rest, squares;
    {
        START
        for (int64_t i = 0; i < rows; i++) {
            const REAL *a = x + i * stride;
#define TERM(LOAD, p) p = LOAD(a);
            ADD(TERM)
#undef TERM
        }
        STOP(first)
    }
    const REAL mean = (REAL)(first / count);
    {
        START_BOTH
        for (int64_t i = 0; i < rows; i++) {
            const REAL *a = x + i * stride;
#define TERMS(LOAD, p, q) p = LOAD##_OR(a, mean) - mean; q = p * p;
            ADD_BOTH(TERMS)
#undef TERMS
        }
        STOP_BOTH(rest, squares)
    }
    rest /= count;
    *center = (REAL)(mean + rest);
    *variance = squares / count - rest * rest;
    if (!isless(*variance, (double)mean * mean * NEAR)) return 0;
    *center = mean;
    rest = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) rest += x[i * stride + j] - mean;
    const REAL step = (REAL)(rest / count);
    squares = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            const REAL d = x[i * stride + j] - mean - step;
            squares += (double)d * d;
        }
    *variance = squares / count;
    return step;
}

// y = (x - mean) / sqrt(var + eps) * weight + bias of each row; without means RMS norm.
HERE void NAME(row_norm)(
    const REAL *x, const REAL *weight, const REAL *bias, REAL *y, REAL *means, REAL *inverses,
    double eps, int64_t n, int64_t begin, int64_t end
) {
    x += begin * n; y += begin * n;
    for (int64_t i = begin; i < end; i++, x += n, y += n) {
        REAL center = 0, step = 0;
        double variance = 0;
        if (means) {
            step = NAME(moments)(x, 1, n, n, &center, &variance);
            means[i] = center + step;
        } else {
#define TERM(LOAD, p) p = LOAD(x); p *= p;
            SUM(variance, TERM);
#undef TERM
            variance /= n;
        }
        const REAL inverse = inverses[i] = (REAL)(1 / sqrt(variance + eps));
        const REAL *from = x;
        if (step) {
#define BODY(LOAD, STORE) STORE(y, LOAD(x) - center - step);
            EACH(BODY);
#undef BODY
            from = y;
            center = 0;
        }
#define NORMAL(LOAD) ((LOAD##_OR(from, center) - center) * inverse)
        if (weight && bias) {
#define BODY(LOAD, STORE) STORE(y, NORMAL(LOAD) * LOAD(weight) + LOAD(bias));
            EACH(BODY);
#undef BODY
        } else {
#define BODY(LOAD, STORE)                                                      \
    V p = NORMAL(LOAD);                                                        \
    if (weight) p *= LOAD(weight);                                             \
    if (bias) p += LOAD(bias);                                                 \
    STORE(y, p);
            EACH(BODY);
#undef BODY
        }
#undef NORMAL
    }
}

#define TILE 8  // rows whose gradients of weight and bias are added in vectors

// What row_norm_grad does for `count` rows; the flags are constants.
HERE void NAME(row_norm_tile)(
    const REAL *g, const REAL *x, const REAL *weight, const REAL *means, const REAL *inverses,
    REAL *dx, double *dweight, double *dbias, int64_t n, int count, int weighted, int wanted, int add,
    int totals
) {
    REAL level[TILE], slope[TILE];
    for (int i = 0; wanted && i < count; i++) {
        const REAL *a = x + i * n, *h = g + i * n;
        const REAL mean = means ? means[i] : 0, inverse = inverses[i];
        double sum = 0, product = 0;
        if (weighted) {
#define TERMS(LOAD, p, q) p = LOAD(h) * LOAD(weight); q = p * (LOAD(a) - mean);
            SUMS(sum, product, TERMS);
#undef TERMS
        } else {
#define TERMS(LOAD, p, q) p = LOAD(h); q = p * (LOAD(a) - mean);
            SUMS(sum, product, TERMS);
#undef TERMS
        }
        level[i] = means ? (REAL)(sum / n) : 0;
        slope[i] = (REAL)(product / n * inverse * inverse);
    }
#define BODY(LOAD, STORE)                                                                    \
    V w = {0}, dw = {0}, db = {0};                                                           \
    if (weighted) w = LOAD(weight);                                                          \
    for (int i = 0; i < count; i++) {                                                        \
        const REAL *h = g + i * n, *a = x + i * n;                                           \
        const REAL inverse = inverses[i];                                                    \
        V d = LOAD(h);                                                                       \
        const V deviation = LOAD(a) - (means ? means[i] : 0);                                \
        if (totals) { dw += d * (deviation * inverse); db += d; }                            \
        if (wanted) {                                                                        \
            REAL *to = dx + i * n;                                                           \
            if (weighted) d *= w;                                                            \
            d = (d - level[i] - deviation * slope[i]) * inverse;                             \
            if (add) d += LOAD(to);                                                          \
            STORE(to, d);                                                                    \
        }                                                                                    \
    }                                                                                        \
    if (totals) {                                                                            \
        STORE##_DOUBLE(dweight, dw);                                                         \
        STORE##_DOUBLE(dbias, db);                                                           \
    }
    EACH(BODY);
#undef BODY
}

// The gradients of rows in chunks [begin, end) of `chunk` rows, a multiple of TILE. dx, which may
// be g, is written or, with `add`, added to. totals (chunks, 2, n): the sums over a chunk's rows of
// g * xhat and of g. dx, totals, weight and means may be null.
HERE void NAME(row_norm_grad)(
    const REAL *g, const REAL *x, const REAL *weight, const REAL *means, const REAL *inverses,
    REAL *dx, double *totals, int64_t add, int64_t rows, int64_t n, int64_t chunk, int64_t begin, int64_t end
) {
    for (int64_t part = begin; part < end; part++) {
        const int64_t last = (part + 1) * chunk < rows ? (part + 1) * chunk : rows;
        double *dweight = totals ? totals + part * 2 * n : 0, *dbias = totals ? dweight + n : 0;
        if (totals) memset(dweight, 0, 2 * n * sizeof(double));
        for (int64_t top = part * chunk; top < last; top += TILE) {
            const int count = last - top < TILE ? (int)(last - top) : TILE;
            const REAL *h = g + top * n, *a = x + top * n, *m = means ? means + top : 0;
            REAL *d = dx ? dx + top * n : 0;
#define TILED(count, weighted, wanted, add, totals)                                          \
    NAME(row_norm_tile)(h, a, weight, m, inverses + top, d, dweight, dbias, n, count,        \
                        weighted, wanted, add, totals)
            if (count == TILE && weight && dx && totals && !add) TILED(TILE, 1, 1, 0, 1);
            else TILED(count, !!weight, !!dx, !!add, !!totals);
#undef TILED
        }
    }
}

// -- planes: group norm and batch norm ------------------------------------------------------------

enum { NAME(identity), NAME(relu), NAME(leaky_relu) };

// Whether numbers are above 0, and below or at 0; neither of a NaN.
HERE B NAME(positive)(V x) {
    const B bits = (B)x, infinite = (B)NAME(all)((REAL)INFINITY);
    return (B)(bits > (B){0}) & (B)(bits <= infinite);
}

HERE V NAME(activated)(V y, int kind, REAL slope) {
    if (kind == NAME(leaky_relu)) return NAME(select)(NAME(positive)(y), y, y * slope);
    if (kind == NAME(relu)) {
        const B size = (B)y & ~(B)NAME(all)((REAL)-0.0), infinite = (B)NAME(all)((REAL)INFINITY);
        return (V)((B)y & ~((B)((B)y < (B){0}) & (B)(size <= infinite)));
    }
    return y;
}

// g times the derivative at y.
HERE V NAME(differentiated)(V g, V y, int kind, REAL slope) {
    if (kind == NAME(leaky_relu)) return NAME(select)(NAME(positive)(y), g, g * slope);
    if (kind == NAME(relu)) {
        const B size = (B)y & ~(B)NAME(all)((REAL)-0.0), infinite = (B)NAME(all)((REAL)INFINITY);
        return (V)((B)g & (NAME(positive)(y) | (B)(size > infinite)));
    }
    return g;
}

// y = act((x - center - step) * scale + shift) of a row; y may be x.
HERE void NAME(affine)(
    const REAL *x, REAL *y, int64_t n, REAL center, REAL step, REAL scale, REAL shift, int kind,
    REAL slope
) {
    if (step) {
#define BODY(LOAD, STORE) \
    STORE(y, NAME(activated)((LOAD##_OR(x, center) - center - step) * scale + shift, kind, slope));
        EACH(BODY);
#undef BODY
    } else {
#define BODY(LOAD, STORE) \
    STORE(y, NAME(activated)((LOAD##_OR(x, center) - center) * scale + shift, kind, slope));
        EACH(BODY);
#undef BODY
    }
}

HERE REAL NAME(inverse)(REAL variance, double eps) { return (REAL)(1 / sqrt(variance + eps)); }

// Groups [begin, end) of all images: `channels` planes of n numbers each.
HERE void NAME(group_norm)(
    const REAL *x, const REAL *weight, const REAL *bias, REAL *y, REAL *means, REAL *variances,
    double eps, int64_t groups, int64_t channels, int64_t n, int64_t begin, int64_t end
) {
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i % groups * channels;
        REAL center;
        double variance;
        const REAL step = NAME(moments)(
            x + i * channels * n, 1, 0, channels * n, &center, &variance);
        means[i] = center + step;
        variances[i] = (REAL)variance;
        const REAL inverse = NAME(inverse)(variances[i], eps);
        for (int64_t c = 0; c < channels; c++) {
            const int64_t at = (i * channels + c) * n;
            NAME(affine)(x + at, y + at, n, center, step,
                         weight ? inverse * weight[first + c] : inverse,
                         bias ? bias[first + c] : 0, NAME(identity), 0);
        }
    }
}

// Their gradients: sums (2, images * groups * channels) of g and of g * xhat over planes, and dx,
// which may be g. Either may be null.
HERE void NAME(group_norm_grad)(
    const REAL *g, const REAL *x, const REAL *weight, const REAL *means, const REAL *variances,
    REAL *dx, REAL *sums, double eps, int64_t images, int64_t groups, int64_t channels, int64_t n, int64_t begin,
    int64_t end
) {
    const double count = (double)channels * n;
    for (int64_t i = begin; i < end; i++) {
        const REAL *w = weight ? weight + i % groups * channels : 0;
        const REAL mean = means[i], inverse = NAME(inverse)(variances[i], eps);
        double low = 0, tilt = 0;
        for (int64_t c = 0; c < channels; c++) {
            const int64_t plane = i * channels + c;
            const REAL *h = g + plane * n, *a = x + plane * n;
            double sum, product;
#define TERMS(LOAD, p, q) p = LOAD(h); q = p * (LOAD(a) - mean);
            {
                double first, second;
                SUMS(first, second, TERMS);
                sum = first;
                product = second * inverse;
            }
#undef TERMS
            if (sums) {
                sums[plane] = (REAL)sum;
                sums[images * groups * channels + plane] = (REAL)product;
            }
            low += w ? sum * w[c] : sum;
            tilt += w ? product * w[c] : product;
        }
        if (!dx) continue;
        const REAL level = (REAL)(low / count * inverse);
        const REAL slope = (REAL)(tilt / count * inverse * inverse);
        for (int64_t c = 0; c < channels; c++) {
            const int64_t at = (i * channels + c) * n;
            const REAL *h = g + at, *a = x + at;
            REAL *d = dx + at;
            const REAL scale = w ? inverse * w[c] : inverse;
#define BODY(LOAD, STORE) STORE(d, LOAD(h) * scale - (LOAD(a) - mean) * slope - level);
            EACH(BODY);
#undef BODY
        }
    }
}

// y = act((x - mean) / sqrt(var + eps) * weight + bias) of channels [begin, end) of images (images,
// all, n). Mean and variance are `given`, or written; y may be x, or null.
HERE void NAME(batch_norm)(
    const REAL *x, const REAL *weight, const REAL *bias, REAL *y, REAL *means, REAL *variances,
    double eps, double slope, int64_t kind, int64_t given, int64_t images, int64_t all, int64_t n, int64_t begin, int64_t end
) {
    for (int64_t c = begin; c < end; c++) {
        REAL center = 0, step = 0;
        if (given) {
            center = means[c];
        } else {
            double variance;
            step = NAME(moments)(x + c * n, images, all * n, n, &center, &variance);
            means[c] = center + step;
            variances[c] = (REAL)variance;
        }
        if (!y) continue;
        const REAL inverse = NAME(inverse)(variances[c], eps);
        const REAL scale = weight ? inverse * weight[c] : inverse, shift = bias ? bias[c] : 0;
        for (int64_t i = 0; i < images; i++) {
            const int64_t at = (i * all + c) * n;
#define AFFINE(kind) \
    NAME(affine)(x + at, y + at, n, center, step, scale, shift, kind, (REAL)slope)
            if (kind == NAME(identity)) AFFINE(NAME(identity));
            else if (kind == NAME(relu)) AFFINE(NAME(relu));
            else AFFINE(NAME(leaky_relu));
#undef AFFINE
        }
    }
}

// What batch_norm_grad does for a channel; the flags are constants.
HERE void NAME(batch_norm_channel)(
    const REAL *g, const REAL *x, REAL *dx, double *totals, REAL center, REAL inverse, REAL weight,
    REAL bias, REAL scale, double count, REAL slope, int64_t images, int64_t stride, int64_t n, int kind,
    int inverted, int known, int training
) {
    const REAL back = inverted && kind == NAME(leaky_relu) ? 1 / slope : 1;
// xhat and the gradient dy before the activation; from its output where that is inverted
#define XHAT_DY(LOAD, xhat, dy)                                                              \
    const V at = LOAD(a);                                                                    \
    if (inverted) {                                                                          \
        xhat = (NAME(activated)(at, kind, back) - center) * inverse;                         \
        dy = NAME(differentiated)(LOAD(h), at, kind, slope);                                 \
    } else {                                                                                 \
        xhat = (at - center) * inverse;                                                      \
        dy = NAME(differentiated)(LOAD(h), xhat * weight + bias, kind, slope);               \
    }
    if (!known) {
        double first, second;
        START_BOTH
        for (int64_t i = 0; i < images; i++) {
            const REAL *h = g + i * stride, *a = x + i * stride;
#define TERMS(LOAD, p, q) V xhat; XHAT_DY(LOAD, xhat, p) q = p * xhat;
            ADD_BOTH(TERMS)
#undef TERMS
        }
        STOP_BOTH(first, second)
        totals[0] = first;
        totals[1] = second;
    }
    if (!dx) return;
    const REAL level = training ? (REAL)(totals[0] / count) * scale : 0;
    const REAL tilt = training ? (REAL)(totals[1] / count) * scale : 0;
    for (int64_t i = 0; i < images; i++) {
        const REAL *h = g + i * stride, *a = x + i * stride;
        REAL *d = dx + i * stride;
#define BODY(LOAD, STORE)                                                                    \
    V xhat, dy;                                                                              \
    XHAT_DY(LOAD, xhat, dy)                                                                  \
    dy *= scale;                                                                             \
    if (training) dy = dy - xhat * tilt - level;                                             \
    STORE(d, dy);
        EACH(BODY);
#undef BODY
    }
#undef XHAT_DY
}

// The gradients of channels [begin, end): dx, which may be g or null, and totals (all, 2), the sums
// of dy and of dy * xhat. `known`: the totals are given, over `count` numbers. xhat is (x - center)
// * inverse; `inverted`: x is the output, and xhat of what the inverse of the activation makes of
// it. centers, inverses, scales, and unless inverted weights and biases are per channel.
HERE void NAME(batch_norm_grad)(
    const REAL *g, const REAL *x, const REAL *centers, const REAL *inverses, const REAL *weights,
    const REAL *biases, const REAL *scales, REAL *dx, double *totals, double count, double slope,
    int64_t kind, int64_t inverted, int64_t known, int64_t training, int64_t images, int64_t all, int64_t n, int64_t begin, int64_t end
) {
    for (int64_t c = begin; c < end; c++) {
#define CHANNEL(kind, inverted)                                                              \
    NAME(batch_norm_channel)(                                                                \
        g + c * n, x + c * n, dx ? dx + c * n : 0, totals + 2 * c, centers[c], inverses[c],  \
        weights ? weights[c] : 1, biases ? biases[c] : 0, scales[c], count, (REAL)slope,     \
        images, all * n, n, kind, inverted, !!known, !!training)
        if (kind == NAME(identity)) CHANNEL(NAME(identity), 0);
        else if (kind == NAME(relu)) CHANNEL(NAME(relu), 0);
        else if (inverted) CHANNEL(NAME(leaky_relu), 1);
        else CHANNEL(NAME(leaky_relu), 0);
#undef CHANNEL
    }
}

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
RANGE(row_norm, P(0), P(1), P(2), P(3), P(4), P(5), F(0), I(0))
RANGE(row_norm_grad, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(0), I(1), I(2), I(3))
RANGE(group_norm, P(0), P(1), P(2), P(3), P(4), P(5), F(0), I(0), I(1), I(2))
RANGE(group_norm_grad, P(0), P(1), P(2), P(3), P(4), P(5), P(6), F(0), I(0), I(1), I(2), I(3))
RANGE(batch_norm, P(0), P(1), P(2), P(3), P(4), P(5), F(0), F(1), I(0), I(1), I(2), I(3), I(4))
RANGE(batch_norm_grad, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), F(0), F(1), I(0), I(1),
      I(2), I(3), I(4), I(5), I(6))

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
