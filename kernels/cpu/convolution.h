// The kernels of convolution.c for one dtype and one set of instructions; included once for each.
//
// NUMBER, INTEGER (of the same size), LANES (numbers in a vector), PIXELS, FEWER and FEWEST (pixels
// that a block of correlations computes at once), CHANNELS (of a block of gradients), RUN, OUTPUTS
// (planes.h) and NAME are given. No output may overlap an input.

typedef NUMBER NAME(vec) __attribute__((vector_size(sizeof(NUMBER) * LANES)));
typedef NUMBER NAME(loose)
    __attribute__((vector_size(sizeof(NUMBER) * LANES), aligned(sizeof(NUMBER)), may_alias));
typedef INTEGER NAME(mask) __attribute__((vector_size(sizeof(NUMBER) * LANES)));
#define VEC NAME(vec)
#define LOAD(p) (*(const NAME(loose) *)(p))
#define STORE(p, value) (*(NAME(loose) *)(p) = (value))
#define WIDE (2 * LANES)  // outputs of a block, the last one of a group may have LANES

#ifdef __clang__
#define SHUFFLE(a, b, F, s) __builtin_shufflevector(a, b, GLUE(LIST, LANES)(F, s))
#else
#define SHUFFLE(a, b, F, s) __builtin_shuffle(a, b, (NAME(mask)){GLUE(LIST, LANES)(F, s)})
#endif

// -- transposed copies ----------------------------------------------------------------------------

#define EXCHANGE(s)                                                    \
    UNROLL for (int i = 0; i < LANES; i++) if (!(i & (s))) {           \
        VEC low = SHUFFLE(r[i], r[i + (s)], LOW, s);                   \
        r[i + (s)] = SHUFFLE(r[i], r[i + (s)], HIGH, s);               \
        r[i] = low;                                                    \
    }

// A square of vectors: row j of `to` begins at place[j]. Rows are written, or added to.
static inline __attribute__((always_inline)) void NAME(transpose_square)(
    const NUMBER *from, i64 step, NUMBER *to, const i64 *place, int accumulate) {
    VEC r[LANES];
    UNROLL for (int i = 0; i < LANES; i++) r[i] = LOAD(from + i * step);
    EXCHANGE(1)
#if LANES > 2
    EXCHANGE(2)
#endif
#if LANES > 4
    EXCHANGE(4)
#endif
#if LANES > 8
    EXCHANGE(8)
#endif
    if (accumulate)
        UNROLL for (int i = 0; i < LANES; i++) r[i] += LOAD(to + place[i]);
    UNROLL for (int i = 0; i < LANES; i++) STORE(to + place[i], r[i]);
}

// to[place[j] + i] = from[i * step + j], or += it, for i < rows and j < columns.
static void NAME(transpose)(
    const NUMBER *from, i64 step, NUMBER *to, const i64 *place, i64 rows, i64 columns,
    int accumulate) {
    i64 whole = rows / LANES * LANES, j = 0;
    for (; j + LANES <= columns; j += LANES)
        for (i64 i = 0; i < whole; i += LANES)
            if (accumulate)
                NAME(transpose_square)(from + i * step + j, step, to + i, place + j, 1);
            else
                NAME(transpose_square)(from + i * step + j, step, to + i, place + j, 0);
    if (j < columns && j && !accumulate) {  // the last columns, some of them again
        for (i64 i = 0; i < whole; i += LANES)
            NAME(transpose_square)(
                from + i * step + columns - LANES, step, to + i, place + columns - LANES, 0);
        j = columns;
    }
    for (; j < columns; j++)
        for (i64 i = 0; i < whole; i++) {
            NUMBER value = from[i * step + j];
            to[place[j] + i] = accumulate ? to[place[j] + i] + value : value;
        }
    for (i64 i = whole; i < rows; i++)
        for (j = 0; j < columns; j++) {
            NUMBER value = from[i * step + j];
            to[place[j] + i] = accumulate ? to[place[j] + i] + value : value;
        }
}

// -- channels last: products ----------------------------------------------------------------------

