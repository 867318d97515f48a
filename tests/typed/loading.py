"""Datasets and loaders, and the types of their batches."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np

import gtensor as gt
from gtensor.data import ArrayDataset, DataLoader, Dataset, IterableDataset, random_split


class Squares(Dataset):
    """A number and its square."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full(2, index, np.float32), index**2


class Words(IterableDataset):
    """Texts of several lengths."""

    def __iter__(self) -> Iterator[str]:
        yield from ["a", "bc", "def"]


def lengths(items: list[str]) -> dict[str, gt.Tensor]:
    """A batch of texts."""
    return {"length": gt.tensor([len(item) for item in items])}


def accuracy(loader: DataLoader) -> float:
    """A loader of any batches as a parameter."""
    right, seen = 0, 0
    for inputs, squares in loader:
        right += int((inputs[:, 0] ** 2 == squares).sum().item())
        seen += len(squares)
    return right / seen


def run() -> None:
    """All of it."""
    arrays = ArrayDataset(np.zeros((8, 3), np.float32), gt.arange(8))
    loader = DataLoader(arrays, batch_size=4, shuffle=True, seed=0)
    assert_type(loader, DataLoader[tuple[gt.Tensor, ...]])
    for inputs, labels in loader:
        assert_type(inputs, gt.Tensor)
        assert labels.shape == (4,)
    batches = DataLoader(Words(), 2, collate_fn=lengths)
    assert_type(batches, DataLoader[dict[str, gt.Tensor]])
    assert [batch["length"].tolist() for batch in batches] == [[1, 2], [3]]
    pairs: DataLoader[tuple[gt.Tensor, gt.Tensor]] = DataLoader(Squares(), batch_size=5)
    assert_type(next(iter(pairs)), tuple[gt.Tensor, gt.Tensor])
    train, held_out = random_split(Squares(), [0.8, 0.2], seed=0)
    assert_type(DataLoader(train), DataLoader[Any])
    assert accuracy(DataLoader(held_out, num_workers=1)) == accuracy(pairs) == 1.0
