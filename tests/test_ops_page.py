"""docs/ops.md is what the registry says today; what its cells claim is tried, not believed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ops_page
import pytest

import gtensor as gt
from gtensor.engine.tape.op import Op, registry

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "ops.md"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    ops_page.gpu_results.cache_clear()
    yield
    ops_page.gpu_results.cache_clear()


def test_the_document_is_the_registry() -> None:
    text = ops_page.markdown()
    assert DOCUMENT.read_text(encoding="utf-8") == text, (
        "docs/ops.md is not of these ops; write it anew: "
        "PYTHONPATH=tests python -m ops_page > docs/ops.md")


def test_a_row_has_a_name_that_programs_can_call() -> None:
    names = re.findall(r"^\| `(\w+)` ", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) > 100 and not {"huber", "tanh_grad", "fft_c2c"} & {*names}
    spaces = (gt, gt.linalg, gt.fft, gt.nn.functional, gt.Tensor, gt.zeros(1))
    exported = {value.name for space in spaces[:4] for name in space.__all__
                if isinstance(value := getattr(space, name), Op)}
    assert not [n for n in names if n not in exported and not any(hasattr(s, n) for s in spaces)]


def test_every_op_is_defined_in_the_folder_of_its_family() -> None:
    grouped = ops_page.families()
    assert sorted(name for names in grouped.values() for name in names) == sorted(registry)
    assert {"multiply", "expm1_grad"} < set(grouped["elementwise"])
    assert "matmul" in grouped["linalg"] and "conv2d" in grouped["conv"]


# -- the cells, of definitions whose answers are known ---------------------------------------------


def own(**rules: Any) -> Op:
    """An op outside the registry: the product of x and y."""
    def path(x: Any, y: Any, out: Any = None) -> Any:
        return np.multiply(x, y, out=out)

    def backward(ns: Any, step: Any, g: Any) -> None:
        step.give(0, ns.multiply(g, step.saved[1]))
        step.give(1, ns.multiply(g, step.saved[0]))

    given: dict[str, Any] = {
        "cpu": path, "gpu": path, "backward": backward, "tangent": None,
        "saves": {"x": "y", "y": "x"}, "samples": [(0,), (3, 5)]}
    return Op("own_product", **{**given, **rules})


def test_the_cells_of_a_product() -> None:
    op = own()
    assert ops_page.dtypes(op) == "b i u h f"
    assert ops_page.dtypes(own(complex=True)) == "b i u h f c"
    assert ops_page.dtypes(own(reference=lambda torch, x, y: x * y)) == "b i u h f c"
    assert ops_page.saves(op) == "x: `y`; y: `x`"
    assert ops_page.passes(op) == "2+1, 3+2"
    assert ops_page.derivatives(op) == "reverse, second"
    assert ops_page.launches(op) == "CuPy"


def test_a_dtype_with_a_wrong_value_does_not_count() -> None:
    def overflows(x: Any, y: Any, out: Any = None) -> Any:
        value = np.multiply(x, y, out=out)
        return value if x.dtype == np.float64 else value + 1

    def refuses_halves(x: Any, y: Any, out: Any = None) -> Any:
        if x.dtype.itemsize == 2:
            raise TypeError
        return np.multiply(x, y, out=out)

    def conjugates(x: Any, y: Any, out: Any = None) -> Any:
        return np.multiply(x, np.conj(y), out=out)

    assert ops_page.dtypes(own(cpu=overflows)) == "-"
    assert ops_page.dtypes(own(cpu=refuses_halves)) == "b i u f"
    assert ops_page.dtypes(own(cpu=conjugates, complex=True,
                               reference=lambda torch, x, y: x * y)) == "b i u h f"


def test_what_moves_nothing_is_not_counted() -> None:
    def hands_on(ns: Any, step: Any, g: Any) -> None:
        step.lend(0, g)
        step.give(1, g)

    def zeros(ns: Any, step: Any, g: Any) -> None:
        step.give(0, ns.multiply(g, 0.0))

    assert ops_page.passes(own(backward=hands_on, saves={})) == "2+1, 0"
    assert ops_page.saves(own(backward=hands_on, saves={})) == "nothing"
    assert ops_page.derivatives(own(backward=zeros)) == "zero"
    assert ops_page.passes(own(backward=None, saves={}, view=True)) == "0"
    assert ops_page.derivatives(own(backward=None, saves={})) == "none"
    assert ops_page.derivatives(own(backward=None, saves={}, composed=lambda x, y: x)) == "composed"
    kinds = {"add": "broadcasting", "sum": "unchanged", "reshape": "moved", "gather": "own",
             "take_order": "trailing", "max_pool2d": "in channels", "nonzero": "refused"}
    assert {name: ops_page.batching_kind(registry[name]) for name in kinds} == kinds
    assert ops_page.batching_kind(own(composed=lambda x, y: x)) == "composed"
    assert ops_page.batching_kind(own()) == "-"


def test_a_kernel_is_named() -> None:
    assert ops_page.launches(own(gpu=registry["sigmoid_grad"].gpu)) == "elementwise"


def test_what_ran_on_a_gpu_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ops.json"
    path.write_text(json.dumps({"device": "some GPU", "date": "2030-01-01", "passed": ["exp"],
                                "failed": {"log": "wrong"}}))
    monkeypatch.setattr(ops_page, "ON_GPU", path)
    assert [ops_page.on_gpu(n) for n in ("exp", "log", "sin")] == ["yes", "FAILED", "not yet"]


@pytest.mark.parametrize(("text", "cell"), [
    ("One thing. Another.", "One thing"), ("|x| * 2; or so", r"\|x\| \* 2"), ("a\n b", "a b"),
])
def test_a_cell_is_a_sentence(text: str, cell: str) -> None:
    assert ops_page.first_sentence(text) == cell
