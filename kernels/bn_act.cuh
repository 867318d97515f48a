// What the kernels of bn_act.cu and bn_act_from_x.cu are made of: walks over the elements of their
// channels, the arithmetic on a few elements of a thread, and the phases that they launch.
// Arguments and traffic: as said there.
//
// Walks: 16 bytes at a time where rows and pointers allow it, else element by element, channels
// first or last.
//
// Layout: x contiguous (n, c, s). Channels first, a block belongs to one channel (blockIdx.x) and
// one part of its images and positions (blockIdx.y). Channels last, s is 1: a block belongs to a
// tile of channels and one part of the n rows, neighbouring threads to neighbouring channels.
// A walk is used the same way in both layouts:
//   at, left, next()   offset of the next W elements of this thread; how many such steps are left
//   width, owned       W; channels of a thread, 1 or W: element w belongs to channel + w % owned
//   lane, lanes        which of the threads of the same channels this one is, and how many they are
// The divisions stand in the constructors; a step is a few additions.
// Arithmetic: moments, z, xhat and dy, dx, x, all of it in registers. Value w of a pack belongs to
// channel w % owned of the thread. The activation is a code of gt_activation; the branch over it
// stands outside of the loops over elements.
#pragma once

#include "activation.cuh"
#include "half.cuh"
#include "pack.cuh"
#include "reduce.cuh"

// ------------------------------------------------------------------------------------------- walks
#define GT_CHIP_BLOCK 512  // threads of a block that holds a channel on chip

// Which part of the work a block does. Kernels that read what an earlier one has read take the
// parts backwards: they begin with what is still in the L2 cache.
struct gt_part {
  gt_index column, chunk;
};

__device__ inline gt_part gt_forwards() { return {blockIdx.x, blockIdx.y}; }

__device__ inline gt_part gt_backwards() {
  return {gridDim.x - 1 - blockIdx.x, gridDim.y - 1 - blockIdx.y};
}

// The first and one past the last of `count` things of a chunk.
struct gt_span {
  gt_index begin, end;
  __device__ gt_span(gt_index count, gt_index chunk) {
    const gt_index each = (count + gridDim.y - 1) / gridDim.y;
    begin = chunk * each;
    end = min(begin + each, count);
  }
};

// How many of `begin`, `begin + stride`, ... lie before `end`.
__device__ inline gt_index gt_steps(gt_index begin, gt_index end, gt_index stride) {
  return begin < end ? (end - begin + stride - 1) / stride : 0;
}

template <int W>
struct gt_channels_first {
  static constexpr int width = W, owned = 1;
  gt_index at, left, channel, chunk;
  int lane, lanes;

  __device__ gt_channels_first(gt_part part, gt_index n, gt_index c, gt_index s)
      : at(0), channel(part.column), chunk(part.chunk), lane(threadIdx.x), lanes(blockDim.x) {
    row = s / W;
    const gt_span span(n * row, part.chunk);
    const gt_index first = span.begin + lane;
    left = gt_steps(first, span.end, lanes);
    if (left == 0) return;
    const gt_index image = first / row;
    const gt_index images = lanes / row;
    place = first - image * row;
    turn = lanes - images * row;
    at = (image * c + channel) * s + place * W;
    jump = images * c * s + turn * W;
    skip = (c - 1) * s;
  }

  __device__ void next() {
    at += jump;
    place += turn;
    if (place >= row) {
      place -= row;
      at += skip;
    }
  }

  __device__ bool inside(gt_index) const { return true; }

  template <typename V, typename Combine>
  __device__ void reduce(V (&values)[owned], V *cells, Combine combine) const {
    values[0] = gt_warps_reduce(values[0], cells, combine);
  }

 private:
  gt_index row, place = 0;      // in packs: the length of a row, and where in it the thread is
  gt_index turn = 0, jump = 0;  // what a step adds to place and at
  gt_index skip = 0;            // what lies between a row and that of the next image
};

template <int W>
struct gt_channels_last {
  static constexpr int width = W, owned = W;
  gt_index at, left, channel, chunk;
  int lane, lanes;

