"""The generators of random numbers: the process's, those of threads that repeat, users' own.

The bits are NumPy's Philox (counter-based; Salmon et al., SC'11): its state is small, saved in
checkpoints, and independent of the device, so a run can be repeated on a machine without a GPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from gtensor.backend import Device, get_device
from gtensor.engine.handle.errors import GradientError
from gtensor.execution.graphs import around_captures
from gtensor.system.bus import bus, here
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.written_code import enter

__all__ = [
    "Generator", "Key", "fold_in", "generator", "get_state", "jump", "key", "manual_seed", "seeded",
    "set_state", "split",
]


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
    """Start the random numbers of this process again from `seed`: other numbers than PyTorch's."""
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
    _refuse_captured()
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
    return what lies next to the generator's buffer as random numbers.
    """
    check_state(state)
    fresh = np.random.Philox()
    fresh.state = state
    _replace(fresh)


def _refuse_captured() -> None:
    """A captured step cannot start random numbers again: replays draw them one after another."""
    if bus.listeners and here.recorder is not None:
        here.recorder.refuse("random numbers were started again by a seed or a state, which a "
                             "replay would not do; seed before the step")


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


def repeating() -> bool:
    """Whether this thread draws from a generator of its own, such as to repeat earlier draws."""
    return _repeat.generator is not None


@contextmanager
def _drawing_from(bits: np.random.Philox) -> Iterator[None]:
    """Within the block this thread draws from `bits`."""
    before, _repeat.generator = _repeat.generator, _over(bits)
    try:
        yield
    finally:
        _repeat.generator = before


class _Refusing:
    """In place of a generator: raises GradientError at any draw."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise GradientError(self._why)


@contextmanager
def refusing(why: str) -> Iterator[None]:
    """Within the block draws of this thread raise GradientError, which says why."""
    refused: Any = _Refusing(why)
    before, _repeat.generator = _repeat.generator, refused
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


class Generator:
    """A source of random numbers of its own, for the argument `generator` of functions that draw.

    The numbers are those that the functions draw after `gt.manual_seed` of its seed. Two threads
    that draw from one generator must take turns. Names are those of `torch.Generator`; numbers are
    drawn on the host for every device, so `device` changes nothing.
    """

    def __init__(self, device: Device | str | None = None) -> None:
        self.device = get_device(device)
        self.seed()

    def manual_seed(self, seed: int) -> Generator:
        """Start again from `seed`; the generator itself."""
        self._seed = _checked(seed)
        _refuse_captured()
        self._bits = np.random.Philox(seed)
        return self

    def seed(self) -> int:
        """Start again from a new seed, and return that."""
        self.manual_seed(int.from_bytes(os.urandom(8)))
        return self._seed

    def initial_seed(self) -> int:
        """The seed from which it started."""
        return self._seed

    def get_state(self) -> dict[str, Any]:
        """Its state, as `gt.random.get_state` gives that of the process."""
        return _plain(self._bits.state)

    def set_state(self, state: Any) -> None:
        """Continue from a state; raises as `gt.random.set_state`."""
        check_state(state)
        _refuse_captured()
        self._bits.state = state

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed})"


@dataclass(frozen=True)
class Key:
    """A key of random numbers, for the argument `generator` of functions that draw.

    Unlike a generator it does not change: all draws from one key are the same numbers, also in
    replays of a captured step. `split` and `fold_in` make independent ones. Its words are those of
    the key of Philox.
    """

    words: tuple[int, int]

    def bits(self, counter: tuple[int, int, int, int] = (0, 0, 0, 0)) -> np.random.Philox:
        """Its bits from a counter on."""
        return np.random.Philox(key=np.array(self.words, np.uint64),
                                counter=np.array(counter, np.uint64))


# Keys that follow from one are bits of its own at counters with these as their highest words. No
# draw from it reaches those, in 2**192 blocks of four words. A key takes a block of its own.
_SPLIT, _FOLDED = 1, 2
_MOST_KEYS = 1 << 20


def key(seed: int) -> Key:
    """The key of a seed. A draw from it gives the numbers that it gives after `manual_seed(seed)`.

    Raises ValueError for what is no integer of 0 or more.
    """
    first, second = np.random.Philox(_checked(seed)).state["state"]["key"].tolist()
    return Key((first, second))


def split(key: Key, num: int = 2) -> list[Key]:
    """`num` keys that follow from one, independent of each other and of it.

    Raises ValueError for a number outside of 0 to 2**20, TypeError for what is no key.
    """
    if type(num) is not int or not 0 <= num <= _MOST_KEYS:
        raise ValueError(f"split was given num={num!r}; wanted an integer from 0 to {_MOST_KEYS}")
    words = _key("split", key).bits((0, 0, 0, _SPLIT)).random_raw(4 * num).reshape(num, 4)
    return [Key((first, second)) for first, second, *_ in words.tolist()]


def fold_in(key: Key, data: int) -> Key:
    """The key that follows from one and from an integer, such as the number of a step.

    Raises ValueError for an integer outside of 0 to 2**64 - 1, TypeError for what is no key.
    """
    if not isinstance(data, int) or not 0 <= data < 1 << 64:
        raise ValueError(f"fold_in was given data={data!r}; wanted an integer from 0 to 2**64 - 1")
    first, second = _key("fold_in", key).bits((data, 0, 0, _FOLDED)).random_raw(2).tolist()
    return Key((first, second))


def _key(name: str, given: object) -> Key:
    if not isinstance(given, Key):
        raise TypeError(f"{name} was given key={given!r}; wanted one of gt.random.key(seed)")
    return given


def drawing_from(source: Generator | Key | None) -> AbstractContextManager[None]:
    """A context in which this thread draws from a generator or a key; from its own if that is None.

    Raises TypeError for anything else.
    """
    if source is None:
        return nullcontext()
    if isinstance(source, Key):
        return _drawing_from(source.bits())
    if not isinstance(source, Generator):
        raise TypeError(f"generator was given {type(source).__name__}; wanted a gt.Generator, such "
                        "as gt.Generator().manual_seed(0), or a key of gt.random.key")
    return _drawing_from(source._bits)


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


enter(globals())
