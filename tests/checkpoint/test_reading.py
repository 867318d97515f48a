"""Where bytes go: memory of their own, by threads, from shards, no more than the file has."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import gtensor as gt
from gtensor.checkpoint import CheckpointError, load_file, reading, safe_open, save_file
from gtensor.memory import size_of, stats


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng()
    shapes = {"large": (700, 301), "row": (1, 33), "none": (0, 4), "number": (),
              **{f"small{i}": (i, 3) for i in range(40)}}
    return {name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()} | {"bytes": rng.integers(0, 9, 77, np.uint8)}


def equal(found: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name].numpy(), array)


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
@pytest.mark.parametrize("buffers", [1, 3, 256])
@pytest.mark.parametrize("short", [0, 13])
def test_pieces_of_any_size_by_threads_make_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, buffers: int, short: int
) -> None:
    wanted = {name: a[:9] if name == "large" else a for name, a in arrays().items()}
    save_file(wanted, tmp_path / "a")
    monkeypatch.setattr(reading, "PIECE_BYTES", piece * 4)
    monkeypatch.setattr(reading, "PIECE_BUFFERS", buffers)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    if short:  # the system may read less than was asked for
        original = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, views, offset: original(
            fd, [views[0][:short]], offset))
    equal(load_file(tmp_path / "a"), wanted)


def test_tensors_are_writable_aligned_and_of_their_own_memory(tmp_path: Path) -> None:
    wanted = arrays()
    save_file(wanted, tmp_path / "a")
    first, second = load_file(tmp_path / "a"), load_file(tmp_path / "a")
    for name, tensor in first.items():
        tensor[...] = 7
        array = tensor.numpy()
        assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned
        assert not any(np.shares_memory(array, other.numpy())
                       for key, other in first.items() if key != name)
    equal(second, wanted)
    equal(load_file(tmp_path / "a"), wanted)


def test_the_arena_counts_what_was_loaded(tmp_path: Path) -> None:
    save_file({"x": np.ones((100, 10)), "y": np.ones(7)}, tmp_path / "a")
    with gt.settings.override(arena_min_bytes=0):
        before = stats("cpu").allocated
        found = load_file(tmp_path / "a")
        held = stats("cpu").allocated - before
        assert 8056 <= held <= 8056 + 2 * 64
        del found
        assert stats("cpu").allocated == before


def test_some_tensors_and_names(tmp_path: Path) -> None:
    wanted = arrays()
    save_file(wanted, tmp_path / "a")
    with safe_open(tmp_path / "a", device="cpu") as file:
        assert set(file.keys()) == set(file) == set(wanted) and "row" in file
        assert file.entry("large").shape == (700, 301)
        some = file.get_tensors(["small7", "number"])
        equal(some, {name: wanted[name] for name in ("small7", "number")})
        with pytest.raises(KeyError, match="holds no tensor 'gone'; it has 45 others"):
            file.get_tensor("gone")
        view = file.get_array("large")
        assert isinstance(view, np.ndarray) and not view.flags.writeable
    np.testing.assert_array_equal(view[3:5], wanted["large"][3:5])  # also after closing


def test_a_file_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    save_file({"x": np.ones(10_000)}, tmp_path / "a")
    with safe_open(tmp_path / "a") as file:
        os.truncate(tmp_path / "a", 5000)
        with pytest.raises(CheckpointError, match="a whole checkpoint: it ended at byte 5000"):
            file.get_array("x")
        with pytest.raises(CheckpointError, match="a whole checkpoint: it ended at byte 5000"):
            file.get_tensor("x")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    save_file(arrays(), tmp_path / "a", max_shard_size=200)
    (tmp_path / "b").write_bytes(b"no checkpoint")
    before = len(os.listdir("/proc/self/fd"))
    load_file(tmp_path / "a")
    with pytest.raises(CheckpointError):
        load_file(tmp_path / "b")
    assert len(os.listdir("/proc/self/fd")) == before


class Uploaded(np.ndarray):
    """A NumPy array that is written as CuPy's are."""

    def set(self, values: np.ndarray) -> None:
        self[...] = values


