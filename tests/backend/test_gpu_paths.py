"""The GPU paths that are compositions of CuPy functions, run with NumPy in CuPy's place.

It proves names, argument order, shapes, dtypes and `out=`, not CuPy. Paths that launch a kernel
stop at `Launch`; the kernels have their own proof in tests/kernels.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

import gtensor.nn.functional  # noqa: F401  (registers its ops)
from gtensor.backend import cuda, kernels
from gtensor.core.op import registry


class Launch(Exception):
    """A kernel would have been launched here."""


def _launch(*_args, **_options):
    raise Launch


@pytest.fixture
def numpy_for_cupy(monkeypatch):
    """`cupy()` answers NumPy, and kernels raise `Launch`."""
    stand_in = types.ModuleType("cupy")
    stand_in.__dict__.update(np.__dict__)
    stand_in.ElementwiseKernel = stand_in.RawModule = stand_in.RawKernel = _launch
    monkeypatch.setitem(__import__("sys").modules, "cupy", stand_in)
    cuda.cupy.cache_clear()
    monkeypatch.setattr(kernels.Elementwise, "__call__", _launch)
    monkeypatch.setattr(kernels.Raw, "__getitem__", _launch)
    yield
    cuda.cupy.cache_clear()


def _composed():
    return [name for name, op in registry.items() if op.samples]


@pytest.mark.parametrize("name", _composed())
def test_gpu_path_equals_cpu_path(name, numpy_for_cupy):
    op, rng = registry[name], np.random.default_rng()
    compared = launched = 0
    for sample in op.samples:
        arrays = sample.arrays(rng)
        want = op.cpu(*arrays, **sample.params)
        try:
            got = op.gpu(*arrays, **sample.params)
        except Launch:
            launched += 1
            continue
        for a, b in zip(_all(want), _all(got), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)
            assert np.shape(b) == np.shape(a)
        compared += 1
    assert compared + launched == len(list(op.samples))


def _all(result):
    return result if isinstance(result, tuple) else (result,)
