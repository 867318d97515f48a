"""CUDA texts through the kernel compiler and the fiber library, by ctypes."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from gtensor.hostcuda.build import locked
from gtensor.hostcuda.kernels import compiler, text
from gtensor.hostcuda.kernels.compiler import CompileError

from .kernel_module import Fault, Module, guarded

SCHEDULES = (0, 1, 20, 21)

BASICS = r"""
#define SIZE 4
#define KERNEL(type) extern_##type
__constant__ float scale[SIZE];
__device__ int calls;
__device__ __align__(16) double wide = 2;
extern __shared__ float outside[];

// A comment with __global__ void nothing() { and "a quote
__device__ const char *words() { return "__global__ void none() {"; }
extern "C" __global__ void declared(float *x);

template <typename T, int by = SIZE>
__global__ void __launch_bounds__(256) multiply(T *x, const T *y) {
  x[threadIdx.x] *= y[threadIdx.x] * T(by);
  atomicAdd(&calls, 1);
}

namespace inner {
__global__ void mangled(int *x, short step) { x[threadIdx.x] = threadIdx.x * step; }
}

extern "C" {
__global__ __launch_bounds__(64, 2) void declared(float *x) {
  extern __shared__ __align__(16) float cells[];
  cells[threadIdx.x] = x[threadIdx.x] * scale[1];
  __syncthreads();
  x[threadIdx.x] = outside[blockDim.x - 1 - threadIdx.x];
}
}