class Gpu:
    """What reading onto a GPU asks of its device."""

    def empty(self, shape: tuple[int, ...], dtype: Any, label: str) -> Any:
        return np.full(shape, 7, dtype).view(Uploaded)


@pytest.mark.parametrize("piece", [16, 1000, 1 << 20])
def test_a_gpus_array_is_filled_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    wanted = {name: a for name, a in arrays().items() if name != "large"}
    save_file(wanted, tmp_path / "a")
    monkeypatch.setattr(reading, "PIECE_BYTES", piece)
    with safe_open(tmp_path / "a", "cpu") as file:
        for name, (source, entry) in file._where.items():
            found = reading._upload(Gpu(), source, entry)  # type: ignore[arg-type]
            assert found.dtype == wanted[name].dtype and found.shape == wanted[name].shape
            np.testing.assert_array_equal(found, wanted[name])


@pytest.mark.gpu
def test_tensors_are_loaded_onto_a_gpu_and_written_from_it(tmp_path: Path) -> None:
    wanted = arrays()
    save_file({name: gt.tensor(a, device="cuda") for name, a in wanted.items()}, tmp_path / "a")
    found = load_file(tmp_path / "a", "cuda")
    assert all(tensor.device.type == "cuda" for tensor in found.values())
    equal(found, wanted)


# -- shards ----------------------------------------------------------------------------------------


def test_shards_are_hugging_faces(tmp_path: Path) -> None:
    wanted = {f"t{i}": np.full(100, i, np.float32) for i in range(5)}
    wanted["large"] = np.arange(500, dtype=np.float32)
    save_file(wanted, tmp_path / "m.safetensors", {"format": "pt"}, max_shard_size="0.9kB")
    index = json.loads((tmp_path / "m.safetensors.index.json").read_text())
    names = [f"m-{n:05}-of-00004.safetensors" for n in (1, 2, 3, 4)]
    assert index == {
        "metadata": {"total_size": 4000, "format": "pt"},
        "weight_map": {"t0": names[0], "t1": names[0], "t2": names[1], "t3": names[1],
                       "t4": names[2], "large": names[3]}}
    assert sorted(os.listdir(tmp_path)) == [*names, "m.safetensors.index.json"]
    for name, shard in index["weight_map"].items():
        found = safetensors.numpy.load_file(tmp_path / shard)
        np.testing.assert_array_equal(found[name], wanted[name])
    for path in ("m.safetensors", "m.safetensors.index.json"):
        equal(load_file(tmp_path / path), wanted)
    with safe_open(tmp_path / "m.safetensors") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(file.get_array("large"), wanted["large"])


def test_what_fits_into_one_shard_is_one_file(tmp_path: Path) -> None:
    save_file({"x": np.ones(10)}, tmp_path / "m.safetensors", max_shard_size=80)
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_a_new_checkpoint_takes_the_place_of_all_of_the_old(tmp_path: Path) -> None:
    other = tmp_path / "other-00001-of-00002.safetensors"
    other.write_bytes(b"not ours")
    path = tmp_path / "m.safetensors"
    for round_, limit in enumerate([None, 80, 80, 160, None, 80]):
        wanted = {name: np.full(10, round_, float) for name in "abcd"}
        save_file(wanted, path, max_shard_size=limit)
        equal(load_file(path), wanted)
        count = 1 if limit is None else 320 // limit + 1
        assert len(os.listdir(tmp_path)) == count + 1
    assert other.read_bytes() == b"not ours"


def test_shards_over_shards_have_names_of_their_own(tmp_path: Path) -> None:
    seen: set[str] = set()
    path = tmp_path / "m.safetensors"
    for _ in range(4):
        save_file({name: np.ones(10) for name in "abcd"}, path, max_shard_size=80)
        shards = {name for name in os.listdir(tmp_path) if "-of-00004" in name}
        assert len(shards) == 4 == len(os.listdir(tmp_path)) - 1 and not shards & seen
        seen |= shards


