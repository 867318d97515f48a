// Tensor cores: copies to shared memory without registers, fragments of matrices, products of them.
// Needs sm_80.
//
// All inline assembly of gtensor stands in this file. Each function has a C++ form for host devices
// (__HOSTCUDA__, docs/testing.md) and for the tests of kernels on a CPU.
//
// Layout of fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8"): the
// elements (row, column) of lane 4 * g + t, register by register. Two halves share a register, the
// first one in its lower 16 bits.
//   halves a, 16 x 16   (g, 2t) and (g, 2t + 1); the same in row g + 8; both in columns 2t + 8 ..
//   halves b, 16 x 8    (2t, g) and (2t + 1, g); the same in rows 2t + 8 ..
//   TF32 a, 16 x 8      (g, t); (g + 8, t); (g, t + 4); (g + 8, t + 4)
//   TF32 b, 8 x 8       (t, g); (t + 4, g)
//   sums, 16 x 8        (g, 2t); (g, 2t + 1); (g + 8, 2t); (g + 8, 2t + 1)
// All lanes of a warp must call what loads or multiplies fragments. Warps are 32 neighbours of a
// block's threads.
#pragma once

#include "half.cuh"

// The copies of one thread from global to shared memory that are on the way: each thread has one
// object of this class. Copies form groups, which arrive in the order in which they were committed.
// The destination is undefined from a copy's issue until the thread has waited for its group; other
// threads may read it after a barrier behind that wait.
class gt_copies {
#ifdef __HOSTCUDA__
  struct copy {
    void *to;
    const void *from;
    int bytes, group;
  };
  static constexpr int most = 64;
  copy waiting[most];  // in the order of their issue
  int count = 0;
  int groups = 0;  // that were committed; a copy of the open group has this number

 public:
  // The global memory is read here, too, so that an invalid address is reported with its thread.
  // Shared memory becomes NaN in all floating types, also for what still reads it.
  void issue(void *to, const void *from, int bytes = 16) {
    assert(count < most && "more copies on the way than gt_copies has places for");
    assert(0 <= bytes && bytes <= 16 && "a copy reads 0 to 16 bytes");
    const uint4 &checked = *static_cast<const uint4 *>(from);  // aligned
    for (int i = 0; i < bytes; ++i) static_cast<const volatile char *>(from)[i];
    *static_cast<uint4 *>(to) = make_uint4(~0u, ~0u, ~0u, ~0u);
    waiting[count++] = {to, &checked, bytes, groups};
  }

  void commit() { ++groups; }

  template <int n>
  void wait() {
    int left = 0;
    for (int i = 0; i < count; ++i) {
      if (waiting[i].group < groups - n)
        arrive(waiting[i]);
      else
        waiting[left++] = waiting[i];
    }
    count = left;
  }

  ~gt_copies() { assert(count == 0 && "a thread ends before it has waited for its copies"); }

 private:
  static void arrive(const copy &copy) {
    uint4 bytes = make_uint4(0, 0, 0, 0);
    memcpy(&bytes, copy.from, copy.bytes);
    *static_cast<uint4 *>(copy.to) = bytes;
  }
#else
 public:
  // Copies `bytes` (0 to 16) bytes; zeros fill the rest of the 16 bytes of shared memory. Both
  // addresses are multiples of 16.
  __device__ void issue(void *to, const void *from, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }

  // Ends a group, which may be empty: all copies since the last one.
  __device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  // Waits until at most the n latest groups are on the way. Copies behind the last commit belong to
  // no group yet.
  template <int n>
  __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
  }
#endif
};

// Four matrices of 8 x 8 halves from shared memory; lane 8 * j + i gives the address of row i of
// matrix j, 16 bytes, aligned. Register j gets (g, 2t) and (g, 2t + 1) of matrix j; transposed
// (2t, g) and (2t + 1, g).
__device__ inline void gt_load_fragment(unsigned (&registers)[4], const void *row);
__device__ inline void gt_load_fragment_transposed(unsigned (&registers)[4], const void *row);

// sums += a @ b: halves of type T, 16 x 16 by 16 x 8.
template <typename T>
__device__ void gt_multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

// sums += a @ b: TF32, 16 x 8 by 8 x 8; the factors come from gt_tf32.
__device__ inline void gt_multiply_tf32(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                        unsigned b1);

// x rounded to TF32: 10 bits behind the leading one, ties away from zero.
__device__ inline unsigned gt_tf32(float x);

// Two halves in a register, rounded to the nearest.
template <typename T>
__device__ unsigned gt_two(float lower, float upper);

// 2 to the power of x, to 2 units in the last place; subnormal results are 0.
__device__ inline float gt_exp2(float x);

