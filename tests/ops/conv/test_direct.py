"""Direct convolution by kernels in C: values, special values, splits, and where it serves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gtensor as gt
from gtensor.backend import compiled
from gtensor.ops.conv import direct
from ops.conv import direct_cases
from ops.conv.direct_cases import CASES, KINDS, Case, Library, choices, results, values

SOURCE = Path(__file__).parents[3] / "kernels" / "cpu" / "convolution.c"
needs_kernels = pytest.mark.skipif(
    compiled.kernel("conv_pack_float32") is None, reason="needs kernels in C")


def torch_results(case: Case, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As `results` of float64 with beta = 0."""
    x, weight, bias = (torch.tensor(arrays[name], requires_grad=True)
                       for name in ("x", "weight", "bias"))
    top, left, bottom, right = case.parameters()["padding"]
    padded = TF.pad(x, (left, right, top, bottom))
    params = {name: value for name, value in case.parameters().items() if name != "padding"}
    y = TF.conv2d(padded, weight, bias, **params)
    y.backward(torch.tensor(arrays["g"]))
    return {"y": y.detach().numpy(), "dx": x.grad.numpy(), "dweight": weight.grad.numpy()}


@needs_kernels
@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, planes: bool, rng: np.random.Generator) -> None:
    case = CASES[name]
    arrays = values(case, rng)
    wanted = torch_results(case, arrays)
    for kind in KINDS:
        for number, dtype in enumerate(("float32", "float64")):
            beta = float((kind + number) % 2)
            with choices(planes, small=bool(number), kind=kind):
                found = results(case, dtype, arrays, beta)
            sums = {key: value + beta * arrays[key] for key, value in wanted.items()}
            with gt.settings.override(compiled=0):
                direct_cases.assert_close(case, arrays, found, sums, beta)


@needs_kernels
@pytest.mark.parametrize("planes", [False, True])
def test_splits_give_the_same_bits(planes: bool, rng: np.random.Generator) -> None:
    """One item at a time, from the last on, and all at once."""
    path = compiled._compiled.__file__
    for name in ("two blocks of outputs", "dilation and stride", "depthwise", "groups"):
        case = CASES[name]
        arrays, found = values(case, rng), []
        for step in (1, None):
            with Library(path, step).serving(), choices(planes, small=True):
                found.append(results(case, "float32", arrays, 0.0))
        for key, value in found[0].items():
            assert value.tobytes() == found[1][key].tobytes()


@needs_kernels
@pytest.mark.parametrize("planes", [False, True])
def test_threads_give_the_same_bits(planes: bool, rng: np.random.Generator) -> None:
    """Each in memory of its own: arrays are so large that both are given work."""
    case = Case((3, 34, 64, 64), (34, 17, 3, 3), {"padding": (1, 1, 1, 1), "groups": 2})
    arrays, found, before = values(case, rng), [], gt.get_num_threads()
    try:
        for count in (1, 2):
            gt.set_num_threads(count)
            with choices(planes):
                found.append(results(case, "float32", arrays, 0.0))
    finally:
        gt.set_num_threads(before)
    for key, value in found[0].items():
        assert value.tobytes() == found[1][key].tobytes()


@needs_kernels
@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_special_values_reach_what_reads_them(
    planes: bool, value: float, rng: np.random.Generator
) -> None:
    """And nothing else: not the pixels of the next row, of the padding or of another channel."""
    case = Case((2, 4, 6, 7), (4, 2, 3, 3), {"padding": (1, 1, 1, 1), "groups": 2})
    for name, place in (("x", (1, 2, 3, 6)), ("x", (0, 1, 0, 0)), ("g", (1, 3, 5, 6)),
                        ("weight", (2, 1, 0, 2))):
        arrays = values(case, rng)
        arrays[name][place] = value
        wanted = torch_results(case, arrays)
        # infinity times a zero of the padding is invalid, times one of an unused lane it is not
        invalid = np.isinf(value) and any(np.isnan(a).any() for a in wanted.values())
        expected = (pytest.warns(RuntimeWarning, match="invalid value") if invalid
                    else contextlib.nullcontext())
        with choices(planes), expected:
            found = results(case, "float32", arrays, 0.0)
        for key, array in found.items():
            if name == "weight":  # zeros of the padding times infinity: only NaN can be there
                assert not np.isfinite(array[~np.isfinite(wanted[key])]).any()
                continue
            np.testing.assert_array_equal(np.isnan(array), np.isnan(wanted[key]))
            np.testing.assert_array_equal(np.isinf(array), np.isinf(wanted[key]))


def _served(case: Case, dtype: str = "float32", strided: bool = False) -> list[bool]:
    """Whether the three functions did it."""
    x, weight = (np.zeros(shape, dtype) for shape in (case.x, case.weight))
    y = np.zeros((case.x[0], case.weight[0], *case.geometry().out), dtype)
    if strided:
        x = np.zeros((*case.x[:3], 2 * case.x[3]), dtype)[..., ::2]
    geo = case.geometry()
    return [direct.correlate(x, weight, None, geo, y, 0.0),
            direct.input_gradient(y, weight, None, geo, x, 0.0),
            direct.weight_gradient(y, x, geo, weight, 0.0)]


PAD = {"padding": (1, 1, 1, 1)}