def test_other_checkpoints_keep_their_shards(tmp_path: Path) -> None:
    wanted = {name: np.full(10, 3.0) for name in "abc"}
    names = ["model-20261120.safetensors", "model-0badcafe.safetensors", "models.safetensors",
             "model"]
    for name in names:
        save_file(wanted, tmp_path / name, max_shard_size=80)
    alone = tmp_path / "model-deadbeef-00001-of-00002.safetensors"
    save_file(wanted, alone)
    mine = tmp_path / "model.safetensors"
    for limit in (None, 80, 160, None):
        save_file({"x": np.ones(10), "y": np.ones(20)}, mine, max_shard_size=limit)
        for path in (*(tmp_path / name for name in names), alone):
            equal(load_file(path), wanted)
    index = tmp_path / "model.safetensors.index.json"  # names what this checkpoint has not written
    index.write_text(json.dumps({"weight_map": {"a": alone.name, "b": names[0] + ".index.json",
                                                "c": "models-00001-of-00003.safetensors"}}))
    copy = tmp_path / "copy.index.json"
    copy.write_bytes(index.read_bytes())
    save_file({"x": np.ones(10)}, mine)
    for path in (*(tmp_path / name for name in names), alone):
        equal(load_file(path), wanted)


@pytest.mark.parametrize("change", ["shards", "file", "gone"])
@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_checkpoint_replaced_while_it_is_opened_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, opened: int
) -> None:
    path = tmp_path / "m.safetensors"
    old = {name: np.zeros(10) for name in "ab"}
    new = {name: np.ones(10) for name in "ab"}
    save_file(old, path, max_shard_size=80)
    original, calls = safe_open._add, []

    def add(self: safe_open, file: Path) -> Any:
        calls.append(file)
        if len(calls) == opened + 1 and change == "gone":
            file.unlink()
        elif len(calls) == opened + 1:
            save_file(old, path)  # and back to the first names of shards
            save_file(new, path, max_shard_size=80 if change == "shards" else None)
        return original(self, file)

    monkeypatch.setattr(safe_open, "_add", add)
    descriptors = len(os.listdir("/proc/self/fd"))
    if change == "gone" and opened < 2:
        with pytest.raises(FileNotFoundError, match=f"m-0000{opened + 1}-of-00002"):
            load_file(path)
    else:
        equal(load_file(path), old if opened == 2 else new)
    assert len(os.listdir("/proc/self/fd")) == descriptors


WRITER = """
import sys
import numpy as np
from gtensor.checkpoint import save_file
value, path = float(sys.argv[1]), sys.argv[2]
for number in range(25):
    limit = None if number % 5 == 4 else 8000
    save_file({name: np.full(1000, value) for name in "abcd"}, path, max_shard_size=limit)
"""


@pytest.mark.thorough
def test_writers_take_turns_and_readers_see_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({name: np.zeros(1000) for name in "abcd"}, path, max_shard_size=8000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(value), str(path)])
               for value in (1, 2)]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        values = {float(tensor.numpy()[0]) for tensor in load_file(path).values()}
        assert len(values) == 1, "tensors of two writers"
        seen |= values
    assert [writer.returncode for writer in writers] == [0, 0] and len(seen) > 1
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_where_files_cannot_be_locked_no_writer_takes_a_name_that_another_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    wanted = arrays()
    for limit in (300, 200, None, 300):
        save_file(wanted, tmp_path / "m.safetensors", max_shard_size=limit)
        equal(load_file(tmp_path / "m.safetensors"), wanted)
        names = os.listdir(tmp_path)
        assert limit is None and len(names) == 1 or sum("-00001-of-" in name for name in names) == 1
        assert not any(name.startswith("m-00001") for name in names)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_an_open_file_stays_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"w": np.ones(4), "large": np.arange(2000.0)}, "x.safetensors")
    file = safe_open("x.safetensors", "cpu")
    save_file({"another": np.zeros(5000), "w": np.full(4, 7.0)}, "x.safetensors")
    if where == "elsewhere":
        (tmp_path / "folder").mkdir()
        monkeypatch.chdir(tmp_path / "folder")
    for name, wanted in (("w", np.ones(4)), ("large", np.arange(2000.0))):
        np.testing.assert_array_equal(file.get_array(name), wanted)
        np.testing.assert_array_equal(file.get_tensor(name).numpy(), wanted)
    file.close()
    with pytest.raises(ValueError, match="x.safetensors is closed"):
        file.get_array("w")


