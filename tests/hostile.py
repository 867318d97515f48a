"""Files of every format that gtensor reads, mutated, in a process of its own with little memory.

    python -m tests.hostile FORMAT COUNT SEED

A mutated file gives a right result or one sentence (the errors that the reader's docstring names).
Any other exception, a sentence of several lines, an escape sequence in what is printed, and more
memory than `MOST_GROWTH` end the process with an error.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import checkpoint
from gtensor.checkpoint import CheckpointError, Rotation, writing
from gtensor.cli import main
from gtensor.memory.trace.reading import SnapshotError
from gtensor.memory.trace.snapshots import plain, torch_document

# As pytest's `pythonpath`; this file is also run by itself.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))

from tests.memory.trace.recordings import random_history
from tests.profiler.nsys_files import a_step

MOST_GROWTH = 200 << 20
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 4, 5, 2**31, 2**53, 2**63, 2**64, -2**63, 10**400, 0.5, 1e308,
    "", "x", "[/nope]", "\\[/nope]", "\x1b[31m", "\u202eevil", "\ud800", "a" * 70_000, [], {}, [[]],
    {"$tensor": "x"}, {"$float": "nan"}, {"$items": [[[], 1]]}, [1, 2, 3, 4]]


# -- mutations -------------------------------------------------------------------------------------


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a document."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        one = todo.pop()
        for key in list(one) if isinstance(one, dict) else range(len(one)):
            found.append((one, key))
            if isinstance(one[key], (dict, list)):
                todo.append(one[key])
    return found


def other_facts(rng: random.Random, document: Any) -> Any:
    """A document with some facts replaced, removed, repeated or exchanged."""
    document = deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        container, key = rng.choice(places(document))
        act = rng.randrange(8)
        if act == 0:
            del container[key]
        elif act == 1:
            other, place = rng.choice(places(document) or [(container, key)])
            if key in container if isinstance(container, dict) else key < len(container):
                container[key] = deepcopy(other[place])
        elif act == 2 and isinstance(container, list):
            container.append(container[key])
        elif act == 3 and isinstance(container, dict):
            container[rng.choice(("x", "$tensor", "\x1b[0m", "addr"))] = container.pop(key)
        else:
            container[key] = deepcopy(rng.choice(VALUES))
        if not places(document):
            break
    return document


def other_bytes(rng: random.Random, data: bytes, most: int | None = None) -> bytes:
    """Bytes with some flipped, cut, repeated, or numbers in them replaced by extreme ones."""
    end = min(len(data), most or len(data))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, size = rng.randrange(end + 1), rng.choice((1, 2, 4, 8, 40))
        data = rng.choice((
            data[:at] + rng.randbytes(1) + data[at + 1:],
            data[:at],
            data[:at] + data[at + size:],
            data[:at] + rng.randbytes(size) + data[at:],
            data[:at] + b"\xff" * size + data[at + size:],
            data[:at] + b"\0" * size + data[at + size:],
            data[:at] + data[at:at + size] * 9 + data[at + size:],
            data[:at] + rng.choice((
                b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\xff", b"\x94", b"2", b"]", b"\x86",
                b"[" * 99)) + data[at:],
        ))
        end = min(end, len(data))
    return data


# -- formats: what makes a mutated file, and what reads it -----------------------------------------

Try = Callable[[random.Random], None]
REFUSALS = (CheckpointError, SnapshotError, OSError)


def tensors(folder: Path) -> Try:
    """A safetensors file: its header and its first bytes."""
    path = folder / "x.safetensors"
    checkpoint.save_file({"w": np.ones((3, 4), "f4"), "n": np.arange(5), "é": np.ones((0, 2))},
                         path, {"by": "me"})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])

    def attempt(rng: random.Random) -> None:
        if rng.random() < 0.5:
            path.write_bytes(other_bytes(rng, data, 8 + length))
        else:
            text = json.dumps(other_facts(rng, header)).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length:])
        found = checkpoint.load_file(path)
        assert sum(tensor.nbytes for tensor in found.values()) <= path.stat().st_size

    return attempt


def index(folder: Path) -> Try:
    """The index of a checkpoint in shards."""
    checkpoint.save_file({name: np.ones(30) for name in "abc"}, folder / "x.safetensors",
                         max_shard_size=300)
    path = folder / "x.safetensors.index.json"
    data = path.read_bytes()

    def attempt(rng: random.Random) -> None:
        path.write_bytes(other_bytes(rng, data) if rng.random() < 0.5 else
                         json.dumps(other_facts(rng, json.loads(data))).encode())
        for tensor in checkpoint.load_file(path).values():
            assert tensor.shape == (30,) and bool((tensor.numpy() == 1).all())

    return attempt


def session(folder: Path) -> Try:
    """What a run's checkpoint says beside the tensors: all states as JSON."""
    path = folder / "x.safetensors"
    model = gt.nn.Linear(3, 2)
    optimizer = gt.optim.AdamW(model.parameters())
    model(gt.ones((2, 3))).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer, "ema": gt.optim.EMA(model),
             "scheduler": gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
             "loader": gt.data.DataLoader(gt.data.ArrayDataset(np.arange(9)), 2, seed=3)}
    checkpoint.save(path, **parts, step=3)
    with checkpoint.safe_open(path) as file:
        stored = file.get_tensors()
        about = json.loads(file.metadata()["gtensor"])
    good = folder / "good.safetensors"
    good.write_bytes(path.read_bytes())

    def attempt(rng: random.Random) -> None:
        text = json.dumps(about)
        text = (other_bytes(rng, text.encode()).decode("utf-8", "replace") if rng.random() < 0.3
                else json.dumps(other_facts(rng, about)))
        checkpoint.save_file(stored, path, {"gtensor": text})
        before = gt.random.get_state()
        try:
            checkpoint.load(path, **parts)
        except CheckpointError:
            assert gt.random.get_state() == before, "a load that failed moved the random numbers"
            raise
        found = gt.random.uniform(9).numpy()
        assert bool(((found >= 0) & (found < 1)).all())
        checkpoint.load(good, **parts)

    return attempt