  // tile: channels of a block, a power of two of at least W and at most W * blockDim.x.
  __device__ gt_channels_last(gt_part part, gt_index n, gt_index c, gt_index tile)
      : at(0), left(0), chunk(part.chunk) {
    across = static_cast<int>(tile) / W;
    lanes = blockDim.x / across;
    lane = threadIdx.x / across;
    channel = part.column * tile + threadIdx.x % across * W;
    const gt_span span(n, part.chunk);
    const gt_index first = span.begin + lane;
    if (inside(c)) left = gt_steps(first, span.end, lanes);
    at = first * c + channel;
    jump = lanes * c;
  }

  __device__ void next() { at += jump; }

  __device__ bool inside(gt_index c) const { return channel < c; }

  // cells: W * blockDim.x. All threads get the result of their channels.
  template <typename V, typename Combine>
  __device__ void reduce(V (&values)[owned], V *cells, Combine combine) const {
    for (int w = 0; w < W; ++w) cells[w * blockDim.x + threadIdx.x] = values[w];
    __syncthreads();
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane < half)
        for (int w = 0; w < W; ++w) {
          V *cell = cells + w * blockDim.x + threadIdx.x;
          *cell = combine(cell[0], cell[half * across]);
        }
      __syncthreads();
    }
    for (int w = 0; w < W; ++w) values[w] = cells[w * blockDim.x + threadIdx.x % across];
    __syncthreads();  // the next reduction overwrites the cells
  }

 private:
  int across;     // threads beside each other in a row
  gt_index jump;  // what a step adds to at
};

// Calls visit(offsets, count) for all steps of the walk, U at a time; the first `count` offsets are
// there, U of them but for the last time. Loads of different offsets are in flight together.
template <int U, typename Walk, typename Visit>
__device__ inline void gt_walk(Walk walk, Visit visit) {
  for (; walk.left > 0; walk.left -= U) {
    gt_index offsets[U];
    for (int u = 0; u < U; ++u, walk.next()) offsets[u] = walk.at;
    visit(offsets, walk.left < U ? static_cast<int>(walk.left) : U);
  }
}

// Where in shared memory the packs of a thread lie, U steps of its walk at a time.
template <int W, int U>
struct gt_places {
  gt_index at[U];

  __device__ gt_places() {
    for (int u = 0; u < U; ++u) at[u] = (threadIdx.x + u * blockDim.x) * W;
  }

  __device__ void next() {
    for (int u = 0; u < U; ++u) at[u] += U * blockDim.x * W;
  }
};

// Steps of a walk at a time where two arrays, or one that is also written, are walked over: enough
// loads in flight, few enough registers.
template <int W>
constexpr int gt_steps_at_once = W == 1 ? 4 : W < 8 ? 2 : 1;

// The first `count` of U packs at `offsets`; zeros for the others.
template <int W, int U, typename T>
__device__ inline void gt_load(const T *from, const gt_index (&offsets)[U], int count,
                               gt_pack<T, W> (&packs)[U]) {
  for (int u = 0; u < U; ++u)
    packs[u] = u < count ? gt_load<W>(from + offsets[u]) : gt_pack<T, W>();
}

template <int W, int U, typename T>
__device__ inline void gt_store(T *to, const gt_index (&offsets)[U], int count,
                                const gt_pack<T, W> (&packs)[U]) {
  for (int u = 0; u < U; ++u)
    if (u < count) gt_store(to + offsets[u], packs[u]);
}

// What `parts` blocks found of the channels of a thread, to all threads. partials: (parts, c).
template <typename Walk, typename V, typename Combine>
__device__ inline void gt_collect(const Walk &walk, V (&values)[Walk::owned], const V *partials,
                                  gt_index parts, gt_index c, V *cells, Combine combine) {
  for (int p = 0; p < Walk::owned; ++p) values[p] = V();
  if (walk.inside(c))
#pragma unroll 4
    for (gt_index part = walk.lane; part < parts; part += walk.lanes)
      for (int p = 0; p < Walk::owned; ++p)
        values[p] = combine(values[p], partials[part * c + walk.channel + p]);
  walk.reduce(values, cells, combine);
}

