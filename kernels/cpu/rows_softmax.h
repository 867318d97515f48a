// Rows of softmax, its logarithm and attention; part of rows.h.

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

HERE void NAME(softmax_grad)(
    const REAL *g, const REAL *y, REAL *d, int64_t n, int64_t begin, int64_t end
) {
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

// Scores of matrices (length, n), in place: exp(score - largest), 0 where a key is not seen.
// Largest, at least `before` unless that is null, and total of each row are written.
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
