// Vectors of rows.h: parts of rows, sums, exp.
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
#define START_BOTH                                                             \
    V s0 = {0}, s1 = {0}, t0 = {0}, t1 = {0};                                  \
    double summed = 0, summed_too = 0;                                         \
    int64_t used = 0;
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
