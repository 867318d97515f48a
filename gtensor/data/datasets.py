"""Datasets: items by number, or an iterable; over arrays, memory-mapped files, subsets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, isclose, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import element_type, host_array
from gtensor.creation.generators import Generator, Key, drawing_from, generator
from gtensor.creation.new_tensors import asarray, empty
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike


class Dataset:
    """Items by number: subclasses write `__len__` and `__getitem__`.

    One that can make a whole batch at once also writes `gather(indices)`, which takes an int64
    array of item numbers and returns the batch; it is called instead of `__getitem__`.
    """

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no __len__; write one")

    def __getitem__(self, index: int) -> Any:
        raise TypeError(f"{type(self).__name__} has no __getitem__; write one")


class IterableDataset:
    """Items in an order of their own: subclasses write `__iter__`, which starts from the first."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{type(self).__name__} has no __iter__; write one")


class ArrayDataset(Dataset):
    """Item i is the i-th element of each array, along the first axis: a tuple of them.

    Args:
        arrays: NumPy arrays, memory-mapped files (`memmap`) and tensors of equal length. They are
            not copied. Batches are copied from them in one pass per array, without a Python object
            per item.

    Raises TypeError for a value that is not an array, ValueError for none, 0-d ones or different
    lengths.
    """

    def __init__(self, *arrays: Tensor | np.ndarray) -> None:
        name = type(self).__name__
        if not arrays:
            raise ValueError(f"{name} was given no arrays; wanted at least one")
        for array in arrays:
            if not isinstance(array, (np.ndarray, Tensor)):
                raise TypeError(f"{name} was given {type(array).__name__}; wanted NumPy arrays or "
                                "tensors")
            if isinstance(array, np.ndarray):
                host_array(array, name)
        shapes = [tuple(array.shape) for array in arrays]
        if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(f"{name} was given arrays of shapes {shapes}; wanted the same number "
                             "of items along the first axis of each")
        self.arrays = arrays

    def __len__(self) -> int:
        return self.arrays[0].shape[0]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def gather(self, indices: np.ndarray) -> tuple[Tensor, ...]:
        """The items of these numbers: for each array one new tensor on the array's device."""
        _check_range(indices, len(self))
        return tuple(_gathered(array, indices) for array in self.arrays)

    def __repr__(self) -> str:
        listed = ", ".join(f"{array.dtype} {tuple(array.shape)}" for array in self.arrays)
        return f"{type(self).__name__}({listed})"


class TensorDataset(ArrayDataset):
    """ArrayDataset by PyTorch's name."""


def _check_range(numbers: np.ndarray, count: int) -> None:
    if numbers.size and (numbers.min() < 0 or numbers.max() >= count):
        raise IndexError(f"item numbers from {numbers.min()} to {numbers.max()} given; wanted some "
                         f"of 0 to {count - 1}")


def _gathered(array: Tensor | np.ndarray, indices: np.ndarray) -> Tensor:
    if isinstance(array, Tensor):
        array._refuse_cut("a batch")
        if array.device.type != "cpu":
            with no_grad():
                return array[asarray(indices, device=array.device)]
        array = array._array
    shape, dtype = (len(indices), *array.shape[1:]), array.dtype
    batch = empty(shape, dtype.newbyteorder("="), "cpu")
    if array.flags.c_contiguous and array.flags.aligned and dtype.isnative:
        # NumPy buffers the output with "raise"; the numbers are already checked.
        np.take(array, indices, axis=0, out=batch._array, mode="clip")
    else:  # np.take would copy the whole array first
        batch._array[...] = array[indices]
    return batch


class Subset(Dataset):
    """Some items of a dataset, in the order of `indices`.

    Raises ValueError for indices that are not 1-d, IndexError where one is out of range.
    """

    def __init__(
        self, dataset: Dataset | Sequence[Any], indices: Sequence[int] | np.ndarray
    ) -> None:
        numbers = np.asarray(indices, np.int64)
        if numbers.ndim != 1:
            raise ValueError(f"Subset was given indices of shape {numbers.shape}; wanted one "
                             "dimension")
        _check_range(numbers, len(dataset))
        self.dataset = dataset
        self.indices = numbers

    @property
    def gather(self) -> Callable[[np.ndarray], Any]:
        """Makes a batch of these items; only if the dataset has `gather`."""
        whole: Callable[[np.ndarray], Any] = getattr(self.dataset, "gather")  # noqa: B009  mypy
        return lambda indices: whole(self.indices[indices])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    def __repr__(self) -> str:
        return f"Subset({len(self)} items of {type(self.dataset).__name__})"


