// Direct convolution on the CPU: contiguous images (N, C, H, W), weights (O, C / groups, KH, KW).
//
// A pass computes outputs on a grid: output (u, v) is the sum over taps (i, j) and channels of
// input (u * stride + shift_i, v * stride + shift_j), zero outside the image, times a weight. A
// convolution is one pass. The gradient of its input is a pass for each place of a pixel within a
// stride, over the taps that reach it.
//
// Two ways. Channels last: a tile of images and rows is copied as (pixels, channels), and blocks of
// pixels times vectors of outputs stay in registers while all taps and channels of a pixel are
// added; its gradient of the weight adds outer products of channels and outputs. Planes, for groups
// of few channels: vectors of pixels, the row's end running into the next row (planes.h).
//
// Work is cut into items that write different memory, so that a range of them gives the same bits
// in any split. Sums have a fixed order; products and sums are fused where the processor can.

#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#include <math.h>
#include <string.h>

#include "kernel.h"

typedef int64_t i64;

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)

// Which numbers of two vectors an exchange of blocks of s leaves in the lower and the upper one.
#define LOW(e, s) (((e) & (s)) ? LANES + (e) - (s) : (e))
#define HIGH(e, s) (((e) & (s)) ? LANES + (e) : (e) + (s))
#define LIST2(F, s) F(0, s), F(1, s)
#define LIST4(F, s) LIST2(F, s), F(2, s), F(3, s)
#define LIST8(F, s) LIST4(F, s), F(4, s), F(5, s), F(6, s), F(7, s)
#define LIST16(F, s) \
    LIST8(F, s), F(8, s), F(9, s), F(10, s), F(11, s), F(12, s), F(13, s), F(14, s), F(15, s)

// -- passes and tiles -----------------------------------------------------------------------------

struct axis {
    i64 count, stride, taps, start, step;  // outputs, their first place and their distance in y
    const i64 *tap, *shift;  // each tap's place in the kernel; shifts rise
};

struct pass {
    i64 images, groups, inputs, height, width, outputs, out_height, out_width;  // of a group
    i64 kernel_height, kernel_width, transposed, accumulate, tile_images, tile_rows, planes;
    struct axis row, column;
};

struct tile {
    i64 image, images, group, row, rows;
};

struct space {  // bytes; pixels of a tile, and of an image in it
    i64 window, product, pixels, places;
};

// The order of the numbers in which a pass is given; gtensor/ops/conv/direct.py writes it.
static struct pass read_pass(const i64 *p) {
    struct pass s = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11],
                     p[12], p[13], p[14],
                     {p[15], p[16], p[17], p[18], p[19], p + 25, p + 25 + p[17]},
                     {p[20], p[21], p[22], p[23], p[24], p + 25 + 2 * p[17],
                      p + 25 + 2 * p[17] + p[22]}};
    return s;
}

static inline i64 clip(i64 value, i64 low, i64 high) {
    return value < low ? low : value > high ? high : value;
}

// Inputs along an axis from the first to the last that so many outputs read.
static i64 reach(const struct axis *a, i64 count) {
    return (count - 1) * a->stride + a->shift[a->taps - 1] - a->shift[0] + 1;
}

static i64 row_tiles(const struct pass *s) {
    return (s->row.count + s->tile_rows - 1) / s->tile_rows;
}

static i64 tiles_of(const struct pass *s) {
    return (s->images + s->tile_images - 1) / s->tile_images * row_tiles(s) * s->groups;
}

// Groups change first, then rows.
static struct tile tile_of(const struct pass *s, i64 item) {
    i64 group = item % s->groups, rest = item / s->groups;
    i64 row = rest % row_tiles(s) * s->tile_rows, image = rest / row_tiles(s) * s->tile_images;
    struct tile t = {image, clip(s->images - image, 0, s->tile_images), group, row,
                     clip(s->row.count - row, 0, s->tile_rows)};
    return t;
}

static i64 rounded(i64 bytes) {
    return (bytes + 63) / 64 * 64;
}

static struct space correlate_space(const struct pass *s, i64 size, i64 wide) {
    i64 pixels = s->tile_images * s->tile_rows * s->column.count;
    i64 places = reach(&s->row, s->tile_rows) * reach(&s->column, s->column.count);
    i64 of_image = s->tile_rows * s->column.count;
    struct space result = {rounded(s->tile_images * places * s->inputs * size),
                           rounded((pixels + 32) * wide * size), pixels,
                           places > of_image ? places : of_image};
    return result;
}

