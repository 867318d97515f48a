"""Kills and faults at every call of the system, full disks, leftovers: the last good file loads."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.checkpoint import load_file, save_file
from gtensor.system.atomic import digest, replacing, write, write_file
from gtensor.train.errors import UserError
from gtensor.train.files import write_atomically

CALLS = ("open", "write", "fsync", "replace", "unlink", "close")
SIZE = 50


def tensors(value: int) -> dict[str, np.ndarray]:
    return {name: np.full(SIZE, value) for name in "abc"}


def save(path: Path, value: int, shards: bool) -> None:
    save_file(tensors(value), path, max_shard_size=SIZE * 8 if shards else None)


def loaded(path: Path) -> int:
    """The value that all tensors of a checkpoint have: no mixture of two."""
    found = load_file(path)
    assert found.keys() == set("abc")
    seen = {int(v) for tensor in found.values() for v in tensor.numpy()}
    assert len(seen) == 1
    return seen.pop()


def at_call(number: int, act: Callable[[], None]) -> list[str]:
    """Make `act` happen before this call of the system (from 1); the list of calls seen."""
    seen: list[str] = []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen.append(name)
            if len(seen) == number:
                act()
            return None if name == "fsync" else original(*args, **options)  # slow, no power cut
        return call

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    return seen


def forked(work: Callable[[], None]) -> int:
    """The id of a new process that does this work."""
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return process


KINDS = [(False, False), (True, True), (False, True), (True, False)]  # sharded before, after


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), KINDS)
def test_a_kill_before_any_call_leaves_a_whole_checkpoint(
    tmp_path: Path, before: bool, after: bool
) -> None:
    path = tmp_path / "c.safetensors"
    outcomes = []
    for number in range(1, 200):
        save(path, 2 * number, before)

        def save_and_die(number: int = number) -> None:
            at_call(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save(path, 2 * number + 1, after)

        status = os.waitpid(forked(save_and_die), 0)[1]
        outcomes.append(loaded(path) - 2 * number)
        if not os.WIFSIGNALED(status):
            break
    # The old one up to some call, the new one from there on, and at last a save that was not killed
    # at all; where the form changes both are there for a moment, and either may answer.
    assert outcomes == sorted(outcomes) and outcomes[0] == 0 and outcomes[-1] == 1
    assert len(outcomes) > 5
    save(path, 7, after)
    assert loaded(path) == 7
    assert len(os.listdir(tmp_path)) == (4 if after else 1), "litter of the killed was not removed"


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), KINDS)
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"),
                                   KeyboardInterrupt()])
def test_a_fault_in_any_call_leaves_a_whole_checkpoint_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool, after: bool,
    fault: BaseException
) -> None:
    path = tmp_path / "c.safetensors"

    def fail() -> None:
        raise fault

    for number in range(1, 200):
        save(path, 2 * number, before)
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, getattr(os, name))  # so that at_call is undone
            seen = at_call(number, fail)
            try:
                save(path, 2 * number + 1, after)
                error = None
            except (OSError, KeyboardInterrupt) as raised:
                error = raised
        if isinstance(error, OSError):
            assert "No space left on device" in str(error)
        assert loaded(path) in ((2 * number, 2 * number + 1) if error else (2 * number + 1,))
        if number < len(seen) and seen[number - 1] in ("open", "write", "fsync", "replace"):
            left = [n for n in os.listdir(tmp_path) if n.endswith(".tmp")]
            assert not left, (number, seen[number - 1], left)
        if len(seen) < number:
            break
    else:
        pytest.fail("the save never ended")


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [False, True])
def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, shards: bool
) -> None:
    path = tmp_path / "c.safetensors"

    def write_for_ever() -> None:
        for value in range(2, 10**9):
            save(path, value, shards)

    save(path, 1, shards)
    times = 0
    while times < 15 or loaded(path) == 1:  # one must come to its end, on a busy machine, too
        times += 1
        assert times < 300, "no writer comes to its end"
        process = forked(write_for_ever)
        time.sleep(random.uniform(0, 0.01 * times))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        assert loaded(path) >= 1
    save(path, 1, shards)
    assert loaded(path) == 1 and len(os.listdir(tmp_path)) == (4 if shards else 1)


@pytest.mark.parametrize("shards", [False, True])
def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path, shards: bool) -> None:
    path = tmp_path / "c.safetensors"
    save(path, 3, False)
    told = tmp_path / "told"
    told.touch()

    def write_too_much() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        try:
            save_file({"a": np.ones(200), "b": np.ones(200), "c": np.ones(400)}, path,
                      max_shard_size=1600 if shards else None)
        except OSError as error:
            told.write_text(str(error))

    os.waitpid(forked(write_too_much), 0)
    assert "could not be written: File too large" in told.read_text()
    assert loaded(path) == 3 and set(os.listdir(tmp_path)) == {"c.safetensors", "told"}


# -- the replacement itself ------------------------------------------------------------------------


def test_nothing_shows_before_the_end_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "file", tmp_path / "link"
    write_file(target, b"old")
    link.symlink_to(target)
    with replacing(link) as descriptor:
        write(descriptor, b"new")
        assert target.read_bytes() == b"old"
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_the_mask_of_permissions_is_kept(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("after", [None, 400])
@pytest.mark.parametrize("before", [None, 400])
def test_permissions_are_kept(tmp_path: Path, before: int | None, after: int | None) -> None:
    path = tmp_path / "c.safetensors"
    save_file(tensors(1), path, max_shard_size=before)
    for file in tmp_path.iterdir():
        file.chmod(0o606)
    save_file(tensors(2), path, max_shard_size=after)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o606}


@pytest.mark.parametrize("shards", [False, True])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, shards: bool) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path, error, told in ((pipe, FileExistsError, "pipe could not be written: it is no regu"),
                              (folder, IsADirectoryError, "folder could not be written: it is a f"),
                              (Path(os.devnull), FileExistsError, "/dev/null could not be")):
        with pytest.raises(error, match=told):
            save(path, 1, shards)
    with pytest.raises(FileExistsError):
        write_file(pipe, b"x")
    os.mkfifo(tmp_path / "c.index.json")
    with pytest.raises(FileExistsError, match="c.index.json could not be"):
        save(tmp_path / "c", 1, shards)
    assert {*os.listdir(tmp_path)} == {"pipe", "folder", "c.index.json"} and pipe.is_fifo()


def test_a_name_as_long_as_the_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 121 + "x.safetensors")
    assert len(os.fsencode(path.name)) == 255
    for value in (1, 2):
        save(path, value, False)
        assert loaded(path) == value
    with pytest.raises(OSError, match="could not be written: File name too long"):
        save(path, 3, True)
    assert loaded(path) == 2 and os.listdir(tmp_path) == [path.name]
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_file(path.with_name("y" * 255))


def test_writes_that_are_cut_short_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: original(fd, bytes(data[:7])))
    write_file(tmp_path / "file", bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_another_writers_file_is_not_swept(tmp_path: Path) -> None:
    path = tmp_path / "a[1]*.safetensors"
    (tmp_path / f".{digest(path.name)}.{12 * '0'}.tmp").write_bytes(b"left by a kill")
    with replacing(path) as first:
        write(first, b"first")
        write_file(path, b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == [path.name]


def test_errors_of_saves_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_bytes(b"")

    def refuse(name: str) -> Callable[..., Any]:
        def call(path: Any, *_: Any, **__: Any) -> Any:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return call

    for path in (tmp_path / "plain" / "c.safetensors", tmp_path / "plain" / "x" / "c.safetensors"):
        for write_it in (lambda: gt.checkpoint.save(path, random=False),  # noqa: B023
                         lambda: gt.checkpoint.Rotation(path.parent).save(3),  # noqa: B023
                         lambda: write_atomically(path, b"x")):  # noqa: B023
            with pytest.raises((OSError, UserError), match=r"\.safetensors could not be written: "):
                write_it()
    path = tmp_path / "c.safetensors"
    for name in ("open", "listdir"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse(name))
            with pytest.raises(PermissionError, match="/c.safetensors could not be written: Pe"):
                save(path, 1, True)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone/file could not be written: No such file"):
        write_file(tmp_path / "gone" / "file", b"x")
