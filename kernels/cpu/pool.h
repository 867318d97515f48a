// The kernels of pool.c for one dtype; included once for each, with NUMBER and NAME given.

// One tap of a row of windows: outputs j from `begin` to `end` read x[j * step], whose place in the
// plane is first + j * step.
INLINE void NAME(max_tap)(
    const NUMBER *x, NUMBER *y, int32_t *place, int64_t begin, int64_t end, int64_t step,
    int32_t first) {
    EACH_ALONE
    for (int64_t j = begin; j < end; j++) {
        NUMBER value = x[j * step];
        int better = (value > y[j]) | (value != value);  // NaN wins, the last one of a window
        y[j] = better ? value : y[j];
        place[j] = better ? first + (int32_t)(j * step) : place[j];
    }
}

// Planes [begin, end). Arrays: x, y, places. Sizes: those of `struct windows`.
KERNEL static void NAME(max_pool)(const Call *call, int64_t begin, int64_t end) {
    const struct windows w = *(const struct windows *)call->sizes;
    for (int64_t p = begin; p < end; p++) {
        const NUMBER *x = (const NUMBER *)call->arrays[0] + p * w.height * w.width;
        NUMBER *y = (NUMBER *)call->arrays[1] + p * w.out_height * w.out_width;
        int32_t *place = (int32_t *)call->arrays[2] + p * w.out_height * w.out_width;
        for (int64_t i = 0; i < w.out_height; i++, y += w.out_width, place += w.out_width) {
            int64_t top = first_inside(i * w.down - w.above, w.row_step);
            for (int64_t j = 0; j < w.out_width; j++) {
                y[j] = (NUMBER)-INFINITY;
                place[j] = (int32_t)(top * w.width
                                     + first_inside(j * w.right - w.before, w.column_step));
            }
            for (int64_t k = 0; k < w.kernel_height; k++) {
                int64_t row = i * w.down - w.above + k * w.row_step;
                if (row < 0 || row >= w.height) continue;
                for (int64_t l = 0; l < w.kernel_width; l++) {
                    int64_t left = l * w.column_step - w.before;  // of the first window
                    int64_t from = left < 0 ? (-left + w.right - 1) / w.right : 0;
                    int64_t to = w.width > left ? (w.width - left + w.right - 1) / w.right : 0;
                    const NUMBER *tap = x + row * w.width + left;
                    int32_t first = (int32_t)(row * w.width + left);
                    to = to < w.out_width ? to : w.out_width;
                    if (w.right == 2)
                        NAME(max_tap)(tap, y, place, from, to, 2, first);
                    else if (w.right == 1)
                        NAME(max_tap)(tap, y, place, from, to, 1, first);
                    else
                        NAME(max_tap)(tap, y, place, from, to, w.right, first);
                }
            }
        }
    }
}

// Planes [begin, end). Arrays: g, places, dx. Sizes: of a plane of g and of dx, whether dx is added to.
KERNEL static void NAME(max_unpool)(const Call *call, int64_t begin, int64_t end) {
    int64_t windows = call->sizes[0], size = call->sizes[1];
    for (int64_t p = begin; p < end; p++) {
        const NUMBER *g = (const NUMBER *)call->arrays[0] + p * windows;
        const int32_t *place = (const int32_t *)call->arrays[1] + p * windows;
        NUMBER *dx = (NUMBER *)call->arrays[2] + p * size;
        if (!call->sizes[2])
            for (int64_t i = 0; i < size; i++) dx[i] = 0;
        for (int64_t i = 0; i < windows; i++)
            if ((uint64_t)place[i] < (uint64_t)size) dx[place[i]] += g[i];
    }
}

#undef NUMBER
#undef NAME
