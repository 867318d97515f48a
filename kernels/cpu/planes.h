// Convolution of groups of few channels, part of convolution.h: vectors lie along the pixels.
//
// A tile is some rows of one image and group. Its inputs are copied with zeros around them, one
// plane for each place within a stride, so that a tap reads a plane from some place on, as one run
// over all rows. What a run computes between the end of a row and the next one is not read.

struct NAME(planes) {
    i64 tall, wide, plane, input, pixels;  // of a plane; of an input's planes; of an output
};

static struct NAME(planes) NAME(planes_of)(const struct pass *s, i64 rows) {
    struct NAME(planes) r;
    r.tall = (reach(&s->row, rows) + s->row.stride - 1) / s->row.stride;
    r.wide = (reach(&s->column, s->column.count) + s->column.stride - 1) / s->column.stride;
    r.plane = r.tall * r.wide;
    r.input = s->row.stride * s->column.stride * r.plane;
    r.pixels = rows * r.wide + RUN * LANES;
    return r;
}

// Where each tap of each input begins.
static i64 NAME(planes_taps)(const struct pass *s, const struct NAME(planes) *r, i64 *tap) {
    i64 count = 0;
    for (i64 c = 0; c < s->inputs; c++)
        for (i64 i = 0; i < s->row.taps; i++)
            for (i64 j = 0; j < s->column.taps; j++) {
                i64 down = s->row.shift[i] - s->row.shift[0];
                i64 right = s->column.shift[j] - s->column.shift[0];
                tap[count++] = c * r->input
                    + down % s->row.stride * s->column.stride * r->plane
                    + right % s->column.stride * r->plane
                    + down / s->row.stride * r->wide + right / s->column.stride;
            }
    return count;
}

static void NAME(planes_gather)(
    const struct pass *s, const struct tile *t, const struct NAME(planes) *r, const NUMBER *x,
    NUMBER *planes) {
    i64 low = t->row * s->row.stride + s->row.shift[0], left = s->column.shift[0];
    i64 tall = reach(&s->row, t->rows), step = s->column.stride;
    for (i64 c = 0; c < s->inputs; c++)
        for (i64 h = 0; h < tall; h++)
            for (i64 j = 0; j < step; j++) {
                NUMBER *to = planes + c * r->input + h / s->row.stride * r->wide
                    + (h % s->row.stride * step + j) * r->plane;
                i64 begin = clip((-left - j + step - 1) / step, 0, r->wide);
                i64 end = clip((s->width - left - j + step - 1) / step, begin, r->wide);
                if (low + h < 0 || low + h >= s->height) begin = end = r->wide;
                memset(to, 0, begin * sizeof(NUMBER));
                memset(to + end, 0, (r->wide - end) * sizeof(NUMBER));
                const NUMBER *from = x + left + j
                    + (((t->image * s->groups + t->group) * s->inputs + c) * s->height + low + h)
                    * s->width;
                if (step == 1)
                    memcpy(to + begin, from + begin, (end - begin) * sizeof(NUMBER));
                else
                    for (i64 i = begin; i < end; i++) to[i] = from[i * step];
            }
}

// O outputs of U vectors of pixels: sums over all taps of all inputs.
#define PLANES(of, O, U)                                                                        \
    static inline void NAME(planes_##of)(                                                       \
        const NUMBER *x, const i64 *tap, i64 taps, const NUMBER *w, const NUMBER *first,        \
        NUMBER *out, i64 step) {                                                                \
        VEC sum[O][U];                                                                          \
        UNROLL for (int o = 0; o < O; o++)                                                      \
            UNROLL for (int u = 0; u < U; u++) sum[o][u] = (VEC){0} + first[o];                 \
        for (i64 k = 0; k < taps; k++) {                                                        \
            VEC v[U];                                                                           \
            UNROLL for (int u = 0; u < U; u++) v[u] = LOAD(x + tap[k] + u * LANES);             \
            UNROLL for (int o = 0; o < O; o++)                                                  \
                UNROLL for (int u = 0; u < U; u++) sum[o][u] += v[u] * w[k * O + o];            \
        }                                                                                       \
        UNROLL for (int o = 0; o < O; o++)                                                      \
            UNROLL for (int u = 0; u < U; u++) STORE(out + o * step + u * LANES, sum[o][u]);    \
    }

PLANES(one_run, 1, RUN)
PLANES(one_vector, 1, 1)
PLANES(four_run, OUTPUTS, RUN)
PLANES(four_vector, OUTPUTS, 1)

static void NAME(planes_run)(
    const NUMBER *x, const i64 *tap, i64 taps, const NUMBER *w, const NUMBER *first, i64 outputs,
    i64 pixels, NUMBER *out, i64 step) {
    for (i64 p = 0; p < pixels;) {
        int run = pixels - p > (RUN - 1) * LANES;
        if (outputs > 1 && run)
            NAME(planes_four_run)(x + p, tap, taps, w, first, out + p, step);
        else if (outputs > 1)
            NAME(planes_four_vector)(x + p, tap, taps, w, first, out + p, step);
        else if (run)
            NAME(planes_one_run)(x + p, tap, taps, w, first, out + p, step);
        else
            NAME(planes_one_vector)(x + p, tap, taps, w, first, out + p, step);
        p += run ? RUN * LANES : LANES;
    }
}

