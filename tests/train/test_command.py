"""`gtensor train` in this process, on a part of the data: interrupted, resumed, out of disk."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from safetensors import safe_open

import gtensor as gt
from gtensor.backend import blas
from gtensor.cli import main
from gtensor.settings import settings
from gtensor.system.installation import installation_of
from gtensor.train import digits, trainer
from gtensor.train.digits import NORMS, Data
from gtensor.train.errors import UserError

STEPS = 3  # of an epoch


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    whole = digits.data()
    some = slice(48, 96)  # in the first 48 rounding decides which pixel of a pool is the largest
    part = Data(whole.train[some], whole.held_out[:20], whole.train_labels[some],
                whole.held_out_labels[:20])
    monkeypatch.setattr(digits, "data", lambda: part)


def train(folder, *more):
    return main(["train", "digits", "--epochs", "3", "--batch-size", "16", "--out", str(folder),
                 *more])


def untrained(folder):
    """A checkpoint of such a run before its first step."""
    path = folder / "checkpoint.safetensors"
    options = digits.DigitsOptions(epochs=3, batch_size=16)
    digits.Digits(options).trainer().save(path)
    return path


@pytest.mark.parametrize(("small", "busy"), [(True, False), (False, False), (False, True)])
def test_a_small_recipe_or_a_busy_machine_has_one_thread_also_if_it_fails(
    tmp_path, monkeypatch, capsys, small, busy
):
    count, choose = (blas._function(f"openblas_{verb}_num_threads") for verb in ("get", "set"))
    assert digits.Digits.small and count is not None
    monkeypatch.setattr(digits.Digits, "small", small)
    cores = os.cpu_count() or 1
    monkeypatch.setattr(os, "getloadavg", lambda: (cores * (0.6 if busy else 0.4), 0.0, 0.0))
    seen = []

    def fail():
        seen.append((count(), gt.get_num_threads()))
        raise UserError("planted")

    at_step(monkeypatch, 2, fail)
    before, threads = count(), gt.get_num_threads()
    gt.set_num_threads(2)
    try:
        assert train(tmp_path, "--quiet") == 1 and "planted" in capsys.readouterr().err
        assert seen == [(1, 1) if small or busy else (2, 2)]
        assert (count(), gt.get_num_threads()) == (2, 2)
    finally:
        gt.set_num_threads(threads)
        choose(before)


def progress(folder):
    with safe_open(folder / "checkpoint.safetensors", framework="numpy") as file:
        return json.loads(file.metadata()["gtensor"])["progress"]


def at_step(monkeypatch, number, act):
    """Call `act` before step `number` (from 1) of the process."""
    original, calls = trainer.Trainer.step, []

    def step(self, *batch):
        calls.append(1)
        if len(calls) == number:
            act()
        return original(self, *batch)

    monkeypatch.setattr(trainer.Trainer, "step", step)


@pytest.mark.parametrize("step", [2, STEPS, STEPS + 1])
def test_interrupted_and_resumed_is_the_run_without_interruption(
    tmp_path, monkeypatch, capsys, step
):
    assert train(tmp_path / "whole", "--quiet") == 0
    before = signal.getsignal(signal.SIGINT)  # a shell's background jobs ignore it
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: signal.raise_signal(signal.SIGINT))
        assert train(tmp_path / "cut") == 130
    told = capsys.readouterr().out
    assert "saved to" in told and "--resume" in told
    assert len(progress(tmp_path / "cut")["losses"]) == step  # the step was finished, not torn
    assert signal.getsignal(signal.SIGINT) is before
    assert train(tmp_path / "cut", "--resume", "--quiet") == 0
    assert progress(tmp_path / "cut") == progress(tmp_path / "whole")
    assert len(progress(tmp_path / "whole")["losses"]) == 3 * STEPS
    first, second = ((tmp_path / name / "checkpoint.safetensors").read_bytes()
                     for name in ("whole", "cut"))
    assert first == second


def test_quiet_says_nothing_and_a_finished_run_can_be_resumed(tmp_path, capsys):
    assert train(tmp_path, "--quiet") == 0
    before = progress(tmp_path)
    assert train(tmp_path, "--quiet", "--resume") == 0
    assert progress(tmp_path) == before
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_the_table_names_where_memory_went(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert train(tmp_path) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    for word in ("parameters", "gradients", "optimizer", "saved", "workspace", "temporary", "peak",
                 "served from cache", "img/s", "Held-out accuracy"):
        assert word in out


def test_a_narrow_terminal_gets_a_table_of_whole_names(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert train(tmp_path, "--epochs", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if line.startswith(("│", "┃", "epoch"))) <= 50
    for word in ("parameters", "temporary", "peak of the step", "served from cache", "at most"):
        assert any(word in line for line in lines)
    assert "after 1 epoch," in lines[-2]


def test_the_recipe_of_a_file_is_trained_and_resumed_for_longer(tmp_path, capsys, monkeypatch):
    """Options come from the checkpoint; the learning rate is that of the longer run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    assert main(["train", "mine.py", "--hidden", "3", "--epochs", "1", "--clip", "0.5", "--no-bias",
                 "--name", "one"]) == 0
    assert "Held-out loss" in capsys.readouterr().out
    assert main(["train", "mine.py", "--resume", "--epochs", "2"]) == 0
    out = capsys.readouterr().out
    assert "Resumed after 5 steps, in epoch 2 of 2. It was a run of 1 epoch; from here on" in out
    assert "after 2 epochs," in out
    with safe_open(tmp_path / "runs/mine/checkpoint.safetensors", framework="numpy") as file:
        assert file.get_tensor("model.0.weight").shape == (3, 2)
        assert "model.2.bias" not in {*file.keys()}
    options = progress(tmp_path / "runs/mine")["options"]
    assert options["clip"] == 0.5 and options["name"] == "one" and options["scale"] == 2
    assert main(["train", "mine.py", "--resume"]) == 0
    assert "Nothing was left to train in a run of 2 epochs" in capsys.readouterr().out
    for more, told in ((["--epochs", "1"], "which are more than --epochs 1; wanted 2 or more"),
                       (["--hidden", "4"], "was made with --hidden 3; resume with the same"),
                       (["--bias"], "was made with --bias False; resume with the same")):
        assert main(["train", "mine.py", "--resume", *more]) == 1
        assert told in capsys.readouterr().err
    assert main(["sample", "runs/mine/checkpoint.safetensors"]) == 1
    assert "is of the recipe mine; wanted one of text or diffusion" in capsys.readouterr().err