struct Pair { double a; char b; };
template <typename T> __device__ T by_value(T x) { return x; }
extern "C" __global__ void by_value(Pair pair, double *x) { *x = pair.a + pair.b + wide; }
"""


@pytest.fixture(scope="module")
def basics() -> Module:
    return Module(BASICS, ("-std=c++14", "-arch=sm_90"), ("multiply<float>", "multiply<double, 2>",
                                                          "&inner::mangled"))


def test_kernels_have_the_names_that_cuda_gives_them(basics: Module) -> None:
    bounds = {name: kernel.contents.max_threads for name, kernel in basics.kernels.items()}
    assert bounds == {
        "_ZN5inner7mangledEPis": 1024, "declared": 64, "by_value": 1024, "multiply<float>": 256,
        "multiply<double, 2>": 256,
    } | {basics.compiled.lowered["&inner::mangled"]: 1024}


def test_templates_variables_and_shared_memory(basics: Module) -> None:
    x, y = np.arange(5.0), np.arange(5.0) + 1
    basics.launch("multiply<double, 2>", (1,), (5,), (x, y))
    assert x.tolist() == (np.arange(5) * (np.arange(5) + 1) * 2).tolist()
    assert ctypes.c_int.in_dll(basics.library, "calls").value == 5
    (ctypes.c_float * 4).in_dll(basics.library, "scale")[1] = 3
    z = np.arange(6, dtype=np.float32)
    for schedule in SCHEDULES:
        before = z.copy()
        basics.launch("declared", (1,), (6,), (z,), shared=24, schedule=schedule)
        assert z.tolist() == (before[::-1] * 3).tolist()
    basics.launch("by_value", (1,), (1,), (np.float64(1).tobytes() + b"\2" + bytes(7), x))
    assert x[0] == 5


def test_macros_may_stand_for_kernels() -> None:
    module = Module("""
    #include "shift.h"
    #define KERNEL(type) extern "C" __global__ void add_##type(type *x) { *x += SHIFT; }
    KERNEL(int)
    #if __CUDA_ARCH__ >= 900
    KERNEL(double)
    #endif
    """, ("--gpu-architecture=compute_90",), headers={"shift.h": "#define SHIFT 7"})
    assert [*module.kernels] == ["add_int", "add_double"]
    x = np.zeros(1)
    module.launch("add_double", (1,), (1,), (x,))
    assert x[0] == 7


@pytest.mark.parametrize(("source", "options", "names", "said"), [
    ('extern "C" __global__ void f() { missing(1); }', (), (), "'missing' was not declared"),
    ('extern "C" __global__ void f(float *x) { *x = __fadd_rd(*x, 1); }', (), (),
     "'__fadd_rd' was not declared"),
    ('\n__device__ int f() { asm volatile("mov"); }', (), (), "line 2: inline PTX"),
    ("#include <cooperative_groups.h>", (), (), "cooperative groups: the host device"),
    ("template <typename T> __global__ void f(T *) {}", (), ("g<int>",), "'g' was not declared"),
    ("", ("--fancy",), (), "unrecognized option '--fancy'"),
    ("", ("-dlto",), (), "links no device code"),
    ("", ("-std=c++98",), (), "invalid value for -std"),
    ("", ("-arch", "sm_x"), (), "invalid value for --gpu-architecture"),
    ("__device__ void f(float *x) { atomicSub(x, 1); }", (), (), "no matching function"),
    ("__device__ int f(long double x) { return __shfl_sync(1u, Pair(), 0); }", (), (), "Pair"),
])
def test_what_does_not_compile_is_said(
    source: str, options: tuple[str, ...], names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(CompileError, match=said):
        compiler.compile(source, options, names)


TWO_FORMS = """#include "ptx.h"
__device__ unsigned lane_of(unsigned thread) {
#ifdef __HOSTCUDA__
  return thread % 32;
#else
  unsigned lane;
  asm volatile("mov.u32 %0, %laneid; // asm(" : "=r"(lane)
               :: "memory");
  return lane;
#endif
}
"""
PLAIN = """
extern "C" __global__ void f(unsigned *x) { x[threadIdx.x] = lane_of(threadIdx.x) + MORE; }
"""
BY_MACRO = """
#define KERNEL(name) extern "C" __global__ void name(unsigned *x)
KERNEL(f) { x[threadIdx.x] = lane_of(threadIdx.x) + MORE; }
"""  # its macros are expanded before it is changed
PTX_HEADER = """
#if defined(__HOSTCUDA__) && __HOSTCUDA__
#define MORE 100
#else
__device__ void pause() { asm("nanosleep.u32 20;"); }
#define MORE 200
#endif
"""


@pytest.mark.parametrize("kernel", [PLAIN, BY_MACRO], ids=["plain", "by a macro"])
def test_inline_ptx_may_stand_where_it_is_not_compiled(kernel: str) -> None:
    source, headers = TWO_FORMS + kernel, {"ptx.h": PTX_HEADER}
    x = np.zeros(40, np.uint32)
    Module(source, headers=headers).launch("f", (1,), (40,), (x,))
    np.testing.assert_array_equal(x, np.arange(40) % 32 + 100)
    said = "inline PTX given; .* wanted C.. where __HOSTCUDA__ is defined"
    line = "line 7: " if kernel is PLAIN else ""
    with pytest.raises(CompileError, match=line + said):
        compiler.compile(source.replace("#ifdef", "#ifndef"), (), (), headers)
    with pytest.raises(CompileError, match="line 5: " + said):
        compiler.compile(source, (), (), {"ptx.h": PTX_HEADER.replace("__HOSTCUDA__", "OTHER")})


def test_lanes_exchange_what_is_larger_than_a_number() -> None:
    module = Module("""
    struct Row { double values[5]; int lane; };
    extern "C" __global__ void turned(double *x) {
      Row own = {{}, int(threadIdx.x % 32)}, all[32];
      for (int i = 0; i < 5; ++i) own.values[i] = x[threadIdx.x * 5 + i];
      hostcuda::exchange(own, all);
      const Row &other = all[31 - threadIdx.x % 32];
      for (int i = 0; i < 5; ++i) x[threadIdx.x * 5 + i] = other.values[i] + other.lane;
    }""")
    x = np.random.default_rng(3).standard_normal((64, 5))
    wanted = (x + np.arange(64)[:, None] % 32).reshape(2, 32, 5)[:, ::-1].reshape(64, 5)
    for schedule in (0, 1, 7):
        y = x.copy()
        module.launch("turned", (1,), (64,), (y,), schedule=schedule)
        np.testing.assert_array_equal(y, wanted)


FAULTS = r"""
#include <math_constants.h>
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
extern "C" __global__ void past_the_end(float *x) { x[THREAD] = 1; }
extern "C" __global__ void null(float *x) { if (THREAD == 5) *static_cast<float *>(0) = 1; }
extern "C" __global__ void misaligned(float *x) {
  if (THREAD == 5) *x = *reinterpret_cast<float *>(reinterpret_cast<char *>(x) + THREAD - 3);
}
extern "C" __global__ void outside(float *x) {
  __shared__ float cells[4];
  cells[THREAD] = 1;
}
extern "C" __global__ void dynamic(float *x) {
  extern __shared__ float some[];
  some[THREAD * 8] = 1;
}
extern "C" __global__ void divides(float *x) { *x = 7 / (5 - int(THREAD)); }
__device__ float deeper(volatile float *x, int by) {
  volatile float here[1000];
  here[by % 1000] = *x;
  return by ? deeper(here, by - 1) + here[0] : 0;
}
extern "C" __global__ void recurses(float *x) { if (THREAD == 5) *x = deeper(x, 1000); }
extern "C" __global__ void asserts(float *x) { assert(THREAD != 5); }
extern "C" __global__ void traps(float *x) { if (THREAD == 5) __trap(); }
extern "C" __global__ void undefined(float *x) { if (THREAD == 5) __builtin_trap(); }
extern "C" __global__ void divergent(float *x) {
  if (THREAD == 5) __syncthreads();
  __syncthreads();
}
extern "C" __global__ void leaves(float *x) {
  __shared__ float cells[8];
  if (threadIdx.x >= 5) return;
  cells[threadIdx.x] = threadIdx.x;
  x[threadIdx.x] = __syncthreads_count(threadIdx.x & 1) + 10 * cells[4 - threadIdx.x];
}
extern "C" __global__ void atomic(float *x) {
  atomicAdd(reinterpret_cast<int *>(reinterpret_cast<char *>(x) + (THREAD == 5)), 1);
}
extern "C" __global__ void races(float *x) {
  __shared__ float cells[8];
  cells[threadIdx.x] = THREAD;
  x[threadIdx.x] = cells[7 - threadIdx.x];
}
"""
AT = r"block \(1, 0, 0\), thread \(1, 0, 0\): "


@pytest.fixture(scope="module")
def faults() -> Module:
    return Module(FAULTS)


@pytest.mark.parametrize(("name", "error", "said"), [
    ("past_the_end", 700, AT + r"invalid address 0x\w+ of a write"),
    ("null", 700, AT + r"invalid address (\(nil\)|0x0|0) of a write|null pointer"),
    ("misaligned", 716, AT + r"misaligned address 0x\w+ for type 'float' at kernel.cu:7"),
    ("outside", 700,
     r"thread \(0, 0, 0\): index 4 out of bounds for type 'float .4.' at kernel.cu:11"),
    ("dynamic", 700, r"thread \(\d, 0, 0\): invalid address 0x\w+ of a write"),
    ("divides", 719, AT + "integer division by zero"),
    ("recurses", 719, AT + "stack overflow: more than 262144 bytes of local memory"),
    ("asserts", 710, AT + r"assertion `THREAD != 5' failed at kernel.cu:24"),
    ("traps", 719, AT + "__trap"),
    ("undefined", 719, AT + "the compiler's trap"),
    ("divergent", 719, "divergent barrier: "),
    ("atomic", 716, AT + "misaligned address 0x.* of an atomic of 4 bytes"),
])
@pytest.mark.parametrize("schedule", [0, 20])
def test_a_fault_names_error_kernel_block_and_thread(
    name: str, error: int, said: str, schedule: int, faults: Module
) -> None:
    x = guarded(5)
    x[:] = 1
    with pytest.raises(Fault, match=f"^kernel {name}, .*{said if schedule == 0 else ''}") as fault:
        faults.launch(name, (2,), (4,), (x,), shared=64, schedule=schedule)
    assert fault.value.error == error
    x = np.zeros(8, np.float32)
    faults.launch("past_the_end", (2,), (4,), (x,))  # the library goes on after a fault
    assert x.tolist() == [1] * 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_threads_that_have_ended_are_not_waited_for(schedule: int) -> None:
    """CuPy's scans rely on it."""
    module = Module("""extern "C" __global__ void sums(int *x, int n) {
      __shared__ int cells[64];
      if (threadIdx.x >= n) return;
      cells[threadIdx.x] = threadIdx.x;
      __syncthreads();
      x[threadIdx.x] = cells[n - 1 - threadIdx.x];
      if (__syncthreads_count(threadIdx.x % 2) != n / 2) x[threadIdx.x] = -1;
    }""")
    x = np.zeros(41, np.int32)
    module.launch("sums", (1,), (64,), (x, np.int32(41)), schedule=schedule)
    assert x.tolist() == [*range(41)][::-1]