// P pixels times V vectors of outputs: sums of `segments` runs of `length` inputs of each pixel.
#define CORRELATE(of, P, V)                                                                     \
    static void NAME(correlate_##of##_##V)(                                                     \
        const NUMBER *const *at, const i64 *segment, i64 segments, i64 length, const NUMBER *w, \
        const NUMBER *first, NUMBER *out) {                                                     \
        VEC sum[P][V];                                                                          \
        UNROLL for (int p = 0; p < P; p++)                                                      \
            UNROLL for (int v = 0; v < V; v++) sum[p][v] = LOAD(first + v * LANES);             \
        for (i64 s = 0; s < segments; s++) {                                                    \
            const NUMBER *x[P];                                                                 \
            UNROLL for (int p = 0; p < P; p++) x[p] = at[p] + segment[s];                       \
            for (i64 k = 0; k < length; k++, w += V * LANES) {                                  \
                VEC f[V];                                                                       \
                UNROLL for (int v = 0; v < V; v++) f[v] = LOAD(w + v * LANES);                  \
                UNROLL for (int p = 0; p < P; p++)                                              \
                    UNROLL for (int v = 0; v < V; v++) sum[p][v] += x[p][k] * f[v];             \
            }                                                                                   \
        }                                                                                       \
        UNROLL for (int p = 0; p < P; p++)                                                      \
            UNROLL for (int v = 0; v < V; v++) STORE(out + (p * V + v) * LANES, sum[p][v]);     \
    }

CORRELATE(pixels, PIXELS, 1)
CORRELATE(pixels, PIXELS, 2)
CORRELATE(fewer, FEWER, 1)
CORRELATE(fewer, FEWER, 2)
CORRELATE(fewest, FEWEST, 1)
CORRELATE(fewest, FEWEST, 2)

// total (C, V vectors) += the outer products of C inputs with V vectors of gradients, over pixels.
#define GRADIENT(of, C, V)                                                                      \
    static void NAME(gradient_##of##_##V)(                                                      \
        const NUMBER *x, const i64 *at, i64 pixels, const NUMBER *g, NUMBER *total) {           \
        VEC sum[C][V];                                                                          \
        UNROLL for (int c = 0; c < C; c++)                                                      \
            UNROLL for (int v = 0; v < V; v++) sum[c][v] = LOAD(total + (c * V + v) * LANES);   \
        for (i64 p = 0; p < pixels; p++, g += V * LANES) {                                      \
            const NUMBER *from = x + at[p];                                                     \
            VEC f[V];                                                                           \
            UNROLL for (int v = 0; v < V; v++) f[v] = LOAD(g + v * LANES);                      \
            UNROLL for (int c = 0; c < C; c++)                                                  \
                UNROLL for (int v = 0; v < V; v++) sum[c][v] += from[c] * f[v];                 \
        }                                                                                       \
        UNROLL for (int c = 0; c < C; c++)                                                      \
            UNROLL for (int v = 0; v < V; v++) STORE(total + (c * V + v) * LANES, sum[c][v]);   \
    }

GRADIENT(channels, CHANNELS, 1)
GRADIENT(channels, CHANNELS, 2)
GRADIENT(four, 4, 1)
GRADIENT(four, 4, 2)
GRADIENT(two, 2, 1)
GRADIENT(two, 2, 2)
GRADIENT(one, 1, 1)
GRADIENT(one, 1, 2)

// -- channels last: tiles -------------------------------------------------------------------------

// The inputs of a group that a tile reads, (images, window rows, window columns, channels), with
// zeros around the image. `place` has room for the pixels of an image in the window.
static void NAME(gather)(
    const struct pass *s, const struct tile *t, const NUMBER *x, NUMBER *window, i64 *place) {
    i64 low = t->row * s->row.stride + s->row.shift[0], left = s->column.shift[0];
    i64 tall = reach(&s->row, t->rows), wide = reach(&s->column, s->column.count);
    i64 begin = clip(-left, 0, wide), end = clip(s->width - left, begin, wide);
    i64 top = clip(-low, 0, tall), bottom = clip(s->height - low, top, tall);
    i64 plane = s->height * s->width, inputs = s->inputs, count = 0;
    int whole = end - begin == s->width;  // rows of the image follow each other, in one run
    for (i64 r = top; r < (whole ? bottom : top + 1); r++)
        for (i64 c = begin; c < end; c++) place[count++] = (r * wide + c) * inputs;
    for (i64 n = 0; n < t->images; n++, window += tall * wide * inputs) {
        const NUMBER *from = x + ((t->image + n) * s->groups + t->group) * inputs * plane
            + (low + top) * s->width + left + begin;
        if (begin == end || top == bottom) {
            memset(window, 0, tall * wide * inputs * sizeof(NUMBER));
            continue;
        }
        memset(window, 0, (top * wide + begin) * inputs * sizeof(NUMBER));
        for (i64 r = top; r < bottom; r++) {  // from a row's last column to the next one's first
            i64 here = r * wide + end, next = r < bottom - 1 ? (r + 1) * wide + begin : tall * wide;
            memset(window + here * inputs, 0, (next - here) * inputs * sizeof(NUMBER));
        }
        if (whole && count)
            NAME(transpose)(from, plane, window, place, inputs, count, 0);
        else
            for (i64 r = top; r < bottom; r++)
                NAME(transpose)(from + (r - top) * s->width, plane,
                                window + (r - top) * wide * inputs, place, inputs, count, 0);
    }
}