struct kernels {
    i64 wide, lanes, outputs;  // outputs of a block, numbers of a vector, outputs by planes
    void (*planes_space)(const struct pass *, i64 *, i64 *);
    void (*pack[2])(const struct pass *, const void *, void *);  // channels last, planes
    void (*correlate[2])(const struct pass *, const void *, const void *, const void *, void *,
                         void *, i64, i64);
    void (*weight_gradient[2])(const struct pass *, const void *, const void *, void *, void *,
                               void *, i64, i64);
};

// -- versions -------------------------------------------------------------------------------------
// Registers decide how many pixels and channels a block has: there are 32 with AVX-512 and on
// aarch64, else 16.

#if defined(__x86_64__) && !defined(ONE_KIND)
#define PIXELS 14
#define FEWER 8
#define FEWEST 4
#define CHANNELS 8
#define RUN 4
#define OUTPUTS 4
#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,prefer-vector-width=512")
#endif
#define NUMBER float
#define INTEGER int32_t
#define LANES 16
#define NAME(x) GLUE(x, _float_avx512)
#include "convolution.h"
#define NUMBER double
#define INTEGER int64_t
#define LANES 8
#define NAME(x) GLUE(x, _double_avx512)
#include "convolution.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef PIXELS
#undef FEWER
#undef FEWEST
#undef CHANNELS
#undef RUN
#undef OUTPUTS

#define PIXELS 6
#define FEWER 4
#define FEWEST 2
#define CHANNELS 6
#define RUN 3
#define OUTPUTS 3
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NUMBER float
#define INTEGER int32_t
#define LANES 8
#define NAME(x) GLUE(x, _float_avx2)
#include "convolution.h"
#define NUMBER double
#define INTEGER int64_t
#define LANES 4
#define NAME(x) GLUE(x, _double_avx2)
#include "convolution.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef PIXELS
#undef FEWER
#undef FEWEST
#undef CHANNELS
#undef RUN
#undef OUTPUTS
#endif

#ifdef __aarch64__
#define PIXELS 12
#define FEWER 8
#define CHANNELS 8
#define RUN 4
#define OUTPUTS 4
#else
#define PIXELS 6
#define FEWER 3
#define CHANNELS 6
#define RUN 3
#define OUTPUTS 3
#endif
#define FEWEST 2
#define NUMBER float
#define INTEGER int32_t
#define LANES 4
#define NAME(x) GLUE(x, _float_any)
#include "convolution.h"
#define NUMBER double
#define INTEGER int64_t
#define LANES 2
#define NAME(x) GLUE(x, _double_any)
#include "convolution.h"

static int most = 2;  // the kind that may be chosen at most: 2 AVX-512, 1 AVX2, 0 neither

