"""The main job: digits trained, taken up again bit for bit, interrupted, and its files."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gtensor as gt
from gtensor import settings
from gtensor.train import digits
from gtensor.train.accounting import account
from gtensor.train.callbacks import Callback
from gtensor.train.digits import Data, Digits, DigitsOptions
from gtensor.train.errors import UserError
from gtensor.train.files import write_atomically


@pytest.fixture(scope="module")
def data():
    return digits.data()


@pytest.fixture
def small(data):
    """A trainer of a few batches of the real data."""
    part = Data(data.train[:160], data.held_out[:40], data.train_labels[:160],
                data.held_out_labels[:40])
    options = DigitsOptions(epochs=3)
    return lambda **changes: Digits(options.changed(**changes), part).trainer()


class StopAfter(Callback):
    """Stops a run after so many steps in all."""

    def __init__(self, steps):
        self.steps = steps

    def after_step(self, trainer):
        if len(trainer.progress.losses) == self.steps:
            trainer.stop("enough")


def run(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "gtensor", *map(str, arguments)],
                          capture_output=True, text=True, **options)


def test_digits_reaches_its_accuracy_and_leaves_its_files(tmp_path):
    done = run("train", "digits", "--epochs", 6, "--out", tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split("Held-out accuracy ")[1].split("%")[0])
    assert accuracy >= 97.5
    for word in ("parameters", "gradients", "saved", "workspace", "peak", "cache"):
        assert word in done.stdout
    for name in ("loss.png", "memory.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint.safetensors", "loss.png", "memory.png", "metrics.csv"]


def test_the_split_has_every_fifth_image_of_each_digit_as_scikit_learn_reads_them(data):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = sorted(range(1797), key=lambda n: (labels[n], n))
    held_out = sorted(order[::5])
    train = sorted({*order} - {*held_out})
    for found, wanted in zip(data, (images[train], images[held_out], labels[train],
                                    labels[held_out]), strict=True):
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
    assert {*np.bincount(data.held_out_labels)} <= {35, 36, 37} and len(data.train) == 1437


def test_the_images_are_read_without_importing_scikit_learn():
    done = subprocess.run([sys.executable, "-c", "import sys; from gtensor.train import digits; "
                           "digits.data(); print('sklearn' in sys.modules)"],
                          capture_output=True, text=True, timeout=600)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("stop_after", [1, 3, 4])
def test_resumed_losses_are_identical(small, tmp_path, stop_after):
    whole = small()
    assert whole.run()
    first = small()
    first.callbacks.append(StopAfter(stop_after))
    assert not first.run() and first.stopped == "enough"
    first.save(tmp_path / "c.safetensors")
    second = small(seed=0)
    second.resume(tmp_path / "c.safetensors")
    assert second.run()
    assert second.progress.losses == whole.progress.losses
    assert second.progress.scores == whole.progress.scores


def test_no_segment_is_requested_after_the_first_step(small):
    with settings.override(arena_min_bytes=0):
        trainer = small(epochs=1)
        trainer.step(*trainer.first_batch())
        before = gt.memory.stats()
        for _ in range(5):
            trainer.step(*trainer.first_batch())
        after = gt.memory.stats()
    assert after.misses == before.misses and after.segments == before.segments
    assert after.hits > before.hits


@pytest.mark.parametrize("goes", [False, True], ids=["stays", "goes in the middle"])
def test_every_byte_of_a_step_has_a_category(small, monkeypatch, goes):
    with settings.override(arena_min_bytes=0):
        trainer = small(epochs=1)
        others = [small(epochs=1)]  # whose memory is none of the step's
        rest = sum(t.nbytes for t in (
            *others[0].model.state_dict().values(), *others[0].held_out))
        trainer.step(*trainer.first_batch())
        before = gt.memory.stats().allocated
        if goes:  # as garbage does
            original = trainer.loss
            monkeypatch.setattr(trainer, "loss", lambda *batch: (
                others.clear(), gc.collect(), original(*batch))[-1])
        books = account(trainer)
        assert bool(others) != goes
        parameters = [t.nbytes for t in trainer.model.state_dict().values()]
    gradients = sum(p.nbytes for p in trainer.model.parameters())
    assert gradients <= books.most("gradients") <= gradients + 64 * 12 + 4096
    assert books.at_peak("parameters") == sum(-(-nbytes // 64) * 64 for nbytes in parameters)
    assert books.at_peak("data") >= sum(t.nbytes for t in trainer.held_out)
    assert books.most("saved") > books.most("gradients") and books.most("workspace") > 0
    assert books.most("earlier") == 0 and books.totals[0] <= before - rest
    assert all(min(row) >= 0 for row in books.bytes.values())
    assert books.peak == max(books.totals) and 0.9 < books.reuse <= 1


def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "gtensor", "train", "digits", "--epochs", "40", "--out",
         str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 1200
    while not (tmp_path / "checkpoint.safetensors").exists() and time.time() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "--resume" in out and "saved to" in out
    from safetensors import safe_open

    with safe_open(tmp_path / "checkpoint.safetensors", framework="numpy") as file:
        progress = json.loads(file.metadata()["gtensor"])["progress"]
    assert len(progress["losses"]) == 23 * progress["epoch"] + progress["batch"] > 0


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; the file that was there"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_kill_between_write_and_rename_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_truncated_checkpoint_is_named_and_changes_nothing(small, tmp_path):
    path = tmp_path / "c.safetensors"
    trainer = small()
    trainer.save(path)
    path.write_bytes(path.read_bytes()[:-1000])
    before = [p.tolist() for p in trainer.model.parameters()]
    with pytest.raises(UserError, match=r"c\.safetensors is not a whole checkpoint.*--out"):
        trainer.resume(path)
    assert [p.tolist() for p in trainer.model.parameters()] == before


def test_a_checkpoint_of_other_options_is_refused(small, tmp_path):
    small().save(tmp_path / "c")
    with pytest.raises(UserError, match="made with lr 0.004; this run has 1.0"):
        small(lr=1.0).resume(tmp_path / "c")


def test_a_checkpoint_of_another_model_is_refused(small, tmp_path, monkeypatch):
    small().save(tmp_path / "c")
    monkeypatch.setattr(digits, "model", lambda norm: gt.nn.Sequential(
        gt.nn.Flatten(), gt.nn.Linear(64, 10)))
    with pytest.raises(UserError, match="another model"):
        small().resume(tmp_path / "c")
