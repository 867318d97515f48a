"""Checks of what reads files and states, which planted faults must make fail, as in `checks.py`."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import gtensor as gt
from gtensor.checkpoint import CheckpointError, Rotation, load_file
from gtensor.cli import main
from gtensor.memory.trace.export import save
from gtensor.memory.trace.lifetimes import History, Life
from gtensor.memory.trace.reading import SnapshotError, read_snapshot
from tests.checkpoint.test_atomic import forked


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


def sizes_are_bounded_before_anything_is_read() -> None:
    """Of sparse files that claim a header of 20 MB and of 200 MB, one piece is read."""
    read, sizes = os.pread, [0]

    def counted(descriptor: int, count: int, at: int) -> bytes:
        sizes.append(count)
        return read(descriptor, count, at)

    with _folder() as folder, patch.object(os, "pread", counted):
        for size, message in ((20_000_000, "a null character"), (200_000_000, "wanted at most")):
            path = folder / "x"
            path.write_bytes(size.to_bytes(8, "little") + b"{")
            os.truncate(path, size + 8)
            try:
                load_file(path)
            except CheckpointError as error:
                assert message in str(error), str(error)
            else:
                raise AssertionError("a sparse file was read")
    assert sum(sizes) < 3 << 20, "more than a piece was read"


def a_pipe_is_refused() -> None:
    """The error is one sentence, and nothing waits for the pipe's writer."""
    with _folder() as folder:
        os.mkfifo(folder / "x")
        try:
            load_file(folder / "x")
        except (OSError, CheckpointError) as error:
            assert "is a pipe; wanted a regular file" in str(error), str(error)


def a_pickle_cannot_claim_memory() -> None:
    """A memo index of 4 million is refused before a memo of that size is made."""
    with _folder() as folder:
        (folder / "x.pickle").write_bytes(b"\x80\x02}r\x00\x00\x40\x00.")
        try:
            read_snapshot(folder / "x.pickle")
        except SnapshotError as error:
            assert "numbers what it repeats in leaps" in str(error), str(error)


def _shown(path: Path) -> str:
    with redirect_stdout(io.StringIO()) as out:
        main(["memory", str(path)])
    return out.getvalue()


def _snapshot(folder: Path, name: str) -> Path:
    save(folder / "x.json", History(name, [], [
        Life(4096, 9, 9, 0, name, name, name, None, None, None)]))
    return folder / "x.json"


def facts_of_another_type_are_refused() -> None:
    """A category that is a list of numbers is refused before anything is printed."""
    with _folder() as folder:
        path = _snapshot(folder, "x")
        document = json.loads(path.read_text())
        document["blocks"][0]["category"] = [1]
        path.write_text(json.dumps(document))
        assert _shown(path) == ""


def names_are_shown_as_they_are() -> None:
    """Control characters are replaced, and markup is not interpreted."""
    with _folder() as folder:
        for name in ("[/nope]", "\\[/nope]", "\x1b[31m"):
            out = _shown(_snapshot(folder, name))
            assert name.replace("\x1b", "?") in out and "\x1b" not in out, ascii(out)


def a_random_state_is_checked() -> None:
    """Positions before and behind the generator's buffer are refused."""
    before = gt.random.get_state()
    for position in (-1, 5):
        try:
            gt.random.set_state({**before, "buffer_pos": position})
        except ValueError:
            pass
        else:
            gt.random.set_state(before)
            raise AssertionError("random numbers would be read outside the buffer")


def the_next_save_removes_what_a_killed_rotation_left() -> None:
    """A kill before the first shard is removed; then a save of another step removes them all."""
    with _folder() as folder:
        checkpoints = Rotation(folder, keep=1)
        checkpoints.save(1, a=gt.ones(5), b=gt.ones(5), max_shard_size=20)

        def die(name: str) -> None:
            if "-of-" in str(name):
                os.kill(os.getpid(), signal.SIGKILL)
            os.remove(name)

        def save_and_die() -> None:
            with patch.object(os, "unlink", die):
                checkpoints.save(2)

        assert os.WIFSIGNALED(os.waitpid(forked(save_and_die), 0)[1])
        checkpoints.save(3)
        assert not [name for name in os.listdir(folder) if "-of-" in name], os.listdir(folder)


def a_save_names_its_file() -> None:
    """Also if its folder cannot be made."""
    with _folder() as folder:
        (folder / "plain").write_bytes(b"")
        try:
            gt.checkpoint.save(folder / "plain" / "c.safetensors")
        except OSError as error:
            assert "c.safetensors could not be written" in str(error), str(error)
