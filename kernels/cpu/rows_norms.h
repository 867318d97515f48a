// Layer norm and RMS norm of rows, group norm and batch norm of planes; part of rows.h.

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
    REAL *dx, double *dweight, double *dbias, int64_t n, int count, int weighted, int wanted,
    int add, int totals
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
    REAL *dx, double *totals, int64_t add, int64_t rows, int64_t n, int64_t chunk, int64_t begin,
    int64_t end
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
    REAL *dx, REAL *sums, double eps, int64_t images, int64_t groups, int64_t channels, int64_t n,
    int64_t begin, int64_t end
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
    double eps, double slope, int64_t kind, int64_t given, int64_t images, int64_t all, int64_t n,
    int64_t begin, int64_t end
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
    REAL bias, REAL scale, double count, REAL slope, REAL back, int64_t images, int64_t stride,
    int64_t n, int kind, int inverted, int known, int training
) {
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
// it. centers, inverses, scales, and unless inverted weights and biases are per channel. back is
// the slope of the inverse: compilers would move a division here to where it is made for nothing,
// and a slope of 0 would raise a flag.
HERE void NAME(batch_norm_grad)(
    const REAL *g, const REAL *x, const REAL *centers, const REAL *inverses, const REAL *weights,
    const REAL *biases, const REAL *scales, REAL *dx, double *totals, double count, double slope,
    double back,
    int64_t kind, int64_t inverted, int64_t known, int64_t training, int64_t images, int64_t all,
    int64_t n, int64_t begin, int64_t end
) {
    for (int64_t c = begin; c < end; c++) {
#define CHANNEL(kind, inverted)                                                              \
    NAME(batch_norm_channel)(                                                                \
        g + c * n, x + c * n, dx ? dx + c * n : 0, totals + 2 * c, centers[c], inverses[c],  \
        weights ? weights[c] : 1, biases ? biases[c] : 0, scales[c], count, (REAL)slope,     \
        (REAL)back, images, all * n, n, kind, inverted, !!known, !!training)
        if (kind == NAME(identity)) CHANNEL(NAME(identity), 0);
        else if (kind == NAME(relu)) CHANNEL(NAME(relu), 0);
        else if (inverted) CHANNEL(NAME(leaky_relu), 1);
        else CHANNEL(NAME(leaky_relu), 0);
#undef CHANNEL
    }
}