@needs_kernels
@pytest.mark.parametrize(("case", "wanted"), [
    (Case((1, 3, 8, 8), (8, 3, 3, 3), PAD), [True, True, True]),
    # as many weights as are packed for any pixels, and one channel more; enough pixels for those
    (Case((1, 1 << 10, 1, 1), (1 << 10, 1 << 10, 1, 1), {"stride": (2, 2)}), [True, True, False]),
    (Case((1, (1 << 10) + 1, 1, 1), (1 << 10, (1 << 10) + 1, 1, 1), {"stride": (2, 2)}),
     [False, True, False]),
    (Case((32, (1 << 10) + 1, 1, 1), (1 << 10, (1 << 10) + 1, 1, 1), {"stride": (2, 2)}),
     [True, True, False]),
    # the most weights, and more
    (Case((32, 1 << 11, 1, 1), (1 << 11, 1 << 11, 1, 1), {"stride": (2, 2)}), [True, True, False]),
    (Case((32, 1 << 11, 1, 1), ((1 << 11) + 1, 1 << 11, 1, 1), {"stride": (2, 2)}),
     [False, True, False]),
    # the most weights whose gradient is summed here, and more
    (Case((1, 1 << 9, 1, 2), (1 << 10, 1 << 9, 1, 2), {}), [True, True, True]),
    (Case((1, 1 << 9, 1, 2), ((1 << 10) + 1, 1 << 9, 1, 2), {}), [False, True, False]),
    # 1x1 windows: products of images; the gradient by weights and by pixels
    (Case((1, 1 << 7, 1, 1), (1 << 8, 1 << 7, 1, 1), {}), [False, False, True]),
    (Case((1, 1 << 7, 1, 191), ((1 << 8) + 1, 1 << 7, 1, 1), {}), [False, False, False]),
    (Case((1, 1 << 7, 1, 192), ((1 << 8) + 1, 1 << 7, 1, 1), {}), [False, False, True]),
    (Case((1, 8, 1, 1), (8, 8, 1, 1), {}), [False, False, False]),
    (Case((1, 8, 1, 1), (9, 8, 1, 1), {}), [False, False, True]),
    (Case((0, 3, 8, 8), (8, 3, 3, 3), PAD), [False, False, False]),
], ids=str)
def test_where_it_serves(case: Case, wanted: list[bool]) -> None:
    assert _served(case) == wanted


@needs_kernels
def test_what_it_leaves_to_the_products() -> None:
    case = CASES["stride"]
    assert _served(case) == [True] * 3
    assert _served(case, "float16") == [False] * 3
    assert _served(case, strided=True) == [False, False, False]
    with gt.settings.override(compiled=0):
        assert _served(case) == [False] * 3


@needs_kernels
@pytest.mark.parametrize(("shape", "planes"), [
    ((17, 8, 1), True), ((17, 9, 15), False), ((16, 9, 16), True), ((16, 9, 15), False),
    ((17, 9, 16), False)])
def test_which_kernel(shape: tuple[int, int, int], planes: bool) -> None:
    """By inputs, outputs and width, on both sides of each edge."""
    assert direct._by_planes(*shape) is planes


@pytest.mark.parametrize(("shape", "planes"), [
    ((4, 8), True), ((5, 8), False), ((1, 9), False), ((32, 1), True), ((33, 1), False)])
def test_which_kernel_sums_the_gradient(shape: tuple[int, int], planes: bool) -> None:
    assert direct._gradient_by_planes(*shape) is planes


# -- the text: sanitizers and planted faults -------------------------------------------------------

# what is replaced, and by what; a case that must then differ, or be stopped by the sanitizer
PLANTED = {
    "a row off by one": (
        "i64 low = t->row * s->row.stride + s->row.shift[0], left = s->column.shift[0];\n"
        "    i64 tall = reach(&s->row, t->rows), wide",
        "i64 low = t->row * s->row.stride + s->row.shift[0] + 1, left = s->column.shift[0];\n"
        "    i64 tall = reach(&s->row, t->rows), wide"),
    "pixels left over are not computed": (
        "for (i64 p = 0; p < count; p += size) {",
        "for (i64 p = 0; p + size <= count; p += size) {"),
    "the weights of another group": (
        "(const NUMBER *)packed + t.group * of_group",
        "(const NUMBER *)packed + (t.group + 1) % s->groups * of_group"),
    "a column that the image does not have": (
        "clip(s->width - left, begin, wide)", "clip(s->width - left + 1, begin, wide)"),
}
WATCHED = "a column that the image does not have"


def _library(folder: Path, fault: str | None, *options: str) -> Path:
    """The kernels compiled with a planted fault, with as little work for the compiler as may be."""
    for source in (*SOURCE.parent.glob("*.h"), SOURCE):
        text = source.read_text()
        if fault is not None:
            text = text.replace(*PLANTED[fault])
        (folder / source.name).write_text(text)
    library = folder / "kernels.so"
    subprocess.run(["gcc", "-O0", "-g", "-shared", "-fPIC", *options, folder / SOURCE.name,
                    "-o", library], check=True)
    return library


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def _watched(library: Path) -> subprocess.CompletedProcess[str]:
    """All cases in a program whose memory the sanitizers watch."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True,
                             text=True, check=True).stdout.strip()
    assert Path(runtime).is_absolute(), "gcc has no AddressSanitizer"
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0",
                   "PYTHONMALLOC": "malloc"}
    return subprocess.run([sys.executable, direct_cases.__file__, library], env=environment,
                          capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    run = _watched(_library(tmp_path, None, *SANITIZERS))
    assert (run.returncode, run.stdout) == (0, "right\n"), run.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    assert sum(path.read_text().count(PLANTED[fault][0])
               for path in (*SOURCE.parent.glob("*.h"), SOURCE)) == 1
    if fault == WATCHED:
        run = _watched(_library(tmp_path, fault, *SANITIZERS, "-DONE_KIND"))
        assert "heap-buffer-overflow" in run.stderr
        return
    with pytest.raises(AssertionError):
        direct_cases.compare_all(str(_library(tmp_path, fault, "-DONE_KIND")))