// Combines `values` of all threads and blocks of the same channels. Returns whether this thread has
// the result: thread `lane` 0 of one block. partials: (gridDim.y, c); tickets: gridDim.x zeros;
// both NULL where gridDim.y is 1. With partials and no tickets no thread has it: the next launch
// collects.
template <typename Walk, typename V, typename Combine>
__device__ inline bool gt_gather(const Walk &walk, V (&values)[Walk::owned], V *partials,
                                 unsigned *tickets, gt_index c, V *cells, Combine combine) {
  walk.reduce(values, cells, combine);
  if (partials) {
    if (walk.lane == 0 && walk.inside(c))
      for (int p = 0; p < Walk::owned; ++p)
        partials[walk.chunk * c + walk.channel + p] = values[p];
    if (!tickets || !gt_last_block(tickets + blockIdx.x, gridDim.y)) return false;
    gt_collect(walk, values, partials, gridDim.y, c, cells, combine);
  }
  return walk.lane == 0 && walk.inside(c);
}

// ----------------------------------------------------------------------------------------- moments
// Of some values: how many, their mean as mean + rest, and the sum of their squared distances from
// it. The rest is what rounding the mean left: beside a mean of 1e4 deviations it is no small part.
template <typename F>
struct gt_moments {
  F count, mean, rest, squares;
};

template <typename F>
__device__ inline gt_moments<F> gt_shuffle_down(gt_moments<F> a, int distance) {
  return {gt_shuffle_down(a.count, distance), gt_shuffle_down(a.mean, distance),
          gt_shuffle_down(a.rest, distance), gt_shuffle_down(a.squares, distance)};
}

struct gt_combine_moments {
  template <typename F>
  __device__ gt_moments<F> operator()(const gt_moments<F> &a, const gt_moments<F> &b) const {
    if (a.count == 0) return b;
    const F count = a.count + b.count;
    const F share = b.count / count;
    const F apart = (b.mean - a.mean) + (b.rest - a.rest);
    const F step = apart * share;
    const F mean = a.mean + step;
    return {count, mean, a.rest + (step - (mean - a.mean)),
            a.squares + b.squares + apart * step * a.count};
  }
};

// Adds the values of packs to `moments`: value w of a pack to moments[w % owned].
template <int U, int W, int owned, typename T, typename F>
__device__ inline void gt_add(gt_moments<F> (&moments)[owned], const gt_pack<T, W> (&packs)[U]) {
  constexpr int each = U * W / owned;
  for (int p = 0; p < owned; ++p) {
    F sum = 0;
    for (int u = 0; u < U; ++u)
      for (int w = p; w < W; w += owned) sum += gt_up(packs[u].values[w]);
    gt_moments<F> batch = {F(each), sum * (F(1) / F(each)), F(0), F(0)};
    for (int u = 0; u < U; ++u)
      for (int w = p; w < W; w += owned) {
        const F apart = gt_up(packs[u].values[w]) - batch.mean;
        batch.rest += apart;
        batch.squares += apart * apart;
      }
    const F rest = batch.rest * (F(1) / F(each));
    batch.squares -= rest * batch.rest;
    batch.rest = rest;
    moments[p] = gt_combine_moments()(moments[p], batch);
  }
}

// The same where only the first `count` packs are there.
template <int U, int W, int owned, typename T, typename F>
__device__ inline void gt_add(gt_moments<F> (&moments)[owned], const gt_pack<T, W> (&packs)[U],
                              int count) {
  if (count == U) return gt_add(moments, packs);
  for (int u = 0; u < U; ++u) {
    const gt_pack<T, W> one[1] = {packs[u]};
    if (u < count) gt_add(moments, one);
  }
}

template <typename F>
__device__ inline F gt_mean(const gt_moments<F> &moments) {
  return moments.mean + moments.rest;
}

template <typename F>
__device__ inline F gt_variance(const gt_moments<F> &moments) {
  return moments.count > 0 ? moments.squares / moments.count : F(0);
}

// ----------------------------------------------------------------------------- what is per channel
template <typename F>
struct gt_normal {
  F mean, deviation, weight, bias;
  F slope;  // of the weight, as a function of what is given as it
};

// absolute: the weight is |weight| + eps.
template <typename F>
__device__ inline gt_normal<F> gt_normal_of(F mean, F var, const F *weight, const F *bias,
                                            gt_index channel, double eps, bool absolute) {
  gt_normal<F> normal = {mean, sqrt(var + F(eps)), weight ? weight[channel] : F(1),
                         bias ? bias[channel] : F(0), F(1)};
  if (weight && absolute) {
    const F given = normal.weight;
    normal.weight = abs(given) + F(eps);
    normal.slope = F(given > F(0)) - F(given < F(0));
  }
  return normal;
}

