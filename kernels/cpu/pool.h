// The kernels of pool.c for one dtype; included once for each, with NUMBER and NAME given.

// So many neighbouring taps of a row of windows: outputs j from `begin` to `end` read x[j * step]
// and what follows, whose place in the plane is first + j * step.
INLINE void NAME(max_taps)(
    const NUMBER *x, NUMBER *y, int32_t *place, int64_t begin, int64_t end, int64_t step,
    int32_t first, int taps) {
    EACH_ALONE
    for (int64_t j = begin; j < end; j++) {
        NUMBER most = y[j];
        int32_t where = place[j];
        for (int l = 0; l < taps; l++) {
            NUMBER value = x[j * step + l];
            int better = (value > most) | (value != value);  // NaN wins, the last one of a window
            most = better ? value : most;
            where = better ? first + (int32_t)(j * step) + l : where;
        }
        y[j] = most;
        place[j] = where;
    }
}

// Planes [begin, end). Arrays: x, y, places, and for a plane the places of the first taps inside.
// Sizes: those of `struct windows`.
KERNEL static void NAME(max_pool)(const Call *call, int64_t begin, int64_t end) {
    const struct windows w = *(const struct windows *)call->sizes;
    int64_t inside[2] = {0, w.out_width};  // the windows that have all taps of a row inside
    narrow(&w, -w.before, inside);
    narrow(&w, (w.kernel_width - 1) * w.column_step - w.before, inside);
    int all = inside[0] == 0 && inside[1] == w.out_width;
    int64_t size = w.out_height * w.out_width;
    for (int64_t p = begin; p < end; p++) {
        const NUMBER *x = (const NUMBER *)call->arrays[0] + p * w.height * w.width;
        NUMBER *y = (NUMBER *)call->arrays[1] + p * size;
        int32_t *place = (int32_t *)call->arrays[2] + p * size;
        for (int64_t i = 0; i < size; i++) {
            y[i] = (NUMBER)-INFINITY;
            place[i] = ((const int32_t *)call->arrays[3])[i];
        }
        for (int64_t i = 0; i < w.out_height; i++, y += w.out_width, place += w.out_width) {
            for (int64_t k = 0; k < w.kernel_height; k++) {
                int64_t row = i * w.down - w.above + k * w.row_step;
                if (row < 0 || row >= w.height) continue;
                const NUMBER *from = x + row * w.width - w.before;
                int32_t first = (int32_t)(row * w.width - w.before);
                for (int64_t l = 0; l < w.kernel_width && !all; l++) {  // of the other windows
                    int64_t left = l * w.column_step, some[2] = {0, w.out_width};
                    narrow(&w, left - w.before, some);
                    NAME(max_taps)(from + left, y, place, some[0], smaller(some[1], inside[0]),
                                   w.right, first + (int32_t)left, 1);
                    NAME(max_taps)(from + left, y, place, larger(some[0], inside[1]), some[1],
                                   w.right, first + (int32_t)left, 1);
                }
                if (w.column_step == 1 && w.kernel_width == 2 && w.right == 2)
                    NAME(max_taps)(from, y, place, inside[0], inside[1], 2, first, 2);
                else if (w.column_step == 1 && w.kernel_width == 3 && w.right == 2)
                    NAME(max_taps)(from, y, place, inside[0], inside[1], 2, first, 3);
                else if (w.column_step == 1 && w.kernel_width == 3 && w.right == 1)
                    NAME(max_taps)(from, y, place, inside[0], inside[1], 1, first, 3);
                else
                    for (int64_t l = 0; l < w.kernel_width; l++)
                        NAME(max_taps)(from + l * w.column_step, y, place, inside[0], inside[1],
                                       w.right, first + (int32_t)(l * w.column_step), 1);
            }
        }
    }
}

// Planes [begin, end). Arrays: g, places, dx. Sizes: of a plane of g and of dx, and whether dx is
// added to.
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
