"""Kernels that are declared vectorized load and store 16 bytes at once in their machine code."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_nvrtc import Compiler
from kernel_samples import KERNELS, VECTORS
from kernel_sass import disassembled, wide_accesses

from gtensor.backend import kernels

ARCHITECTURES = (75, 90, 120)
LOADS, BOTH = {"LDG"}, {"LDG", "STG"}

VECTORIZED: dict[str, dict[str, set[str]]] = {
    "bn_act.cu": {
        **dict.fromkeys(("bn_act_statistics", "bn_act_statistics_last", "bn_act_reduce",
                         "bn_act_reduce_last"), LOADS),
        **dict.fromkeys(("bn_act_forward", "bn_act_forward_last", "bn_act_backward",
                         "bn_act_backward_last", "bn_act_input", "bn_act_input_last",
                         "bn_act_forward_on_chip", "bn_act_backward_on_chip"), BOTH),
    },
    "bn_act_from_x.cu": {
        **dict.fromkeys(("bn_act_reduce_from_x", "bn_act_reduce_from_x_last"), LOADS),
        **dict.fromkeys(("bn_act_backward_from_x", "bn_act_backward_from_x_last"), BOTH),
    },
    "matmul_into.cu": {"matmul_into": BOTH, "matmul_into_small": BOTH},
    "matmul_into_complex.cu": {"matmul_into_complex": BOTH, "matmul_into_complex_small": BOTH},
}
"""For each kernel of a file that has 16-byte accesses: which ones."""


def check(codes: dict[str, str], function: str, wanted: set[str]) -> None:
    """The instance of a kernel among these machine codes has the accesses `wanted`."""
    # Mangled: _Z, the length of the name, the name, its template arguments if any.
    (name,) = [name for name in codes if name.startswith(f"_Z{len(function)}{function}")]
    missing = wanted - wide_accesses(codes[name])
    assert not missing, f"{name} has no 16-byte {' and no '.join(sorted(missing))}"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", VECTORIZED)
def test_vectorized_kernels_are(
    file: str, architecture: int, compiler: Compiler, kept_in: Path
) -> None:
    codes = disassembled(compiler.kernel_file(file, ("float",), architecture).cubin, kept_in)
    for function, wanted in VECTORIZED[file].items():
        assert function in kernels.functions(file)
        check(codes, function, wanted)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_vectorized_text_is_seen(architecture: int, compiler: Compiler, kept_in: Path) -> None:
    codes = disassembled(compiler.text(VECTORS, KERNELS[VECTORS], architecture).cubin, kept_in)
    check(codes, "scale", BOTH)
    check(codes, "pack", {"STG"})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_scalar_text_is_refused(architecture: int, compiler: Compiler, kept_in: Path) -> None:
    loads = "float4 four = {x[i], x[i + 1], x[i + 2], x[i + 3]}; (void)"
    text = VECTORS.replace("float4 four =", loads)
    assert text != VECTORS
    codes = disassembled(compiler.text(text, ["scale"], architecture).cubin, kept_in)
    check(codes, "scale", {"STG"})
    with pytest.raises(AssertionError, match="has no 16-byte LDG"):
        check(codes, "scale", BOTH)


def test_a_missing_tool_is_said(monkeypatch: pytest.MonkeyPatch, kept_in: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"):
        disassembled(b"", kept_in)


def test_what_is_no_cubin_is_refused(kept_in: Path) -> None:
    with pytest.raises(RuntimeError, match="cuobjdump refuses a cubin"):
        disassembled(b"no cubin at all", kept_in)