// Running averages, or NULL, moved towards mean and unbiased * var by the fraction momentum; and a
// count of batches, or NULL.
template <typename F>
struct gt_running {
  F *mean, *var;
  long long *count;
  double momentum, unbiased;

  __device__ void move(gt_index channel, F now_mean, F now_var) const {
    if (mean) mean[channel] += momentum * (now_mean - mean[channel]);
    if (var) var[channel] += momentum * (unbiased * now_var - var[channel]);
    if (count && channel == 0) *count += 1;
  }
};

// Mean and variance of the channels of a thread. The first block of a channel writes what it finds
// in partials, of `parts` blocks of bn_act_statistics, and moves the averages.
template <typename Walk, typename F>
struct gt_channel_statistics {
  F mean[Walk::owned], var[Walk::owned];
  __device__ gt_channel_statistics(const Walk &walk, F *means, F *vars,
                                   const gt_moments<F> *partials, gt_index parts,
                                   const gt_running<F> &running, gt_index c,
                                   gt_moments<F> *cells) {
    gt_moments<F> moments[Walk::owned];
    if (partials) gt_collect(walk, moments, partials, parts, c, cells, gt_combine_moments());
    const bool first = walk.chunk == 0 && walk.lane == 0 && walk.inside(c);
    for (int p = 0; p < Walk::owned; ++p) {
      const gt_index at = walk.inside(c) ? walk.channel + p : 0;
      mean[p] = partials ? gt_mean(moments[p]) : means[at];
      var[p] = partials ? gt_variance(moments[p]) : vars[at];
      if (first && partials) {
        means[at] = mean[p];
        vars[at] = var[p];
      }
      if (first) running.move(at, mean[p], var[p]);
    }
  }
};

// The numbers of the channels of a thread.
template <typename Walk, typename F>
struct gt_normals {
  gt_normal<F> of[Walk::owned];
  __device__ gt_normals(const Walk &walk, const F *mean, const F *var, const F *weight,
                        const F *bias, gt_index c, double eps, gt_index absolute = 0) {
    for (int p = 0; p < Walk::owned; ++p) {
      const gt_index at = walk.inside(c) ? walk.channel + p : 0;
      of[p] = gt_normal_of(mean[at], var[at], weight, bias, at, eps, absolute != 0);
    }
  }
  __device__ gt_normals(const Walk &walk, const gt_channel_statistics<Walk, F> &own,
                        const F *weight, const F *bias, gt_index c, double eps, gt_index absolute) {
    for (int p = 0; p < Walk::owned; ++p) {
      const gt_index at = walk.inside(c) ? walk.channel + p : 0;
      of[p] = gt_normal_of(own.mean[p], own.var[p], weight, bias, at, eps, absolute != 0);
    }
  }
};

// ----------------------------------------------------------------------------------------- forward
// z of the packs of one thread, over them: value w belongs to normals[w % owned].
template <int U, int W, int owned, typename T, typename F>
__device__ inline void gt_activated(gt_pack<T, W> (&packs)[U], const gt_normal<F> (&normals)[owned],
                                    gt_index activation, F parameter, gt_range<F> range) {
  F y[U * W];
  for (int i = 0; i < U * W; ++i) {
    const gt_normal<F> &of = normals[i % owned];
    y[i] = (gt_up(packs[i / W].values[i % W]) - of.mean) * (of.weight / of.deviation) + of.bias;
  }
  gt_apply(activation, y, [=](gt_index code, F &value) {
    value = gt_activate(code, value, parameter);
  });
  for (int i = 0; i < U * W; ++i)
    packs[i / W].values[i % W] = gt_down<T>(gt_inside(y[i], range));
}

// ---------------------------------------------------------------------------------------- backward
template <typename F>
struct gt_sums {
  F dy, dy_xhat;
};

template <typename F>
__device__ inline gt_sums<F> gt_shuffle_down(gt_sums<F> a, int distance) {
  return {gt_shuffle_down(a.dy, distance), gt_shuffle_down(a.dy_xhat, distance)};
}

struct gt_combine_sums {
  template <typename F>
  __device__ gt_sums<F> operator()(const gt_sums<F> &a, const gt_sums<F> &b) const {
    return {a.dy + b.dy, a.dy_xhat + b.dy_xhat};
  }
};

template <typename F>
struct gt_term {
  F xhat, dy;
};