@pytest.mark.parametrize(("index", "told"), [
    ('{"weight_map": {"w": "a\\u0000b"}}', r"'a\\x00b' is no file of its folder"),
    ('{"weight_map": {"w": "a\\ud800b"}}', r"'a\\ud800b' is no file of its folder"),
    ('{"weight_map": {"w": "' + 256 * "a" + '"}}', "a' is no file of its folder"),
    ("{", "is no index"), ("[]", "is no index"), ("{}", "is no index.*weight_map"),
    ('{"weight_map": {"x": 3}}', "is no index"),
    ('{"weight_map": {"x": "../a.safetensors"}}', "'../a.safetensors' is no file of its folder"),
    ('{"weight_map": {"x": ".."}}', "is no file of its folder"),
    ('{"weight_map": {"z": "a.safetensors"}}', "says that 'z' is in a.safetensors, where it is"),
])
def test_a_broken_index_is_named(tmp_path: Path, index: str, told: str) -> None:
    save_file({"x": np.ones(3)}, tmp_path / "a.safetensors")
    path = tmp_path / "m.safetensors.index.json"
    path.write_text(index)
    with pytest.raises(CheckpointError, match=told) as caught:
        load_file(path)
    assert str(caught.value).startswith(str(path))


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    save_file({"x": np.ones(3), "y": np.ones(3)}, tmp_path / "m.safetensors", max_shard_size=24)
    (tmp_path / "m-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="m-00002-of-00002"):
        load_file(tmp_path / "m.safetensors")


@pytest.mark.parametrize(("text", "wanted"), [
    (500, 500), ("500", 500), ("5GB", 5 * 10**9), ("1.5 MiB", 3 * 2**19), ("2kb", 2000)])
def test_sizes(text: Any, wanted: int) -> None:
    assert size_of(text) == wanted


@pytest.mark.parametrize("text", ["", "GB", "5 pounds", 0, -3, "0MB"])
def test_no_sizes(text: Any) -> None:
    with pytest.raises(ValueError, match="given; wanted bytes above 0"):
        size_of(text)


# -- memory ----------------------------------------------------------------------------------------

PEAK = """
import sys
import gtensor as gt
def peak():
    return 1024 * int(next(l.split()[1] for l in open("/proc/self/status") if "VmHWM" in l))
gt.checkpoint.load_file(sys.argv[1] + ".small", "cpu")
before = peak()
kept = gt.checkpoint.load_file(sys.argv[1], "cpu")
print(peak() - before)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [None, "10MB"])
def test_the_peak_is_the_file(tmp_path: Path, shards: str | None) -> None:
    tensor = np.ones((2, 1 << 20), np.float32)
    path = tmp_path / "a"
    save_file({f"t{i}": tensor for i in range(8)}, path, max_shard_size=shards)
    save_file({"t": tensor[:1]}, f"{path}.small")
    text = "import gtensor.checkpoint\n" + PEAK
    done = subprocess.run([sys.executable, "-c", text, str(path)], capture_output=True, text=True,
                          check=True)
    assert 0.8 * 8 * tensor.nbytes < int(done.stdout) <= 9 * tensor.nbytes
