"""The text recipe: it learns, is resumed bit for bit, and continues a text."""

from __future__ import annotations

import csv
import math
import signal
from pathlib import Path

import numpy as np
import pytest

from gtensor.cli import main
from gtensor.train import text
from gtensor.train.trainer import Trainer

TEXT = b"the cat sat on the mat; the dog ran to the man. " * 80
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--length", "16", "--batch-size", "8"]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_bytes(TEXT)
    return tmp_path / "book.txt"


def train(book: Path, folder: Path, *more: str) -> int:
    return main(["train", "text", "--data", str(book), "--epochs", "3", *SMALL, "--quiet",
                 "--out", str(folder), *more])


def scores(folder: Path) -> list[float]:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert float(row["gradient_norm"]) > 0 and 0 <= float(row["clipped"]) <= 1
        assert float(row["weight_norm"]) > 1
    return [float(row["held_out_nats_per_byte"]) for row in rows]


def test_it_learns_what_bigrams_do_not_say(book, tmp_path):
    assert train(book, tmp_path / "run", "--lr", "0.02") == 0
    found = scores(tmp_path / "run")
    assert len(found) == 3 and found[-1] < found[0] < math.log(256)
    assert found[-1] < bigram_nats(TEXT)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "checkpoint.safetensors", "loss.png", "memory.png", "metrics.csv"}


def bigram_nats(given: bytes) -> float:
    pairs = np.zeros((256, 256))
    seen = np.frombuffer(given, np.uint8)
    np.add.at(pairs, (seen[:-1], seen[1:]), 1)
    shares = pairs[seen[:-1], seen[1:]] / pairs[seen[:-1]].sum(axis=1)
    return float(-np.log(shares).mean())


def test_interrupted_and_resumed_is_the_run_without_interruption(book, tmp_path, monkeypatch):
    assert train(book, tmp_path / "whole") == 0
    original, steps = Trainer.step, []

    def step(self, *batch):
        steps.append(1)
        if len(steps) == 7:
            signal.raise_signal(signal.SIGINT)
        return original(self, *batch)

    monkeypatch.setattr(Trainer, "step", step)
    assert train(book, tmp_path / "cut") == 130
    assert train(book, tmp_path / "cut", "--resume") == 0
    for name in ("checkpoint.safetensors", "metrics.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


@pytest.mark.parametrize("weights", ["finite", "broken"])
def test_a_loss_that_is_not_finite_stops_and_names_the_step(
    book, tmp_path, monkeypatch, capsys, weights
):
    original = text.Text.loss
    calls = []

    def loss(self, model, *batch):
        calls.append(1)
        found = original(self, model, *batch)
        if len(calls) == 40 and weights == "broken":
            next(iter(model.parameters())).detach()[...] = math.nan
        return found * math.nan if len(calls) == 40 else found

    monkeypatch.setattr(text.Text, "loss", loss)
    assert train(book, tmp_path / "run", "--capture", "no") == 1
    told = capsys.readouterr().err
    assert "the loss is nan at step 40 (epoch 2); the step was not taken" in told
    path = tmp_path / "run" / "checkpoint.safetensors"
    monkeypatch.undo()
    if weights == "broken":
        assert f"not finite, so {path} was left as it is" in told
    else:
        assert f"saved to {path}" in told
    assert train(book, tmp_path / "run", "--resume") == 0
    assert all(map(math.isfinite, scores(tmp_path / "run")))


def test_a_run_is_not_resumed_with_other_data_or_a_garbled_position(book, tmp_path, capsys):
    assert train(book, tmp_path / "run") == 0
    path = tmp_path / "run" / "checkpoint.safetensors"
    whole = path.read_bytes()
    for old, new, message in ((b'\\"batch\\":0', b'\\"batch\\":7', "not a whole checkpoint"),
                              (b'\\"epoch\\":3', b'\\"epoch\\":2', "not a whole checkpoint")):
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        assert train(book, tmp_path / "run", "--resume") == 1
        assert message in capsys.readouterr().err
    path.write_bytes(whole)
    book.write_bytes(TEXT[::-1])
    assert train(book, tmp_path / "run", "--resume") == 1
    assert "was made with data '3840 bytes, " in capsys.readouterr().err


def test_a_sample_goes_on_from_the_prompt(book, tmp_path, capsys):
    assert train(book, tmp_path / "run", "--lr", "0.01") == 0
    path = str(tmp_path / "run" / "checkpoint.safetensors")
    assert main(["sample", path, "--prompt", "the c", "--count", "40", "--temperature", "0"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("the c") and len(told.encode()) == 46
    assert set(told.split()) & {"the", "cat", "dog", "mat;", "man."}


@pytest.mark.parametrize("arguments,message", [
    (["train", "text", "--data", "{tmp}/none.txt"], "none.txt could not be read: there is no file"),
    (["train", "text", "--data", "{tmp}/empty.txt"], "empty.txt is empty; wanted a file of text"),
    (["train", "text", "--data", "{tmp}/short.txt"], "a text of 5 bytes was given; wanted a"),
    (["train", "text", "--arch", "rnn"], "--arch rnn given; wanted one of transformer, ssm"),
    (["train", "text", "--heads", "5"], "width=128, heads=5 and kv_heads=5 given; wanted"),
    (["train", "text", "--lr", "nan"], "--lr nan given; wanted a finite number"),
    (["sample", "{tmp}/none.safetensors"], "there is no checkpoint"),
    (["sample", "{tmp}/short.txt"], "short.txt"),
])
def test_mistakes_are_one_sentence_and_write_nothing(tmp_path, capsys, arguments, message):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "short.txt").write_bytes(b"short")
    given = [a.replace("{tmp}", str(tmp_path)) for a in arguments]
    more = ["--out", str(tmp_path / "run"), "--quiet"] if given[0] == "train" else []
    assert main([*given, *more]) == 1
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {"empty.txt", "short.txt"}


def test_a_run_of_another_recipe_is_neither_resumed_nor_sampled(book, tmp_path, capsys):
    assert main(["train", "digits", "--epochs", "1", "--quiet", "--out", str(tmp_path / "d")]) == 0
    assert train(book, tmp_path / "d", "--resume") == 1
    assert main(["sample", str(tmp_path / "d" / "checkpoint.safetensors")]) == 1
    told = capsys.readouterr().err.splitlines()
    assert "is a run of the recipe digits; wanted one of text" in told[0]
    assert "is of the recipe digits; wanted one of text or diffusion" in told[1]