// xhat and dy = g * act'(y) of a few elements, from z.
struct gt_terms_of_z {
  template <int U, int W, int owned, typename T, typename F>
  __device__ static void make(const gt_pack<T, W> (&g)[U], const gt_pack<T, W> (&z)[U],
                              const gt_normal<F> (&normals)[owned], gt_index activation,
                              F parameter, gt_term<F> (&terms)[U * W]) {
    for (int i = 0; i < U * W; ++i)
      terms[i] = {gt_up(z[i / W].values[i % W]), gt_up(g[i / W].values[i % W])};
    gt_apply(activation, terms, [=](gt_index code, gt_term<F> &term) {
      term.dy = gt_activate_grad_from_output(code, term.dy, term.xhat, parameter);
      term.xhat = gt_activate_inverse(code, term.xhat, parameter);
    });
    for (int i = 0; i < U * W; ++i) {
      const gt_normal<F> &of = normals[i % owned];
      terms[i].xhat = (terms[i].xhat - of.bias) * (F(1) / of.weight);
    }
  }
};

// The same from x: for all activations.
struct gt_terms_of_x {
  template <int U, int W, int owned, typename T, typename F>
  __device__ static void make(const gt_pack<T, W> (&g)[U], const gt_pack<T, W> (&x)[U],
                              const gt_normal<F> (&normals)[owned], gt_index activation,
                              F parameter, gt_term<F> (&terms)[U * W]) {
    for (int i = 0; i < U * W; ++i) {
      const gt_normal<F> &of = normals[i % owned];
      const F xhat = (gt_up(x[i / W].values[i % W]) - of.mean) * (F(1) / of.deviation);
      terms[i] = {xhat * of.weight + of.bias, gt_up(g[i / W].values[i % W])};  // y, for now
    }
    gt_apply(activation, terms, [=](gt_index code, gt_term<F> &term) {
      term.dy = gt_activate_grad(code, term.dy, term.xhat, parameter);
    });
    for (int i = 0; i < U * W; ++i) {
      const gt_normal<F> &of = normals[i % owned];
      terms[i].xhat = (gt_up(x[i / W].values[i % W]) - of.mean) * (F(1) / of.deviation);
    }
  }
};

template <typename F>
__device__ inline void gt_write_sums(const gt_sums<F> &total, F *sum_dy, F *sum_dy_xhat,
                                     gt_index channel) {
  sum_dy[channel] = total.dy;
  sum_dy_xhat[channel] = total.dy_xhat;
}

// Adds the first `count` terms: that of number i to sums[i % owned].
template <int N, int owned, typename F>
__device__ inline void gt_add(gt_sums<F> (&sums)[owned], const gt_term<F> (&terms)[N], int count) {
  for (int i = 0; i < N; ++i)
    if (i < count) {
      sums[i % owned].dy += terms[i].dy;
      sums[i % owned].dy_xhat += terms[i].dy * terms[i].xhat;
    }
}

// dx = weight / deviation * (dy - means.dy - xhat * means.dy_xhat) of a few elements, over packs.
template <int U, int W, int owned, typename T, typename F>
__device__ inline void gt_dx(gt_pack<T, W> (&packs)[U], const gt_term<F> (&terms)[U * W],
                             const gt_normal<F> (&normals)[owned],
                             const gt_sums<F> (&means)[owned]) {
  for (int i = 0; i < U * W; ++i) {
    const int p = i % owned;
    const F centred = terms[i].dy - (means[p].dy + terms[i].xhat * means[p].dy_xhat);
    packs[i / W].values[i % W] =
        gt_down<T>(centred * (normals[p].weight / normals[p].deviation));
  }
}

// ------------------------------------------------------------------------------- x, rebuilt from z
template <int U, int W, int owned, typename T, typename F>
__device__ inline void gt_rebuilt(gt_pack<T, W> (&packs)[U], const gt_normal<F> (&normals)[owned],
                                  gt_index activation, F parameter) {
  F y[U * W];
  for (int i = 0; i < U * W; ++i) y[i] = gt_up(packs[i / W].values[i % W]);
  gt_apply(activation, y, [=](gt_index code, F &value) {
    value = gt_activate_inverse(code, value, parameter);
  });
  for (int i = 0; i < U * W; ++i) {
    const gt_normal<F> &of = normals[i % owned];
    packs[i / W].values[i % W] =
        gt_down<T>((y[i] - of.bias) * (of.deviation / of.weight) + of.mean);
  }
}

