"""Random tensors from one seed per process, the same on every device type that draws on the host.

The generator is NumPy's Philox (counter-based; Salmon et al., SC'11): its state is small, saved in
checkpoints, and independent of the device, so a run can be repeated on a machine without a GPU.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

import numpy as np

from gtensor.backend import Device, element_type, get_default_dtype, get_device
from gtensor.creation.new_tensors import asarray, shape_of, sizes_of, tensor
from gtensor.engine.handle.context import again, no_grad
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.namespaces import public
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.engine.tape.levels import Traced, vectorizing
from gtensor.execution.graphs import around_captures
from gtensor.system.bus import bus, here
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "Generator", "bernoulli", "choice", "exponential", "generator", "get_state", "integers", "jump",
    "manual_seed", "multinomial", "normal", "permutation", "rand", "randn", "seeded", "set_state",
    "shuffle", "uniform",
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
    return memory beside the generator's buffer as random numbers.
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


def drawing_from(source: Generator | None) -> AbstractContextManager[None]:
    """A context in which this thread draws from a generator; from its own if that is None.

    Raises TypeError for anything else.
    """
    if source is None:
        return nullcontext()
    if not isinstance(source, Generator):
        raise TypeError(f"generator was given {type(source).__name__}; wanted a gt.Generator, such "
                        "as gt.Generator().manual_seed(0)")
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


_source = generator  # whose name the functions have for an argument


@overload
def normal(
    shape: Shape, *, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


@overload
def normal(
    mean: float = 0.0, std: float = 1.0, /, *, size: Shape, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


@overload
def normal(
    mean: float, std: float, size: Shape, /, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


def normal(
    *given: Any, shape: Shape | None = None, size: Shape | None = None, mean: float = 0.0,
    std: float = 1.0, dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor:
    """Normally distributed values; of the default dtype (float32) unless another is given.

    The shape is one argument: `normal((2, 3))` is `randn(2, 3)`; `normal(mean, std, (2, 3))` is
    NumPy's and PyTorch's order, and `size=` their name of the shape. Raises ValueError for a
    negative std.
    """
    shape, mean, std = _arguments("normal", given, shape, size, mean=mean, std=std)
    wanted = _floating("normal", dtype)
    if not std >= 0:
        raise ValueError(f"normal was given std={std}; wanted 0 or more")
    return _drawn("normal", shape, requires_grad, generator, lambda shape: tensor(
        _source().standard_normal(shape) * std + mean, wanted, device))


@overload
def uniform(
    shape: Shape, *, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


@overload
def uniform(
    low: float = 0.0, high: float = 1.0, /, *, size: Shape, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


@overload
def uniform(
    low: float, high: float, size: Shape, /, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


def uniform(
    *given: Any, shape: Shape | None = None, size: Shape | None = None, low: float = 0.0,
    high: float = 1.0, dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor:
    """Values uniform in [low, high); of the default dtype (float32) unless another is given.

    The shape is one argument: `uniform((2, 3))` is `rand(2, 3)`; `uniform(low, high, (2, 3))` is
    NumPy's order, and `size=` its name of the shape. Raises ValueError for bounds that are not
    finite or fall.
    """
    shape, low, high = _arguments("uniform", given, shape, size, low=low, high=high)
    wanted = _floating("uniform", dtype)
    if not 0 <= high - low < math.inf:
        raise ValueError(f"uniform was given low={low} and high={high}; wanted finite low <= high")
    most = _below(float(high), float(low), wanted)
    return _drawn("uniform", shape, requires_grad, generator, lambda shape: tensor(
        np.minimum(_source().uniform(low, high, shape), most), wanted, device))


def _below(high: float, low: float, dtype: np.dtype) -> float:
    """The dtype's largest number below `high`, to which a draw would round; but `low` at least."""
    most = np.asarray(high, np.float64).astype(dtype)
    if most >= high:
        most = np.nextafter(most, dtype.type(-math.inf))
    return max(float(most), low)


