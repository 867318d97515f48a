"""Mutations of layouts, 0-d tensors and derivatives of every order; see `plants.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gtensor.backend import compiled, cuda_memory
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.tape.op import registry
from gtensor.ops.arrange import shape
from gtensor.ops.attention import whole_matrices
from gtensor.ops.define import formula_numpy, path_builders, rows, updates
from gtensor.ops.linalg import decompositions, singular_values

from .plants import Context


def ufuncs_trusted() -> Context:
    """NumPy's `negative` writes strided buffers itself, which is wrong from NumPy 2.2 on"""
    return patch.dict(path_builders.MISWRITTEN, clear=True)


def numpy_scalar_unknown() -> Context:
    """a NumPy scalar, which NumPy returns for a 0-d array, counts as a Python number"""
    return patch.object(path_builders, "_ARRAYS", (np.ndarray,))


def exponent_replaced() -> Context:
    """where the exponent b is 0, the gradient of a power has the exponent 1, not b - 1"""
    def formula(g: Any, x1: Any, x2: Any) -> Any:
        return g * (x2 * recorded.power(x1, recorded.where(recorded.equal(x2, 0), 1.0, x2 - 1)))
    return patch.object(registry["pow_grad"], "composed", formula)


def gradient_of_powers_of_0_is_0() -> Context:
    """a power of 0 by a negative exponent has the gradient 0 with respect to the exponent"""
    def formula(g: Any, x1: Any, y: Any, out: Any = None) -> Any:
        with np.errstate(all="ignore"):
            value = np.where(np.equal(x1, 0), 0.0, g * y * np.log(np.abs(x1)))
        return path_builders.settled(value, out)
    return patch.object(raw["cpu"], "pow_grad_exponent", formula)


def space_beside_ignored() -> Context:
    """gradients through the vectors beyond the singular ones are 0"""
    def first(ns: Any, u: Any, gu: Any, k: int) -> Any:
        return tuple(ns.slice(a, key=(..., slice(None, k))) for a in (u, gu))
    return patch.object(singular_values, "_gradient_of_first", first)


def signs_of_the_library() -> Context:
    """eigenvectors keep the signs of the library"""
    def kept(xp: Any, v: Any) -> Any:
        return xp.ones((*v.shape[:-2], 1, v.shape[-1]), v.dtype)
    return patch.object(decompositions, "settled_signs", kept)


def all_errors_are_of_memory() -> Context:
    """every CUDA error becomes a MemoryError"""
    @contextmanager
    def any_error(call: str, *given: Any) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise MemoryError(call) from error
    return patch.object(cuda_memory, "no_room_for", any_error)


def no_axis_0_of_0d() -> Context:
    """a 0-d tensor has no axis 0"""
    return patch.object(shape, "lone", lambda axis, ndim: False)


def dropout_begun_anew() -> Context:
    """matrices of attention behind those of a tile have the dropout of the first ones"""
    right = whole_matrices.keep_factors
    return patch.object(whole_matrices, "keep_factors", lambda device, shape, first, *more: right(
        device, shape, 0, *more))


def kernel_off() -> Context:
    """softmax by a kernel in C is too large by a hundred-thousandth"""
    _want_kernels()
    right = rows._run

    def run(name: str, arrays: tuple[Any, ...], *more: Any) -> None:
        right(name, arrays, *more)
        if name == "softmax":
            np.multiply(arrays[-1], 1.00001, out=arrays[-1])
    return patch.object(rows, "_run", run)


def next_key_seen() -> Context:
    """a query of causal attention sees the key after its own, where a kernel in C hides keys"""
    _want_kernels()
    right = rows.attention
    return patch.object(rows, "attention", lambda scores, first, *more: right(
        scores, None if first is None else first + 1, *more))


def formula_off() -> Context:
    """formulas by kernels in C are too large by a thousandth"""
    _want_kernels()
    right = formula_numpy._by_kernel

    def by_kernel(program: Any, views: list[Any], out: Any, params: Any) -> bool:
        done = right(program, views, out, params)
        np.multiply(out, 1.001, out=out)
        return done
    return patch.object(formula_numpy, "_by_kernel", by_kernel)


def name_alone() -> Context:
    """the kernel in C of gelu is found by its name alone"""
    _want_kernels()
    gelu = next(name for name in compiled.NUMBERS if re.fullmatch(r"gelu_[0-9a-f]{8}_d", name))
    right = compiled.kernel
    return patch.object(compiled, "kernel", lambda name: right(
        gelu if name.startswith("gelu_") and name.endswith("_d") else name))


def constants_old() -> Context:
    """the numbers of an update's kernel are those of the first step"""
    _want_kernels()
    right = updates._Chosen.at
    return patch.object(updates._Chosen, "at", lambda chosen, step: right(chosen, step)._replace(
        constants=chosen.constants))


def flags_unseen() -> Context:
    """flags that a kernel in C raised are not looked at"""
    _want_kernels()
    return patch.object(compiled, "report", lambda flags: None)


def _want_kernels() -> None:
    if compiled.kernel("rows_softmax_f") is None:
        pytest.skip("kernels in C were not built")
