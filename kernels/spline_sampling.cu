// Sums of B-splines at any places of a grid, or their derivatives, and the adjoint.
// Types: float, double.
//
// Layout: contiguous grids x (batch, n0, n1, ...) of GT_AXES axes, places coords (batch, GT_AXES,
// points), values (batch, points). A thread belongs to one place: it has the taps of each axis,
// their offsets and weights, in registers.
// Traffic per place: reads GT_AXES coordinates and (GT_ORDER + 1)**GT_AXES taps, writes 1; the
// adjoint adds to as many taps. Its sums are of whole numbers, two for a value, by atomics: they do
// not depend on the order, and so repeat bit for bit. All values have one exponent: what is below
// 2^-64 of the largest one is lost.
// GT_ORDER and GT_AXES are of the compiler's options; the mode, and the orders of the derivative in
// octal digits (the first axis lowest), are arguments.
#include "half.cuh"

#ifndef GT_ORDER
#define GT_ORDER 3
#endif
#ifndef GT_AXES
#define GT_AXES 2
#endif
#define GT_MOST_AXES 6  // `MOST_AXES` in gtensor/ops/pool/spline_sampling.py repeats it
#define GT_TAPS (GT_ORDER + 1)

// The modes' codes: `MODES` in gtensor/ops/pool/spline_sampling.py repeats them.
enum { GT_CONSTANT, GT_NEAREST, GT_MIRROR, GT_REFLECT, GT_WRAP, GT_GRID_WRAP };

// x modulo a positive period, from 0 on.
template <typename F>
__device__ inline F gt_modulo(F x, F period) {
  return x - period * floor(x / period);
}

__device__ inline gt_index gt_modulo(gt_index i, gt_index period) {
  i %= period;
  return i < 0 ? i + period : i;
}

// A place continued into a grid of that size, and its slope by the coordinate. A place beyond the
// grid sets `outside` if it is not continued.
template <typename F>
__device__ inline F gt_within(F x, gt_index size, int mode, F *slope, bool *outside) {
  const F last = static_cast<F>(size - 1);
  *slope = 1;
  if (!(x < 0 || x > last)) return x;  // a NaN, too
  if (mode == GT_CONSTANT) {
    *outside = true;
    return 0;
  }
  if (mode == GT_NEAREST || size == 1)  // where all taps are at an edge, the place has no effect
    return x < -3 ? F(-3) : x > last + 2 ? last + 2 : x;
  if (mode == GT_MIRROR || mode == GT_REFLECT) {
    const F half = mode == GT_REFLECT ? F(0.5) : F(0);
    const F period = 2 * (last + 2 * half), folded = gt_modulo(x + half, period);
    const bool turned = folded > period / 2;
    if (turned) *slope = -1;
    return (turned ? period - folded : folded) - half;
  }
  if (mode == GT_WRAP)  // SciPy's: -last is last, and 2 last is 0
    return x < 0 ? x + last * (floor(-x / last) + 1) : x - last * floor(x / last);
  return gt_modulo(x, static_cast<F>(size));
}

// Where a tap lies, which may be beyond an edge.
__device__ inline gt_index gt_tap(gt_index i, gt_index size, int mode) {
  if (i >= 0 && i < size) return i;
  if (size == 1) return 0;
  if (mode == GT_NEAREST) return i < 0 ? 0 : size - 1;
  if (mode == GT_REFLECT) {
    i = gt_modulo(i, 2 * size);
    return i < size ? i : 2 * size - 1 - i;
  }
  if (mode == GT_GRID_WRAP) return gt_modulo(i, size);
  i = gt_modulo(i, 2 * size - 2);  // mirror, as SciPy does for constant and wrap, too
  return i < size ? i : 2 * size - 2 - i;
}

// The weights of the taps at t, from 0 to 1 between two knots: splines of the order less that of
// the derivative by the recursion of de Boor, then their differences.
template <typename F>
__device__ inline void gt_weights(F t, int derivative, F *weight) {
  weight[0] = 1;
#pragma unroll
  for (int p = 1; p <= GT_ORDER; ++p) {
    const bool raised = p <= GT_ORDER - derivative;
#pragma unroll
    for (int j = p; j >= 0; --j) {
      const F below = j ? weight[j - 1] : F(0), same = j < p ? weight[j] : F(0);
      weight[j] = raised ? ((t + (p - j)) * below + ((1 - t) + j) * same) / p : below - same;
    }
  }
}

// The taps of a place along all axes; returns whether the place lies beyond the grid.
template <typename F>
struct gt_place {
  gt_index offset[GT_AXES][GT_TAPS];
  F weight[GT_AXES][GT_TAPS];

