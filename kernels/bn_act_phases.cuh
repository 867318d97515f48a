// The phases of batch norm + activation that bn_act.cu and bn_act_from_x.cu launch, for any walk
// (bn_act_walk.cuh). Arguments and traffic: as said there.
#pragma once

#include "bn_act_terms.cuh"
#include "bn_act_walk.cuh"

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
                                 const gt_normal<F> (&normals)[Walk::owned], F *sums,
                                 gt_sums<F> *partials, unsigned *tickets, gt_index c,
                                 gt_index activation, F parameter, gt_sums<F> *cells) {
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
    for (int p = 0; p < Walk::owned; ++p) gt_write_sums(total[p], sums, c, walk.channel + p);
}

template <typename Terms, typename Walk, typename T, typename F>
__device__ inline void gt_backward(Terms, const Walk &walk, const T *g, const T *saved,
                                   const gt_normal<F> (&normals)[Walk::owned], const F *sums,
                                   double values, T *dx, gt_index c, gt_index activation,
                                   F parameter) {
  constexpr int W = Walk::width, U = gt_steps_at_once<W>, N = U * W;
  gt_sums<F> means[Walk::owned] = {};
  if (sums && walk.inside(c))
    for (int p = 0; p < Walk::owned; ++p)
      means[p] = {sums[walk.channel + p] / F(values), sums[c + walk.channel + p] / F(values)};
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
                                          gt_index activation, F parameter, gt_range<F> range,
                                          T *kept, gt_moments<F> *cells) {
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
  }
  const gt_normal<F> normal[1] = {
      gt_normal_of(average, variance, weight, bias, walk.channel, eps)};
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
                                           const gt_normal<F> (&normals)[1], F *sums, T *dx,
                                           gt_index n, gt_index c, gt_index s, gt_index activation,
                                           F parameter, bool training, T *kept,
                                           gt_sums<F> *cells) {
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
  if (threadIdx.x == 0) gt_write_sums(total[0], sums, c, walk.channel);
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
