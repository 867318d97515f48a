"""Elementwise kernels that compute in float where their arrays are half."""

from __future__ import annotations

from gtensor.backend.kernels import Elementwise, elementwise


def wide_kernel(
    arrays: str, expression: str, *, name: str, parameters: str = "", before: str = "",
    header: str = "number.cuh",
) -> Elementwise:
    """The kernel of one expression over arrays of one type T.

    Args:
        arrays: their names, separated by spaces. In the expression they are numbers of type F: T
            itself, or float where T is half.
        expression: CUDA C++ over these names; numbers in it are written F(0.5).
        name: what profilers show, after "gt_".
        parameters: of the op, doubles, by name; F(scale) in the expression.
        before: statements that the expression's names come from.
        header: the file of kernels/ whose functions are called.
    """
    names = arrays.split()
    inputs = [f"T {n}_given" for n in names] + [f"float64 {p}" for p in parameters.split()]
    loaded = ", ".join(f"{n} = gt_up({n}_given)" for n in names)
    body = f"typedef gt_float<T> F; const F {loaded}; {before}result = T({expression})"
    return elementwise(", ".join(inputs), "T result", body, header, f"gt_{name}")
