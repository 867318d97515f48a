// Where the elements of one step of a recurrent layer lie.
//
// Layout: contiguous; gates (lead, steps, rows, 4 * width), states (lead, places, rows, width) with a
// place for the initial state: behind the steps if `reverse`, else before them. Element e counts
// over (lead, rows, width).
// Traffic: none.
#pragma once

#include "number.cuh"

struct gt_sequence {
  gt_index steps, rows, width, step, reverse;

  // The first of an element's four gates, which are `width` apart.
  __device__ gt_index gates(gt_index e) const {
    const gt_index row = e / width;
    return ((row / rows * steps + step) * rows + row % rows) * 4 * width + e % width;
  }

  // The element at a place of states.
  __device__ gt_index state(gt_index e, gt_index places, gt_index place) const {
    const gt_index each = rows * width;
    return (e / each * places + place) * each + e % each;
  }

  __device__ gt_index before() const { return step + reverse; }  // of the state that is read
  __device__ gt_index after() const { return step + 1 - reverse; }  // of the one that is made
};