// Where in the window each pixel of the tile begins.
static i64 NAME(pixels)(const struct pass *s, const struct tile *t, i64 *at) {
    i64 tall = reach(&s->row, t->rows), wide = reach(&s->column, s->column.count), count = 0;
    for (i64 n = 0; n < t->images; n++)
        for (i64 r = 0; r < t->rows; r++)
            for (i64 c = 0; c < s->column.count; c++)
                at[count++] = ((n * tall + r * s->row.stride) * wide + c * s->column.stride)
                    * s->inputs;
    return count;
}

// Runs of inputs that lie together in the window and in the weights: a row of taps, or one tap.
static i64 NAME(segments)(const struct pass *s, i64 *segment, i64 *length) {
    i64 wide = reach(&s->column, s->column.count), count = 0;
    int together = 1;
    for (i64 j = 1; j < s->column.taps; j++)
        together &= s->column.shift[j] == s->column.shift[j - 1] + 1;
    *length = s->inputs * (together ? s->column.taps : 1);
    for (i64 i = 0; i < s->row.taps; i++)
        for (i64 j = 0; j < (together ? 1 : s->column.taps); j++)
            segment[count++] = ((s->row.shift[i] - s->row.shift[0]) * wide
                                + s->column.shift[j] - s->column.shift[0]) * s->inputs;
    return count;
}

// The weights as (groups, blocks of outputs, taps, inputs, outputs of a block), with zeros after
// the last output.
static void NAME(pack)(const struct pass *s, const void *weights, void *out) {
    const NUMBER *w = weights;
    NUMBER *packed = out;
    i64 taps = s->kernel_height * s->kernel_width, inputs = s->inputs;
    i64 used = s->row.taps * s->column.taps;
    // from an output's weights to the next one's, and from an input's
    i64 step = s->transposed ? taps : inputs * taps;
    i64 along = s->transposed ? s->outputs * taps : taps;
    for (i64 g = 0; g < s->groups; g++)
        for (i64 o = 0; o < s->outputs; o += WIDE) {
            i64 block = s->outputs - o > LANES ? WIDE : LANES;
            i64 outputs = s->outputs - o < block ? s->outputs - o : block;
            if (outputs < block) memset(packed, 0, used * inputs * block * sizeof(NUMBER));
            const NUMBER *from = w + g * s->outputs * inputs * taps + o * step;
            for (i64 c = 0; c < inputs; c++, from += along) {
                NUMBER *to = packed + c * block;
                for (i64 i = 0; i < s->row.taps; i++)
                    for (i64 j = 0; j < s->column.taps; j++, to += inputs * block) {
                        const NUMBER *tap = from + s->column.tap[j]
                            + s->row.tap[i] * s->kernel_width;
                        for (i64 k = 0; k < outputs; k++) to[k] = tap[k * step];
                    }
            }
            packed += used * inputs * block;
        }
}

