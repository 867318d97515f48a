"""The ladder of batch norm in place: its stacks agree, its figures are those of so many buffers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ladder_abn
import numpy as np
import pytest
from ladder_abn import Sizes, Stack, add_options, build
from ladder_command import main

import gtensor as gt
from gtensor import nn

SMALL = ["--quick", "--rounds", "1", "--width", "4", "--size", "8", "--batch", "2"]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """The figures by their names, from the file that the program wrote."""
    assert main("", build, "ladder_abn", [*SMALL, "--out", str(folder), *arguments],
                more=add_options) == 0
    found = json.loads((folder / "ladder_abn.json").read_text())
    return {figure["name"]: figure for figure in found["figures"]}


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    gt.set_default_device("cpu")


def test_the_saved_bytes_are_those_of_the_layers_and_the_targets_are_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = run(tmp_path, "--depth", "8")
    unit = 4 * 2 * 4 * 8 * 8  # bytes of one activation
    for activation in ("leaky_relu", "relu"):
        saved = figures[f"depth 8, {activation}, float32: saved, InPlaceABN / ABN"]
        kept, base = (int(word.replace(",", "")) for word in
                      saved["note"].removesuffix(" bytes").split(" / "))
        beside = {kept - 8 * unit, base - 15 * unit}
        assert len(beside) == 1 and 0 <= beside.pop() <= 64 * 8  # the loss, small arrays
        assert (saved["target"], saved["met"]) == (0.55, True)
        traced = figures[f"depth 8, {activation}, float32: saved by tracemalloc, InPlaceABN / ABN"]
        assert abs(traced["measured"] - saved["measured"]) < 0.03
    assert "InPlaceABN / ABN: " in capsys.readouterr().out


def test_a_stack_that_keeps_two_buffers_misses_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.InPlaceABN, "_activated", nn.ABN._activated)
    figures = run(tmp_path, "--depth", "8", "--activation", "relu")
    missed = [name for name, figure in figures.items() if figure["met"] is False]
    assert len(missed) == 2 and all("saved" in name for name in missed)


def test_pytorchs_bytes_are_those_that_it_holds() -> None:
    torch = pytest.importorskip("torch")

    def run() -> Any:
        first = torch.zeros(1000)
        return (first + torch.zeros(1000)).sum()

    sums = ladder_abn.sums_of_allocations(run)
    assert max(sums) == 12000 and sums[-1] == 4
    activation = 4 * 2 * 4 * 8 * 8  # bytes; a norm keeps its input and an activation its own
    saved, peak = ladder_abn.torch_bytes(
        Stack(8, Sizes(4, 8, 2), "leaky_relu", "float32", "cpu").torch(False), "cpu")
    assert 0 <= saved - 23 * activation <= 512 * 8 < peak - saved


@pytest.mark.parametrize("activation", ("leaky_relu", "softplus", "gelu_tanh"))
def test_pytorch_computes_the_same(activation: str) -> None:
    stack = Stack(2, Sizes(3, 6, 2), activation, "float32", "cpu")
    own, theirs = (net.step() for net in (stack.gtensor(nn.InPlaceABN), stack.torch(False)))
    for a, b in zip(own, theirs, strict=True):
        wanted = ladder_abn.as_float(b)
        assert np.linalg.norm(ladder_abn.as_float(a) - wanted) <= 1e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", sorted(ladder_abn.ACTIVATIONS))
def test_every_activation_has_its_module_in_pytorch(name: str) -> None:
    import torch

    x = np.linspace(-3, 3, 7)
    zero, one = gt.zeros(1, "float64"), gt.ones(1, "float64")
    own = nn.functional.abn(gt.tensor(x).reshape(7, 1), None, None, zero, one, training=False,
                            eps=1e-15, activation=name)
    theirs = ladder_abn.torch_activation(torch, name)(torch.tensor(x)).numpy()
    np.testing.assert_allclose(own.numpy().ravel(), theirs, atol=1e-9)


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(ladder_abn.__doc__, build, "ladder_abn", ["--help"], more=add_options)
    said = capsys.readouterr().out
    for word in ("--depth", "--width", "--size", "--batch", "--activation", "2 n - 1"):
        assert word in said
