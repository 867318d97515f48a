"""Random tensors from one seed per process, the same on every device type that draws on the host.

The generator is NumPy's Philox (counter-based; Salmon et al., SC'11): its state is small, saved in
checkpoints, and independent of the device, so a run can be repeated on a machine without a GPU.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gtensor.backend import Device, element_type
from gtensor.creation.new_tensors import DEFAULT_FLOAT, tensor
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.engine.tape.levels import vectorizing
from gtensor.execution.graphs import around_captures
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.late_imports import late as _late

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "generator", "get_state", "integers", "jump", "manual_seed", "normal", "permutation", "seeded",
    "set_state", "uniform",
]

Shape = int | Sequence[int]


def _over(bits: np.random.Philox) -> np.random.Generator:
    """A generator over these bits; its lock is held at a fork."""
    free_at_forks(bits.lock)
    return np.random.Generator(bits)


class _Source:
    """The process's generator, made at the first draw; `manual_seed` replaces it."""

    generator: np.random.Generator | None = None
    seed = int.from_bytes(os.urandom(8))  # drawn now: forked processes go on from one state


_making = threading.RLock()  # of the process's generator
free_at_forks(_making)


class _Repeat(threading.local):
    """The generator of a thread that repeats earlier draws, in place of the process's."""

    generator: np.random.Generator | None = None


_repeat = _Repeat()


def manual_seed(seed: int) -> None:
    """Start the random numbers of this process again from `seed`."""
    _replace(np.random.Philox(_checked(seed)))


def _checked(seed: int) -> int:
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed {seed!r} given; wanted an integer of 0 or more")
    return seed


def generator() -> np.random.Generator:
    """The generator that all random functions of gtensor draw from."""
    return _repeat.generator or _Source.generator or _first()


def _first() -> np.random.Generator:
    """The process's generator; it is made once. NumPy imports its random numbers here."""
    with _making:
        if _Source.generator is None:
            _Source.generator = _over(np.random.Philox(_Source.seed))
        return _Source.generator


def _replace(bits: np.random.Philox) -> None:
    if _repeat.generator is None:
        with _making:
            _Source.generator = _over(bits)
    else:
        _repeat.generator = _over(bits)


def get_state() -> dict[str, Any]:
    """The generator's state for a checkpoint: dicts and lists of integers and strings, so JSON."""
    return _plain(generator().bit_generator.state)


def set_state(state: Any) -> None:
    """Continue from a state of `get_state`.

    Raises ValueError, with nothing changed, for any other: NumPy does not check a state and could
    return memory beside the generator's buffer as random numbers.
    """
    check_state(state)
    fresh = np.random.Philox()
    fresh.state = state
    _replace(fresh)


def jump(streams: int) -> None:
    """Go on with another stream of the same seed: 2**128 draws further for each.

    Ranks that began with one seed, or one state, draw different numbers after `jump(rank)`.

    Raises ValueError for a negative number.
    """
    if not isinstance(streams, int) or streams < 0:
        raise ValueError(f"jump was given {streams!r} streams; wanted an integer of 0 or more")
    bits: Any = generator().bit_generator
    _replace(bits.jumped(streams))


_FIELDS = {  # of a state: the sizes of arrays (1: a number), and their largest number
    ("state", "counter"): (4, 2**64 - 1), ("state", "key"): (2, 2**64 - 1),
    ("buffer",): (4, 2**64 - 1), ("buffer_pos",): (1, 4), ("has_uint32",): (1, 1),
    ("uinteger",): (1, 2**32 - 1)}


def check_state(state: object) -> None:
    """Raise ValueError unless this is a state of Philox, in every field."""
    from gtensor.system.documents import told

    kind = state.get("bit_generator") if isinstance(state, dict) else state
    if not isinstance(state, dict) or not isinstance(kind, str) or kind != "Philox":
        raise ValueError(f"a random state of {told(kind)} given; wanted one of get_state(), of the "
                         "bit generator 'Philox'; nothing was changed")
    for path, (size, most) in _FIELDS.items():
        value: Any = state
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        values = _plain(value) if size > 1 else [_plain(value)]
        if not isinstance(values, list) or len(values) != size or any(
                type(n) is not int or not 0 <= n <= most for n in values):
            raise ValueError(f"a random state whose {'.'.join(path)!r} is {told(value)} given; "
                             f"wanted {size} of the numbers 0 to {most}; nothing was changed")