// Write or add a tile's outputs of a block, (pixels, block), to y.
static void NAME(scatter)(
    const struct pass *s, const struct tile *t, i64 output, const NUMBER *product, i64 block,
    NUMBER *y) {
    i64 place[WIDE];
    i64 plane = s->out_height * s->out_width, width = s->column.count;
    i64 outputs = s->outputs - output < block ? s->outputs - output : block;
    for (i64 o = 0; o < outputs; o++) place[o] = o * plane;
    int whole = s->row.step == 1 && s->column.step == 1 && width == s->out_width;
    for (i64 n = 0; n < t->images; n++) {
        NUMBER *to = y + (((t->image + n) * s->groups + t->group) * s->outputs + output) * plane
            + (s->row.start + t->row * s->row.step) * s->out_width + s->column.start;
        if (whole) {
            NAME(transpose)(product, block, to, place, t->rows * width, outputs, s->accumulate);
            product += t->rows * width * block;
            continue;
        }
        for (i64 r = 0; r < t->rows; r++, to += s->row.step * s->out_width)
            for (i64 c = 0; c < width; c++, product += block)
                for (i64 o = 0; o < outputs; o++) {
                    NUMBER *one = to + c * s->column.step + o * plane;
                    *one = s->accumulate ? *one + product[o] : product[o];
                }
    }
}

typedef void (*NAME(correlation))(
    const NUMBER *const *, const i64 *, i64, i64, const NUMBER *, const NUMBER *, NUMBER *);

// Tiles [begin, end): y = x convolved with packed weights, + bias, + y where the pass accumulates.
static void NAME(correlate)(
    const struct pass *s, const void *x, const void *packed, const void *biases, void *y,
    void *work, i64 begin, i64 end) {
    const NUMBER *bias = biases;
    static const NAME(correlation) kernels[3][2] = {
        {NAME(correlate_pixels_1), NAME(correlate_pixels_2)},
        {NAME(correlate_fewer_1), NAME(correlate_fewer_2)},
        {NAME(correlate_fewest_1), NAME(correlate_fewest_2)}};
    static const int sizes[3] = {PIXELS, FEWER, FEWEST};
    struct space space = correlate_space(s, sizeof(NUMBER), WIDE);
    NUMBER *window = work, *product = (NUMBER *)((char *)work + space.window);
    i64 *at = (i64 *)((char *)product + space.product), *place = at + space.pixels;
    i64 *segment = place + space.places, length;
    i64 segments = NAME(segments)(s, segment, &length), inputs = segments * length;
    i64 blocks = (s->outputs + WIDE - 1) / WIDE;
    i64 last = s->outputs - (blocks - 1) * WIDE > LANES ? WIDE : LANES;
    i64 of_group = inputs * ((blocks - 1) * WIDE + last);
    for (i64 item = begin; item < end; item++) {
        struct tile t = tile_of(s, item);
        NAME(gather)(s, &t, x, window, place);
        i64 count = NAME(pixels)(s, &t, at);
        int which = 0;
        for (int i = 1; i < 3; i++) {
            i64 here = (count + sizes[i] - 1) / sizes[i] * (sizes[i] + 2);
            if (here < (count + sizes[which] - 1) / sizes[which] * (sizes[which] + 2)) which = i;
        }
        int size = sizes[which];
        for (i64 b = 0; b < blocks; b++) {
            i64 block = b < blocks - 1 ? WIDE : last;
            NUMBER first[WIDE] = {0};
            for (i64 k = 0; bias && k < block && b * WIDE + k < s->outputs; k++)
                first[k] = bias[t.group * s->outputs + b * WIDE + k];
            const NUMBER *w = (const NUMBER *)packed + t.group * of_group + b * WIDE * inputs;
            for (i64 p = 0; p < count; p += size) {
                i64 start = count < size || p + size <= count ? p : count - size;
                const NUMBER *from[PIXELS];
                for (int i = 0; i < size; i++)
                    from[i] = window + at[start + i < count ? start + i : count - 1];
                kernels[which][block > LANES](
                    from, segment, segments, length, w, first, product + start * block);
            }
            NAME(scatter)(s, &t, b * WIDE, product, block, y);
        }
    }
}

// -- channels last: the gradient of the weight ----------------------------------------------------

typedef void (*NAME(outer))(const NUMBER *, const i64 *, i64, const NUMBER *, NUMBER *);

