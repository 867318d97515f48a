"""PyTorch's state dicts, name by name, and the report of what did not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import gtensor as gt
from gtensor.checkpoint import CheckpointError, CheckpointMismatch, load_into, save, save_file


def torch_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(4 * 6 * 6, 5))


def model() -> gt.nn.Module:
    return gt.nn.Sequential(
        gt.nn.Conv2d(3, 4, 3), gt.nn.BatchNorm2d(4), gt.nn.ReLU(), gt.nn.Flatten(),
        gt.nn.Linear(4 * 6 * 6, 5))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A state dict of PyTorch's whose batch statistics have seen data."""
    source = torch_model()
    source(torch.randn(6, 3, 8, 8))
    safetensors.torch.save_file(source.state_dict(), tmp_path / "torch.safetensors")
    return tmp_path / "torch.safetensors"


def linear(path: Path, **tensors: Any) -> Path:
    save_file({"weight": np.ones((2, 3), np.float32), "bias": np.ones(2, np.float32), **tensors},
              path)
    return path


def test_a_torch_model_computes_the_same_after_loading(file: Path) -> None:
    theirs, ours = torch_model(), model()
    theirs.load_state_dict(safetensors.torch.load_file(file))
    report = load_into(ours, file, strict=True)
    assert report.complete and len(report.loaded) == len(theirs.state_dict())
    x = torch.randn(3, 3, 8, 8)
    theirs.eval(), ours.eval()
    np.testing.assert_allclose(ours(gt.asarray(x.numpy())).detach().numpy(),
                               theirs(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_are_converted_and_said(tmp_path: Path, dtype: torch.dtype) -> None:
    source = torch.nn.Linear(3, 2).to(dtype)
    safetensors.torch.save_file(source.state_dict(), tmp_path / "a")
    ours = gt.nn.Linear(3, 2)
    report = load_into(ours, tmp_path / "a", strict=True)
    name = str(dtype).removeprefix("torch.")
    assert ("weight", name, "float32") in report.converted
    assert f"{name} -> float32  2 tensors" in str(report)
    np.testing.assert_array_equal(ours.weight.numpy(), source.weight.detach().float().numpy())
    assert ours.weight.dtype == gt.float32 and ours.weight.requires_grad


def test_floats_do_not_become_integers(tmp_path: Path) -> None:
    ours = gt.nn.BatchNorm1d(2)
    state = {name: value.numpy() for name, value in ours.state_dict().items()}
    save_file({**state, "num_batches_tracked": np.float32(2.5)}, tmp_path / "a")
    report = load_into(ours, tmp_path / "a")
    assert report.mismatched == [("num_batches_tracked", "float32", "int64")]


def test_the_report_says_all_that_did_not_fit(tmp_path: Path) -> None:
    ours = gt.nn.Sequential(gt.nn.Linear(3, 2), gt.nn.Linear(2, 2))
    before = {name: value.numpy().copy() for name, value in ours.state_dict().items()}
    save_file({"0.weight": np.ones((2, 3)), "0.bias": np.ones(3, np.float32),
               "1.weight": np.full((2, 2), 4, np.float32), "2.gain": np.ones(1)}, tmp_path / "a")
    report = load_into(ours, tmp_path / "a")
    assert report.loaded == ["0.weight", "1.weight"] and report.missing == ["1.bias"]
    assert report.unexpected == ["2.gain"] and not report.complete and not report.suggestion
    assert report.mismatched == [("0.bias", "(3,)", "(2,)")]
    assert str(report) == f"""\
{tmp_path / "a"}: 2 of 4 tensors loaded
  missing in the file, left as they were (1)
    1.bias
  unexpected: not in the model (1)
    2.gain
  do not fit, left as they were (1)
    0.bias  file (3,)  model (2,)
  converted (1)
    float64 -> float32  1 tensors"""
    np.testing.assert_array_equal(ours[1].weight.numpy(), np.full((2, 2), 4))
    for name in ("0.bias", "1.bias"):
        np.testing.assert_array_equal(ours.state_dict()[name].numpy(), before[name])


def test_strict_raises_the_report_and_changes_nothing(tmp_path: Path) -> None:
    path = linear(tmp_path / "a", extra=np.ones(1))
    ours = gt.nn.Linear(3, 2)
    before = ours.weight.tolist()
    with pytest.raises(CheckpointMismatch, match=r"(?s)unexpected.*extra.*nothing was loaded"):
        load_into(ours, path, strict=True)
    assert ours.weight.tolist() == before


def test_long_reports_are_cut(tmp_path: Path) -> None:
    path = linear(tmp_path / "a", **{f"x{i}": np.ones(1) for i in range(50)})
    text = str(load_into(gt.nn.Linear(3, 2), path))
    assert "(50)" in text and "... and 38 more" in text and len(text.splitlines()) < 20


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rename", [
    {"module.": ""}, lambda name: name.removeprefix("module."),
    {"module.weight": "weight", "module.bias": "bias"}, {"module.": "", "module.bias": "bias"}])
def test_names_are_changed_on_request(tmp_path: Path, rename: Any) -> None:
    save_file({"module.weight": np.ones((2, 3)), "module.bias": np.ones(2)}, tmp_path / "a")
    ours = gt.nn.Linear(3, 2)
    assert load_into(ours, tmp_path / "a", rename).complete
    assert ours.weight.tolist() == [[1.0] * 3] * 2


