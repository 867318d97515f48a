// The pointwise part of one step of a GRU: n = tanh(n + r * q), h = n + z * (h - n).
//
// Layout: as in recurrent.cuh; gates n, r, z, q, where q has no activation. A thread to an element
// of (lead, rows, width).
// Traffic per element: forward reads 5, writes 4; backward reads 7, writes 5.
// In place: forward overwrites the gates with their activations; backward writes into dh what
// reaches the state before past the gates, and the product that follows adds the rest.
#include "activation.cuh"
#include "half.cuh"
#include "recurrent.cuh"

template <typename T>
__global__ void gru_cell_forward(T *gates, T *hidden, gt_index size, gt_index steps, gt_index rows,
                                 gt_index width, gt_index step, gt_index reverse) {
  typedef gt_float<T> F;
  const gt_sequence at = {steps, rows, width, step, reverse};
  for (gt_index e = gt_thread(); e < size; e += gt_threads()) {
    T *gate = gates + at.gates(e);
    const F r = gt_sigmoid(gt_up(gate[width])), z = gt_sigmoid(gt_up(gate[2 * width]));
    const F n = gt_tanh(gt_up(gate[0]) + r * gt_up(gate[3 * width]));
    const F h = gt_up(hidden[at.state(e, steps + 1, at.before())]);
    hidden[at.state(e, steps + 1, at.after())] = gt_down<T>(n + z * (h - n));
    gate[0] = gt_down<T>(n);
    gate[width] = gt_down<T>(r);
    gate[2 * width] = gt_down<T>(z);
  }
}

// dh is the gradient of the state by the next step; at the `first` step that runs there is none.
template <typename T>
__global__ void gru_cell_backward(const T *g, const T *gates, const T *hidden, T *d,
                                  gt_float<T> *dh, gt_index size, gt_index steps, gt_index rows,
                                  gt_index width, gt_index step, gt_index reverse,
                                  gt_index first) {
  typedef gt_float<T> F;
  const gt_sequence at = {steps, rows, width, step, reverse};
  for (gt_index e = gt_thread(); e < size; e += gt_threads()) {
    const T *gate = gates + at.gates(e);
    T *change = d + at.gates(e);
    const F n = gt_up(gate[0]), r = gt_up(gate[width]);
    const F z = gt_up(gate[2 * width]), q = gt_up(gate[3 * width]);
    const F h = gt_up(hidden[at.state(e, steps + 1, at.before())]);
    const F made = gt_up(g[at.state(e, steps + 1, at.after())]) + (first ? F(0) : dh[e]);
    const F dn = made * (1 - z) * (1 - n * n);
    change[0] = gt_down<T>(dn);
    change[width] = gt_down<T>(dn * q * r * (1 - r));
    change[2 * width] = gt_down<T>(made * (h - n) * z * (1 - z));
    change[3 * width] = gt_down<T>(dn * r);
    dh[e] = made * z;
  }
}
