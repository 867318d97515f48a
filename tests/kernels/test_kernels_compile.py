"""Every kernel through NVRTC, for every architecture and dtype, without warnings or spills.

No GPU and no driver is needed. The options are those that the loader and CuPy pass. Every time:
float32 for the oldest architecture that a text serves and for the newest one, and all dtypes for
the one of the GPU that we are lent; the other pairs are `slow`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import cases_elementwise
import pytest
from cases_multi_tensor import kernel_names, kernels_text
from kernel_mma import NAMES, inlined
from kernel_nvrtc import ARCHITECTURES, CompileError, Compiler, Program
from kernel_text import HOST, element_name, elementwise_text, launch_bounds, register_bounds

import gtensor
from gtensor.backend import kernels
from gtensor.backend.kernels import Elementwise
from gtensor.engine.tape.op import registry
from gtensor.hostcuda.kernels import toolchain
from gtensor.ops.define.formula import static_of
from gtensor.ops.norms.batch_norm_paths import CHIP_BLOCK
from gtensor.testing.cases import samples_of

LENT = 90  # the architecture of the GPU that we are lent
MOST_REGISTERS = 128  # of a kernel that states none: two blocks of 256 threads
REGISTERS = 1 << 16  # of a multiprocessor


def pairs(dtypes: tuple[str, ...], oldest: int) -> list[tuple[str, int, list[Any]]]:
    """Dtypes and architectures, marked `slow` but for float32 on the oldest and the newest one,
    and all dtypes on LENT; bfloat16 takes the place of float32 where there is none.
    """
    served = [each for each in ARCHITECTURES if each >= oldest]
    single = "float32" if "float32" in dtypes else "bfloat16"
    return [
        (dtype, architecture, [] if architecture == LENT or (
            dtype == single and architecture in (served[0], served[-1])) else [pytest.mark.slow])
        for architecture in served for dtype in dtypes
    ]


def instances() -> list[Any]:
    return [pytest.param(dtype, architecture, id=f"{dtype}-{architecture}", marks=marks)
            for dtype, architecture, marks in pairs(tuple(kernels.C_TYPES), ARCHITECTURES[0])]


def check(
    program: Program, count: int, stack_bytes: int = 0, bounds: dict[str, int] | None = None
) -> None:
    """`count` kernels that compiled without a warning, a spill or a larger stack frame.

    `bounds` has the registers that kernels state.
    """
    assert program.ptx.startswith(b"//") and program.cubin.startswith(b"\x7fELF")
    assert program.warnings == []
    assert len(program.usages) == count
    for usage in program.usages:
        assert usage.stack_bytes <= stack_bytes and usage.spill_bytes == 0, f"local memory: {usage}"
        # Mangled: _Z, the length of the name, the name.
        most = [bound for name, bound in (bounds or {}).items()
                if usage.function.startswith(f"_Z{len(name)}{name}")]
        assert usage.registers <= (most or [MOST_REGISTERS])[0], f"too many registers: {usage}"


def file_instances() -> list[Any]:
    return [
        pytest.param(file, dtype, architecture, id=f"{dtype}-{architecture}-{file}", marks=marks)
        for file in kernels.files()
        for dtype, architecture, marks in pairs(kernels.dtypes(file), kernels.architecture(file))
    ]


@pytest.mark.parametrize(("file", "dtype", "architecture"), file_instances())
def test_kernel_file_compiles(
    file: str, dtype: str, architecture: int, compiler: Compiler
) -> None:
    program = compiler.kernel_file(file, (kernels.C_TYPES[dtype],), architecture)
    check(program, len(kernels.functions(file)), bounds=register_bounds(kernels.source(file)))


@pytest.mark.parametrize("file", kernels.files())
def test_a_stated_bound_lets_the_stated_blocks_run(file: str) -> None:
    """Beside `__launch_bounds__(threads, blocks)`: registers of so many blocks fit."""
    text = kernels.source(file)
    bounds, launches = register_bounds(text), launch_bounds(text)
    assert bounds.keys() == launches.keys(), "state `// at most N registers` beside these"
    for name, (threads, blocks) in launches.items():
        assert bounds[name] * threads * blocks <= REGISTERS, name


@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each >= 80])
@pytest.mark.parametrize("text", NAMES, ids=["functions", "product"])
def test_the_samples_of_tensor_cores_compile(
    compiler: Compiler, text: str, architecture: int
) -> None:
    program = compiler.text(inlined(text), NAMES[text], architecture)
    assert program.warnings == []
    for usage in program.usages:
        assert usage.spill_bytes == 0 and usage.stack_bytes == 0, usage
        assert usage.registers <= 128, usage


def test_a_bound_of_registers_is_checked(compiler: Compiler) -> None:
    text = """
    __global__ void __launch_bounds__(256, 2)  // at most 8 registers
    sum(const float4 *x, float *y) {
      const float4 a = x[threadIdx.x], b = x[threadIdx.x + 256], c = x[threadIdx.x + 512];
      y[threadIdx.x] = (a.x + b.x) * (a.y + c.y) * (b.z + c.z) + a.w * b.w * c.w;
    }"""
    program = compiler.text(text, ["sum"], LENT)
    assert launch_bounds(text) == {"sum": (256, 2)}
    check(program, 1)
    with pytest.raises(AssertionError, match="too many registers"):
        check(program, 1, bounds=register_bounds(text))


def test_what_a_file_needs_is_in_its_header() -> None:
    """All inline assembly is in mma.cuh, which needs sm_80; so do the files that include it."""
    folder = kernels.folder()
    assembly = {path.name for path in folder.glob("*.cu*") if re.search(
        r"\b(asm|__asm__)\b", path.read_text())}
    assert assembly == {"mma.cuh"}
    for file in kernels.files():
        text = (folder / file).read_text()
        needs = "Needs sm_80." in text.split("#include", 1)[0]
        assert needs == (kernels.architecture(file) == 80) == ('"mma.cuh"' in text), file
        assert all(name in kernels.C_TYPES for name in kernels.dtypes(file))


def _own_bodies() -> list[Elementwise]:
    """The bodies of the case table and those that gtensor's own modules register."""
    for module in pkgutil.walk_packages(gtensor.__path__, "gtensor."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for op in list(registry.values()):
        if hasattr(op.gpu, "kernel_of"):  # a formula's, made at its first use
            for sample in samples_of(op):
                op.gpu.kernel_of(static_of(sample.params), tuple(
                    i for i, shape in enumerate(sample.shapes) if shape is None))
    table = cases_elementwise.BODIES
    return table + [body for body in kernels.registered if body not in table]


BODIES = _own_bodies()  # now: other tests register bodies of users' ops, right and wrong ones


@pytest.mark.parametrize(("dtype", "architecture"), instances())
def test_elementwise_bodies_compile(dtype: str, architecture: int, compiler: Compiler) -> None:
    names = list(dict.fromkeys(
        element_name(index, body, dtype) for index, body in enumerate(BODIES)
    ))
    text = (HOST / "elementwise_half.h").read_text() + elementwise_text(BODIES)
    # CUDA's sin and cos keep 40 bytes there, for arguments that are huge.
    check(compiler.text(text, names, architecture), len(names), stack_bytes=40)


@pytest.mark.parametrize(("dtype", "architecture"), instances())
def test_kernels_over_many_tensors_compile(
    dtype: str, architecture: int, compiler: Compiler
) -> None:
    """The table stays among the arguments: a copy of it would be a stack frame."""
    text = kernels.inline_includes(kernels_text(), "multi_tensor")
    names = kernel_names(kernels.C_TYPES[dtype])
    check(compiler.text(text, names, architecture), len(names))


def test_elementwise_bodies_compile_with_cupys_half_classes(compiler: Compiler) -> None:
    """The stand-ins of elementwise_half.h convert as CuPy's classes do: where CuPy is, ask it."""
    if toolchain.cupy_include() is None:
        pytest.skip("CuPy is not installed; its half classes are compared only where it is")
    names = [element_name(index, body, dtype) for index, body in enumerate(BODIES)
             for dtype in ("float16", "bfloat16")]
    headers = "".join(f"#include <cupy/{name}.cuh>\n" for name in ("carray", "float16", "bfloat16"))
    compiler.text(headers + elementwise_text(BODIES), list(dict.fromkeys(names)), 80, True)


def test_a_faulty_kernel_is_refused(compiler: Compiler) -> None:
    text = kernels.source("softmax.cu").replace("return exp(below)", "return expp(below)", 1)
    with pytest.raises(CompileError, match=r"softmax\.cu\(\d+\): error"):
        compiler.text(text, ["softmax_forward<float>"], 80)


def test_local_memory_is_seen(compiler: Compiler) -> None:
    text = """
    __global__ void histogram(const int *bins, float *counts, int n) {
      float values[64] = {};
      for (int i = 0; i < n; ++i) values[bins[i]] += 1;  // a dynamic index: no register has one
      for (int i = 0; i < 64; ++i) counts[i] = values[i];
    }"""
    with pytest.raises(AssertionError, match="local memory"):
        check(compiler.text(text, ["histogram"], 80), 1)


def test_activation_codes_are_those_of_the_header() -> None:
    found = re.findall(r"GT_([A-Z_]+) = (\d+)", kernels.source("activation.cuh"))
    assert {name.lower(): int(code) for name, code in found} == kernels.ACTIVATIONS


def test_block_sizes_are_those_of_the_headers() -> None:
    assert f"#define GT_CHIP_BLOCK {CHIP_BLOCK} " in kernels.source("bn_act.cu")
    assert f"#define GT_BLOCK {kernels.BLOCK} " in kernels.source("reduce.cuh")