@contextmanager
def _drawing_from(bits: np.random.Philox) -> Iterator[None]:
    """Within the block this thread draws from `bits`."""
    before, _repeat.generator = _repeat.generator, _over(bits)
    try:
        yield
    finally:
        _repeat.generator = before


def seeded(seed: int) -> AbstractContextManager[None]:
    """A context in which this thread draws from a generator of its own, started from `seed`.

    It does not change the process's generator or other threads: samples drawn during training
    leave the training's numbers as they are.
    """
    return _drawing_from(np.random.Philox(_checked(seed)))


def repetition() -> Callable[[], AbstractContextManager[None]]:
    """A function that opens contexts in which this thread repeats the draws from now on.

    A context does not change the process's generator or other threads.
    """
    state: Any = generator().bit_generator.state

    @contextmanager
    def again() -> Iterator[None]:
        bits = np.random.Philox()
        bits.state = state
        with _drawing_from(bits):
            yield

    return again


around_captures.append(lambda: repetition()())  # nothing runs, so nothing is drawn


def _plain(value: object) -> Any:
    """NumPy's arrays and integers within a state as Python's."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def normal(
    shape: Shape, *, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Normally distributed values; float32 unless another floating dtype is given.

    The shape is one argument: `normal((2, 3))` is PyTorch's `randn(2, 3)`. Raises ValueError for a
    negative std.
    """
    wanted = _floating("normal", dtype)
    if not std >= 0:
        raise ValueError(f"normal was given std={std}; wanted 0 or more")
    return _drawn("normal", shape, requires_grad, lambda shape: tensor(
        generator().standard_normal(shape) * std + mean, wanted, device))


def uniform(
    shape: Shape, *, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Values uniform in [low, high); float32 unless another floating dtype is given.

    The shape is one argument: `uniform((2, 3))` is PyTorch's `rand(2, 3)`. Raises ValueError for
    bounds that are not finite or fall.
    """
    wanted = _floating("uniform", dtype)
    if not 0 <= high - low < math.inf:
        raise ValueError(f"uniform was given low={low} and high={high}; wanted finite low <= high")
    return _drawn("uniform", shape, requires_grad, lambda shape: tensor(
        generator().uniform(low, high, shape), wanted, device))


def _of_examples(
    name: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    from gtensor.engine.transforms.batched import drawn

    return drawn(name, shape, draw)


def _drawn(
    name: str, shape: Shape, requires_grad: bool, draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    """`draw(shape)`; within `vmap` as its `randomness` says."""
    wanted = (index(shape),) if isinstance(shape, SupportsIndex) else tuple(map(index, shape))
    found = _of_examples(name, wanted, draw) if vectorizing() else draw(wanted)
    return found.requires_grad_() if requires_grad else found


def _floating(name: str, dtype: DTypeLike | None) -> np.dtype:
    wanted = DEFAULT_FLOAT if dtype is None else element_type(dtype)
    if not is_floating(wanted):
        raise TypeError(f"{name} was given dtype={wanted}; wanted a floating-point dtype")
    return wanted


def integers(
    low: int, high: int, shape: Shape, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None
) -> Tensor:
    """Integers uniform in [low, high); int64 unless dtype is given. ValueError if there is none.

    `shape` is one argument, an integer or several.
    """
    if not low < high:
        raise ValueError(f"integers was given low={low} and high={high}; wanted low < high")
    wanted = element_type(dtype or np.int64)
    return _drawn("integers", shape, False, lambda shape: tensor(
        generator().integers(low, high, shape), wanted, device))


def permutation(n: int, *, device: Device | str | None = None) -> Tensor:
    """The integers 0 to n - 1 in random order; int64."""
    def draw(lead: tuple[int, ...]) -> Tensor:
        rows = np.broadcast_to(np.arange(index(n)), (*lead, index(n)))
        values = generator().permuted(rows, axis=-1) if lead else generator().permutation(index(n))
        return tensor(values, np.int64, device)

    return _drawn("permutation", (), False, draw)