def test_a_missing_barrier_shows_in_the_order_of_threads(faults: Module) -> None:
    found = set()
    for schedule in SCHEDULES:
        x = np.zeros(8, np.float32)
        faults.launch("races", (1,), (8,), (x,), schedule=schedule)
        found.add(x.tobytes())
    assert len(found) > 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_does_not_wait_for_threads_that_have_ended(schedule: int, faults: Module) -> None:
    x = np.zeros(8, np.float32)
    faults.launch("leaves", (1,), (8,), (x,), schedule=schedule)
    assert x.tolist() == [42, 32, 22, 12, 2, 0, 0, 0]


HALVES = r"""
template <typename T, typename Pair> __global__ void halves(T *x, float *y) {
  Pair pair;
  pair.x = x[0];
  pair.y = x[1];
  const Pair sum = __hfma2(pair, pair, pair);
  y[0] = float(sum.x);
  y[1] = float(sum.y);
  y[2] = float(hexp(x[0]));
  y[3] = float(__hfma(x[0], x[1], x[0]));
  y[4] = float(__hmul(x[0], x[1]));
  y[5] = float(__shfl_sync(1u, x[0], 0));
  atomicAdd(x + 2, T(0.25f));
  atomicAdd(reinterpret_cast<Pair *>(x + 4), pair);
}
template <typename T> __global__ void math(T *x, T *y) {
  y[0] = erfinv(x[0]); y[1] = erfcinv(x[0]); y[2] = normcdf(x[0]); y[3] = normcdfinv(x[0]);
  y[4] = sinpi(x[0]); y[5] = cospi(x[0]); y[6] = rsqrt(x[0]); y[7] = cyl_bessel_i1(x[0]);
  y[8] = max(x[0], T(NAN)); y[9] = min(T(NAN), x[0]); y[10] = erfcx(x[0]); y[11] = rcbrt(x[0]);
}
extern "C" __global__ void integers(int *y, long long *z) {
  y[0] = __popc(0xf0f0); y[1] = __clz(1); y[2] = __brev(1) == 0x80000000; y[3] = __umulhi(~0u, 16);
  y[4] = __byte_perm(0x33221100, 0x77665544, 0x7410); y[5] = __float2int_rn(2.5f);
  y[6] = __float2int_rz(1e20f); y[7] = __float2uint_rd(-3.f); y[8] = __double2int_ru(-1.5);
  y[9] = __reduce_add_sync(1, 5); y[10] = __match_any_sync(1, 5);
  y[11] = __dp4a(0x01ff02fe, 0x01010101, 1);
  y[12] = min(-1, 1u); y[13] = max(3, 4u);
  z[0] = __mul64hi(-1, 1); z[1] = __float2ll_rn(-1e30f); z[2] = __double2ll_rz(1e300);
  z[3] = atomicCAS(reinterpret_cast<unsigned short *>(z + 4), 0, 9);
}
"""