@overload
def exponential(
    shape: Shape, *, scale: float = 1.0, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


@overload
def exponential(
    scale: float = 1.0, /, *, size: Shape, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


@overload
def exponential(
    scale: float, size: Shape, /, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor: ...


def exponential(
    *given: Any, shape: Shape | None = None, size: Shape | None = None, scale: float = 1.0,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False, generator: Generator | None = None,
) -> Tensor:
    """Exponentially distributed values of mean `scale`; float32 unless another is given.

    `exponential(scale, (2, 3))` is NumPy's order, and `size=` its name of the shape. Raises
    ValueError for a negative scale.
    """
    shape, scale = _arguments("exponential", given, shape, size, scale=scale)
    wanted = _floating("exponential", dtype)
    if not scale >= 0:
        raise ValueError(f"exponential was given scale={scale}; wanted 0 or more")
    return _drawn("exponential", shape, requires_grad, generator, lambda shape: tensor(
        _source().exponential(scale, shape), wanted, device))


def _arguments(
    name: str, given: tuple[Any, ...], shape: Shape | None, size: Shape | None, **numbers: float
) -> list[Any]:
    """The shape and the numbers of a call `name(shape)`, or `name(*numbers, size)`."""
    shapes = [s for s in (shape, size) if s is not None]
    *first, wanted = (*given, *shapes) or (None,)
    if len(first) not in ((0, len(numbers)) if not shapes else range(len(numbers) + 1)) or (
            wanted is None or len(shapes) > 1):
        told = ", ".join(map(repr, given))
        raise TypeError(f"{name} was given ({told}) as its positional arguments; wanted "
                        f"{name}(shape) or {name}({', '.join(numbers)}, size), whose shape is one "
                        "argument, such as (2, 3)")
    for label, number in zip(numbers, first, strict=False):
        if isinstance(number, type) or not hasattr(number, "__float__"):
            raise TypeError(f"{name} was given {number!r} as its {label}; wanted a number")
        if isinstance(number, Tensor) and number.ndim:
            raise TypeError(f"{name} was given a tensor as its {label}; wanted a number: scale and "
                            f"shift the values of {name}(shape)")
    return [wanted, *first, *[*numbers.values()][len(first):]]


def randn(
    *shape: int | Sequence[int], dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """`normal` of mean 0 and deviation 1, whose sizes may be arguments of their own."""
    return normal(sizes_of(shape), dtype=dtype, device=device, requires_grad=requires_grad,
                  generator=generator)


def rand(
    *shape: int | Sequence[int], dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """`uniform` in [0, 1), whose sizes may be arguments of their own."""
    return uniform(sizes_of(shape), dtype=dtype, device=device, requires_grad=requires_grad,
                   generator=generator)


def bernoulli(
    p: Tensor | float, shape: Shape | None = None, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, generator: Generator | None = None,
) -> Tensor:
    """1 with probability p, else 0, without a gradient.

    Args:
        p: probabilities in a tensor, of whose shape, dtype and device the result is; or a number.
        shape: of the result for a number; one value by default.
        dtype, device: of the result for a number; the default ones otherwise.

    Raises ValueError for a p outside of 0 to 1 (on a GPU, which would have to be waited for, it
    counts as the nearer of both), and for a tensor with a shape, dtype or device beside it.
    """
    if not isinstance(p, Tensor):
        p = asarray(p, dtype=_floating("bernoulli", dtype), device=device)
        size = () if shape is None else shape
    elif shape is not None or dtype is not None or device is not None:
        raise ValueError("bernoulli was given a shape, dtype or device beside a tensor of "
                         "probabilities; wanted those of the tensor")
    else:
        size = p.shape
    if _known(p) and not ((p >= 0) & (p <= 1)).all():
        raise ValueError("bernoulli was given probabilities outside of 0 to 1; wanted 0 to 1")
    draws = _drawn("bernoulli", size, False, generator, lambda shape: tensor(
        _source().random(shape), np.float64, p.device))
    return (draws < p.detach().astype(np.float64)).astype(p.dtype)


def multinomial(
    p: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Numbers of classes (..., num_samples), each drawn with its weight of p (..., n); int64.

    Args:
        p: weights of 0 or more, which need not add up to 1.
        num_samples: how many to draw from each row; at most n without replacement.
        replacement: whether a class may be drawn again, for which n * num_samples numbers are
            drawn of each row.

    A weight's exponentially distributed time is divided by it, and the first ones win (Efraimidis
    and Spirakis, "Weighted random sampling with a reservoir", 2006).

    Raises ValueError for p without classes or num_samples out of range, and, but for a GPU, which
    would have to be waited for, for weights that are negative, not finite, or too few above 0;
    TypeError for a dtype that is not floating.
    """
    with no_grad():
        p = asarray(p).detach()
        _floating("multinomial", p.dtype)
        n = p.shape[-1] if p.ndim else 0
        if not n or num_samples < 1 or not (replacement or num_samples <= n):
            raise ValueError(f"multinomial was given num_samples={num_samples} of weights of shape "
                             f"{p.shape}; wanted (..., n) and 1 to n samples, or more with "
                             "replacement=True")
        if _known(p) and not ((p >= 0) & (p < math.inf)).all():
            raise ValueError("multinomial was given weights that are negative or not finite; "
                             "wanted numbers of 0 or more")
        if _known(p) and ((p > 0).sum(axis=-1) < (1 if replacement else num_samples)).any():
            raise ValueError("multinomial was given a row with fewer weights above 0 than it is to "
                             "draw; wanted as many at least")
        rows = (num_samples,) if replacement else ()
        wanted = (*p.shape[:-1], *rows, n)
        times = _drawn("multinomial", wanted, False, generator, lambda shape: tensor(
            _source().exponential(size=shape), np.float64, p.device))
        wide = p.astype(np.float64)
        if replacement:
            return (wide.reshape((*p.shape[:-1], 1, n)) / times).argmax(axis=-1)
        return public.topk(wide / times, num_samples)[1]


def _known(x: Tensor) -> bool:
    """Whether values can be looked at without waiting for a GPU."""
    return x.device.type == "cpu" and not isinstance(x, Traced)


def _of_examples(
    name: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    from gtensor.engine.transforms.batched import drawn

    return drawn(name, shape, draw)


def _drawn(
    name: str, shape: Shape, requires_grad: bool, source: Generator | None,
    draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    """`draw(shape)`, from `source` if there is one; within `vmap` as its `randomness` says."""
    wanted = shape_of(shape)
    draws = partial(_draws, draw, source)
    found = _of_examples(name, wanted, draws) if vectorizing() else draws(wanted)
    return found._begin_as_leaf() if requires_grad else found


@partial(again, kind="draws")
def _draws(
    draw: Callable[[tuple[int, ...]], Tensor], source: Generator | None, shape: tuple[int, ...]
) -> Tensor:
    with drawing_from(source):
        return draw(shape)


def _floating(name: str, dtype: DTypeLike | None) -> np.dtype:
    wanted = get_default_dtype() if dtype is None else element_type(dtype)
    if not is_floating(wanted):
        raise TypeError(f"{name} was given dtype={wanted}; wanted a floating-point dtype")
    return wanted


def integers(
    low: int = 0, high: int | Shape | None = None, shape: Shape | None = None, *,
    size: Shape | None = None, dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Integers uniform in [low, high); int64 unless dtype is given.

    `shape` is one argument, an integer or several; without it there is one value. `size` is another
    name of it. `integers(high)` is `integers(0, high)`, and so is `integers(high, (2, 3))`. Raises
    ValueError for no integers, and for those that the dtype does not have, TypeError for both words
    of the shape.
    """
    if isinstance(high, Sequence):
        high, shape = None, high
    if high is None:
        low, high = 0, low
    if not low < high:
        raise ValueError(f"integers was given low={low} and high={high}; wanted low < high")
    wanted = element_type(np.int64 if dtype is None else dtype)
    if wanted.kind in "iu" and not np.iinfo(wanted).min <= low <= high - 1 <= np.iinfo(wanted).max:
        raise ValueError(f"integers was given low={low} and high={high} for {wanted}; wanted "
                         "integers that it has")
    if shape is not None and size is not None:
        raise TypeError(f"integers was given shape={shape} and size={size}, two words for one "
                        "thing; wanted one of them")
    given = size if shape is None else shape
    sizes = () if given is None else given
    return _drawn("integers", sizes, False, generator, lambda shape: tensor(
        _source().integers(low, high, shape), wanted, device))


def permutation(
    n: int | Tensor, *, device: Device | str | None = None, generator: Generator | None = None
) -> Tensor:
    """The integers 0 to n - 1 in random order, int64; or the rows of a tensor, copied.

    Raises TypeError for an n that is neither.
    """
    if isinstance(n, Tensor) and n.ndim:
        rows = n[permutation(n.shape[0], device=n.device, generator=generator)]
        return rows if device is None else rows.to(get_device(device))
    if not isinstance(n, SupportsIndex):
        raise TypeError(f"permutation was given {type(n).__name__}; wanted an integer or a tensor")
    count = index(n)

    def draw(lead: tuple[int, ...]) -> Tensor:
        rows = np.broadcast_to(np.arange(count), (*lead, count))
        values = _source().permuted(rows, axis=-1) if lead else _source().permutation(count)
        return tensor(values, np.int64, device)

    return _drawn("permutation", (), False, generator, draw)


def shuffle(x: Tensor) -> None:
    """Write the rows of x (along its first axis) in random order, in place.

    Raises TypeError for what is no tensor of an axis at least.
    """
    if not isinstance(x, Tensor) or not x.ndim:
        raise TypeError(f"shuffle was given {type(x).__name__}; wanted a tensor of an axis at "
                        "least, or gt.random.permutation, which copies")
    x[...] = permutation(x)


def choice(
    a: int | Tensor | Sequence[Any], size: Shape | None = None, replace: bool = True,
    p: Tensor | Sequence[float] | None = None,
) -> Tensor:
    """Rows of `a` drawn at random: (*size, *row); one row by default.

    Args:
        a: a tensor, or what makes one, drawn from along its first axis; an integer n stands for 0
            to n - 1.
        size: how many, one integer or several.
        replace: whether a row may be drawn again.
        p: the probability of each row; equal by default.

    The gradient of `a` flows through. Raises ValueError for more rows than there are without
    `replace`, none at all, and probabilities that do not fit; TypeError for a number that counts
    nothing.
    """
    rows = None if isinstance(a, SupportsIndex) and not getattr(a, "ndim", 0) else asarray(a)
    if rows is not None and not rows.ndim:
        raise TypeError(f"choice was given a={a!r}; wanted an integer, or a tensor of an axis at "
                        "least")
    count = index(a) if rows is None else rows.shape[0]  # type: ignore[arg-type]
    if count < 1:
        raise ValueError(f"choice was given {count} rows to draw from; wanted 1 or more")
    wanted = () if size is None else shape_of(size)
    shares = p.detach().numpy() if isinstance(p, Tensor) else p
    place = None if rows is None else rows.device

    def draw(whole: tuple[int, ...]) -> Tensor:
        examples = math.prod(whole[:len(whole) - len(wanted)])
        drawn = [_source().choice(count, wanted, replace, shares) for _ in range(examples)]
        return tensor(np.array(drawn).reshape(whole), np.int64, place)

    found = _drawn("choice", wanted, False, None, draw)
    return found if rows is None else rows[found]


if TYPE_CHECKING:  # names of other libraries, for type checkers: see `gtensor.system.foreign_names`
    randint, randperm, seed = integers, permutation, manual_seed
    random = random_sample = ranf = sample = uniform
    standard_normal, standard_exponential = normal, exponential
    get_rng_state, set_rng_state = get_state, set_state


_enter(globals())