  template <typename T>
  __device__ bool find(const T *coords, gt_index points, const gt_index *sizes, int mode,
                       gt_index derivative) {
    bool outside = false;
    gt_index stride = 1;
#pragma unroll
    for (int axis = GT_AXES - 1; axis >= 0; --axis) {
      F slope;
      const int orders = static_cast<int>(derivative >> 3 * axis & 7);
      const F x = gt_within(gt_up(coords[axis * points]), sizes[axis], mode, &slope, &outside);
      const F first = GT_ORDER % 2 ? floor(x) : floor(x + F(0.5));
      gt_weights(GT_ORDER % 2 ? x - first : x - first + F(0.5), orders, weight[axis]);
      // A NaN has the weights NaN at any taps; what is left of an infinity is one.
      const gt_index start = (first == first ? static_cast<gt_index>(first) : 0) - GT_ORDER / 2;
#pragma unroll
      for (int k = 0; k < GT_TAPS; ++k) {
        offset[axis][k] = gt_tap(start + k, sizes[axis], mode) * stride;
        if (orders % 2) weight[axis][k] *= slope;
      }
      stride *= sizes[axis];
    }
    return outside;
  }
};

// Sums of values below 2**exponent as whole numbers: of 2**-GT_HIGH of that, and of 2**-GT_LOW for
// the rest. The signed numbers are added modulo 2**64. A value that is not finite is marked.
#define GT_HIGH 35  // `_HIGH`, `_LOW` in gtensor/ops/pool/spline_sampling.py repeat them
#define GT_LOW 70
struct gt_sums {
  unsigned long long *high, *low;
  unsigned *lost;
  int exponent;  // of a bound of the values

  __device__ void add(gt_index at, double value) const {
    const double scaled = ldexp(value, GT_HIGH - exponent);
    if (!(scaled > -1e18 && scaled < 1e18)) {
      atomicOr(lost + at, 1u);
      return;
    }
    const long long whole = static_cast<long long>(scaled);
    const double rest = ldexp(scaled - static_cast<double>(whole), GT_LOW - GT_HIGH);
    atomicAdd(high + at, static_cast<unsigned long long>(whole));
    atomicAdd(low + at, static_cast<unsigned long long>(static_cast<long long>(rest)));
  }
};

// The sum over the taps of the axes from `axis` on, or their parts of a value added to sums.
template <typename T, int axis>
struct gt_over {
  typedef gt_float<T> F;

  __device__ static F sum(const T *x, const gt_place<F> &place) {
    F total = 0;
    for (int k = 0; k < GT_TAPS; ++k)
      total += place.weight[axis][k] * gt_over<T, axis + 1>::sum(x + place.offset[axis][k], place);
    return total;
  }

  __device__ static void add(const gt_sums &out, gt_index at, double value,
                             const gt_place<F> &place) {
    for (int k = 0; k < GT_TAPS; ++k)
      gt_over<T, axis + 1>::add(out, at + place.offset[axis][k], value * place.weight[axis][k],
                                place);
  }
};

template <typename T>
struct gt_over<T, GT_AXES> {
  typedef gt_float<T> F;

  __device__ static F sum(const T *x, const gt_place<F> &) { return gt_up(*x); }

  __device__ static void add(const gt_sums &out, gt_index at, double value, const gt_place<F> &) {
    out.add(at, value);
  }
};

// The elements of a grid.
__device__ inline gt_index gt_elements(const gt_index *sizes) {
  gt_index count = 1;
  for (int axis = 0; axis < GT_AXES; ++axis) count *= sizes[axis];
  return count;
}

template <typename T>
__global__ void spline_sample(const T *x, const T *coords, T *out, double fill, gt_index batch,
                              gt_index points, gt_index n0, gt_index n1, gt_index n2, gt_index n3,
                              gt_index n4, gt_index n5, gt_index mode, gt_index derivative) {
  const gt_index sizes[GT_MOST_AXES] = {n0, n1, n2, n3, n4, n5};
  const gt_index elements = gt_elements(sizes);
  for (gt_index i = gt_thread(); i < batch * points; i += gt_threads()) {
    const gt_index row = i / points, point = i % points;
    gt_place<gt_float<T>> place;
    const bool outside = place.find(coords + row * GT_AXES * points + point, points, sizes,
                                    static_cast<int>(mode), derivative);
    const gt_float<T> value = gt_over<T, 0>::sum(x + row * elements, place);
    out[i] = gt_down<T>(outside ? static_cast<gt_float<T>>(fill) : value);
  }
}

// Adds to the sums, whose values are below 2**exponent[0].
template <typename T>
__global__ void spline_spread(const T *g, const T *coords, unsigned long long *high,
                              unsigned long long *low, unsigned *lost, const int *exponent,
                              gt_index batch, gt_index points, gt_index n0, gt_index n1,
                              gt_index n2, gt_index n3, gt_index n4, gt_index n5, gt_index mode,
                              gt_index derivative) {
  const gt_index sizes[GT_MOST_AXES] = {n0, n1, n2, n3, n4, n5};
  const gt_index elements = gt_elements(sizes);
  const gt_sums sums = {high, low, lost, exponent[0]};
  for (gt_index i = gt_thread(); i < batch * points; i += gt_threads()) {
    const gt_index row = i / points, point = i % points;
    gt_place<gt_float<T>> place;
    if (!place.find(coords + row * GT_AXES * points + point, points, sizes, static_cast<int>(mode),
                    derivative))
      gt_over<T, 0>::add(sums, row * elements, static_cast<double>(gt_up(g[i])), place);
  }
}

// Launch: one-dimensional blocks of GT_BLOCK threads, at most one thread a place. No shared memory.