// The weights as (groups, blocks of outputs, inputs, taps, outputs of a block): blocks of OUTPUTS
// with zeros after the last output, or of one where a group has one.
static void NAME(planes_pack)(const struct pass *s, const void *weights, void *out) {
    const NUMBER *w = weights;
    NUMBER *packed = out;
    i64 all = s->kernel_height * s->kernel_width, block = s->outputs > 1 ? OUTPUTS : 1;
    for (i64 g = 0; g < s->groups; g++)
        for (i64 b = 0; b < s->outputs; b += block)
            for (i64 c = 0; c < s->inputs; c++)
                for (i64 i = 0; i < s->row.taps; i++)
                    for (i64 j = 0; j < s->column.taps; j++)
                        for (i64 o = b; o < b + block; o++) {
                            i64 at = s->transposed ? (g * s->inputs + c) * s->outputs + o
                                                   : (g * s->outputs + o) * s->inputs + c;
                            *packed++ = o >= s->outputs ? 0
                                : w[at * all + s->row.tap[i] * s->kernel_width + s->column.tap[j]];
                        }
}

// Tiles [begin, end): y = x convolved with packed weights, + bias, + y where the pass accumulates.
static void NAME(planes_correlate)(
    const struct pass *s, const void *x, const void *packed, const void *biases, void *y,
    void *work, i64 begin, i64 end) {
    const NUMBER *bias = biases;
    struct NAME(planes) whole = NAME(planes_of)(s, s->tile_rows);
    i64 block = s->outputs > 1 ? OUTPUTS : 1, blocks = (s->outputs + block - 1) / block;
    i64 input = s->inputs * whole.input + RUN * LANES;
    NUMBER *planes = work, *product = planes + (input + 15) / 16 * 16;
    i64 *tap = (i64 *)(product + (block * whole.pixels + 15) / 16 * 16);
    memset(planes, 0, input * sizeof(NUMBER));
    for (i64 item = begin; item < end; item++) {
        struct tile t = tile_of(s, item);
        struct NAME(planes) r = NAME(planes_of)(s, t.rows);
        i64 taps = NAME(planes_taps)(s, &r, tap), size = s->out_height * s->out_width;
        NAME(planes_gather)(s, &t, &r, x, planes);
        for (i64 b = 0; b < blocks; b++) {
            NUMBER first[OUTPUTS] = {0};
            i64 o = t.group * s->outputs + b * block;  // the first output of the block
            i64 outputs = s->outputs - b * block < block ? s->outputs - b * block : block;
            for (i64 k = 0; bias && k < outputs; k++) first[k] = bias[o + k];
            NAME(planes_run)(planes, tap, taps,
                             (const NUMBER *)packed + (t.group * blocks + b) * block * taps, first,
                             block, (t.rows - 1) * r.wide + s->column.count, product, whole.pixels);
            for (i64 k = 0; k < outputs; k++)
                for (i64 h = 0; h < t.rows; h++) {
                    const NUMBER *from = product + k * whole.pixels + h * r.wide;
                    i64 row = s->row.start + (t.row + h) * s->row.step, step = s->column.step;
                    NUMBER *to = (NUMBER *)y + s->column.start + row * s->out_width
                        + (t.image * s->groups * s->outputs + o + k) * size;
                    if (s->accumulate)
                        for (i64 i = 0; i < s->column.count; i++) to[i * step] += from[i];
                    else if (step > 1)
                        for (i64 i = 0; i < s->column.count; i++) to[i * step] = from[i];
                    else
                        memcpy(to, from, s->column.count * sizeof(NUMBER));
                }
        }
    }
}

// T taps: totals (T, 2 vectors) += products of a run of gradients with what the taps read.
#define DOT(of, T)                                                                              \
    static void NAME(dot_##of)(                                                                 \
        const NUMBER *g, const NUMBER *x, const i64 *tap, i64 pixels, NUMBER *total) {          \
        VEC sum[T][2];                                                                          \
        UNROLL for (int t = 0; t < T; t++)                                                      \
            UNROLL for (int u = 0; u < 2; u++) sum[t][u] = LOAD(total + (t * 2 + u) * LANES);   \
        for (i64 p = 0; p < pixels; p += 2 * LANES)                                             \
            UNROLL for (int u = 0; u < 2; u++) {                                                \
                VEC v = LOAD(g + p + u * LANES);                                                \
                UNROLL for (int t = 0; t < T; t++)                                              \
                    sum[t][u] += v * LOAD(x + tap[t] + p + u * LANES);                          \
            }                                                                                   \
        UNROLL for (int t = 0; t < T; t++)                                                      \
            UNROLL for (int u = 0; u < 2; u++) STORE(total + (t * 2 + u) * LANES, sum[t][u]);   \
    }