static const struct kernels *chosen(i64 size) {
#if defined(__x86_64__) && !defined(ONE_KIND)
    __builtin_cpu_init();
    if (most > 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        return size == 4 ? &kernels_float_avx512 : &kernels_double_avx512;
    if (most > 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return size == 4 ? &kernels_float_avx2 : &kernels_double_avx2;
#endif
    return size == 4 ? &kernels_float_any : &kernels_double_any;
}

// -- what is called -------------------------------------------------------------------------------
// Arrays: the pass, then those of each kernel. A kernel that works in memory of its own takes one
// of several parts of it, each of sizes[0] bytes, by a bit of the 64-bit mask in front of them: so
// many calls may run at a time.

enum { MASK_BYTES = 64 };

static char *taken(const Call *call, const char *memory, int *which) {
    uint64_t *mask = (uint64_t *)memory, seen = __atomic_load_n(mask, __ATOMIC_RELAXED);
    for (;;) {
        if (seen) *which = __builtin_ctzll(seen);
        if (seen && __atomic_compare_exchange_n(mask, &seen, seen & (seen - 1), 0,
                                                __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return (char *)memory + MASK_BYTES + *which * call->sizes[0];
        seen = __atomic_load_n(mask, __ATOMIC_RELAXED);
    }
}

static void given_back(const char *memory, int which) {
    __atomic_fetch_or((uint64_t *)memory, (uint64_t)1 << which, __ATOMIC_RELEASE);
}

// sizes: of a correlation and of a gradient of the weight the bytes that all calls share (packed
// weights, totals), the bytes of one call's memory, and the items.
static void sizes_of(const Call *call, i64 size) {
    struct pass s = read_pass((const i64 *)call->arrays[0]);
    const struct kernels *k = chosen(size);
    i64 *sizes = (i64 *)call->arrays[1];
    i64 taps = s.row.taps * s.column.taps, inputs = taps * s.inputs;
    i64 blocks = (s.outputs + k->wide - 1) / k->wide;
    if (s.planes) {
        i64 block = s.outputs > 1 ? k->outputs : 1;
        sizes[0] = s.groups * inputs * ((s.outputs + block - 1) / block * block) * size;
        sizes[1] = 0;
        k->planes_space(&s, sizes + 2, sizes + 3);
    } else {
        struct space space = correlate_space(&s, size, k->wide);
        sizes[0] = s.groups * inputs * ((s.outputs + k->lanes - 1) / k->lanes * k->lanes) * size;
        sizes[1] = s.groups * blocks * inputs * k->wide * size;
        sizes[2] = sizes[3] = space.window + space.product
            + (space.pixels + space.places + taps) * (i64)sizeof(i64);
    }
    sizes[4] = tiles_of(&s);
    sizes[5] = s.groups * (s.planes ? 1 : blocks);
}

// pack: the weight, packed weights; one item.
static void pack_of(const Call *call, i64 size) {
    struct pass s = read_pass((const i64 *)call->arrays[0]);
    chosen(size)->pack[s.planes](&s, call->arrays[1], call->arrays[2]);
}

// correlate: x, packed weights, bias or none, y, memory; items are tiles.
static void correlate_of(const Call *call, i64 size, i64 begin, i64 end) {
    struct pass s = read_pass((const i64 *)call->arrays[0]);
    char *const *a = call->arrays;
    int which;
    char *memory = taken(call, a[5], &which);
    chosen(size)->correlate[s.planes](&s, a[1], a[2], a[3], a[4], memory, begin, end);
    given_back(a[5], which);
}

// weight gradient: the output's gradient, x, the weight's gradient, totals, memory; items are
// blocks of outputs, or groups.
static void weight_gradient_of(const Call *call, i64 size, i64 begin, i64 end) {
    struct pass s = read_pass((const i64 *)call->arrays[0]);
    char *const *a = call->arrays;
    int which;
    char *memory = taken(call, a[5], &which);
    chosen(size)->weight_gradient[s.planes](&s, a[1], a[2], a[3], a[4], memory, begin, end);
    given_back(a[5], which);
}

// limit: sizes[0] is the kind of processor from then on at most, for tests of the others.
static void limit(const Call *call, i64 begin, i64 end) {
    (void)begin, (void)end;
    most = (int)call->sizes[0];
}

#define ENTRIES(type)                                                                            \
    static void sizes_##type(const Call *call, i64 begin, i64 end) {                             \
        (void)begin, (void)end;                                                                  \
        sizes_of(call, sizeof(type));                                                            \
    }                                                                                            \
    static void pack_##type(const Call *call, i64 begin, i64 end) {                              \
        (void)begin, (void)end;                                                                  \
        pack_of(call, sizeof(type));                                                             \
    }                                                                                            \
    static void correlate_##type(const Call *call, i64 begin, i64 end) {                         \
        correlate_of(call, sizeof(type), begin, end);                                            \
    }                                                                                            \
    static void weight_gradient_##type(const Call *call, i64 begin, i64 end) {                   \
        weight_gradient_of(call, sizeof(type), begin, end);                                      \
    }

ENTRIES(float)
ENTRIES(double)

const Entry convolution[] = {
    {"conv_sizes_float32", sizes_float}, {"conv_sizes_float64", sizes_double},
    {"conv_pack_float32", pack_float}, {"conv_pack_float64", pack_double},
    {"conv_correlate_float32", correlate_float}, {"conv_correlate_float64", correlate_double},
    {"conv_weight_gradient_float32", weight_gradient_float},
    {"conv_weight_gradient_float64", weight_gradient_double},
    {"conv_limit_float32", limit}, {NULL, NULL}};