def test_intrinsics_that_a_host_lacks() -> None:
    module = Module(HALVES, names=("halves<__half, __half2>", "math<float>", "math<double>",
                                   "halves<__nv_bfloat16, __nv_bfloat162>"))
    for name, dtype, tolerance in (("halves<__half, __half2>", np.float16, 1e-3),
                                   ("halves<__nv_bfloat16, __nv_bfloat162>", ml_dtypes.bfloat16,
                                    8e-3)):
        x, y = np.array([1.5, -0.5, 0, 0, 0, 0]).astype(dtype), np.zeros(6, np.float32)
        module.launch(name, (1,), (1,), (x, y))
        wanted = [1.5 * 2.5, -0.25, np.exp(1.5), 0.75, -0.75, 1.5]
        np.testing.assert_allclose(y, wanted, rtol=tolerance)
        assert x[2:].astype(float).tolist() == [0.25, 0, 1.5, -0.5]
    for name, dtype, tolerance in (("math<float>", np.float32, 2e-7),
                                   ("math<double>", np.float64, 4e-16)):
        for value in (0.01, 0.3, 0.51, 0.97):
            x, y = np.array([value], dtype), np.zeros(12, dtype)
            module.launch(name, (1,), (1,), (x, y))
            v = x[0].astype(float)
            wanted = [special.erfinv(v), special.erfcinv(v), special.ndtr(v), special.ndtri(v),
                      np.sin(np.pi * v), np.cos(np.pi * v), v**-0.5, special.i1(v), v, v,
                      special.erfcx(v), np.cbrt(1 / v)]
            np.testing.assert_allclose(y, wanted, rtol=8 * tolerance, atol=tolerance)
    y, z = np.zeros(14, np.int32), np.zeros(5, np.int64)
    module.launch("integers", (1,), (1,), (y, z))
    assert y.tolist() == [8, 31, 1, 15, 0x77441100 - 0, 2, 2**31 - 1, 0, -1, 5, 1,
                          1 + 1 - 1 + 2 - 2, 1, 4]
    assert z.tolist() == [-1, -2**63, 2**63 - 1, 0, 9]


