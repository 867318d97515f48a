"""Data for training: datasets over arrays, files and streams, and the loader that batches them.

    data = gt.data.ArrayDataset(images, labels)
    train, held_out = gt.data.random_split(data, [0.9, 0.1], seed=0)
    loader = gt.data.DataLoader(train, batch_size=64, shuffle=True, seed=0)
    for images, labels in loader:
        ...
"""

from typing import TYPE_CHECKING

from gtensor.data.collate import default_collate
from gtensor.data.datasets import (
    ArrayDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    memmap,
    random_split,
)
from gtensor.data.loader import DataLoader
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "ArrayDataset", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "Subset",
    "TensorDataset", "default_collate", "memmap", "random_split",
]

_enter(globals(), check=True)
