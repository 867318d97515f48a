// The pointwise part of one step of an LSTM: c = f * c + i * g, h = o * tanh(c).
//
// Layout: as in recurrent.cuh; gates i, f, g, o, hidden states with a place more for the last cell
// state, cell states in gt_float<T>. A thread to an element of (lead, rows, width).
// Traffic per element: forward reads 5, writes 6; backward reads 9, writes 5.
// In place: forward overwrites the gates with their activations; backward overwrites dc, and the
// product that follows it dh.
#include "activation.cuh"
#include "half.cuh"
#include "recurrent.cuh"

template <typename T>
__global__ void lstm_cell_forward(T *gates, T *hidden, gt_float<T> *cells, gt_index size,
                                  gt_index steps, gt_index rows, gt_index width, gt_index step,
                                  gt_index reverse) {
  typedef gt_float<T> F;
  const gt_sequence at = {steps, rows, width, step, reverse};
  for (gt_index e = gt_thread(); e < size; e += gt_threads()) {
    T *gate = gates + at.gates(e);
    const F i = gt_sigmoid(gt_up(gate[0])), f = gt_sigmoid(gt_up(gate[width]));
    const F g = gt_tanh(gt_up(gate[2 * width])), o = gt_sigmoid(gt_up(gate[3 * width]));
    const F c = f * cells[at.state(e, steps + 1, at.before())] + i * g;
    cells[at.state(e, steps + 1, at.after())] = c;
    hidden[at.state(e, steps + 2, at.after())] = gt_down<T>(o * gt_tanh(c));
    gate[0] = gt_down<T>(i);
    gate[width] = gt_down<T>(f);
    gate[2 * width] = gt_down<T>(g);
    gate[3 * width] = gt_down<T>(o);
  }
}

// dh is the gradient of the state by the next step; at the `first` step that runs there is none.
template <typename T>
__global__ void lstm_cell_backward(const T *g, const T *gates, const gt_float<T> *cells, T *d,
                                   const gt_float<T> *dh, gt_float<T> *dc, gt_index size,
                                   gt_index steps, gt_index rows, gt_index width, gt_index step,
                                   gt_index reverse, gt_index first) {
  typedef gt_float<T> F;
  const gt_sequence at = {steps, rows, width, step, reverse};
  for (gt_index e = gt_thread(); e < size; e += gt_threads()) {
    const T *gate = gates + at.gates(e);
    T *change = d + at.gates(e);
    const F i = gt_up(gate[0]), f = gt_up(gate[width]);
    const F c = gt_up(gate[2 * width]), o = gt_up(gate[3 * width]);
    const F curve = gt_tanh(cells[at.state(e, steps + 1, at.after())]);
    const F made = gt_up(g[at.state(e, steps + 2, at.after())]) + (first ? F(0) : dh[e]);
    const F cell = dc[e] + made * o * (1 - curve * curve);
    change[0] = gt_down<T>(cell * c * i * (1 - i));
    change[width] =
        gt_down<T>(cell * cells[at.state(e, steps + 1, at.before())] * f * (1 - f));
    change[2 * width] = gt_down<T>(cell * i * (1 - c * c));
    change[3 * width] = gt_down<T>(made * curve * o * (1 - o));
    dc[e] = cell * f;
  }
}