class ConcatDataset(Dataset):
    """The items of several datasets, one after another.

    Raises ValueError for none, TypeError for one that has no length.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset was given no datasets; wanted at least one")
        for dataset in self.datasets:
            if not hasattr(dataset, "__len__"):
                raise TypeError(f"ConcatDataset was given {type(dataset).__name__}, which has no "
                                "length; wanted datasets with __len__ and __getitem__")
        self.ends = np.cumsum([len(dataset) for dataset in self.datasets])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Any:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"item {index} asked of {len(self)} items")
        number = int(np.searchsorted(self.ends, place, side="right"))
        dataset = self.datasets[number]
        return dataset[place - int(self.ends[number]) + len(dataset)]


def random_split(
    dataset: Dataset | Sequence[Any], lengths: Sequence[float],
    seed: int | Generator | Key | None = None, *, generator: Generator | Key | None = None,
) -> list[Subset]:
    """Disjoint random subsets of a dataset that cover it.

    Args:
        dataset: an object with a length.
        lengths: the items of each subset, or its share of them; shares add up to 1. Items left by
            rounding down are added to the first subsets, as in PyTorch.
        seed: of the shuffle; by default drawn from `generator`, which may also stand in its place,
            else from the generator that `gtensor.manual_seed` sets.

    Raises ValueError for lengths that do not add up.
    """
    total = len(dataset)
    sizes = [int(length) for length in lengths]
    if isclose(sum(lengths), 1) and all(0 <= length <= 1 for length in lengths):
        sizes = [floor(total * length) for length in lengths]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
    if sum(sizes) != total or min(sizes, default=0) < 0:
        raise ValueError(f"lengths {list(lengths)} given for {total} items; wanted lengths that "
                         "add up to it, or shares that add up to 1")
    if seed is None or isinstance(seed, (Generator, Key)):
        with drawing_from(generator or seed):
            seed = draw_seed()
    order = shuffled(total, seed, 0)
    ends = np.cumsum(sizes)
    return [Subset(dataset, order[end - size:end]) for size, end in zip(sizes, ends, strict=True)]


def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers 0 to count - 1 in an order that follows from seed and epoch alone."""
    return np.random.Generator(np.random.Philox([seed, epoch])).permutation(count)


def draw_seed() -> int:
    """A seed from the generator that `gtensor.manual_seed` sets."""
    return int(generator().integers(2**63))


def memmap(
    path: str | os.PathLike[str], dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    offset: int = 0,
) -> np.ndarray:
    """The array in a file, read-only, without loading it: pages come from the disk when read.

    Args:
        path: an .npy file, or bare numbers if `dtype` is given.
        dtype: of bare numbers.
        shape: of bare numbers; one size may be -1, and is then what the file's length gives. By
            default one dimension.
        offset: bytes before the first number.

    Raises FileNotFoundError, or ValueError for no .npy file or a length that does not fit the
    shape; an OSError or a MemoryError of the system is not changed.
    """
    place = Path(path)
    if not place.is_file():  # nor a pipe, which would block
        raise FileNotFoundError(f"there is no file {place} to map; wanted an .npy file or numbers")
    if dtype is None:
        if shape is not None or offset:
            raise ValueError(f"a shape or an offset but no dtype given for {place}; an .npy file "
                             "knows its own, bare numbers need all")
        try:
            return np.lib.format.open_memmap(place, mode="r")
        except (OSError, MemoryError):
            raise
        except Exception as error:  # NumPy does not document which errors its parser raises
            first = str(error).partition("\n")[0]
            raise ValueError(f"{place} is no .npy file that can be mapped: {first}") from error
    kind = element_type(dtype)
    count, rest = divmod(place.stat().st_size - offset, kind.itemsize)
    sizes = [-1] if shape is None else [int(n) for n in shape]
    known = prod(n for n in sizes if n >= 0)
    if sizes.count(-1) == 1 and known and count % known == 0:
        sizes[sizes.index(-1)] = count // known
    if min(sizes, default=0) < 0 or prod(sizes) > count or count < 0 or (shape is None and rest):
        raise ValueError(f"{place} holds {max(count, 0)} numbers of {kind} and {rest} bytes after "
                         f"{offset}; wanted shape {tuple(shape or (-1,))}")
    if not prod(sizes):
        return np.empty(sizes, kind)  # an empty range of a file cannot be mapped
    return np.memmap(place, kind, "r", offset, tuple(sizes))
