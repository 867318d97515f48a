"""The last few of a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import gtensor as gt
from gtensor.checkpoint import Rotation, rotation
from tests.checkpoint.test_atomic import at_call, forked


def numbers(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("limit", [None, 30])
def test_the_last_few_are_kept(tmp_path: Path, limit: int | None) -> None:
    model = gt.nn.Linear(3, 2)
    checkpoints = Rotation(tmp_path / "run", keep=2)
    assert checkpoints.latest() is None and checkpoints.steps() == []
    for step in (1, 5, 20, 1_000_000):
        with gt.no_grad():
            model.bias[...] = step
        path = checkpoints.save(step, model=model, max_shard_size=limit)
        assert checkpoints.latest() == path
    assert checkpoints.steps() == [20, 1_000_000]
    assert len(numbers(tmp_path / "run")) == 1 + 2 * (1 if limit is None else 3)
    other = gt.nn.Linear(3, 2)
    assert checkpoints.load(model=other) == {"step": 1_000_000}
    assert other.bias.tolist() == [1_000_000, 1_000_000]


def test_a_run_taken_up_from_an_older_one_goes_on_from_its_own(tmp_path: Path) -> None:
    checkpoints = Rotation(tmp_path, keep=2)
    for step in (100, 200, 300, 150):
        checkpoints.save(step)
    assert checkpoints.steps() == [150, 300]
    assert checkpoints.latest() == checkpoints.path(150)
    (tmp_path / "checkpoint-latest").unlink()
    assert checkpoints.latest() == checkpoints.path(300)
    (tmp_path / "checkpoint-latest").write_text("checkpoint-000099.safetensors")
    assert checkpoints.latest() == checkpoints.path(300)


def test_a_failed_save_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Rotation(tmp_path, keep=1)
    checkpoints.save(1)
    before = numbers(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rotation, "save", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(2)
    assert numbers(tmp_path) == before and checkpoints.latest() == checkpoints.path(1)


def test_of_two_that_save_at_once_neither_removes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Rotation(tmp_path, keep=1), Rotation(tmp_path, keep=1)
    first.save(1)
    whole = rotation.save

    def save(path: Path, **state: Any) -> None:
        whole(path, **state)
        if path == first.path(5):  # the second saves between the first's save and its removals
            second.save(6)

    monkeypatch.setattr(rotation, "save", save)
    first.save(5)
    assert first.steps() == [6] and first.latest() == first.path(6)
    assert first.load() == {"step": 6}


def test_a_kill_at_any_call_leaves_nothing_after_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the save of shards, in the pointer's, and in the removal of an older checkpoint."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # there is no power cut
    values = {name: gt.ones(5) for name in "abc"}
    died, number = True, 0
    while died:
        number += 4
        folder = tmp_path / str(number)
        checkpoints = Rotation(folder, keep=1)
        checkpoints.save(1, random=False, max_shard_size=20, **values)

        def save_and_die(checkpoints: Rotation = checkpoints, number: int = number) -> None:
            at_call(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            checkpoints.save(2, random=False, max_shard_size=20, **values)

        died = os.WIFSIGNALED(os.waitpid(forked(save_and_die), 0)[1])
        assert checkpoints.latest() is not None
        checkpoints.load(random=False)
        checkpoints.save(3, random=False)  # not the step that was interrupted
        assert numbers(folder) == ["checkpoint-000003.safetensors", "checkpoint-latest"], number
    assert number > 40


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    names = ["checkpoint-000001.safetensors.bak", "checkpoint-1.safetensors", "model.safetensors",
             "checkpoint-x-000001.safetensors"]
    for name in names:
        (tmp_path / name).write_text("mine")
    checkpoints = Rotation(tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.save(2)
    assert set(names) < set(numbers(tmp_path)) and checkpoints.steps() == [2]


@pytest.mark.parametrize(("options", "told"), [
    ({"keep": 0}, "keep=0 given"), ({"name": "a/b"}, "name 'a/b' given"),
    ({"name": ""}, "wanted a file name")])
def test_nonsense_is_refused(tmp_path: Path, options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Rotation(tmp_path, **options)


def test_steps_are_whole_numbers_and_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step -1 given"):
        Rotation(tmp_path).save(-1)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint checkpoint-\*\.safetensors in"):
        Rotation(tmp_path).load()
