"""Floating point operations of ops that do more than one per element, from shapes, for profiles.

Each takes the shapes of an op's inputs, () for a missing one, and that of its output. A product and
its sum are two operations.
"""

from __future__ import annotations

from math import isqrt, log2, prod

Shape = tuple[int, ...]


def of_input(x: Shape, *others: Shape) -> int:
    """One per element of the first input: reductions."""
    return prod(x)


def of_product(x1: Shape, *others: Shape) -> int:
    """x1 (..., inner) @ x2: a multiplication and an addition for each term."""
    return 2 * prod(others[-1]) * (x1[-1] if x1 else 1)


def of_gemm(c: Shape, a: Shape, b: Shape, out: Shape) -> int:
    """The product of two matrices, either of which may be transposed, plus c."""
    inner = isqrt(prod(a[-2:]) * prod(b[-2:]) // max(1, prod(out[-2:])))
    return 2 * prod(out) * inner


def of_vecdot(x1: Shape, x2: Shape, out: Shape) -> int:
    """The sum of products along the last axis."""
    return 2 * prod(out) * max(x1[-1], x2[-1])


def of_summed_product(x1: Shape, x2: Shape, out: Shape) -> int:
    """x1 (..., m, inner) @ x2 (..., inner, n), summed over leading axes."""
    return 2 * max(prod(x1) * x2[-1], prod(x2) * x1[-2])


def of_weight_gradient(g: Shape, x: Shape, out: Shape) -> int:
    """g (..., out) and x (..., in), summed over leading axes."""
    return 2 * prod(g) * x[-1]


def of_feed_forward(x: Shape, weight1: Shape, bias1: Shape, weight2: Shape, *others: Shape) -> int:
    """Two linear maps, one after the other."""
    return 2 * prod(x[:-1]) * (prod(weight1) + prod(weight2))


def of_convolution(x: Shape, weight: Shape, *others: Shape) -> int:
    """x (N, C, *size) and weight (O, C / groups, *kernel)."""
    return 2 * prod(others[-1]) * prod(weight[1:])


def of_transposed_convolution(g: Shape, weight: Shape, *others: Shape) -> int:
    """g (N, O, *size) and weight (O, C / groups, *kernel)."""
    return 2 * prod(g) * prod(weight[1:])


def of_convolution_weight(g: Shape, x: Shape, out: Shape) -> int:
    """g (N, O, *size), for the weight (O, C / groups, *kernel)."""
    return 2 * prod(g) * prod(out[1:])


def of_attention(q: Shape, k: Shape, v: Shape, *others: Shape) -> int:
    """q (..., S, D) with k (..., T, D), then with v (..., T, E); masked scores count."""
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def of_packed_attention(packed: Shape, out: Shape) -> int:
    """Of an output (..., T, heads, D)."""
    length, heads, features = out[-3:]
    by_head = (*out[:-3], heads, length, features)
    return of_attention(by_head, by_head, by_head)


def of_lstm(x: Shape, h0: Shape, c0: Shape, w_ih: Shape, w_hh: Shape, *others: Shape) -> int:
    """The products with both weights, of each row of x (..., T, N, in)."""
    return 2 * prod(x[:-1]) * (prod(w_ih[-2:]) + prod(w_hh[-2:]))


def of_gru(x: Shape, h0: Shape, w_ih: Shape, w_hh: Shape, *others: Shape) -> int:
    """As `of_lstm`."""
    return 2 * prod(x[:-1]) * (prod(w_ih[-2:]) + prod(w_hh[-2:]))


def of_transform(x: Shape, out: Shape) -> int:
    """5 n log2 n of complex values, as in FFTW's benchmarks, over all axes as one."""
    size = max(prod(x), prod(out))
    return int(5 * size * log2(size)) if size > 1 else 0
