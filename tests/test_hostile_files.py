"""Untrusted files: claimed sizes, endless ones, no regular ones, and control characters."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor import checkpoint
from gtensor.checkpoint import CheckpointError, Rotation, load_file
from gtensor.cli import main
from gtensor.memory.trace import plain_pickle
from gtensor.memory.trace.export import save
from gtensor.memory.trace.lifetimes import History, Life
from gtensor.memory.trace.reading import SnapshotError, read_snapshot
from gtensor.system.atomic import digest
from gtensor.system.files import (
    MOST_HEADER_BYTES,
    MOST_INDEX_BYTES,
    MOST_SHOWN,
    MOST_SNAPSHOT_BYTES,
    MOST_TEXT_BYTES,
)
from tests import hostile

ROOT = Path(__file__).resolve().parents[1]


def mutated(formats: str, count: int, seed: int) -> list[str]:
    """The lines of a process that reads so many mutated files of each format."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", formats, str(count), str(seed)], cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_mutated_files_give_one_sentence_or_a_right_result_in_200_mb() -> None:
    assert len(mutated(",".join(hostile.FORMATS), 60, 0)) == len(hostile.FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize("name", hostile.FORMATS)
def test_4000_mutated_files_of_each_format(name: str) -> None:
    assert mutated(name, 4000, 1)[0].endswith(" of 4000 refused")


# -- sizes that a file has or says it has ----------------------------------------------------------


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """What is read of files meanwhile, in bytes."""
    sizes: list[int] = []
    read = os.pread

    def counted(*args: Any) -> bytes:
        found = read(*args)
        sizes.append(len(found))
        return found

    with patch.object(os, "pread", counted):
        yield sizes


def sparse(path: Path, begin: bytes, size: int) -> Path:
    """A file of a size that has next to no bytes on the disk."""
    path.write_bytes(begin)
    os.truncate(path, size)
    return path


@pytest.mark.parametrize(("name", "begin", "size", "told"), [
    ("x.safetensors", (MOST_HEADER_BYTES + 1).to_bytes(8, "little") + b"{", 5 << 30,
     f"header has {MOST_HEADER_BYTES + 1} bytes, wanted at most {MOST_HEADER_BYTES}"),
    ("x.safetensors", MOST_HEADER_BYTES.to_bytes(8, "little") + b"{", 5 << 30,
     "a null character at byte 9"),
    ("x.safetensors.index.json", b"{", 5 << 30, f"{5 << 30} bytes, wanted at most "
                                                f"{MOST_INDEX_BYTES}"),
    ("x.safetensors.index.json", b"{", MOST_INDEX_BYTES, "a null character at byte 1"),
    ("x.json", b"{", 5 << 30, f"{5 << 30} bytes, wanted at most {MOST_SNAPSHOT_BYTES}"),
    ("x.json", b"{", MOST_SNAPSHOT_BYTES, "a null character at byte 1"),
    ("x.pickle", b"\x80\x04", 5 << 30, f"{5 << 30} bytes, wanted at most {MOST_SNAPSHOT_BYTES}"),
    ("x.pickle", b"\x80\x04", MOST_SNAPSHOT_BYTES, "instruction 0x0, wanted a pickle"),
    ("x.pickle", b"\x80\x04X\xff\xff\xff\x00", MOST_SNAPSHOT_BYTES, "16777215 bytes of a text"),
    ("x.pickle", b"\x80\x04X\x00\x00\x00\x80", MOST_SNAPSHOT_BYTES, "2147483648 bytes of a text"),
])
def test_what_a_file_says_of_its_size_is_bounded_before_it_is_read(
    tmp_path: Path, name: str, begin: bytes, size: int, told: str
) -> None:
    path = sparse(tmp_path / name, begin, size)
    read = load_file if "safetensors" in name else read_snapshot
    with bytes_read() as sizes, pytest.raises((CheckpointError, SnapshotError), match=told):
        read(path)
    assert sum(sizes) <= 2 << 20


@pytest.mark.parametrize(("data", "told"), [
    (b"\x80\x02Nr\x00\x00\x00\x40.", "numbers what it repeats in leaps"),  # 8 GB of memo
    (b"\x80\x02Nj\xff\xff\xff\xff.", "takes what is not there"),
    (b"\x80\x04" + b"(" * 1000, "wanted at most 32"),
    (b"\x80\x04\x8a\xff" + b"\1" * 300, "255 bytes of an integer"),
    (b"\x80\x04}N}s.", "a key of a dict that is no text"),
    (b"\x80\x04]}u.", "takes what is not there"), (b"\x80\x04]K\1K\2s.", "sets items of a list"),
    (b"\x80\x04}K\1a.", "appends to a dict"), (b"\x80\x04}(X\1\0\0\0au.", "without a value"),
    (b"\x80\x04N", "ends early"), (b"\x80\x04X\5\0\0\0ab", "ends early"),
    (b"\x80\x04K\1Q.", "refers to objects outside of it"), (b"\x80\x04K\0012.", "instruction DUP"),
])
def test_instructions_of_pickles_that_cost_or_make_no_sense(data: bytes, told: str) -> None:
    for pieces in ([data], [data[i:i + 1] for i in range(len(data))]):
        with pytest.raises(ValueError, match=told):
            plain_pickle.load(pieces)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_come_back_from_their_pickles(protocol: int) -> None:
    shared = ["x", 1.5]
    value = {"a": [None, True, False, -1, 255, 256, 65536, -2**31, 2**31, 2**64, -2**63, 0.1],
             "t": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "b": ["é" * 300, "", "\ud800"],
             "many": [{"k": n, "s": shared} for n in range(3000)], "s": shared}
    data = pickle.dumps(value, protocol=protocol)
    for size in (len(data), 999):
        found = plain_pickle.load(data[at:at + size] for at in range(0, len(data), size))
        assert found == value and found["many"][0]["s"] is found["s"]


def test_nested_tuples_that_repeat_each_other_end(tmp_path: Path) -> None:
    """Doubled 60 times: 2**60 values to code that visits them all, as hashing and printing do."""
    nested: Any = ()
    for _ in range(60):
        nested = (nested, nested)
    path = tmp_path / "x.pickle"
    for document in ({"segments": nested, "device_traces": []},
                     {"segments": [], "device_traces": [[{"action": nested, "time_us": 0}]]},
                     {"segments": [], "device_traces": [], "gtensor": nested}):
        path.write_bytes(pickle.dumps(document))
        with pytest.raises(SnapshotError, match="is a tuple, wanted"):
            read_snapshot(path)
    blocks = [{"size": 1, "state": "inactive"}] * 100
    path.write_bytes(pickle.dumps({"device_traces": [], "segments": [
        {"address": 0, "total_size": 100, "stream": 0, "blocks": blocks} for _ in range(100)]}))
    with pytest.raises(SnapshotError, match="two segments have one list of blocks"):
        read_snapshot(path)


# -- what is no regular file -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device", "a folder"])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    held = []
    for name in ("x", "x.index.json", "x.pickle", "x.json", "m-00001-of-00002.safetensors"):
        if kind == "a pipe":
            os.mkfifo(name)
        elif kind == "a folder":
            os.mkdir(name)
        elif kind == "a device":
            os.symlink("/dev/zero", name)
        else:
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].bind(name)
    Path("m.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"w": "m-00001-of-00002.safetensors"}}))
    readers: list[tuple[Any, str]] = [
        (load_file, "x"), (load_file, "x.index.json"), (load_file, "m.safetensors"),
        (checkpoint.load, "x"), (checkpoint.progress, "x"), (read_snapshot, "x.pickle"),
        (read_snapshot, "x.json")]
    for read, name in readers:
        with pytest.raises(OSError, match=f"{kind}; wanted a regular file"):
            read(name)
    with pytest.raises(FileNotFoundError, match="there is no file x to map"):
        gt.data.memmap("x")
    for one in held:
        one.close()


def test_a_pipe_among_the_small_files_of_a_rotation_does_not_block(tmp_path: Path) -> None:
    checkpoints = Rotation(tmp_path)
    checkpoints.save(1)
    (tmp_path / "checkpoint-latest").unlink()
    os.mkfifo(tmp_path / "checkpoint-latest")
    assert checkpoints.latest() == checkpoints.path(1)
    with pytest.raises(FileExistsError, match="checkpoint-latest could not be written: it is no"):
        checkpoints.save(2)
    path = tmp_path / "c.safetensors"
    os.mkfifo(tmp_path / f".{digest('c')}.{12 * '0'}.tmp")  # as a killed writer's
    checkpoint.save_file({"x": np.ones(3)}, path)
    os.mkfifo(tmp_path / f".{digest('c')}.turn")
    with pytest.raises(OSError, match="c.safetensors could not be written: .* is a pipe"):
        checkpoint.save_file({"x": np.zeros(3)}, path)
    assert load_file(path)["x"].tolist() == [1, 1, 1]


# -- what is shown of a file -----------------------------------------------------------------------

NASTY = ["\x1b[31mred", "[/nope]", "\\[/nope]", "[bold]b", ":smile:", "\u202etxt", "a\rb\nc\x07",
         "$\\frac$", "<script>", "\x9b1m"]


@pytest.mark.parametrize("suffix", [".pickle", ".json"])
def test_names_are_shown_as_they_are_without_what_moves_a_terminal(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"run{suffix}"
    for text in NASTY:
        save(path, History(text, [], [Life(4096, 9, 9, 0, text, text, text, None, None, None)]))
        wanted = "".join(c if c.isprintable() else "?" for c in text)
        for options in ([], ["--by", "op"], ["--by", "module"], ["--json"]):
            assert main(["memory", str(path), *options]) == 0
            out = capsys.readouterr().out
            assert all(c.isprintable() or c == "\n" for c in out), ascii(out)
            assert (json.dumps(wanted) if options == ["--json"] else wanted) in out
        save(tmp_path / "run.html", read_snapshot(path))
        page = (tmp_path / "run.html").read_text()
        data = page.partition('type="application/json">')[2].partition("</script>")[0]
        assert json.loads(data)["device"] == wanted and "<" not in data and page.isascii()


def test_long_texts_of_a_file_are_cut_in_tables_and_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, long = tmp_path / "run.json", "A" * MOST_TEXT_BYTES
    save(path, History(long, [], [
        Life(n, 9, 9, 0, f"{n}{long[1:]}", long, long, None, None, None) for n in range(2)]))
    for options in ([], ["--by", "op"], ["--by", "module"]):
        assert main(["memory", str(path), *options]) == 0
        assert len(capsys.readouterr().out) < 10 * MOST_SHOWN
    with gt.profiler.profile() as found:
        gt.ones(3) * 2
    found.save(path)
    whole = json.loads(path.read_text())
    for size in (MOST_TEXT_BYTES, MOST_TEXT_BYTES + 1):
        longer = {**whole, "machine": {**whole["machine"], "name": "A" * size}}
        longer["texts"] = [text if text != "multiply" else "A" * size for text in whole["texts"]]
        path.write_text(json.dumps(longer))
        assert main(["profile", str(path)]) == (size > MOST_TEXT_BYTES)
        out, err = capsys.readouterr()
        assert len(out) < 10 * MOST_SHOWN and len(err) < 2 * MOST_SHOWN
        assert ("a text of 65537 letters, wanted at most 65536" in err) == (size > MOST_TEXT_BYTES)


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """None is read as a formula, which may be none"""
    lives = [Life(n, 9, 9, 0, text, text, text, None, None, None) for n, text in enumerate(NASTY)]
    save(tmp_path / "run.json", History(" ".join(NASTY), [], lives))
    with patch("matplotlib.mathtext.MathTextParser.parse", side_effect=AssertionError):
        save(tmp_path / "run.png", read_snapshot(tmp_path / "run.json"))
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_names_of_a_file_are_printable_in_reports(tmp_path: Path) -> None:
    model = gt.nn.Linear(2, 2)
    checkpoint.save_file({**model.state_dict(), "\x1b[31mred": np.ones(2)}, tmp_path / "a")
    assert "?[31mred" in str(checkpoint.load_into(model, tmp_path / "a"))