RECIPE = """
from dataclasses import dataclass

import numpy as np

import gtensor as gt
from gtensor.train import Options, Recipe, option


@dataclass(frozen=True)
class MineOptions(Options):
    batch_size: int = option(4, "points per step", positive=True)
    hidden: int = option(8, "hidden units", positive=True)
    bias: bool = True
    name: str | None = None
    scale: float = 2.0


class Mine(Recipe[MineOptions]):
    options_type = MineOptions

    def dataset(self):
        points = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
        return gt.data.ArrayDataset(points, points.sum(axis=1, keepdims=True))

    def held_out(self, device):
        return self.dataset()

    def model(self):
        hidden = self.options.hidden
        return gt.nn.Sequential(gt.nn.Linear(2, hidden), gt.nn.GELU(), gt.nn.Linear(
            hidden, 1, bias=self.options.bias))

    def loss(self, model, points, sums):
        return ((model(points) - sums)**2).mean()
"""


@pytest.mark.parametrize(("text", "told"), [
    (None, "there is no file mine.py; wanted a Python file with a recipe"),
    ("x = 1", "mine.py defines the recipes none; wanted one subclass of gt.train.Recipe"),
    (RECIPE + "\n\nclass Other(Mine):\n    pass\n", "mine.py defines the recipes Mine, Other;"),
])
def test_a_file_without_one_recipe_is_refused(tmp_path, capsys, monkeypatch, text, told):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    assert main(["train", "mine.py"]) == 1
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1 and not (tmp_path / "runs").exists()


def sizes(line):
    """The sizes in a row of the table, in KiB."""
    found = re.findall(r"([\d,.]+) (KiB|MiB)", line)
    return [float(number.replace(",", "")) * (1024 if unit == "MiB" else 1)
            for number, unit in found]


@pytest.mark.parametrize("norm", NORMS)
def test_a_table_shows_both_norms_whichever_was_trained(tmp_path, capsys, monkeypatch, norm):
    monkeypatch.setenv("COLUMNS", "80")
    assert train(tmp_path, "--norm", norm) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"(--norm {norm} was trained)" in "\n".join(lines)
    names = next(line for line in lines if "abn" in line and "inplace" in line
                 and "norm" not in line)
    order = re.findall("abn|inplace", names)
    assert order == [norm, norm] + [n for n in NORMS if n != norm for _ in range(2)]
    rows = {name: sizes(line) for line in lines for name in ("parameters", "optimizer", "saved")
            if name in line}
    for name in ("parameters", "optimizer"):
        assert len(set(rows[name])) == 1, rows  # the same model, its optimizer in the same state
    most = dict(zip(order[::2], rows["saved"][1::2], strict=True))
    first = 16 * 32 * 8 * 8 * 4 / 1024  # the first block's activation, which abn keeps twice
    assert abs(most["abn"] - most["inplace"] - first) <= 0.2


