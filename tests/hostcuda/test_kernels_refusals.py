"""What NVRTC, ptxas and a card refuse, and what belongs to it: static shared memory, constants."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from gtensor.hostcuda.kernels import compiler
from gtensor.hostcuda.kernels.compiler import CompileError, NoImageForDevice

from .kernel_module import Fault, Module


@pytest.mark.parametrize(("source", "said"), [
    ("__constant__ float scale; __global__ void f() { scale = 2; }", "read-only"),
    ("__constant__ int x; template <class T> __global__ void f(T *) { x = T(1); } "
     "template __global__ void f(int *);", "read-only"),
    ("namespace n { __constant__ int x = 4; } __global__ void f() { ++n::x; }", "read-only"),
    ('#include <stdlib.h>\n__global__ void f(char *x) { *x = *getenv("HOME"); }',
     "Unresolved extern symbol 'getenv'"),
    ("__device__ int other(int); __global__ void f(int *x) { *x = other(*x); }",
     r"Unresolved extern symbol 'other\(int\)'"),
    ("""__device__ float turned(float x) {
      __shared__ float cells[12000];
      cells[threadIdx.x] = x;
      __syncthreads();
      return cells[threadIdx.x ^ 1];
    }
    extern "C" __global__ void f(float *x) {
      __shared__ float mine[289];
      mine[threadIdx.x] = *x;
      __syncthreads();
      *x = turned(mine[threadIdx.x ^ 1]);
    }""", r"Entry function 'f' uses too much shared data \(0xc004 bytes, 0xc000 max\)"),
    ("""extern "C" __global__ void f(float *x) {
      __shared__ __align__(256) float cells[20000];
      cells[threadIdx.x] = *x;
      __syncthreads();
      *x = cells[threadIdx.x ^ 1];
    }""", "uses too much shared data"),
])
def test_what_cannot_be_on_a_device_is_refused(source: str, said: str) -> None:
    with pytest.raises(CompileError, match=said):
        compiler.compile(source)


@pytest.mark.parametrize("source", [
    "__constant__ float w[4]; __global__ void f() { float *p = w; *p = 2; w[1] = 2; }",
    "__constant__ float w; __global__ void f() { float *p = &w, &r = w; *p = r; *&w = 2; }",
    """__constant__ float w; __device__ float at(float *p, int i) { return p[i]; }
       __global__ void f(float *x) { *x = at(&w, 0); }""",
    """struct S { float a; __device__ float get() { return a; } }; __constant__ S s;
       __global__ void f(float *x) { *x = s.get(); s.a = 1; s = S(); }""",
    """__constant__ float s;
       template <class T> __device__ T sum(T *p) { T s = 0; s += *p; return s; }
       __global__ void f(float *x) { *x = sum(&s); }""",
    """template <int N> __device__ int length(float (&a)[N]) { return N; } __constant__ float w[4];
       __global__ void f(float *x) { *x = length(w) + reinterpret_cast<float4 *>(w)->x; }""",
    """#define KERNEL __global__ void
       __constant__ float w; KERNEL f() { float *p = &w; *p = 2; }""",
    """static __device__ __align__(128) float t[20000];
       extern "C" __global__ void f(float *x) { t[threadIdx.x] = *x; x[1] = t[5]; }""",
])
def test_what_nvrtc_takes_is_not_refused(source: str) -> None:
    """Asked of NVRTC 13.0: where a kernel writes so to constant memory, it warns."""
    compiler.compile(source)


SHARED = """
template <typename T> __device__ T turned(T x) {
  __shared__ T cells[5000];
  cells[threadIdx.x] = x;
  __syncthreads();
  return cells[threadIdx.x ^ 1];
}
template <typename T> __global__ void turn(T *x) { *x = turned(*x); }
extern "C" __global__ void large(float *x) {
  __shared__ float cells[12288];
  cells[threadIdx.x] = *x;
  __syncthreads();
  *x = cells[threadIdx.x ^ 1];
}
extern "C" __global__ void none(float *x) { *x = 1; }
"""


def test_static_shared_memory_is_counted_by_kernel() -> None:
    module = Module(SHARED, names=("turn<float>", "turn<double>"))
    assert {name: kernel.contents.static_shared_bytes for name, kernel in module.kernels.items()
            } == {"turn<float>": 20000, "turn<double>": 40000, "large": 49152, "none": 0}


@pytest.mark.parametrize("pointed", ["const double *p = &wide;", "double *p = &wide;"])
def test_the_host_writes_to_constants(pointed: str) -> None:
    module = Module("""
    __constant__ float bare[4];
    static __constant__ __align__(16) int given[] = {1, 2, 3};
    static __device__ __constant__ double wide = 4;
    namespace inner { __constant__ int square[2][2] = {{1, 2}, {3, 4}}; }
    extern "C" __global__ void f(double *x) {
      POINTED
      x[0] = bare[1]; x[1] = given[2]; x[2] = *p; x[3] = inner::square[1][1];
      x[4] = sizeof given + sizeof inner::square;
    }""".replace("POINTED", pointed), names=("&inner::square",))
    x = np.zeros(5)
    module.launch("f", (1,), (1,), (x,))
    assert x.tolist() == [0, 3, 4, 4, 28]
    for name, at, ctype in (("bare", 1, ctypes.c_float), ("given", 2, ctypes.c_int),
                            ("wide", 0, ctypes.c_double),
                            (module.compiled.lowered["&inner::square"], 3, ctypes.c_int)):
        (ctype * (at + 1)).in_dll(module.library, name)[at] = 100 + at
    module.launch("f", (1,), (1,), (x,))
    assert x.tolist() == [101, 102, 100, 103, 28]


def test_assert_is_cudas_where_its_header_is_included() -> None:
    module = Module("""#include <assert.h>
    #include <cassert>
    extern "C" __global__ void f(float *x) { assert(*x); }""")
    with pytest.raises(Fault, match=r"assertion `\*x' failed at kernel.cu:3"):
        module.launch("f", (1,), (1,), (np.zeros(1, np.float32),))


@pytest.mark.parametrize(("architecture", "suits"), [
    ("sm_90", True), ("sm_80", False), ("sm_100", False), ("sm_90a", True), ("compute_90", True),
    ("compute_75", True), ("compute_100f", False), ("compute_100", False), ("sm_86", False),
])
def test_an_image_is_for_some_cards(architecture: str, suits: bool) -> None:
    image = compiler.compile("", [f"-arch={architecture}"]).image
    if suits:
        compiler.load(image, 90)
    else:
        with pytest.raises(NoImageForDevice, match=f"{architecture}; the device is an sm_90$"):
            compiler.load(image, 90)


@pytest.mark.parametrize("architecture", ["compute_30", "sm_50", "sm_123", "compute_80a", "sm_90f"])
def test_architectures_are_those_of_nvrtc(architecture: str) -> None:
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        compiler.compile("", [f"-arch={architecture}"])


def test_a_later_minor_version_runs_earlier_machine_code() -> None:
    image = compiler.compile("", ["-arch=sm_80"]).image
    assert compiler.load(image, 86) == compiler.load(image)


@pytest.mark.host_cuda
def test_static_and_dynamic_shared_memory_have_one_limit(cupy: Any) -> None:
    kernel = cupy.RawKernel(SHARED, "large")
    x = cupy.ones(1, cupy.float32)
    kernel((1,), (1,), (x,))
    assert kernel.shared_size_bytes == 49152
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="INVALID_VALUE"):
        kernel((1,), (1,), (x,), shared_mem=4)
    kernel.max_dynamic_shared_size_bytes = 4
    kernel((1,), (1,), (x,), shared_mem=4)
    cupy.cuda.Device().synchronize()


@pytest.mark.host_cuda
def test_a_module_for_another_card_is_not_loaded(cupy: Any) -> None:
    image = compiler.compile('extern "C" __global__ void f() {}', ["-arch=sm_100"]).image
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="NO_BINARY_FOR_GPU"):
        cupy.cuda.function.Module().load(image)
