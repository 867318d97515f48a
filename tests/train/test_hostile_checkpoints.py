"""Checkpoints of strangers in `gtensor sample` and `gtensor train --resume`: one sentence each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gtensor import checkpoint
from gtensor.cli import main
from gtensor.system.files import MOST_SHOWN
from gtensor.train import sampling, text

TEXT = b"the cat sat on the mat; the dog ran to the man. " * 20
SIZES = {"layers": 2, "width": 16, "heads": 2, "length": 16, "batch_size": 8, "epochs": 1}
ESCAPES = "\x1b]0;mine\x07\x1b[2J\u202e" + "A" * 1_000_000


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint before the first step."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "book.txt").write_bytes(TEXT)
    options = text.TextOptions().changed(data=(str(folder / "book.txt"),), **SIZES)
    text.Text(options).trainer().save(folder / "checkpoint.safetensors")
    return folder


@pytest.fixture
def run(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Sample from, or resume, the good checkpoint with a change: the status and what is told."""

    def run(command: str, change: Callable[[dict[str, Any], dict[str, Any]], None]
            ) -> tuple[int, str, str]:
        with checkpoint.safe_open(good / "checkpoint.safetensors") as file:
            tensors = {name: value.numpy() for name, value in file.get_tensors().items()}
            about = json.loads(file.metadata()["gtensor"])
        change(about["progress"], tensors)
        path = tmp_path / "checkpoint.safetensors"
        checkpoint.save_file(tensors, path, {"gtensor": json.dumps(about)})
        options = [word for name, value in SIZES.items()
                   for word in (f"--{name.replace('_', '-')}", str(value))]
        status = main(["sample", str(path), "--count", "30"] if command == "sample" else
                      ["train", "text", "--data", str(good / "book.txt"), *options, "--quiet",
                       "--resume", "--out", str(tmp_path)])
        out, err = capsys.readouterr()
        assert all(c.isprintable() or c == "\n" for c in out + err), ascii(out + err)
        if status:
            assert err.count("\n") == 1 and len(err) < MOST_SHOWN + 50
        return status, out, err

    return run


def at(place: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """A change of one fact."""
    *folders, name = place.split(".")

    def change(about: dict[str, Any], tensors: dict[str, Any]) -> None:
        for folder in folders:
            about = about[folder]
        about[name] = value

    return change


@pytest.mark.parametrize(("command", "place", "value", "told"), [
    ("sample", "recipe", ["Text"], "'recipe' of its description is a list, wanted a text"),
    ("sample", "model_options", 3, "'model_options' of its description is 3, wanted a dict"),
    ("sample", "model_options.layers", [2], "'layers' of 'model_options' of its description is a"),
    ("sample", "model_options.heads", 0, "--heads 0 given; wanted more than 0"),
    ("sample", "model_options.width", {"$tensor": "model.norm.weight"}, "is a Tensor, wanted a wh"),
    ("sample", "model_options.length", ESCAPES, "'length' of 'model_options' of its description"),
    ("sample", "recipe", ESCAPES[:60_000], "is of the recipe ?]0;mine??[2j?aaa"),
    ("resume", "recipe", ESCAPES[:60_000], "is a run of the recipe ?]0;mine??[2j?aaa"),
    ("resume", "options.arch", ESCAPES[:60_000], "cannot be resumed: --arch ?]0;mine??[2J?AAA"),
    ("resume", "options.data", [[]], "'data' of 'options' of its description is a list, wanted a"),
    ("resume", "options", [1], "'options' of its description is a list, wanted a dict"),
    ("resume", "epoch", "1", "'epoch' of its description is '1', wanted a whole number"),
    ("resume", "batch", 10**40, "'batch' of its description is an integer of 133 bits"),
    ("resume", "losses", 3, "'losses' of its description is 3, wanted a list"),
    ("resume", "streams", [{"bit_generator": "Philox"}], "a random state whose 'state.counter'"),
])
def test_facts_of_a_wrong_type_are_named(
    run: Callable[..., Any], command: str, place: str, value: Any, told: str
) -> None:
    status, _, err = run(command, at(place, value))
    assert status == 1 and told in err


@pytest.mark.parametrize("command", ["sample", "resume"])
def test_a_description_that_is_no_dict_is_of_no_run(run: Callable[..., Any], command: str) -> None:
    def change(about: dict[str, Any], tensors: dict[str, Any]) -> None:
        about.clear()

    status, _, err = run(command, change)
    assert status == 1 and "is not a checkpoint of gtensor train" in err


@pytest.mark.parametrize(("size", "value"), [("layers", 10**9), ("layers", 3), ("width", 10**9)])
def test_no_model_of_other_sizes_than_the_tensors_is_built(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, size: str, value: int
) -> None:
    make, built = text.make_model, []
    monkeypatch.setattr(text, "make_model", lambda options: built.append(options) or make(options))
    status, _, err = run("sample", at(f"model_options.{size}", value))
    assert status == 1 and f"{value}" in err and "its tensors are those of another model" in err
    assert all((options.layers, options.width) == (1, 16) for options in built)


def test_the_length_that_a_file_says_takes_no_memory(run: Callable[..., Any]) -> None:
    _, whole, _ = run("sample", lambda about, tensors: None)
    status, out, _ = run("sample", at("model_options.length", 2**52))
    assert status == 0 and out[:17] == whole[:17]  # then the one of length 16 has forgotten


@pytest.mark.parametrize("command", ["sample", "resume"])
def test_weights_that_are_not_finite_are_named(run: Callable[..., Any], command: str) -> None:
    def change(about: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["model.norm.weight"][3] = math.nan

    status, _, err = run(command, change)
    assert status == 1 and "'model.norm.weight' has numbers that are not finite" in err


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("command", "told"), [
    ("sample", "scores are not finite"), ("resume", "the step was not taken")])
def test_weights_that_overflow_end_in_one_sentence(
    run: Callable[..., Any], command: str, told: str
) -> None:
    def change(about: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["model.norm.weight"][:] = 3e38

    status, _, err = run(command, change)
    assert status == 1 and told in err


def test_a_model_moves_no_terminal(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "generate", lambda *_: iter("\x1b[31mé\n".encode()))
    status, out, _ = run("sample", lambda about, tensors: None)
    assert status == 0 and out == "\n?[31mé\n\n"