def test_a_prefix_in_the_way_is_suggested(tmp_path: Path) -> None:
    save_file({"module.net.weight": np.ones((2, 3)), "module.net.bias": np.ones(2)}, tmp_path / "a")
    with pytest.raises(CheckpointMismatch) as refused:  # nothing fits, strict or not
        load_into(gt.nn.Linear(3, 2), tmp_path / "a")
    assert str(refused.value).endswith(
        "  2 of 2 names of the file start with 'module.net.': pass rename={'module.net.': ''}\n"
        "  nothing was loaded")
    save_file({"net.weight": np.ones((2, 3)), "net.bias": np.ones(2), "x": np.ones(1)},
              tmp_path / "b")
    with pytest.raises(CheckpointMismatch, match=r"2 of 3 names of the file start with 'net\.'"):
        load_into(gt.nn.Linear(3, 2), tmp_path / "b")


def test_a_prefix_that_the_file_lacks_is_suggested(tmp_path: Path) -> None:
    class Wrapped(gt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = gt.nn.Linear(3, 2)

    path = linear(tmp_path / "a")
    with pytest.raises(CheckpointMismatch, match=(
            r"2 of 2 names of the model .* rename=lambda name: 'inner\.' \+ name")):
        load_into(Wrapped(), path)
    assert load_into(Wrapped(), path, lambda name: "inner." + name).complete


def test_a_suggestion_where_some_names_fit(tmp_path: Path) -> None:
    save_file({"module.weight": np.ones((2, 3)), "module.bias": np.ones(2), "bias": np.ones(2)},
              tmp_path / "a")
    report = load_into(gt.nn.Linear(3, 2), tmp_path / "a")
    assert report.loaded == ["bias"] and "pass rename={'module.': ''}" in report.suggestion
    assert str(report).endswith(report.suggestion)


def test_a_file_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    path = linear(tmp_path / "a")
    ours = gt.nn.Linear(5, 4)
    before = ours.weight.tolist()
    with pytest.raises(CheckpointMismatch, match=r"(?s)0 of 2.*do not fit.*nothing was loaded"):
        load_into(ours, path)
    assert ours.weight.tolist() == before
    save_file({}, tmp_path / "empty")
    assert load_into(gt.nn.ReLU(), tmp_path / "empty").complete  # there was nothing to load


def test_names_left_out_and_names_that_meet(tmp_path: Path) -> None:
    path = linear(tmp_path / "a", other=np.ones(2))
    assert load_into(gt.nn.Linear(3, 2), path, {"other": None}, strict=True).complete
    with pytest.raises(ValueError, match="rename makes 'bias' of 'other' and of 'bias'"):
        load_into(gt.nn.Linear(3, 2), path, {"other": "bias"})


@pytest.mark.parametrize(("rename", "told"), [
    ({"net": ""}, "rename has 'net', which .*/a has not"),
    ({"weight": "weight", "wait": "w", "ne.": ""}, "rename has 'wait', 'ne.', which")])
def test_a_rename_of_what_the_file_has_not_is_refused(
    tmp_path: Path, rename: Any, told: str
) -> None:
    path = linear(tmp_path / "a", **{"net.x": np.ones(1)})
    ours = gt.nn.Linear(3, 2)
    before = ours.weight.tolist()
    with pytest.raises(ValueError, match=told):
        load_into(ours, path, rename)
    assert ours.weight.tolist() == before


def test_tied_weights_that_the_file_has_once_are_not_missing(tmp_path: Path) -> None:
    class Tied(gt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = gt.nn.Embedding(5, 3), gt.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    save_file({"embed.weight": np.full((5, 3), 2.0)}, tmp_path / "a")
    ours = Tied()
    report = load_into(ours, tmp_path / "a", strict=True)
    assert report.tied == {"head.weight": "embed.weight"} and report.missing == []
    assert ours.head.weight.tolist() == [[2.0] * 3] * 5
    assert "1 of 2 tensors loaded, 1 share their memory" in str(report)


# -- other sources ---------------------------------------------------------------------------------


def test_the_parts_of_a_checkpoint(tmp_path: Path) -> None:
    source, ours = gt.nn.Linear(3, 2), gt.nn.Linear(3, 2)
    ema = gt.optim.EMA(source)
    ema.update()
    save(tmp_path / "c", model=source, ema=ema)
    assert load_into(ours, tmp_path / "c", strict=True).complete
    assert ours.weight.tolist() == source.weight.tolist()
    report = load_into(ours, tmp_path / "c", {"module.": ""}, part="ema")
    assert report.loaded == ["weight", "bias"] and report.unexpected == ["n_averaged"]
    with pytest.raises(CheckpointMismatch, match="no state of 'teacher', it has 'model', 'ema'"):
        load_into(ours, tmp_path / "c", part="teacher")


def test_shards_and_a_version_of_the_weights_that_a_graph_saved(tmp_path: Path) -> None:
    save_file({"weight": np.ones((2, 3)), "bias": np.ones(2)}, tmp_path / "m.safetensors",
              max_shard_size=48)
    ours = gt.nn.Linear(3, 2)
    x = gt.ones((1, 3), requires_grad=True)
    loss = ours(x).sum()
    assert load_into(ours, tmp_path / "m.safetensors.index.json", strict=True).complete
    with pytest.raises(gt.GradientError, match="overwritten"):
        loss.backward()


def test_a_broken_file_and_a_model_without_tensors(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"pickle?")
    with pytest.raises(CheckpointError, match="7 bytes"):
        load_into(gt.nn.Linear(3, 2), tmp_path / "a")
    with pytest.raises(TypeError, match="'state' in the state of SGD is no Tensor"):
        load_into(gt.optim.SGD(gt.nn.Linear(1, 1).parameters(), lr=0.1), tmp_path / "a")
