"""Datasets over arrays, files and subsets; batches from items; what they refuse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import data, settings


def arrays(count=11):
    rng = np.random.default_rng()
    return rng.standard_normal((count, 3, 2)).astype("f"), rng.integers(0, 9, count)


def layouts(x):
    """The same values in other memory."""
    wide = np.zeros((x.shape[0], 2 * x.shape[1], *x.shape[2:]), x.dtype)
    wide[:, ::2] = x
    return {
        "contiguous": x, "columns": np.asfortranarray(x), "strided": wide[:, ::2],
        "backwards": x[::-1].copy()[::-1], "big endian": x.astype(x.dtype.newbyteorder(">")),
        "tensor": gt.tensor(x), "read only": np.broadcast_to(x, x.shape),
    }


@pytest.mark.parametrize("layout", layouts(arrays()[0]))
def test_gathered_batches_are_numpys_choice(layout):
    x, y = arrays()
    source = layouts(x)[layout]
    chosen = np.array([3, 0, 10, 3])
    with settings.override(arena_min_bytes=0):
        before = gt.memory.stats().allocated
        a, b = data.ArrayDataset(source, y).gather(chosen)
        assert gt.memory.stats().allocated > before  # the batch is memory that is accounted for
    assert isinstance(a, gt.Tensor) and a.dtype == gt.float32 and b.dtype == gt.int64
    assert np.array_equal(a.numpy(), x[chosen]) and np.array_equal(b.numpy(), y[chosen])
    a[...] = 0
    assert np.array_equal(np.asarray(source), x)  # a copy
    empty, _ = data.ArrayDataset(source, y).gather(chosen[:0])
    assert empty.shape == (0, 3, 2)


def test_half_types_and_gradients_are_left_outside():
    w = gt.ones((4, 2), gt.bfloat16, requires_grad=True)
    (batch,) = data.TensorDataset(w).gather(np.array([1, 1]))
    assert batch.dtype == gt.bfloat16 and not batch.requires_grad


def test_items_and_length():
    x, y = arrays()
    dataset = data.ArrayDataset(x, gt.tensor(y))
    item = dataset[4]
    assert len(dataset) == 11 and np.array_equal(item[0], x[4]) and item[1].item() == y[4]


@pytest.mark.parametrize("make,error,message", [
    (lambda x: data.ArrayDataset(), ValueError, "no arrays"),
    (lambda x: data.ArrayDataset(x, x[:3]), ValueError, r"shapes \[\(11, 3, 2\), \(3, 3, 2\)\]"),
    (lambda x: data.ArrayDataset(np.array(1.0)), ValueError, r"shapes \[\(\)\]"),
    (lambda x: data.ArrayDataset([1, 2]), TypeError, "given list"),
    (lambda x: data.ArrayDataset(x).gather(np.array([0, 11])), IndexError, "0 to 11 .* 0 to 10"),
    (lambda x: data.ArrayDataset(x).gather(np.array([-1])), IndexError, "-1 to -1"),
    (lambda x: data.Subset(data.ArrayDataset(x), [11]), IndexError, "11 to 11"),
    (lambda x: data.Subset(data.ArrayDataset(x), np.array([[1]])), ValueError, r"shape \(1, 1\)"),
    (lambda x: data.random_split(x, [5, 5]), ValueError, r"lengths \[5, 5\] given for 11"),
    (lambda x: data.random_split(x, [0.5, 0.4]), ValueError, "add up to 1"),
    (lambda x: data.random_split(x, [12, -1]), ValueError, "12, -1"),
    (lambda x: data.Dataset()[0], TypeError, "__getitem__"),
    (lambda x: len(data.Dataset()), TypeError, "__len__"),
    (lambda x: iter(data.IterableDataset()), TypeError, "__iter__"),
])
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make(arrays()[0])


@pytest.mark.parametrize("lengths", [[7, 4], [0.5, 0.5], [0.3, 0.3, 0.4], [11], [0, 11]])
def test_random_split_covers_all_by_seed(lengths):
    x, _ = arrays()
    dataset = data.ArrayDataset(x)
    parts = data.random_split(dataset, lengths, seed=3)
    wanted = torch.utils.data.random_split(range(11), lengths)
    assert [len(p) for p in parts] == [len(p) for p in wanted]
    assert sorted(np.concatenate([p.indices for p in parts])) == list(range(11))
    again = data.random_split(dataset, lengths, seed=3)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(parts, again, strict=True))
    gt.manual_seed(5)
    first = data.random_split(dataset, lengths)
    gt.manual_seed(5)
    second = data.random_split(dataset, lengths)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(first, second, strict=True))


def test_subsets_gather_if_the_whole_does():
    x, y = arrays()
    part = data.Subset(data.Subset(data.ArrayDataset(x, y), [9, 3, 5]), np.array([2, 0]))
    assert np.array_equal(part[0][0], x[5]) and len(part) == 2
    assert np.array_equal(part.gather(np.array([1, 0]))[1].numpy(), y[[9, 5]])
    assert not hasattr(data.Subset(list(range(5)), [0]), "gather")
    assert data.Subset(list(range(5, 10)), [2, 0])[0] == 7


def test_memory_maps(tmp_path):
    x, _ = arrays()
    np.save(tmp_path / "x.npy", x)
    x.tofile(tmp_path / "x.bin")
    for mapped in (
        data.memmap(tmp_path / "x.npy"), data.memmap(tmp_path / "x.bin", "f", (-1, 3, 2)),
        data.memmap(str(tmp_path / "x.bin"), np.float32, (11, 3, 2)),
    ):
        assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
        assert np.array_equal(mapped, x)
        (batch,) = data.ArrayDataset(mapped).gather(np.array([7, 2]))
        assert np.array_equal(batch.numpy(), x[[7, 2]])
    flat = data.memmap(tmp_path / "x.bin", "f", offset=8)
    assert np.array_equal(flat, x.ravel()[2:])
    (tmp_path / "none").write_bytes(b"")
    assert data.memmap(tmp_path / "none", "f", (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("arguments,error,message", [
    (("nowhere",), FileNotFoundError, "no file .*nowhere"),
    (("x.bin", "f", (12, 3, 2)), ValueError, r"66 numbers of float32 .* wanted shape \(12, 3, 2\)"),
    (("x.bin", "f", (-1, 5)), ValueError, r"wanted shape \(-1, 5\)"),
    (("x.bin", "f", (-1, -1)), ValueError, r"wanted shape \(-1, -1\)"),
    (("x.bin", "f", None, 3), ValueError, "65 numbers of float32 and 1 bytes after 3"),
    (("x.bin", "f", None, 999), ValueError, "holds 0 numbers"),
    (("x.npy", None, (66,)), ValueError, "no dtype"),
])
def test_files_that_do_not_fit_are_named(tmp_path, arguments, error, message):
    x = np.arange(66, dtype="f")
    np.save(tmp_path / "x.npy", x)
    x.tofile(tmp_path / "x.bin")
    with pytest.raises(error, match=message):
        data.memmap(tmp_path / arguments[0], *arguments[1:])


@pytest.mark.parametrize("error", [PermissionError, OSError, MemoryError])
def test_an_error_of_the_system_is_not_blamed_on_the_file(tmp_path, monkeypatch, error):
    def refuse(*_, **__):
        raise error("not now")

    np.save(tmp_path / "x.npy", np.arange(3))
    monkeypatch.setattr(np.lib.format, "open_memmap", refuse)
    with pytest.raises(error, match="not now"):
        data.memmap(tmp_path / "x.npy")


def test_a_map_is_not_loaded(tmp_path):
    """A sparse file of 1 TiB, which no memory could hold."""
    place = tmp_path / "huge"
    with place.open("wb") as file:
        file.truncate(1 << 40)
    dataset = data.ArrayDataset(data.memmap(place, np.uint8, (-1, 1 << 10)))
    (batch,) = dataset.gather(np.array([1 << 29, 3]))
    assert len(dataset) == 1 << 30 and batch.numpy().sum() == 0


# -- items to batches ------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: object
    y: object


def test_collate_goes_through_structures():
    items = [{"a": (1, [2.0, True]), "b": "text", "c": Pair(np.ones(2, "f"), gt.zeros(()))}] * 3
    batch = data.default_collate(items)
    assert batch["a"][0].tolist() == [1, 1, 1] and batch["a"][0].dtype == gt.int64
    assert isinstance(batch["a"], tuple) and isinstance(batch["a"][1], list)
    assert batch["a"][1][0].dtype == gt.float32 and batch["a"][1][1].dtype == gt.bool
    assert batch["b"] == ["text"] * 3
    assert isinstance(batch["c"], Pair) and batch["c"].x.shape == (3, 2)
    assert batch["c"].y.shape == (3,)


def test_collate_keeps_dtypes():
    assert data.default_collate([np.float64(1)] * 2).dtype == gt.float64
    assert data.default_collate([np.ones(2, np.uint8)] * 2).dtype == gt.uint8
    assert data.default_collate([gt.ones(2, gt.bfloat16)] * 2).dtype == gt.bfloat16
    assert data.default_collate([np.ones(2, "f"), np.ones(2)]).dtype == gt.float64


@pytest.mark.parametrize("items,error,message", [
    ([], ValueError, "no items"),
    ([np.ones(2), np.ones(3)], ValueError, r"item 1 .* shape \(3,\), and item 0 \(2,\)"),
    ([(1, 2), (1,)], ValueError, "item 1 of a batch has length 1"),
    ([{"a": 1}, {"b": 1}], ValueError, "item 1 of a batch has keys"),
    ([object()], TypeError, "a batch was given object of dtype object"),
])
def test_items_that_differ_are_named(items, error, message):
    with pytest.raises(error, match=message):
        data.default_collate(items)


def test_datasets_tell_what_they_hold_by_their_own_name():
    pair = data.TensorDataset(np.ones((4, 2)), gt.ones(4))
    assert repr(pair) == "TensorDataset(float64 (4, 2), float32 (4,))"
    assert repr(data.Subset(pair, [1, 2, 2])) == "Subset(3 items of TensorDataset)"
    assert isinstance(pair, data.ArrayDataset)
    with pytest.raises(ValueError, match=r"TensorDataset was given arrays of shapes"):
        data.TensorDataset(np.ones(4), np.ones(3))


def test_datasets_one_after_another_are_pytorchs():
    parts = [list("abc"), [], list("de"), data.TensorDataset(gt.arange(2))]
    mine, theirs = data.ConcatDataset(parts), torch.utils.data.ConcatDataset(parts)
    assert len(mine) == len(theirs) == 7
    assert [mine[i] for i in range(-7, 7)] == [theirs[i] for i in range(-7, 7)]
    for index in (7, -8):
        with pytest.raises(IndexError, match=f"item {index} asked of 7 items"):
            mine[index]
    whole = data.ConcatDataset([data.ArrayDataset(np.arange(3)), data.ArrayDataset(np.arange(2))])
    assert [batch[0].tolist() for batch in data.DataLoader(whole, 2)] == [[0, 1], [2, 0], [1]]
    with pytest.raises(ValueError, match="given no datasets"):
        data.ConcatDataset([])
    with pytest.raises(TypeError, match="given generator, which has no length"):
        data.ConcatDataset([(i for i in range(3))])
