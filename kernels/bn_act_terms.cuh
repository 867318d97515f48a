// The arithmetic of bn_act.cu on a few elements of a thread: moments, z, xhat and dy, dx, x.
//
// Layout: packs (bn_act_walk.cuh); value w of a pack belongs to channel w % owned of the thread.
// Traffic: none, all of it is in registers. The activation is a code of gt_activation; the branch
// over it stands outside of the loops over elements.
#pragma once

#include "activation.cuh"
#include "bn_act_walk.cuh"

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
};

template <typename F>
__device__ inline gt_normal<F> gt_normal_of(F mean, F var, const F *weight, const F *bias,
                                            gt_index channel, double eps) {
  return {mean, sqrt(var + F(eps)), weight ? weight[channel] : F(1), bias ? bias[channel] : F(0)};
}

// The numbers of the channels of a thread.
template <typename Walk, typename F>
struct gt_normals {
  gt_normal<F> of[Walk::owned];
  __device__ gt_normals(const Walk &walk, const F *mean, const F *var, const F *weight,
                        const F *bias, gt_index c, double eps) {
    for (int p = 0; p < Walk::owned; ++p) {
      const gt_index at = walk.inside(c) ? walk.channel + p : 0;
      of[p] = gt_normal_of(mean[at], var[at], weight, bias, at, eps);
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
__device__ inline void gt_write_sums(const gt_sums<F> &total, F *sums, gt_index c,
                                     gt_index channel) {
  sums[channel] = total.dy;
  sums[c + channel] = total.dy_xhat;
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