def test_the_norm_in_place_trains_as_the_one_out_of_place(tmp_path):
    for norm, kind in NORMS.items():
        assert train(tmp_path / norm, "--quiet", "--norm", norm) == 0
        assert sum(type(m) is kind for m in digits.model(norm).modules()) == 3
    first, second = (progress(tmp_path / norm)["losses"] for norm in NORMS)
    assert second == pytest.approx(first, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("norm", NORMS)
def test_a_gpu_trains_as_the_cpu_does(tmp_path, norm):
    for place in ("cuda", "cpu"):
        assert train(tmp_path / place, "--quiet", "--norm", norm, "--device", place) == 0
    there, here = (progress(tmp_path / place) for place in ("cuda", "cpu"))
    assert there["losses"] == pytest.approx(here["losses"], rel=1e-3)
    assert there["scores"] == here["scores"]


def test_a_run_is_not_resumed_with_the_other_norm(tmp_path, capsys):
    untrained(tmp_path)
    assert train(tmp_path, "--resume", "--quiet", "--norm", "abn") == 1
    assert "made with --norm inplace; resume with the same options" in capsys.readouterr().err


def test_a_full_disk_keeps_the_checkpoint_of_the_last_epoch(tmp_path, monkeypatch, capsys):
    original = os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        at_step(patch, STEPS + 2, lambda: patch.setattr(os, "fsync", full))
        assert train(tmp_path, "--quiet") == 1
        assert os.fsync is full
    assert os.fsync is original
    captured = capsys.readouterr()
    assert "checkpoint.safetensors could not be written: No space left on device" in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.safetensors", "metrics.csv"]
    assert len(progress(tmp_path)["losses"]) == STEPS
    assert train(tmp_path, "--resume", "--quiet") == 0


def test_a_second_training_into_a_folder_stops_until_the_first_is_dead(tmp_path, capsys):
    first = subprocess.Popen([sys.executable, "-m", "gtensor", "train", "digits", "--epochs",
                              "100000", "--batch-size", "16", "--quiet", "--out",
                              str(tmp_path)])
    try:
        end = time.monotonic() + 600
        while not (tmp_path / "checkpoint.safetensors").exists() and time.monotonic() < end:
            assert first.poll() is None
            time.sleep(0.05)
        for more in ([], ["--resume"]):
            assert train(tmp_path, "--quiet", *more) == 1
            assert (f"{tmp_path} is the folder of a training that runs (process {first.pid} on "
                    in capsys.readouterr().err)
    finally:
        first.kill()
        first.wait()
    assert train(tmp_path) == 0
    out = capsys.readouterr().out
    assert "holds an earlier run" in out and "/checkpoint.safetensors, loss.png," in out
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.safetensors", "loss.png", "memory.png",
                                            "metrics.csv"]


def test_a_folder_without_locks_is_trained_into(tmp_path, monkeypatch):
    def no_locks(descriptor, flags):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert train(tmp_path, "--quiet") == 0


@pytest.mark.parametrize("damage", [
    lambda data: data[:-1000], lambda data: data[:20], lambda data: b"",
    lambda data: data.replace(b'\\"param_groups\\"', b'\\"param_heaps\\"'),
    lambda data: data.replace(b'\\"epoch\\"', b'\\"apoch\\"'),
    lambda data: data.replace(b'\\"format\\":2', b'\\"format\\":9')])
def test_a_damaged_checkpoint_is_named_and_left_as_it_is(tmp_path, capsys, damage):
    path = untrained(tmp_path)
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    assert train(tmp_path, "--resume", "--quiet") == 1
    told = capsys.readouterr().err
    assert str(path) in told and told.count("\n") == 1 and "checkpoint" in told
    assert path.read_bytes() == damaged


def test_other_options_than_the_checkpoints_are_named(tmp_path, capsys):
    untrained(tmp_path)
    assert train(tmp_path, "--resume", "--quiet", "--seed", "5") == 1
    assert "made with --seed 0; resume with the same options" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["rich", "matplotlib", "sklearn"])
def test_a_missing_package_is_named_with_its_command(tmp_path, monkeypatch, capsys, module):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *rest: None if name == module else found(name, *rest))
    monkeypatch.setattr(digits, "data", digits_data)
    assert train(tmp_path, "--quiet") == 1
    assert f"which is not installed; {installation_of('train')}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


digits_data = digits.data


def test_debug_shows_the_traceback(tmp_path):
    with settings.override(debug=1), pytest.raises(Exception, match="unknown recipe 'x'"):
        main(["train", "x"])
