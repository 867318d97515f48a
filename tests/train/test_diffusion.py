"""The diffusion recipe: its files, resumption bit for bit, samples; and how well it draws."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import gtensor as gt
from gtensor.cli import main
from gtensor.nn import functional as F
from gtensor.train import diffusion, digits
from gtensor.train.described import described
from gtensor.train.trainer import Trainer

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--batch-size", "256", "--lr", "0.01"]


def train(folder: Path, *more: str) -> int:
    return main(["train", "diffusion", "--epochs", "3", *SMALL, "--quiet", "--out", str(folder),
                 *more])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert train(folder) == 0
    return folder


def test_it_learns_and_leaves_its_files(run):
    with (run / "metrics.csv").open() as file:
        found = [float(row["held_out_denoising_loss"]) for row in csv.DictReader(file)]
    assert len(found) == 3 and found[-1] < found[0] < 1
    assert sorted(os.listdir(run)) == ["checkpoint.safetensors", "film.png", "loss.png",
                                       "memory.png", "metrics.csv", "samples"]
    assert sorted(os.listdir(run / "samples")) == [f"epoch-000{n}.png" for n in (1, 2, 3)]


def test_interrupted_and_resumed_is_the_run_without_interruption(run, tmp_path, monkeypatch):
    """Weights, averages, losses and pictures: samples leave the training's numbers alone."""
    original, steps = Trainer.step, []

    def step(self, *batch):
        steps.append(1)
        if len(steps) == 8:
            signal.raise_signal(signal.SIGINT)
        return original(self, *batch)

    monkeypatch.setattr(Trainer, "step", step)
    assert train(tmp_path) == 130
    assert train(tmp_path, "--resume") == 0
    for name in ("checkpoint.safetensors", "metrics.csv", "samples/epoch-0003.png"):
        assert (tmp_path / name).read_bytes() == (run / name).read_bytes()


def test_pictures_do_not_change_the_training(run, tmp_path, monkeypatch):
    monkeypatch.setattr(diffusion.Diffusion, "after_epoch", lambda *_: None)
    assert train(tmp_path) == 0
    assert (tmp_path / "metrics.csv").read_bytes() == (run / "metrics.csv").read_bytes()


def test_samples_of_a_checkpoint_are_those_of_the_averaged_weights(run, tmp_path, capsys):
    """The first rows of the last epoch's grid, drawn with the same seed."""
    path = str(run / "checkpoint.safetensors")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = str(tmp_path / f"{name}.png")
        assert main(["sample", path, "--count", "13", "--seed", str(seed), "--out", out]) == 0
        assert capsys.readouterr().out == f"Wrote 13 images, seed {seed}, to {out}.\n"
    a, b, c = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert a.startswith(b"\x89PNG") and a == b != c
    run = described(Path(path))
    averaged = diffusion.averaged_model(run)
    plain = run.model(diffusion.make_model, run.options(
        diffusion.Diffusion, diffusion.DiffusionOptions())).eval()
    ema = gt.optim.EMA(plain)
    gt.checkpoint.load(path, model=plain, ema=ema, random=False)
    assert not np.array_equal(diffusion.draw(averaged, 3, 0), diffusion.draw(plain, 3, 0))
    with ema.swapped():
        assert np.array_equal(diffusion.draw(averaged, 3, 0), diffusion.draw(plain, 3, 0))


@pytest.mark.gpu
def test_a_gpu_trains_as_the_cpu_does():
    whole = digits.data()
    part = digits.Data(whole.train[:16], whole.held_out[:4], whole.train_labels[:16],
                       whole.held_out_labels[:4])
    found = []
    for device in ("cuda", "cpu"):
        trainer = diffusion.Diffusion(diffusion.DiffusionOptions(
            epochs=1, batch_size=8, layers=1, width=8, heads=2, device=device), part).trainer()
        assert trainer.run()
        found.append(trainer.progress.losses + trainer.progress.scores)
    assert len(found[0]) == 3 and found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "diffusion", "--heads", "5"], "width=64 and heads=5 given to DiffusionBlock; want"),
    (["train", "diffusion", "--layers", "0"], "--layers 0 given; wanted more than 0"),
    (["sample", "{run}", "--prompt", "a 3"], "--prompt given for images; wanted --count"),
    (["sample", "{run}", "--top-k", "3"], "--top-k given for images; wanted --count, --seed or"),
])
def test_mistakes_are_one_sentence_and_write_nothing(run, tmp_path, capsys, arguments, message):
    given = [a.replace("{run}", str(run / "checkpoint.safetensors")) for a in arguments]
    assert main([*given, "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_classifier_recognizes_what_it_draws(tmp_path):
    """Of 500 samples it calls 90 % a digit with more than 0.9 confidence, and finds all ten."""
    for name in ("digits", "diffusion"):
        assert main(["train", name, "--quiet", "--out", str(tmp_path / name)]) == 0
    classifier = digits.model().eval()
    gt.checkpoint.load(tmp_path / "digits" / "checkpoint.safetensors", model=classifier,
                       random=False)
    model = diffusion.averaged_model(described(
        tmp_path / "diffusion" / "checkpoint.safetensors"))
    images = gt.tensor(diffusion.draw(model, 500, 1)[:, None])
    with gt.no_grad():
        sure = F.softmax(classifier(images), 1).numpy()
    assert (sure.max(axis=1) > 0.9).mean() >= 0.9
    assert len(set(sure.argmax(axis=1).tolist())) == 10
