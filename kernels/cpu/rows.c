// Kernels over rows for the CPU: softmax, rows of attention, layer, RMS, group and batch norm,
// running sums, rows of a table.
//
// rows.h has them for one type and one set of instructions. Here it is included for each, and a
// call uses the best set that the processor has. Products and sums are contracted, and vectors
// are as wide as the processor's: kinds of processors differ in rounding. No bit depends on
// threads.

#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel.h"

#define JOIN_(a, b, c, d) a##_##b##c##d
#define JOIN(a, b, c, d) JOIN_(a, b, c, d)

// Arrays, sizes and numbers of each kernel are the arguments of its function in rows.h, in that
// order of their kinds; the items are its rows, chunks, groups or channels.
#define KERNELS(K) \
    K(softmax) K(softmax_grad) K(log_softmax) K(log_softmax_grad) K(attention) K(attention_grad) \
    K(row_norm) K(row_norm_grad) K(group_norm) K(group_norm_grad) K(batch_norm) K(batch_norm_grad) \
    K(cumulative_sum) K(embedding_grad)

#if defined(__x86_64__)

// n times all bits, from the 8 - n-th number on.
static const int32_t rows_first[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

#define BYTES 64
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")))
#include "rows_types.h"
#define BYTES 32
#define TARGET __attribute__((target("avx2,fma")))
#include "rows_types.h"
#define BYTES 16
#define TARGET
#include "rows_types.h"

static int bytes(void) {
    static int found = 0;
    if (found) return found;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return found = 16;
    return found = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
               ? 64 : 32;
}

#define CHOSEN(name, type)                                                                   \
    static void name##type(const Call *call, int64_t begin, int64_t end) {                   \
        switch (bytes()) {                                                                   \
        case 64: JOIN(rows, name##_range, type, 64)(call, begin, end); break;                \
        case 32: JOIN(rows, name##_range, type, 32)(call, begin, end); break;                \
        default: JOIN(rows, name##_range, type, 16)(call, begin, end);                       \
        }                                                                                    \
    }

#else

#define BYTES 16
#define TARGET
#include "rows_types.h"

#define CHOSEN(name, type)                                                                   \
    static void name##type(const Call *call, int64_t begin, int64_t end) {                   \
        JOIN(rows, name##_range, type, 16)(call, begin, end);                                \
    }

#endif

#define BOTH(name) CHOSEN(name, _f) CHOSEN(name, _d)
KERNELS(BOTH)

#define ENTRIES(name) {"rows_" #name "_f", name##_f}, {"rows_" #name "_d", name##_d},
const Entry rows[] = {KERNELS(ENTRIES){NULL, NULL}};
