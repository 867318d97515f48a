"""The loader: text and includes, names and types, launches through a stand-in for CuPy."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gtensor.backend import kernels


def test_importing_the_loader_imports_no_cupy() -> None:
    code = (
        "import sys; from gtensor.backend import kernels\n"
        "kernels.elementwise('T x', 'T y', 'y = gt_relu(x)', 'activation.cuh')\n"
        "kernels.raw('softmax.cu', 'softmax_forward')\n"
        "assert 'cupy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_source_has_no_includes_of_ours_left_and_each_file_once() -> None:
    for file in kernels.files():
        text = kernels.source(file)
        assert '#include "' not in text and "#pragma once" not in text
        assert text.count("typedef long long gt_index;") == 1
        assert text.startswith(f'#line 1 "{file}"\n')


def test_line_directives_keep_line_numbers() -> None:
    file = "softmax.cu"
    original = (kernels.folder() / file).read_text().splitlines()
    name, line = "", 0
    for text in kernels.source(file).splitlines():
        if text.startswith("#line"):
            _, number, quoted = text.split()
            name, line = quoted.strip('"'), int(number)
            continue
        if name == file:
            assert text == original[line - 1]
        line += 1


def test_a_missing_kernel_file_is_said() -> None:
    with pytest.raises(FileNotFoundError, match=r"kernel file 'soft\.cu' given; wanted the"):
        kernels.source("soft.cu")
    with pytest.raises(FileNotFoundError, match=r"mine includes 'nothing\.cuh'; wanted the"):
        kernels.inline_includes('#include "nothing.cuh"', "mine")


def test_the_installed_folder_comes_before_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "gtensor" / "backend" / "kernels.py"
    monkeypatch.setattr(kernels, "__file__", str(module))
    with pytest.raises(FileNotFoundError, match=r"no CUDA text in .* reinstall gtensor"):
        kernels.folder()
    (tmp_path / "kernels").mkdir()
    assert kernels.folder() == tmp_path / "kernels"
    (tmp_path / "gtensor" / "_cuda").mkdir(parents=True)
    assert kernels.folder() == tmp_path / "gtensor" / "_cuda"


def test_every_kernel_is_a_template_on_one_type() -> None:
    for file in kernels.files():
        text = kernels.source(file)
        assert text.count("__global__ void") == len(kernels.functions(file)) > 0
        assert text.count("template <typename T>\n__global__ void") == len(kernels.functions(file))


def test_kernels_that_run_in_place_do_not_promise_otherwise() -> None:
    for file in kernels.files():
        code = [line.split("//")[0] for line in kernels.source(file).splitlines()]
        assert "__restrict__" not in "\n".join(code)


@pytest.mark.parametrize(("dtype", "ctype"), [
    (np.float16, "__half"), (ml_dtypes.bfloat16, "__nv_bfloat16"), ("float32", "float"),
    (np.dtype(np.float64), "double"),
])
def test_c_type(dtype: Any, ctype: str) -> None:
    assert kernels.c_type(dtype) == ctype


def test_c_type_refuses_integers() -> None:
    with pytest.raises(TypeError, match="dtype int32 given; CUDA kernels want one of float16, bfl"):
        kernels.c_type(np.int32)


def test_launch_sizes() -> None:
    assert kernels.row_launch(7) == ((7,), (256,))
    assert kernels.flat_launch(257) == ((2,), (256,))
    assert kernels.flat_launch(0) == ((0,), (256,))
    assert kernels.packed_launch(8192, 768, 4) == ((2048,), (64, 4))
    assert kernels.packed_launch(8192, 767, 2) == ((8192,), (256, 1))  # no whole packs
    assert kernels.packed_launch(300, 128, 4) == ((150,), (32, 2))  # blocks for all
    assert kernels.packed_launch(0, 5, 4) == ((0,), (32, 1))
    largest = 2**31 - 1
    assert kernels.row_launch(2**40)[0] == kernels.flat_launch(2**50)[0] == (largest,)


# ----------------------------------------------------------------- what reaches CuPy, without a GPU


class FakeCupy(types.ModuleType):
    """Stands in for CuPy; notes what is compiled and launched."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.calls: list[Any] = []

    def ElementwiseKernel(self, *args: Any, **options: Any) -> Any:
        self.calls.append(("compile", args, options))
        return lambda *values: self.calls.append(("launch", values))

    def RawModule(self, **options: Any) -> Any:
        self.calls.append(("compile", options))

        def launcher(name: str) -> Any:
            return lambda *args, **rest: self.calls.append(("launch", name, args, rest))

        return types.SimpleNamespace(get_function=launcher)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    kernels._module.cache_clear()
    yield fake
    kernels._module.cache_clear()


def test_elementwise_compiles_once_and_places_its_arguments(cupy: FakeCupy) -> None:
    elu = kernels.elementwise(
        "T x, float64 alpha", "T y", "y = gt_elu(x, alpha)", "activation.cuh"
    )
    assert cupy.calls == []
    elu("x", 0.5)
    elu("x", alpha=0.25, out="y", other="ignored")
    elu("x", 1.0, out=("y",))
    compiled, *launches = cupy.calls
    assert compiled[1] == ("T x, float64 alpha", "T y", "y = gt_elu(x, alpha)", "gt_elu")
    assert compiled[2]["preamble"] == kernels.source("activation.cuh")
    assert compiled[2]["options"] == ("-std=c++17",)
    assert launches == [("launch", ("x", 0.5)), ("launch", ("x", 0.25, "y")),
                        ("launch", ("x", 1.0, "y"))]
    with pytest.raises(TypeError, match="kernel gt_elu called without 'alpha'; wanted x, alpha"):
        elu("x")


def test_elementwise_refuses_what_is_no_parameter() -> None:
    with pytest.raises(ValueError, match="kernel parameter 'x' given; wanted"):
        kernels.elementwise("x", "T y", "y = x")


def test_raw_compiles_a_file_once_per_dtype_and_skips_empty_grids(cupy: FakeCupy) -> None:
    forward = kernels.raw("softmax.cu", "softmax_forward")
    backward = kernels.raw("softmax.cu", "softmax_backward")
    assert cupy.calls == []
    forward[np.float16]((2,), (256,), ("x", "y", 2, 3))
    backward[np.float16]((2,), (256,), ("g",), shared_mem=64)
    forward[np.float16]((0,), (256,), ("x", "y", 0, 3))
    (_, options), *launches = cupy.calls
    assert options["name_expressions"] == [
        f"{name}<__half>" for name in kernels.functions("softmax.cu")
    ]
    assert options["code"] == kernels.source("softmax.cu")
    assert options["options"] == ("-std=c++17",)
    assert launches == [
        ("launch", "softmax_forward<__half>", ((2,), (256,), ("x", "y", 2, 3)), {"shared_mem": 0}),
        ("launch", "softmax_backward<__half>", ((2,), (256,), ("g",)), {"shared_mem": 64}),
    ]


def test_raw_says_an_unknown_kernel_or_dtype(cupy: FakeCupy) -> None:
    with pytest.raises(KeyError, match=r"kernel 'softmin' of softmax\.cu given; wanted one of"):
        kernels.raw("softmax.cu", "softmin")[np.float32]
    with pytest.raises(TypeError, match="dtype int64 given"):
        kernels.raw("softmax.cu", "softmax_forward")[np.int64]
    assert cupy.calls == []
