"""Machine code: accesses of 16 bytes where declared, tensor cores where mma.cuh is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_mma import FUNCTIONS, NAMES, PRODUCT, inlined
from kernel_nvrtc import Compiler
from kernel_samples import KERNELS, VECTORS
from kernel_sass import disassembled, instructions, wide_accesses

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
    "attention_cached.cu": {f"attention_cached_{size}": LOADS for size in (64, 128, 256)},
    "softmax.cu": dict.fromkeys(("softmax_forward", "softmax_backward", "log_softmax_forward",
                                 "log_softmax_backward"), BOTH),
    "layer_norm.cu": dict.fromkeys(("layer_norm_forward", "layer_norm_backward"), BOTH),
    "group_norm.cu": dict.fromkeys(("group_norm_forward", "group_norm_backward"), BOTH),
    "cross_entropy.cu": {"cross_entropy_forward": LOADS, "cross_entropy_backward": BOTH},
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


TENSOR_CORES = {"HMMA", "LDGSTS", "LDSM", "LDGDEPBAR", "DEPBAR"}
"""Products, copies without registers, loads of fragments, commits, waits."""
LOCAL = {"LDL", "STL"}


@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_a_product_uses_tensor_cores(
    compiler: Compiler, architecture: int, kept_in: Path
) -> None:
    cubin = compiler.text(inlined(PRODUCT), NAMES[PRODUCT], architecture).cubin
    for code in disassembled(cubin, kept_in).values():
        found = instructions(code)
        assert found.keys() >= TENSOR_CORES and not found.keys() & LOCAL
        assert "HMMA.16816.F32" in code and "LDGSTS.E.BYPASS.128" in code and ".MT88.4" in code


@pytest.mark.parametrize("architecture", [80, 90, 120])
@pytest.mark.parametrize("terms", ["", "_terms"])
def test_attention_uses_tensor_cores(
    terms: str, compiler: Compiler, architecture: int, kept_in: Path
) -> None:
    """A step over 64 keys: 8 x 8 products of a warp for each 64 features, and a load for two.

    For 256 features 32 keys, and queries are loaded in each step: registers have no place for them.
    """
    program = compiler.kernel_file(f"attention{terms}.cu", ("__nv_bfloat16",), architecture)
    for name, code in disassembled(program.cubin, kept_in).items():
        found = instructions(code)
        twice, largest = 1 + ("forward_64" not in name), "forward_256" in name
        assert found.keys() >= TENSOR_CORES and not found.keys() & LOCAL
        assert found["HMMA"] == 64 * twice and found["LDSM"] == 36 * twice + 8 * largest
        assert found["LDGSTS"] == 12 * twice * (1 + largest) and found["BAR"] == 3
        most = 1100 + 500 * (twice + largest)  # the trial's had 1,329
        assert sum(found.values()) <= most + (1700 if terms else 0)
        assert "STG.E.128" in code and ("LDG.E.128" in code and "LDG.E.64" in code or not terms)


@pytest.mark.parametrize("architecture", [80, 90, 120])
@pytest.mark.parametrize("terms", ["", "_terms"])
def test_attention_backward_uses_tensor_cores(
    terms: str, compiler: Compiler, architecture: int, kept_in: Path
) -> None:
    """A step over 32 rows: four products for keys, three for queries, each of as many as forward.

    A warp of 32 rows loads fewer fragments for them than one of 16. For 256 features 16 rows, and
    keys have the step of each gradient: three products and two.
    """
    program = compiler.kernel_file(
        f"attention{terms}_backward.cu", ("__nv_bfloat16",), architecture)
    codes = disassembled(program.cubin, kept_in)
    assert len(codes) == 6
    for name, code in codes.items():
        found = instructions(code)
        products, loads = (4, {"64": 48, "128": 80, "256": 128}) if "keys" in name else (
            3, {"64": 40, "128": 64, "256": 80})
        (size,) = [size for size in loads if f"_{size}I" in name]
        if "terms_backward_keys_64" in name:  # a warp of 16 rows
            products, loads = 2, {size: 40}
        twice = 1 + ("keys_256" in name)
        products += twice == 2
        assert found.keys() >= TENSOR_CORES and not found.keys() & LOCAL
        assert found["HMMA"] == 32 * products and found["LDSM"] == loads[size]
        assert found["BAR"] == 2 * twice
        delta = 1400 if "queries_256" in name else 0  # before the loop, of twice as many pieces
        assert sum(found.values()) <= (4100 if terms else 3000) * twice + delta
        assert "STG.E.128" in code and ("LDG.E.128" in code or "keys" in name and not terms)


@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_a_gradient_of_a_mask_uses_tensor_cores(
    compiler: Compiler, architecture: int, kept_in: Path
) -> None:
    """A tile of 64 x 64: two products of a warp with 8 x 8 for each 64 features.

    For 256 features one of 64 x 32.
    """
    program = compiler.kernel_file(
        "attention_mask_gradient.cu", ("__nv_bfloat16",), architecture)
    for name, code in disassembled(program.cubin, kept_in).items():
        found = instructions(code)
        twice, largest = 1 + ("gradient_64" not in name), "gradient_256" in name
        assert found.keys() >= TENSOR_CORES and not found.keys() & LOCAL
        assert found["HMMA"] == 64 * twice and found["LDSM"] == 40 * twice + 16 * largest
        assert found["LDGSTS"] == 16 * twice * (1 + largest / 2) and found["BAR"] == 3
        assert sum(found.values()) <= 3300 and "LDG.E.128" in code


@pytest.mark.parametrize("part", ["", "_backward", "_mask_gradient"])
def test_attention_of_float32_multiplies_without_tensor_cores(
    compiler: Compiler, part: str, kept_in: Path
) -> None:
    """Loads of 16 bytes from shared memory, at least eight multiplications for each.

    A warp with fewer rows has at least five.
    """
    program = compiler.kernel_file(f"attention_float{part}.cu", ("float",), 90)
    for name, code in disassembled(program.cubin, kept_in).items():
        found = instructions(code)
        assert not found.keys() & LOCAL and "HMMA" not in found and found["LDGSTS"] > 0
        assert "STG.E.128" in code or "mask" in part, name
        loads = code.count("LDS.128")
        fewer = "_64I" not in name or "terms_backward_keys" in name or "mask" in part
        least = 5 if fewer else 8
        assert loads > 0 and found["FFMA"] >= least * loads, name


@pytest.mark.parametrize("part", ["", "_backward", "_mask_gradient"])
def test_attention_by_tf32_uses_tensor_cores(
    compiler: Compiler, part: str, kept_in: Path
) -> None:
    program = compiler.kernel_file(f"attention_tf32{part}.cu", ("float",), 90)
    for name, code in disassembled(program.cubin, kept_in).items():
        found = instructions(code)
        assert found.keys() >= TENSOR_CORES and not found.keys() & LOCAL, name
        assert "HMMA.1688.F32.TF32" in code and ("STG.E.128" in code or "mask" in part), name


@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_each_function_is_the_instruction_that_it_is_named_for(
    compiler: Compiler, architecture: int, kept_in: Path
) -> None:
    cubin = compiler.text(inlined(FUNCTIONS), NAMES[FUNCTIONS], architecture).cubin
    codes = disassembled(cubin, kept_in)

    def code(function: str) -> str:
        return "".join(text for name, text in codes.items() if f"{len(function)}{function}" in name)

    assert instructions(code("loads"))["LDSM"] == 2
    assert "HMMA.16816.F32.BF16" in code("products")
    assert "HMMA.1688.F32.TF32" in code("products_tf32")
    assert instructions(code("pairs"))["F2FP"] == 2 and "MUFU.EX2" in code("numbers")
    assert instructions(code("copies"))["LDGSTS"] >= 1


def test_a_product_without_tensor_cores_is_seen(compiler: Compiler, kept_in: Path) -> None:
    code = disassembled(compiler.text(VECTORS, ["scale"], 90).cubin, kept_in)["_Z5scalePKfPffi"]
    found = instructions(code)
    assert not found.keys() & TENSOR_CORES and found["FMUL"] % 4 == 0 < found["EXIT"]


def test_a_missing_tool_is_said(monkeypatch: pytest.MonkeyPatch, kept_in: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"):
        disassembled(b"", kept_in)


def test_what_is_no_cubin_is_refused(kept_in: Path) -> None:
    with pytest.raises(RuntimeError, match="cuobjdump refuses a cubin"):
        disassembled(b"no cubin at all", kept_in)
