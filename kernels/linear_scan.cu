// The linear recurrence h[t] = a[t] * h[t - 1] + b[t] along a sequence, parallel over the sequence.
//
// Layout: contiguous (rows, steps, channels); initial (rows, channels) or NULL for zeros. A block
// belongs to a row and `width` neighbouring channels. Each of its lanes has GT_STEPS neighbouring
// steps in registers; (product of a, h from 0) of the lanes are combined by a scan in shared memory,
// and each lane then runs its steps from the h before them. With `reverse` the sequence runs from
// its end.
// Traffic per element: forward reads 2, writes 1; backward reads 3, writes 2. Nothing is read or
// written twice.
// Values are computed in gt_float<T>. In place: h may be b, and db may be g; hence no __restrict__.
#include "half.cuh"
#include "reduce.cuh"

#define GT_STEPS 16  // `_STEPS` in gtensor/ops/scan/linear_scan.py repeats it

// The places of a block's thread: its row and channel, and where the row's steps lie.
struct gt_sequence {
  gt_index begin, steps, channels;
  bool reverse;

  // The place of step s in the order of the scan.
  __device__ gt_index at(gt_index s) const {
    return begin + (reverse ? steps - 1 - s : s) * channels;
  }
};

// Runs value = link * (the value before) + value over the GT_STEPS steps of each lane, where
// `state` is the value before the first lane's. Returns the value of the last lane, to every lane.
// Every thread must call it.
template <typename F>
__device__ inline F gt_scan_steps(const F *link, F *value, F state, F *factors, F *sums,
                                  int width) {
  const int thread = threadIdx.x;
  F factor = 1;
  F sum = thread < width ? state : F(0);
  for (int k = 0; k < GT_STEPS; ++k) {
    sum = link[k] * sum + value[k];
    factor *= link[k];
  }
  factors[thread] = factor;
  sums[thread] = sum;
  __syncthreads();  // before others read the cells
  for (int distance = width; distance < static_cast<int>(blockDim.x); distance *= 2) {
    F earlier_factor = 1;
    F earlier_sum = 0;
    if (thread >= distance) {
      earlier_factor = factors[thread - distance];
      earlier_sum = sums[thread - distance];
    }
    __syncthreads();  // before they are overwritten
    if (thread >= distance) {
      sums[thread] = sum = factor * earlier_sum + sum;
      factors[thread] = factor *= earlier_factor;
    }
    __syncthreads();  // before the next distance reads them
  }
  F before = thread < width ? state : sums[thread - width];
  const F last = sums[blockDim.x - width + thread % width];
  for (int k = 0; k < GT_STEPS; ++k) value[k] = before = link[k] * before + value[k];
  __syncthreads();  // before the next steps overwrite the cells
  return last;
}

template <typename T>
__global__ void linear_scan_forward(const T *a, const T *b, const T *initial, T *h, gt_index rows,
                                    gt_index steps, gt_index channels, gt_index width,
                                    gt_index reverse) {
  typedef gt_float<T> F;
  __shared__ F factors[GT_BLOCK];
  __shared__ F sums[GT_BLOCK];
  const int across = static_cast<int>(width);
  const gt_index tiles = (channels + width - 1) / width;
  const gt_index lane = threadIdx.x / across, lanes = blockDim.x / across;
  for (gt_index tile = blockIdx.x; tile < rows * tiles; tile += gridDim.x) {
    const gt_index row = tile / tiles, channel = tile % tiles * width + threadIdx.x % across;
    const bool within = channel < channels;
    const gt_sequence sequence = {row * steps * channels + channel, steps, channels, reverse != 0};
    F state = initial && within ? gt_up(initial[row * channels + channel]) : F(0);
    for (gt_index first = 0; first < steps; first += lanes * GT_STEPS) {
      F link[GT_STEPS], value[GT_STEPS];
      const gt_index begin = first + lane * GT_STEPS;
      for (int k = 0; k < GT_STEPS; ++k) {
        const gt_index s = begin + k;
        const bool there = within && s < steps;
        link[k] = there && (s || initial) ? gt_up(a[sequence.at(s)]) : F(there ? 0 : 1);
        value[k] = there ? gt_up(b[sequence.at(s)]) : F(0);
      }
      state = gt_scan_steps(link, value, state, factors, sums, across);
      for (int k = 0; k < GT_STEPS; ++k)
        if (within && begin + k < steps) h[sequence.at(begin + k)] = gt_down<T>(value[k]);
    }
  }
}

// The gradients: db[t] = g[t] + a[t + 1] * db[t + 1], da[t] = db[t] * h[t - 1] with `initial` before
// the first h, dinitial = a[0] * db[0]. Each of da, db, dinitial may be NULL; none overlaps h.
template <typename T>
__global__ void linear_scan_backward(const T *g, const T *a, const T *h, const T *initial, T *da,
                                     T *db, T *dinitial, gt_index rows, gt_index steps,
                                     gt_index channels, gt_index width, gt_index reverse) {
  typedef gt_float<T> F;
  __shared__ F factors[GT_BLOCK];
  __shared__ F sums[GT_BLOCK];
  const int across = static_cast<int>(width);
  const gt_index tiles = (channels + width - 1) / width;
  const gt_index lane = threadIdx.x / across, lanes = blockDim.x / across;
  for (gt_index tile = blockIdx.x; tile < rows * tiles; tile += gridDim.x) {
    const gt_index row = tile / tiles, channel = tile % tiles * width + threadIdx.x % across;
    const bool within = channel < channels;
    // Step s of this sequence is the one that the forward scan made last but s.
    const gt_sequence sequence = {row * steps * channels + channel, steps, channels, reverse == 0};
    F state = 0;
    for (gt_index first = 0; first < steps; first += lanes * GT_STEPS) {
      F link[GT_STEPS], value[GT_STEPS];
      const gt_index begin = first + lane * GT_STEPS;
      for (int k = 0; k < GT_STEPS; ++k) {
        const gt_index s = begin + k;
        const bool there = within && s < steps;
        link[k] = there && s ? gt_up(a[sequence.at(s - 1)]) : F(there ? 0 : 1);
        value[k] = there ? gt_up(g[sequence.at(s)]) : F(0);
      }
      state = gt_scan_steps(link, value, state, factors, sums, across);
      for (int k = 0; k < GT_STEPS; ++k) {
        const gt_index s = begin + k;
        if (!within || s >= steps) break;
        if (db) db[sequence.at(s)] = gt_down<T>(value[k]);
        if (!da) continue;
        F before = 0;
        if (s + 1 < steps)
          before = gt_up(h[sequence.at(s + 1)]);
        else if (initial)
          before = gt_up(initial[row * channels + channel]);
        da[sequence.at(s)] = gt_down<T>(value[k] * before);
      }
    }
    if (dinitial && lane == 0 && within && steps > 0)
      dinitial[row * channels + channel] = gt_down<T>(state * gt_up(a[sequence.at(steps - 1)]));
  }
}

// Launch: grid (rows * ceil(channels / width)); blocks are one-dimensional, width * lanes threads,
// at most GT_BLOCK, width and lanes powers of two. No dynamic shared memory.