def _shown(path: Path, *options: str, command: str = "memory") -> None:
    """A command's output: tables or one sentence (raised), and nothing that moves a cursor."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([command, *options, str(path)])
    assert status in (0, 1) and (status == 1) == bool(err.getvalue())
    assert err.getvalue().count("\n") == status, err.getvalue()
    for text in (out.getvalue(), err.getvalue()):
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
    if status:
        raise SnapshotError(err.getvalue().strip())


def pickled(folder: Path) -> Try:
    """A snapshot as PyTorch writes it, with all kinds of instructions."""
    path = folder / "x.pickle"
    document = torch_document(random_history(1, events=40))

    def attempt(rng: random.Random) -> None:
        given = document if rng.random() < 0.5 else other_facts(rng, document)
        data = pickle.dumps(given, protocol=rng.randrange(2, 6))
        path.write_bytes(other_bytes(rng, data) if given is document else data)
        _shown(path, *rng.choice(((), ("--json",), ("--by", "source"), ("--by", "module"))))

    return attempt


def plain_json(folder: Path) -> Try:
    """A snapshot as JSON."""
    path = folder / "x.json"
    document = plain(random_history(2, events=40))
    data = json.dumps(document).encode()

    def attempt(rng: random.Random) -> None:
        path.write_bytes(other_bytes(rng, data) if rng.random() < 0.5 else
                         json.dumps(other_facts(rng, document)).encode())
        _shown(path, *rng.choice(((), ("--json",), ("--by", "op"))))

    return attempt


def notes(folder: Path) -> Try:
    """The small files: a rotation's pointer, what writers note, and arrays of NumPy's to map."""
    rotation = Rotation(folder / "run")
    rotation.save(3)
    pointer, note, array = folder / "run" / "checkpoint-latest", folder / "n", folder / "a.npy"
    np.save(array, np.arange(6.0))
    data = array.read_bytes()

    def attempt(rng: random.Random) -> None:
        pointer.write_bytes(other_bytes(rng, b"checkpoint-000003.safetensors\n"))
        assert rotation.latest() == rotation.path(3)
        note.write_bytes(other_bytes(rng, json.dumps({"weight_map": {"0": "b" * 40}}).encode()))
        assert all(isinstance(name, str) for name in writing._shards_in(note))
        array.write_bytes(other_bytes(rng, data, 128))
        try:
            found = gt.data.memmap(array)
        except ValueError as error:
            assert str(error).startswith(str(array))
            raise CheckpointError(str(error)) from error
        assert found.nbytes <= array.stat().st_size

    return attempt


def nsys_export(folder: Path) -> Try:
    """An export of Nsight Systems: an SQLite file."""
    path = a_step(folder / "x.sqlite")
    data = path.read_bytes()

    def attempt(rng: random.Random) -> None:
        if rng.random() < 0.3:
            path.write_bytes(other_bytes(rng, data))
        else:  # of the same length, as another one is refused by its header
            wrong = bytearray(data)
            for _ in range(rng.choice((1, 3, 40))):
                at, size = rng.randrange(len(wrong) - 8), rng.choice((1, 1, 2, 8))
                wrong[at:at + size] = rng.choice((rng.randbytes(size), b"\xff" * size))
            path.write_bytes(wrong)
        _shown(path, command="profile")

    return attempt


def saved_profile(folder: Path) -> Try:
    """A profile as it is saved."""
    path = folder / "x.json"
    with gt.profiler.profile() as found:
        (gt.ones(3, requires_grad=True) * 2).sum().backward()
    found.save(path)
    good = folder / "good.json"
    data = path.read_bytes()
    good.write_bytes(data)
    document = json.loads(data)

    def attempt(rng: random.Random) -> None:
        path.write_bytes(other_bytes(rng, data) if rng.random() < 0.5 else
                         json.dumps(other_facts(rng, document)).encode())
        _shown(path, *rng.choice(((), ("--by", "line"), ("--by", "module"),
                                  ("--compare", str(good)))), command="profile")

    return attempt


FORMATS = {make.__name__: make for make in (
    tensors, index, session, pickled, plain_json, notes, nsys_export, saved_profile)}


def resident() -> int:
    """The most bytes that this process had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(name: str, count: int, seed: int) -> str:
    """Mutate and read; how many were refused."""
    refused = 0
    with tempfile.TemporaryDirectory() as place:
        attempt = FORMATS[name](Path(place))
        before = resident()
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + MOST_GROWTH, limits[1]))
        for number in range(count):
            try:
                attempt(random.Random(f"{seed} {name} {number}"))
            except REFUSALS as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 12_000, str(error)
            except BaseException as error:
                error.add_note(f"{name} {number} of seed {seed}")
                raise
        assert resident() - before < MOST_GROWTH
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return f"{name}: {refused} of {count} refused"


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    os.fsync = lambda descriptor: None  # there is no power cut
    for chosen in sys.argv[1].split(","):
        print(run(chosen, int(sys.argv[2]), int(sys.argv[3])), flush=True)
