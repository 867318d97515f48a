// Group norm: groups of channels of each image to mean 0 and variance 1, times weight, plus bias.
//
// Layout: x contiguous (images, groups, channels of a group, plane), so that a group is a row;
// weight and bias (channels); mean and variance (images, groups) in gt_float<T>; rows as in rows.cuh.
// Traffic per element: forward reads 1, writes 1; backward reads 2, writes 1. Forward reads a group
// that is longer than its threads' registers 3 times. Backward reads twice what its threads do not
// hold of it: all but their first planes, and planes that are longer than their registers.
// In place: y may be x; dx may be g or x; hence no __restrict__.
#include "row_norm.cuh"

// columns = channels of a group * plane < 2^31.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 3)  // at most 80 registers
    group_norm_forward(const T *x, const T *weight, const T *bias, T *y, gt_float<T> *mean,
                       gt_float<T> *var, gt_index rows, gt_index groups, gt_index channels,
                       gt_index plane, double eps) {
  typedef gt_float<T> F;
  __shared__ F shared_cells[GT_BLOCK / 32];
  F *const cells = shared_cells;
  const gt_index columns = channels * plane;
  const unsigned area = static_cast<unsigned>(plane);
  gt_by_width<T>(columns, gt_address(x) | gt_address(y), [&](auto width) {
    constexpr int W = decltype(width)::value;
    const bool alike = area % W == 0;  // a pack lies in one plane
    gt_normalize<W>(
        x, y, true, rows, columns, eps, cells,
        [&](gt_index row, gt_index column, gt_pack<F, W> &values) {
          const gt_index first = row % groups * channels;
          const unsigned at = static_cast<unsigned>(column);
          F scale = 1, shift = 0;
          for (int w = 0; w < W; ++w) {
            if (w == 0 || !alike) {
              const gt_index channel = first + (at + w) / area;
              if (weight) scale = gt_up(weight[channel]);
              if (bias) shift = gt_up(bias[channel]);
            }
            values.values[w] = values.values[w] * scale + shift;
          }
        },
        [&](gt_index row, F average, F variance, F) {
          mean[row] = average;
          var[row] = variance;
        });
  });
}

// dx = rstd * (h - mean(h) - xhat * mean(h * xhat)) with h = g * weight and xhat = (x - mean) * rstd;
// dx may be NULL. partials, or NULL: for layer_norm_parameters, (images, 2, groups * channels), of
// each plane the sums of g * xhat and of g. A block takes a group, a row of its threads a plane.
template <typename T>
__global__ void __launch_bounds__(GT_BLOCK, 2)  // at most 128 registers
    group_norm_backward(const T *g, const T *x, const T *weight, const gt_float<T> *mean,
                        const gt_float<T> *var, T *dx, gt_float<T> *partials, gt_index rows,
                        gt_index groups, gt_index channels, gt_index plane, double eps) {
  typedef gt_float<T> F;
  __shared__ F shared_cells[GT_BLOCK / 32], shared_teams[2][GT_BLOCK / 32];
  F *const cells = shared_cells;
  F(*const teams)[GT_BLOCK / 32] = shared_teams;
  gt_by_width<T>(plane, gt_address(g) | gt_address(x) | gt_address(dx), [&](auto width) {
    constexpr int W = decltype(width)::value;
    for (gt_index row = blockIdx.x; row < rows; row += gridDim.x) {
      const F average = mean[row], inverse = F(1) / sqrt(var[row] + F(eps));
      const gt_index first = row % groups * channels;
      F *const sums = partials ? partials + row / groups * 2 * groups * channels + first : nullptr;
      F total = 0;
      F dot = 0;
      const auto add = [&](gt_index channel, auto each) {
        F shift = 0;
        F slope = 0;
        each([&](gt_index, const auto &packs) {
          for (int w = 0; w < W; ++w) {
            const F grad = gt_up(packs[0].values[w]);
            shift += grad;
            slope += grad * ((gt_up(packs[1].values[w]) - average) * inverse);
          }
        });
        shift = gt_row_reduce(shift, cells, gt_sum());
        slope = gt_row_reduce(slope, cells, gt_sum());
        if (channel >= channels) return;
        if (sums && threadIdx.x == 0) {
          sums[channel] = slope;
          sums[groups * channels + channel] = shift;
        }
        const F scale = weight ? gt_up(weight[first + channel]) : F(1);
        total += scale * shift;
        dot += scale * slope;
      };
      const auto write = [&](gt_index channel, auto each) {
        if (channel >= channels) return;
        const F scale = weight ? gt_up(weight[first + channel]) : F(1);
        each([&](gt_index column, const auto &packs) {
          gt_pack<T, W> result;
          for (int w = 0; w < W; ++w) {
            const F xhat = (gt_up(packs[1].values[w]) - average) * inverse;
            result.values[w] =
                gt_down<T>(inverse * (gt_up(packs[0].values[w]) * scale - total - xhat * dot));
          }
          gt_store(dx + (row * channels + channel) * plane + column, result);
        });
      };
      const gt_index own_at = (row * channels + threadIdx.y) * plane;
      const T *const arrays[2] = {g + own_at, x + own_at};
      gt_row<T, W, 2> own(arrays, plane, threadIdx.y < channels);
      const auto each = [&](auto visit) { own.each(visit); };
      // A later plane, of which the registers hold a pack at a time.
      const auto later = [&](gt_index channel) {
        return [=](auto visit) {
          const gt_index at = (row * channels + channel) * plane;
          const gt_index end = channel < channels ? plane : 0;
          for (gt_index column = threadIdx.x * W; column < end; column += blockDim.x * W) {
            const gt_pack<T, W> packs[2] = {gt_load<W>(g + at + column), gt_load<W>(x + at + column)};
            visit(column, packs);
          }
        };
      };
      add(threadIdx.y, each);
      for (gt_index turn = blockDim.y; turn < channels; turn += blockDim.y)
        add(turn + threadIdx.y, later(turn + threadIdx.y));
      if (!dx) continue;
      if (threadIdx.x == 0) {
        teams[0][threadIdx.y] = total;
        teams[1][threadIdx.y] = dot;
      }
      __syncthreads();  // the teams' sums are read by the others
      total = dot = 0;
      for (unsigned team = 0; team < blockDim.y; ++team) {
        total += teams[0][team];
        dot += teams[1][team];
      }
      __syncthreads();  // the next group overwrites them
      total /= F(channels * plane);
      dot /= F(channels * plane);
      write(threadIdx.y, each);
      for (gt_index turn = blockDim.y; turn < channels; turn += blockDim.y)
        write(turn + threadIdx.y, later(turn + threadIdx.y));
    }
  });
}

// Launch: forward grid (any number of blocks), block (threads, rows) as in rows.cuh; backward grid
// (any number of blocks), block (threads, planes) as in rows.cuh; <= GT_BLOCK together. No dynamic
// shared memory.