#ifdef __HOSTCUDA__

inline void gt_load_fragment(unsigned (&registers)[4], const void *row) {
  const uint4 &aligned = *static_cast<const uint4 *>(row);
  const void *rows[32];
  hostcuda::exchange(static_cast<const void *>(&aligned), rows);
  const int g = hostcuda::lane() / 4, t = hostcuda::lane() % 4;
  for (int j = 0; j < 4; ++j) registers[j] = static_cast<const unsigned *>(rows[8 * j + g])[t];
}

inline void gt_load_fragment_transposed(unsigned (&registers)[4], const void *row) {
  const uint4 &aligned = *static_cast<const uint4 *>(row);
  const void *rows[32];
  hostcuda::exchange(static_cast<const void *>(&aligned), rows);
  const int g = hostcuda::lane() / 4, t = hostcuda::lane() % 4;
  for (int j = 0; j < 4; ++j) {
    const unsigned short *upper = static_cast<const unsigned short *>(rows[8 * j + 2 * t]);
    const unsigned short *lower = static_cast<const unsigned short *>(rows[8 * j + 2 * t + 1]);
    registers[j] = upper[g] | static_cast<unsigned>(lower[g]) << 16;
  }
}

template <typename T>
inline float gt_half_of(unsigned both, int upper) {
  const unsigned short bits = static_cast<unsigned short>(both >> 16 * upper);
  T value;
  memcpy(static_cast<void *>(&value), &bits, sizeof value);
  return gt_up(value);
}

// The factors that a lane holds.
struct gt_factors {
  float a[8], b[4];
};

template <typename T>
inline void gt_multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  gt_factors own;
  for (int i = 0; i < 8; ++i) own.a[i] = gt_half_of<T>(a[i / 2], i % 2);
  for (int i = 0; i < 4; ++i) own.b[i] = gt_half_of<T>(i < 2 ? b0 : b1, i % 2);
  gt_factors of[32];  // lanes
  hostcuda::exchange(own, of);
  for (int e = 0; e < 4; ++e) {
    const int row = hostcuda::lane() / 4 + e / 2 * 8, column = hostcuda::lane() % 4 * 2 + e % 2;
    for (int k = 0; k < 16; ++k) {
      const int t = k % 8 / 2;
      const float x = of[row % 8 * 4 + t].a[k / 8 * 4 + row / 8 * 2 + k % 2];
      const float y = of[column * 4 + t].b[k / 8 * 2 + k % 2];
      sums[e] += x * y;
    }
  }
}

inline float gt_tf32_value(unsigned bits) {
  assert(bits % (1u << 13) == 0 && "a factor that does not come from gt_tf32");
  return __uint_as_float(bits);
}

inline void gt_multiply_tf32(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  gt_factors own = {};
  for (int i = 0; i < 4; ++i) own.a[i] = gt_tf32_value(a[i]);
  own.b[0] = gt_tf32_value(b0);
  own.b[1] = gt_tf32_value(b1);
  gt_factors of[32];  // lanes
  hostcuda::exchange(own, of);
  for (int e = 0; e < 4; ++e) {
    const int row = hostcuda::lane() / 4 + e / 2 * 8, column = hostcuda::lane() % 4 * 2 + e % 2;
    for (int k = 0; k < 8; ++k)
      sums[e] += of[row % 8 * 4 + k % 4].a[k / 4 * 2 + row / 8] * of[column * 4 + k % 4].b[k / 4];
  }
}

inline unsigned gt_tf32(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits >> 23) % 256 == 255) return bits & ~0x1fffu;
  return (bits + 0x1000u) & ~0x1fffu;
}

template <typename T>
inline unsigned gt_two(float lower, float upper) {
  const T values[2] = {gt_down<T>(lower), gt_down<T>(upper)};
  unsigned both;
  memcpy(&both, values, sizeof both);
  return both;
}

inline float gt_exp2(float x) {
  const float power = exp2f(x);
  return power < FLT_MIN ? 0.0f : power;
}

#else

__device__ inline void gt_load_fragment(unsigned (&registers)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

__device__ inline void gt_load_fragment_transposed(unsigned (&registers)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

template <>
__device__ inline void gt_multiply<__half>(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                           unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void gt_multiply<__nv_bfloat16>(float (&sums)[4], const unsigned (&a)[4],
                                                  unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void gt_multiply_tf32(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                        unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline unsigned gt_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

template <>
__device__ inline unsigned gt_two<__half>(float lower, float upper) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(upper), "f"(lower));
  return both;
}

template <>
__device__ inline unsigned gt_two<__nv_bfloat16>(float lower, float upper) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(upper), "f"(lower));
  return both;
}

__device__ inline float gt_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

#endif