// ------------------------------------------------------------------------------------------ phases
template <typename Walk, typename T, typename F>
__device__ inline void gt_statistics(const Walk &walk, const T *x, F *mean, F *var,
                                     gt_moments<F> *partials, unsigned *tickets, gt_index c,
                                     gt_moments<F> *cells) {
  constexpr int W = Walk::width, U = 4;
  gt_moments<F> moments[Walk::owned] = {};
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U];
    gt_load(x, offsets, count, packs);
    gt_add(moments, packs, count);
  });
  if (gt_gather(walk, moments, partials, tickets, c, cells, gt_combine_moments()))
    for (int p = 0; p < Walk::owned; ++p) {
      mean[walk.channel + p] = gt_mean(moments[p]);
      var[walk.channel + p] = gt_variance(moments[p]);
    }
}

template <typename Walk, typename T, typename F>
__device__ inline void gt_forward(const Walk &walk, const T *x,
                                  const gt_normal<F> (&normals)[Walk::owned], T *z,
                                  gt_index activation, F parameter, gt_range<F> range) {
  constexpr int W = Walk::width, U = gt_steps_at_once<W>;
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U];
    gt_load(x, offsets, count, packs);
    gt_activated(packs, normals, activation, parameter, range);
    gt_store(z, offsets, count, packs);
  });
}

template <typename Walk, typename T, typename F>
__device__ inline void gt_input(const Walk &walk, const T *z,
                                const gt_normal<F> (&normals)[Walk::owned], T *x,
                                gt_index activation, F parameter) {
  constexpr int W = Walk::width, U = gt_steps_at_once<W>;
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U];
    gt_load(z, offsets, count, packs);
    gt_rebuilt(packs, normals, activation, parameter);
    gt_store(x, offsets, count, packs);
  });
}

// `saved` is z or x, as Terms wants it.
template <typename Terms, typename Walk, typename T, typename F>
__device__ inline void gt_reduce(Terms, const Walk &walk, const T *g, const T *saved,
                                 const gt_normal<F> (&normals)[Walk::owned], F *sum_dy,
                                 F *sum_dy_xhat, gt_sums<F> *partials, unsigned *tickets,
                                 gt_index c, gt_index activation, F parameter, gt_sums<F> *cells) {
  constexpr int W = Walk::width, U = gt_steps_at_once<W>, N = U * W;
  gt_sums<F> total[Walk::owned] = {};
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U], gradients[U];
    gt_load(saved, offsets, count, packs);
    gt_load(g, offsets, count, gradients);
    gt_term<F> terms[N];
    Terms::make(gradients, packs, normals, activation, parameter, terms);
    gt_add(total, terms, count * W);
  });
  if (gt_gather(walk, total, partials, tickets, c, cells, gt_combine_sums()))
    for (int p = 0; p < Walk::owned; ++p)
      gt_write_sums(total[p], sum_dy, sum_dy_xhat, walk.channel + p);
}

// partials, or NULL: what `parts` blocks of gt_reduce found. The first block of a channel writes
// its sums, that of the weight for the number that the weight is made of.
template <typename Terms, typename Walk, typename T, typename F>
__device__ inline void gt_backward(Terms, const Walk &walk, const T *g, const T *saved,
                                   const gt_normal<F> (&normals)[Walk::owned], F *sum_dy,
                                   F *sum_dy_xhat, double values, T *dx, gt_index c,
                                   gt_index activation, F parameter, const gt_sums<F> *partials,
                                   gt_index parts, gt_sums<F> *cells) {
  constexpr int W = Walk::width, U = gt_steps_at_once<W>, N = U * W;
  gt_sums<F> means[Walk::owned] = {};
  if (partials) {
    gt_collect(walk, means, partials, parts, c, cells, gt_combine_sums());
    if (walk.chunk == 0 && walk.lane == 0 && walk.inside(c))
      for (int p = 0; p < Walk::owned; ++p) {
        const gt_sums<F> total = {means[p].dy, means[p].dy_xhat * normals[p].slope};
        gt_write_sums(total, sum_dy, sum_dy_xhat, walk.channel + p);
      }
  } else if (sum_dy && walk.inside(c)) {
    for (int p = 0; p < Walk::owned; ++p)
      means[p] = {sum_dy[walk.channel + p], sum_dy_xhat[walk.channel + p]};
  }
  for (int p = 0; p < Walk::owned; ++p)
    means[p] = values > 0 ? gt_sums<F>{means[p].dy / F(values), means[p].dy_xhat / F(values)}
                          : gt_sums<F>{F(0), F(0)};
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U], gradients[U];
    gt_load(saved, offsets, count, packs);
    gt_load(g, offsets, count, gradients);
    gt_term<F> terms[N];
    Terms::make(gradients, packs, normals, activation, parameter, terms);
    gt_dx(packs, terms, normals, means);
    gt_store(dx, offsets, count, packs);
  });
}

