"""A program for the host device: kernels that CuPy generates, and gtensor's own, against NumPy.

It runs its functions named check_*, and prints what each of them raised as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import cupy
import cupyx
import ml_dtypes
import numpy as np
from cupy._core import _accelerator
from cupyx.scipy import special

from gtensor.backend import kernels

RNG = np.random.default_rng(7)
TYPES = {
    "short": ("?", "B", "i", "e", "f", "d", "F"),
    "long": ("b", "h", "H", "I", "l", "L", "q", "Q", "D"),
}


def close(given: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """Equal but for rounding, with the dtype that NumPy gives."""
    assert given.dtype == wanted.dtype, (given.dtype, wanted.dtype)
    np.testing.assert_allclose(
        cupy.asnumpy(given).astype(np.complex128), np.asarray(wanted).astype(np.complex128),
        rtol=2e-3 if wanted.dtype == np.float16 else tolerance, atol=tolerance,
    )


def sample(code: str, shape: tuple[int, ...]) -> np.ndarray:
    values = RNG.integers(1, 5, shape).astype(code)  # sums are exact in every type and order
    return values * np.array(1 + 1j, code) if code in "FD" else values


@contextlib.contextmanager
def accelerators(*names: str) -> Iterator[None]:
    before = _accelerator.get_reduction_accelerators(), _accelerator.get_routine_accelerators()
    _accelerator.set_reduction_accelerators(names)
    _accelerator.set_routine_accelerators([])
    try:
        yield
    finally:
        _accelerator.set_reduction_accelerators(before[0])
        _accelerator.set_routine_accelerators(before[1])


def check_elementwise(codes: tuple[str, ...]) -> None:
    """Broadcast, strided, of no dimension and of four."""
    for code in codes:
        x, y, z = sample(code, (7, 5)), sample(code, (5,)), sample(code, (2, 1, 3, 2))
        a, b, c = cupy.asarray(x), cupy.asarray(y), cupy.asarray(z)
        close(a + b, x + y)
        close(a[::2, ::-1] * b[::-1], x[::2, ::-1] * y[::-1])
        close(c.transpose(3, 1, 0, 2) * a[0, 0], z.transpose(3, 1, 0, 2) * x[0, 0])
        close(a.astype("f"), x.astype("f").real)


def check_reductions(codes: tuple[str, ...]) -> None:
    with accelerators():
        for code in codes:
            x = sample(code, (33, 40))
            a = cupy.asarray(x)
            close(a.sum(0), x.sum(0))
            close(a[::3].max(), x[::3].max())
            close(a.argmin(1), x.argmin(1))


def check_block_reductions_of_cub(codes: tuple[str, ...]) -> None:
    with accelerators("cub"):
        for code in codes:
            x = sample(code, (3, 1100))
            a = cupy.asarray(x)
            close(a.sum(1), x.sum(1))
            close(a.sum(), x.sum())
            close(a.argmax(), x.argmax())


def check_bfloat16(_: Any) -> None:
    x = RNG.standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    a = cupy.asarray(x)
    close(a[:, ::2] * a[:, 1::2], x[:, ::2] * x[:, 1::2], 1e-2)
    close(cupy.exp(a).astype("f"), np.exp(x).astype("f"), 1e-2)


def check_users_kernels(_: Any) -> None:
    reverse = cupy.ElementwiseKernel(
        "raw T x, float64 y", "T z", "z = x[_ind.size() - 1 - i] + y", "reverse")
    close(reverse(cupy.arange(5.0), 1, size=5), np.arange(5.0)[::-1] + 1)
    dot = cupy.ReductionKernel("T x, T y", "T z", "x * y", "a + b", "z = a", "0", "dot")
    close(dot(cupy.arange(600.0), cupy.arange(600.0)), np.arange(600.0) @ np.arange(600.0))
    module = cupy.RawModule(code=r"""
    #include <cupy/complex.cuh>
    __constant__ float scale[4];
    __device__ int count;
    template <typename T> __global__ void __launch_bounds__(256) multiply(T *x, const T *y) {
      x[threadIdx.x] *= y[threadIdx.x] * T(scale[1]);
      atomicAdd(&count, 1);
    }
    """, name_expressions=["multiply<complex<double>>", "multiply<float>"])
    scale = cupy.ndarray((4,), "f", module.get_global("scale"))
    scale[:] = cupy.arange(4, dtype="f") + 1
    x = np.arange(8) + 1j
    a = cupy.asarray(x)
    kernel = module.get_function("multiply<complex<double>>")
    kernel((1,), (8,), (a, a.copy()))
    close(a, x * x * 2)
    assert cupy.ndarray((1,), "i", module.get_global("count"))[0] == 8
    assert kernel.max_threads_per_block == 256


def check_a_module_twice_has_its_variables_twice(_: Any) -> None:
    code = '__device__ int count; extern "C" __global__ void add() { atomicAdd(&count, 1); }'
    found = []
    for times in (3, 5):
        module = cupy.RawModule(code=code, options=(f"-DTIMES={times}",))
        for _ in range(times):
            module.get_function("add")((1,), (1,), ())
        found.append(int(cupy.ndarray((1,), "i", module.get_global("count"))[0]))
    assert found == [3, 5]


def check_atomics(_: Any) -> None:
    at = RNG.integers(0, 7, 500)
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.uint64, np.int64):
        x, wanted = np.ones(500, dtype), np.bincount(at, minlength=7).astype(dtype)
        y = cupy.zeros(7, dtype)
        cupyx.scatter_add(y, cupy.asarray(at), cupy.asarray(x))
        close(y, wanted)
    y = cupy.zeros(7, np.float32)
    cupyx.scatter_max(y, cupy.asarray(at), cupy.asarray(at.astype("f")))
    close(y, np.arange(7, dtype="f"))


def check_special_functions(_: Any) -> None:
    import scipy.special

    x = np.array([0.1, 0.5, 0.9])
    for name in ("erfinv", "erfcinv", "gamma", "ndtri", "i0", "j0", "erfcx", "digamma"):
        close(getattr(special, name)(cupy.asarray(x)), getattr(scipy.special, name)(x), 1e-10)


def check_own_kernels(_: Any) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = RNG.standard_normal((3, 70)).astype(getattr(ml_dtypes, dtype, dtype))
        a, y = cupy.asarray(x), cupy.empty_like(cupy.asarray(x))
        grid, block = kernels.row_launch(3)
        kernels.raw("softmax.cu", "softmax_forward")[x.dtype](grid, block, (a, y, 3, 70))
        e = np.exp(x.astype("d"))
        np.testing.assert_allclose(cupy.asnumpy(y).astype("d"), e / e.sum(1, keepdims=True),
                                   rtol=1e-2 if x.dtype.itemsize == 2 else 1e-6)
        square = kernels.elementwise("T x", "T y", "y = x * x")
        close(square(a), x * x, 1e-2 if dtype == "bfloat16" else 1e-6)


def check_what_does_not_compile_is_said(_: Any) -> None:
    for body, said in (("missing(x)", "'missing' was not declared"), ('asm("ret;")', "inline PTX")):
        kernel = cupy.RawKernel(f'extern "C" __global__ void f(float *x) {{ {body}; }}', "f")
        try:
            kernel((1,), (1,), (cupy.zeros(1, "f"),))
        except cupy.cuda.compiler.CompileException as error:
            assert said in str(error), str(error)
        else:
            raise AssertionError(f"{body} was compiled")


def main() -> None:
    codes = TYPES[sys.argv[1]]
    results = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check(codes)
                results[name] = ""
            except BaseException:
                results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