// One block of outputs of a tile: total (inputs of all segments, block) += its outer products.
static void NAME(add_outer)(
    const NUMBER *window, const i64 *at, i64 count, const i64 *segment, i64 segments, i64 length,
    const NUMBER *g, i64 block, NUMBER *total) {
    static const NAME(outer) kernels[4][2] = {
        {NAME(gradient_channels_1), NAME(gradient_channels_2)},
        {NAME(gradient_four_1), NAME(gradient_four_2)},
        {NAME(gradient_two_1), NAME(gradient_two_2)},
        {NAME(gradient_one_1), NAME(gradient_one_2)}};
    static const int sizes[4] = {CHANNELS, 4, 2, 1};
    for (i64 s = 0; s < segments; s++)
        for (i64 k = 0; k < length;) {
            int which = 0;
            while (sizes[which] > length - k) which++;
            kernels[which][block > LANES](
                window + segment[s] + k, at, count, g, total + (s * length + k) * block);
            k += sizes[which];
        }
}

// Blocks of outputs [begin, end) of all groups: the gradient of the weight of the pass, of which x
// is the input and g the gradient of the output. `totals` has room for all blocks.
static void NAME(weight_gradient)(
    const struct pass *s, const void *gradient, const void *x, void *out, void *sums, void *work,
    i64 begin, i64 end) {
    const NUMBER *g = gradient;
    NUMBER *dw = out, *totals = sums;
    struct space space = correlate_space(s, sizeof(NUMBER), WIDE);
    NUMBER *window = work, *grads = (NUMBER *)((char *)work + space.window);
    i64 *at = (i64 *)((char *)grads + space.product), *place = at + space.pixels;
    i64 *segment = place + space.places, length;
    i64 segments = NAME(segments)(s, segment, &length), inputs = segments * length;
    i64 blocks = (s->outputs + WIDE - 1) / WIDE, plane = s->out_height * s->out_width;
    i64 taps = s->kernel_height * s->kernel_width;
    memset(totals + begin * inputs * WIDE, 0, (end - begin) * inputs * WIDE * sizeof(NUMBER));
    for (i64 item = begin; item < end;) {
        i64 group = item / blocks, from = item % blocks;
        i64 to = from + end - item < blocks ? from + end - item : blocks;
        for (i64 i = group; i < tiles_of(s); i += s->groups) {
            struct tile t = tile_of(s, i);
            i64 of_image = t.rows * s->out_width;
            NAME(gather)(s, &t, x, window, place);
            i64 count = NAME(pixels)(s, &t, at);
            for (i64 b = from; b < to; b++) {
                i64 outputs = s->outputs - b * WIDE < WIDE ? s->outputs - b * WIDE : WIDE;
                i64 block = outputs > LANES ? WIDE : LANES;
                if (outputs < block) memset(grads, 0, count * block * sizeof(NUMBER));
                for (i64 i = 0; i < of_image; i++) place[i] = i * block;
                for (i64 n = 0; n < t.images; n++)
                    NAME(transpose)(
                        g + (((t.image + n) * s->groups + group) * s->outputs + b * WIDE) * plane
                        + t.row * s->out_width, plane, grads + n * of_image * block, place,
                        outputs, of_image, 0);
                NAME(add_outer)(window, at, count, segment, segments, length, grads, block,
                                totals + (group * blocks + b) * inputs * WIDE);
            }
        }
        for (i64 b = from; b < to; b++) {
            i64 outputs = s->outputs - b * WIDE < WIDE ? s->outputs - b * WIDE : WIDE;
            i64 block = outputs > LANES ? WIDE : LANES;
            const NUMBER *total = totals + (group * blocks + b) * inputs * WIDE;
            for (i64 o = 0; o < outputs; o++)
                for (i64 c = 0; c < s->inputs; c++) {
                    NUMBER *one = dw
                        + ((group * s->outputs + b * WIDE + o) * s->inputs + c) * taps;
                    for (i64 i = 0; i < taps; i++) {
                        NUMBER value = total[(i * s->inputs + c) * block + o];
                        one[i] = s->accumulate ? one[i] + value : value;
                    }
                }
        }
        item += to - from;
    }
}

#include "planes.h"

static const struct kernels NAME(kernels) = {
    WIDE, LANES, OUTPUTS, NAME(planes_space),
    {NAME(pack), NAME(planes_pack)}, {NAME(correlate), NAME(planes_correlate)},
    {NAME(weight_gradient), NAME(planes_weight_gradient)}};

#undef VEC
#undef LOAD
#undef STORE
#undef WIDE
#undef SHUFFLE
#undef EXCHANGE
#undef CORRELATE
#undef GRADIENT
#undef NUMBER
#undef INTEGER
#undef LANES
#undef NAME