@pytest.mark.parametrize(("ctype", "dtype"), [("int", np.int32), ("long long", np.int64)])
def test_the_least_number_is_divided_by_minus_one(ctype: str, dtype: type) -> None:
    """As a GPU does it, and not as x86, which traps."""
    module = Module(f"""
    __device__ {ctype} by;
    extern "C" __global__ void divide({ctype} *x, const {ctype} *y, {ctype} *z) {{
      const long long i = threadIdx.x;
      by = y[i];
      z[i] = x[i] / y[i];
      z[i + 4] = x[i] % (y[i] + 0 * i);
      z[8 + i * 2] = x[i * 1] / (&y[0])[i];
      z[16 + i] = x[i] / by;
    }}""")
    least = np.iinfo(dtype).min
    x, y = np.array([least, 7, least, -9], dtype), np.array([-1, -1, 2, -1], dtype)
    z = np.zeros(20, dtype)
    module.launch("divide", (1,), (4,), (x, y, z))
    wanted = [least, -7, least // 2, 9]
    assert z[:4].tolist() == z[8:16:2].tolist() == z[16:].tolist() == wanted
    assert z[4:8].tolist() == [0, 0, 0, 0]
    y[2] = 0
    with pytest.raises(Fault, match=r"thread \(2, 0, 0\): integer division by zero"):
        module.launch("divide", (1,), (4,), (x, y, z))


def test_the_least_number_is_divided_by_what_lies_in_memory() -> None:
    """Every form of address that the instruction of the division may have."""
    forms = ['"(%2)"', '"4(%2)"', '"400(%2)"', '"-4(%2)"', '"(%2,%3,4)"', '"8(%2,%3,4)"',
             '"800(%2,%3,2)"', '"(,%4,1)"']
    bases = ["rsi", "r9", "r12", "r13", "rbp"]
    tests = "\n".join(f"""
    {{
      long a = INT_MIN, d = -1;
      ASSEMBLY("idivl " {form} : "+a"(a), "+d"(d) : "r"(y), "r"(8l), "r"(y) : "memory");
      z[{at}] = int(a) == INT_MIN && d == 0;
    }}""" for at, form in enumerate(forms))
    registers = "\n".join(f"""
    {{
      long a = LONG_MIN, d = -1;
      ASSEMBLY("pushq %%{base}\\n movq %2, %%{base}\\n idivq (%%{base})\\n popq %%{base}"
               : "+a"(a), "+d"(d) : "c"(y) : "memory");
      z[{len(forms) + at}] = a == LONG_MIN && d == 0;
    }}""" for at, base in enumerate(bases))
    module = Module(f"""
    #define ASSEMBLY __asm__ volatile
    extern "C" __global__ void divide(int *y, int *z) {{ {tests} {registers} }}""")
    memory, z = np.full(2000, -1, np.int32), np.zeros(len(forms) + len(bases), np.int32)
    module.launch("divide", (1,), (1,), (memory[1000:], z))
    assert z.tolist() == [1] * len(z)


def test_the_image_is_text_and_may_lose_its_last_byte() -> None:
    image = compiler.compile("").image
    assert image.decode("ascii").startswith("//HOSTCUDA ")
    assert compiler.load(image[:-1]) == compiler.load(image + b"garbage behind it")
    with pytest.raises(ValueError, match="wanted one that the host device compiled"):
        compiler.load(b"\x7fELF")


def test_a_changed_header_is_compiled_again(tmp_path: Path) -> None:
    source = '#include "by.h"\nextern "C" __global__ void f(int *x) { *x = BY; }'
    for by in (3, 4):
        (tmp_path / "by.h").write_text(f"#define BY {by}")
        x = np.zeros(1, np.int32)
        Module(source, (f"-I{tmp_path}",)).launch("f", (1,), (1,), (x,))
        assert x[0] == by


def test_a_text_is_compiled_once_at_a_time(tmp_path: Path) -> None:
    target, built = tmp_path / "built", []

    def build(number: int) -> None:
        with locked(target) as folder:
            if not target.exists():
                time.sleep(0.05)
                (folder / "part").write_text("x")
                (folder / "part").replace(target)
                built.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, range(4)))
    assert len(built) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["built"]


def test_a_text_is_changed_where_it_must_be_and_keeps_its_lines() -> None:
    given = (
        "// __global__ void none() {}\n"
        'const char *words = "__global__ void none() {}";\n'
        "__global__ void f(int n);\n"
        "__device__ int count, all[2];\n"
        "__device__ int twice(int n) { return 2 * n; }\n"
        "template <typename T> __global__ void g(T) {}\n"
        "__global__ void __launch_bounds__(64, 2) f(int n) {\n"
        "  extern\n"
        "  __shared__ double cells[];\n"
        "}\n"
        "int last;")
    assert text.host_text(given) == (
        given.replace("__device__ int count", "__device__ HOSTCUDA_EXPORTED  int count")
        .replace("extern\n  __shared__ double cells[];",
                 "double *const cells = hostcuda::dynamic_shared<double>();\n")
        .replace("}\nint last", "} HOSTCUDA_KERNEL(f, 64, (int n))\nint last"))
    with pytest.raises(text.TextError, match="line 2: a declaration of dynamic shared memory"):
        text.host_text("\nextern __shared__ float cells[], others[];")
