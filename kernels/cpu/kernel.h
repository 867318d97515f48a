// What a kernel of the CPU is: a function over a range of items, and how it is compiled.
//
// A kernel computes items [begin, end) of a call: elements, rows or tiles, which it says. Items may
// be computed in any order, by several threads at once, with the same bits: no item reads what
// another writes.

#ifndef GTENSOR_KERNEL_H
#define GTENSOR_KERNEL_H

#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>  // __GLIBC__, where there is one

enum { MOST_ARRAYS = 16, MOST_SIZES = 24, MOST_NUMBERS = 16 };

// Addresses of arrays, sizes and numbers in the order that a kernel's comment gives.
typedef struct {
    char *arrays[MOST_ARRAYS];
    int64_t sizes[MOST_SIZES];
    double numbers[MOST_NUMBERS];
} Call;

typedef void Kernel(const Call *call, int64_t begin, int64_t end);

// A row of a table of kernels, which ends with a row of NULL.
typedef struct {
    const char *name;
    Kernel *run;
} Entry;

// Before a kernel: it is compiled for three kinds of processors of x86-64, and the loader chooses.
// What it calls must be INLINE, so that it is compiled with it. Unless a file says otherwise, the
// compiler neither contracts nor reorders sums, so all kinds compute the same bits.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define KINDS 1
#else
#define KERNEL
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

// Before a loop: no turn reads what another writes, although arrays may be the same.
#if defined(__clang__)
#define EACH_ALONE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define EACH_ALONE _Pragma("GCC ivdep")
#else
#define EACH_ALONE
#endif

#endif