DOT(four, 4)
DOT(one, 1)

// One weight's gradient, pixel by pixel.
static NUMBER NAME(planes_exactly)(
    const struct pass *s, i64 group, i64 output, i64 input, i64 down, i64 right, const NUMBER *g,
    const NUMBER *x) {
    NUMBER total = 0;
    for (i64 n = 0; n < s->images; n++) {
        const NUMBER *from = x + ((n * s->groups + group) * s->inputs + input)
            * s->height * s->width;
        const NUMBER *grads = g + ((n * s->groups + group) * s->outputs + output)
            * s->out_height * s->out_width;
        for (i64 i = 0; i < s->row.count; i++)
            for (i64 j = 0; j < s->column.count; j++) {
                i64 h = i * s->row.stride + down, w = j * s->column.stride + right;
                int inside = h >= 0 && h < s->height && w >= 0 && w < s->width;
                total += grads[i * s->out_width + j] * (inside ? from[h * s->width + w] : 0);
            }
    }
    return total;
}

// Groups [begin, end): the gradient of the weight of the pass, of which x is the input and g the
// gradient of the output.
static void NAME(planes_weight_gradient)(
    const struct pass *s, const void *gradient, const void *x, void *out, void *sums, void *work,
    i64 begin, i64 end) {
    (void)sums;
    const NUMBER *g = gradient;
    struct NAME(planes) whole = NAME(planes_of)(s, s->tile_rows);
    i64 input = s->inputs * whole.input + RUN * LANES, places = s->inputs * s->row.taps
        * s->column.taps, size = s->out_height * s->out_width;
    NUMBER *planes = work, *grads = planes + (input + 15) / 16 * 16;
    NUMBER *totals = grads + (whole.pixels + 15) / 16 * 16;
    i64 *tap = (i64 *)(totals + s->outputs * places * 2 * LANES);
    memset(planes, 0, input * sizeof(NUMBER));
    for (i64 group = begin; group < end; group++) {
        memset(totals, 0, s->outputs * places * 2 * LANES * sizeof(NUMBER));
        for (i64 item = group; item < tiles_of(s); item += s->groups) {
            struct tile t = tile_of(s, item);
            struct NAME(planes) r = NAME(planes_of)(s, t.rows);
            i64 taps = NAME(planes_taps)(s, &r, tap);
            NAME(planes_gather)(s, &t, &r, x, planes);
            for (i64 o = 0; o < s->outputs; o++) {
                const NUMBER *from = g + t.row * s->out_width
                    + ((t.image * s->groups + group) * s->outputs + o) * size;
                memset(grads, 0, r.pixels * sizeof(NUMBER));
                for (i64 h = 0; h < t.rows; h++)
                    memcpy(grads + h * r.wide, from + h * s->out_width,
                           s->out_width * sizeof(NUMBER));
                i64 pixels = (t.rows - 1) * r.wide + s->column.count, k = 0;
                NUMBER *total = totals + o * places * 2 * LANES;
                for (; k + 4 <= taps; k += 4)
                    NAME(dot_four)(grads, planes, tap + k, pixels, total + k * 2 * LANES);
                for (; k < taps; k++)
                    NAME(dot_one)(grads, planes, tap + k, pixels, total + k * 2 * LANES);
            }
        }
        for (i64 o = 0; o < s->outputs; o++)
            for (i64 k = 0; k < places; k++) {
                NUMBER value = 0;
                for (i64 l = 0; l < 2 * LANES; l++)
                    value += totals[(o * places + k) * 2 * LANES + l];
                i64 c = k / (s->row.taps * s->column.taps), i = k / s->column.taps % s->row.taps;
                if (!isfinite(value))  // zeros of a run may have met what the tap does not read
                    value = NAME(planes_exactly)(
                        s, group, o, c, s->row.shift[i], s->column.shift[k % s->column.taps], g, x);
                NUMBER *one = (NUMBER *)out + (group * s->outputs + o) * places + k;
                *one = s->accumulate ? *one + value : value;
            }
    }
}

// Bytes of one thread's work for a correlation, and for a gradient of the weight.
static void NAME(planes_space)(const struct pass *s, i64 *correlation, i64 *gradient) {
    struct NAME(planes) r = NAME(planes_of)(s, s->tile_rows);
    i64 places = s->inputs * s->row.taps * s->column.taps, block = s->outputs > 1 ? OUTPUTS : 1;
    i64 inputs = s->inputs * r.input + RUN * LANES + 16;
    i64 taps = places * (i64)sizeof(i64);
    *correlation = (inputs + block * r.pixels + 16) * (i64)sizeof(NUMBER) + taps;
    *gradient = (inputs + r.pixels + 16 + s->outputs * places * 2 * LANES) * (i64)sizeof(NUMBER)
        + taps;
}

#undef PLANES
#undef DOT