// ----------------------------------------------------------------------------------------- on chip
// A block holds all of a channel in `kept`, so that two phases are in one launch. A thread reads
// back only what it has put there itself: no barrier but those of the reduction.

template <typename Walk, typename T, typename F>
__device__ inline void gt_forward_on_chip(const Walk &walk, const T *x, F *mean, F *var,
                                          const F *weight, const F *bias, T *z, double eps,
                                          bool absolute, gt_index activation, F parameter,
                                          gt_range<F> range, const gt_running<F> &running, T *kept,
                                          gt_moments<F> *cells) {
  constexpr int W = Walk::width, V = gt_steps_at_once<W>, U = 2 * V;
  gt_moments<F> moments[1] = {};
  gt_places<W, U> places;
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U];
    gt_load(x, offsets, count, packs);
    gt_add(moments, packs, count);
    gt_store(kept, places.at, count, packs);
    places.next();
  });
  walk.reduce(moments, cells, gt_combine_moments());
  const F average = gt_mean(moments[0]), variance = gt_variance(moments[0]);
  if (threadIdx.x == 0) {
    mean[walk.channel] = average;
    var[walk.channel] = variance;
    running.move(walk.channel, average, variance);
  }
  const gt_normal<F> normal[1] = {
      gt_normal_of(average, variance, weight, bias, walk.channel, eps, absolute)};
  gt_places<W, V> again;
  gt_walk<V>(walk, [&](const gt_index (&offsets)[V], int count) {
    gt_pack<T, W> packs[V];
    gt_load(kept, again.at, count, packs);
    gt_activated(packs, normal, activation, parameter, range);
    gt_store(z, offsets, count, packs);
    again.next();
  });
}

// kept: both arrays, n * s elements of each.
template <typename Terms, typename Walk, typename T, typename F>
__device__ inline void gt_backward_on_chip(Terms, const Walk &walk, const T *g, const T *saved,
                                           const gt_normal<F> (&normals)[1], F *sum_dy,
                                           F *sum_dy_xhat, T *dx, gt_index n, gt_index s,
                                           gt_index activation, F parameter, bool training,
                                           T *kept, gt_sums<F> *cells) {
  constexpr int W = Walk::width, U = gt_steps_at_once<W>, N = U * W;
  T *const gradient = kept + n * s;  // aligned: whole packs come before
  gt_sums<F> total[1] = {};
  gt_places<W, U> places;
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U], gradients[U];
    gt_load(saved, offsets, count, packs);
    gt_load(g, offsets, count, gradients);
    gt_store(kept, places.at, count, packs);
    gt_store(gradient, places.at, count, gradients);
    places.next();
    gt_term<F> terms[N];
    Terms::make(gradients, packs, normals, activation, parameter, terms);
    gt_add(total, terms, count * W);
  });
  walk.reduce(total, cells, gt_combine_sums());
  if (threadIdx.x == 0) {
    sum_dy[walk.channel] = total[0].dy;
    sum_dy_xhat[walk.channel] = total[0].dy_xhat * normals[0].slope;
  }
  const F share = training ? F(1) / F(n * s) : F(0);
  const gt_sums<F> means[1] = {{total[0].dy * share, total[0].dy_xhat * share}};
  gt_places<W, U> again;
  gt_walk<U>(walk, [&](const gt_index (&offsets)[U], int count) {
    gt_pack<T, W> packs[U], gradients[U];
    gt_load(kept, again.at, count, packs);
    gt_load(gradient, again.at, count, gradients);
    again.next();
    gt_term<F> terms[N];
    Terms::make(gradients, packs, normals, activation, parameter, terms);
    gt_dx(packs, terms, normals, means);
    gt_store(dx, offsets, count, packs);
  });
}
