"""Random tensors from one seed per process, the same on every device: bits are drawn on the host.

    gt.manual_seed(0)
    x = gt.random.normal((2, 3))                            # from the process's generator
    y = gt.random.gamma(2.0, (5,), generator=gt.Generator().manual_seed(1))
    first, second = gt.random.split(gt.random.key(7))       # keys, as JAX has them
    z = gt.random.uniform((4,), generator=first)            # the same numbers at each call

Where the numbers come from, `gtensor.creation.generators` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from gtensor.backend import Device, element_type, get_default_dtype, get_device
from gtensor.creation.dtypes import finfo, result_type
from gtensor.creation.generators import (
    Generator,
    Key,
    drawing_from,
    fold_in,
    generator,
    get_state,
    jump,
    key,
    manual_seed,
    seeded,
    set_state,
    split,
)
from gtensor.creation.new_tensors import asarray, shape_of, sizes_of, tensor
from gtensor.engine.handle.context import again, no_grad
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.engine.tape.levels import Traced, vectorizing
from gtensor.ops.activations.activation import sigmoid
from gtensor.ops.activations.softmax import softmax
from gtensor.ops.arrange.shape import broadcast_to, moveaxis
from gtensor.ops.elementwise.rounding import floor
from gtensor.ops.elementwise.selection import clip, maximum
from gtensor.ops.order.sorting import topk
from gtensor.ops.sampling.counts import binomial_op, poisson_op
from gtensor.ops.sampling.gamma import gamma_op, gamma_path, log_gamma_path
from gtensor.ops.sampling.truncated import truncated_op
from gtensor.system.bus import here
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.tape.op import Op

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "Generator", "Key", "bernoulli", "beta", "binomial", "categorical", "choice", "dirichlet",
    "exponential", "fold_in", "gamma", "generator", "get_state", "gumbel", "integers", "jump",
    "key", "laplace", "log_gamma", "manual_seed", "multinomial", "normal", "permutation", "poisson",
    "rand", "randn", "seeded", "set_state", "shuffle", "split", "truncated_normal", "uniform",
]

Shape = int | Sequence[int]
_source = generator  # whose name the functions have for an argument


@overload
def normal(
    shape: Shape, *, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


@overload
def normal(
    mean: float = 0.0, std: float = 1.0, /, *, size: Shape, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


@overload
def normal(
    mean: float, std: float, size: Shape, /, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


def normal(
    *given: Any, shape: Shape | None = None, size: Shape | None = None, mean: float = 0.0,
    std: float = 1.0, dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False, generator: Generator | Key | None = None,
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
    generator: Generator | Key | None = None,
) -> Tensor: ...


@overload
def uniform(
    low: float = 0.0, high: float = 1.0, /, *, size: Shape, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


@overload
def uniform(
    low: float, high: float, size: Shape, /, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


def uniform(
    *given: Any, shape: Shape | None = None, size: Shape | None = None, low: float = 0.0,
    high: float = 1.0, dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False, generator: Generator | Key | None = None,
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
    generator: Generator | Key | None = None,
) -> Tensor: ...


@overload
def exponential(
    scale: float = 1.0, /, *, size: Shape, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


@overload
def exponential(
    scale: float, size: Shape, /, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor: ...


def exponential(
    *given: Any, shape: Shape | None = None, size: Shape | None = None, scale: float = 1.0,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False, generator: Generator | Key | None = None,
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
        if isinstance(number, (Tensor, np.ndarray)) and (number.ndim or number.dtype.kind == "O"):
            raise TypeError(f"{name} was given a tensor as its {label}; wanted a number: scale and "
                            f"shift the values of {name}(shape)")
    return [wanted, *first, *[*numbers.values()][len(first):]]


def randn(
    *shape: int | Sequence[int], dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor:
    """`normal` of mean 0 and deviation 1, whose sizes may be arguments of their own."""
    return normal(sizes_of(shape), dtype=dtype, device=device, requires_grad=requires_grad,
                  generator=generator)


def rand(
    *shape: int | Sequence[int], dtype: DTypeLike | None = None,
    device: Device | str | None = None, requires_grad: bool = False,
    generator: Generator | Key | None = None,
) -> Tensor:
    """`uniform` in [0, 1), whose sizes may be arguments of their own."""
    return uniform(sizes_of(shape), dtype=dtype, device=device, requires_grad=requires_grad,
                   generator=generator)


def bernoulli(
    p: Tensor | float, shape: Shape | None = None, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, generator: Generator | Key | None = None,
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
    if known(p) and not ((p >= 0) & (p <= 1)).all():
        raise ValueError("bernoulli was given probabilities outside of 0 to 1; wanted 0 to 1")
    place = p.device  # what a captured step keeps has no tensor
    draws = _drawn("bernoulli", size, False, generator, lambda shape: tensor(
        _source().random(shape), np.float64, place))
    return (draws < p.detach().astype(np.float64)).astype(p.dtype)


def multinomial(
    p: Tensor, num_samples: int, replacement: bool = False, *,
    generator: Generator | Key | None = None,
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
        if known(p) and not ((p >= 0) & (p < math.inf)).all():
            raise ValueError("multinomial was given weights that are negative or not finite; "
                             "wanted numbers of 0 or more")
        if known(p) and ((p > 0).sum(axis=-1) < (1 if replacement else num_samples)).any():
            raise ValueError("multinomial was given a row with fewer weights above 0 than it is to "
                             "draw; wanted as many at least")
        rows = (num_samples,) if replacement else ()
        wanted = (*p.shape[:-1], *rows, n)
        place = p.device
        times = _drawn("multinomial", wanted, False, generator, lambda shape: tensor(
            _source().exponential(size=shape), np.float64, place))
        wide = p.astype(np.float64)
        if replacement:
            return (wide.reshape((*p.shape[:-1], 1, n)) / times).argmax(axis=-1)
        return topk(wide / times, num_samples)[1]


def known(x: Tensor) -> bool:
    """Whether values can be looked at: not in a captured step, nor without waiting for a GPU."""
    return x.device.type == "cpu" and not isinstance(x, Traced) and here.recorder is None


def _of_examples(
    name: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    from gtensor.engine.transforms.batched import drawn

    return drawn(name, shape, draw)


def _drawn(
    name: str, shape: Shape, requires_grad: bool, source: Generator | Key | None,
    draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    """`draw(shape)`, from `source` if there is one; within `vmap` as its `randomness` says."""
    wanted = shape_of(shape)
    draws = partial(_draws, draw, source)
    found = _of_examples(name, wanted, draws) if vectorizing() else draws(wanted)
    return found._begin_as_leaf() if requires_grad else found


@partial(again, kind="draws")
def _draws(
    draw: Callable[[tuple[int, ...]], Tensor], source: Generator | Key | None,
    shape: tuple[int, ...],
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
    generator: Generator | Key | None = None,
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
    n: int | Tensor, *, device: Device | str | None = None, generator: Generator | Key | None = None
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


def shuffle(x: Tensor, *, generator: Generator | Key | None = None) -> None:
    """Write the rows of x (along its first axis) in random order, in place.

    Raises TypeError for what is no tensor of an axis at least.
    """
    if not isinstance(x, Tensor) or not x.ndim:
        raise TypeError(f"shuffle was given {type(x).__name__}; wanted a tensor of an axis at "
                        "least, or gt.random.permutation, which copies")
    x[...] = permutation(x, generator=generator)


def choice(
    a: int | Tensor | Sequence[Any], size: Shape | None = None, replace: bool = True,
    p: Tensor | Sequence[float] | None = None, *, generator: Generator | Key | None = None,
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
    shares = None if p is None else np.asarray(
        p.detach().numpy() if isinstance(p, Tensor) else p, np.float64)
    if shares is not None and not (shares.shape == (count,) and (shares >= 0).all()
                                   and math.isclose(shares.sum(), 1, rel_tol=1e-6)):
        raise ValueError(f"choice was given p={p!r} for {count} rows; wanted as many numbers of 0 "
                         "or more, which add up to 1")
    shares = shares if shares is None else shares / shares.sum()
    place = None if rows is None else rows.device

    def draw(whole: tuple[int, ...]) -> Tensor:
        examples = math.prod(whole[:len(whole) - len(wanted)])
        drawn = [_source().choice(count, wanted, replace, shares) for _ in range(examples)]
        return tensor(np.array(drawn).reshape(whole), np.int64, place)

    found = _drawn("choice", wanted, False, generator, draw)
    return found if rows is None else rows[found]


# -- draws whose parameters may be tensors ---------------------------------------------------------


def _spread(
    name: str, size: Shape | None, dtype: DTypeLike | None, device: Device | str | None,
    **given: Any,
) -> tuple[list[Tensor], tuple[int, ...]]:
    """The parameters as tensors of one floating dtype and device, and the shape of the draws."""
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    for label, value in given.items():
        single = hasattr(value, "__float__") and not isinstance(value, type)
        if not isinstance(value, Tensor) and not (single and np.ndim(value) == 0):
            raise TypeError(f"{name} was given {value!r} as its {label}; wanted a number or a "
                            "tensor; the shape of the draws is size=, such as (2, 3)")
    if tensors and device is not None:
        raise ValueError(f"{name} was given a device and a tensor of parameters; wanted that of "
                         "the tensor")
    floats = [x.dtype for x in tensors if is_floating(x.dtype)]
    wanted = _floating(name, result_type(*floats) if dtype is None and floats else dtype)
    place = tensors[0].device if tensors else device
    found = [x.astype(wanted) if isinstance(x, Tensor) else
             tensor(float(x), wanted, place) for x in given.values()]
    shapes = [x.shape for x in found]
    wide = () if size is None else shape_of(size)
    try:
        shape = np.broadcast_shapes(wide, *shapes)
        if size is None or shape == wide:
            return found, shape
    except ValueError:
        pass
    raise ValueError(f"{name} was given size={size} for parameters of shapes "
                     f"{', '.join(map(str, shapes))}; wanted shapes that broadcast to the size")


def _keys(
    name: str, shape: tuple[int, ...], place: Device, generator: Generator | Key | None
) -> Tensor:
    """A key for each element, from which a sampler has all its bits; see `gtensor.ops.sampling`."""
    least, most = -2**63, 2**63 - 1
    return _drawn(name, shape, False, generator, lambda shape: tensor(
        _source().integers(least, most, shape, np.int64, endpoint=True), np.int64, place))


def _sampled(
    name: str, op: Op, parameters: list[Tensor], shape: tuple[int, ...],
    generator: Generator | Key | None,
) -> Tensor:
    """Draws without a gradient."""
    keys = _keys(name, shape, parameters[0].device, generator)
    with no_grad():
        return op(*[x.detach() for x in parameters], keys)


def _check(name: str, label: str, x: Tensor, fits: Callable[[Tensor], Tensor], wanted: str) -> None:
    """Raise ValueError for a value that does not fit, where no GPU would have to be waited for."""
    if known(x) and not fits(x.detach()).all():
        raise ValueError(f"{name} was given {_unfit(x, fits)} as its {label}; wanted {wanted}")


def _unfit(x: Tensor, fits: Callable[[Tensor], Tensor]) -> object:
    """The first value that does not fit."""
    values = x.detach().numpy()
    return values[~fits(x.detach()).numpy()].flat[0].item()


def laplace(
    loc: Tensor | float = 0.0, scale: Tensor | float = 1.0, size: Shape | None = None, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | Key | None = None,
) -> Tensor:
    """Laplace distributed values loc + scale * draw, whose gradients flow to loc and scale.

    Args:
        loc, scale: numbers or tensors, which broadcast against each other.
        size: the shape; by default that of loc and scale.
        dtype: by default that of the tensors, or the default dtype.
        device: of the result for numbers.
        generator: a Generator or a Key to draw from.

    Raises ValueError for a negative scale (but for a GPU, which would have to be waited for) and a
    size that the parameters do not broadcast to, TypeError for what is no number or tensor.
    """
    (centre, width), shape = _spread("laplace", size, dtype, device, loc=loc, scale=scale)
    _check("laplace", "scale", width, lambda x: x >= 0, "0 or more")
    dtype, place = width.dtype, width.device  # what a captured step keeps has no tensor
    return centre + width * _drawn("laplace", shape, False, generator, lambda shape: tensor(
        _source().laplace(size=shape), dtype, place))


def gumbel(
    loc: Tensor | float = 0.0, scale: Tensor | float = 1.0, size: Shape | None = None, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | Key | None = None,
) -> Tensor:
    """Gumbel distributed values loc + scale * draw, whose gradients flow to loc and scale.

    Arguments and errors are those of `laplace`.
    """
    (centre, width), shape = _spread("gumbel", size, dtype, device, loc=loc, scale=scale)
    _check("gumbel", "scale", width, lambda x: x >= 0, "0 or more")
    dtype, place = width.dtype, width.device  # what a captured step keeps has no tensor
    return centre + width * _drawn("gumbel", shape, False, generator, lambda shape: tensor(
        _source().gumbel(size=shape), dtype, place))


def truncated_normal(
    lower: Tensor | float = -2.0, upper: Tensor | float = 2.0, size: Shape | None = None, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | Key | None = None,
) -> Tensor:
    """Standard normal values between two bounds, without a gradient; exact also far out.

    Arguments are those of `laplace`. Raises ValueError where lower is above upper (on a GPU, which
    would have to be waited for, the value is NaN), and as `laplace`.
    """
    bounds, shape = _spread("truncated_normal", size, dtype, device, lower=lower, upper=upper)
    _check("truncated_normal", "upper - lower", bounds[1] - bounds[0], lambda x: x >= 0,
           "0 or more")
    return _sampled("truncated_normal", truncated_op, bounds, shape, generator)


def poisson(
    lam: Tensor | float = 1.0, size: Shape | None = None, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, generator: Generator | Key | None = None,
) -> Tensor:
    """Poisson distributed counts of mean lam, in a floating dtype and without a gradient.

    Other arguments are those of `laplace`. Raises ValueError for a negative mean (on a GPU, which
    would have to be waited for, the count is NaN), and as `laplace`.
    """
    rates, shape = _spread("poisson", size, dtype, device, lam=lam)
    _check("poisson", "lam", rates[0], lambda x: x >= 0, "0 or more")
    return _sampled("poisson", poisson_op, rates, shape, generator)


def binomial(
    n: Tensor | float, p: Tensor | float, size: Shape | None = None, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | Key | None = None,
) -> Tensor:
    """How many of n trials succeed, each with probability p; floating, without a gradient.

    Other arguments are those of `laplace`. Raises ValueError for an n that is no whole number, 0 or
    more, and for a p outside of 0 to 1 (on a GPU, which would have to be waited for, the count is
    NaN), and as `laplace`.
    """
    parameters, shape = _spread("binomial", size, dtype, device, n=n, p=p)
    _check("binomial", "n", parameters[0], lambda x: (x >= 0) & (x < math.inf) & (
        floor(x) == x), "whole numbers, 0 or more")
    _check("binomial", "p", parameters[1], lambda x: (x >= 0) & (x <= 1), "0 to 1")
    return _sampled("binomial", binomial_op, parameters, shape, generator)


def gamma(
    a: Tensor | float, scale: Tensor | float = 1.0, size: Shape | None = None, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | Key | None = None,
) -> Tensor:
    """Gamma distributed values of concentration a, times scale; gradients flow to both.

    That of a is implicit: a draw moves so that its distribution function keeps its value. As in
    PyTorch, it has no gradient of its own. A draw is the smallest normal number of the dtype at
    least. Other arguments are those of `laplace`.

    Sources: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; Figurnov,
    Mohamed, Mnih, "Implicit reparameterization gradients", 2018. Raises ValueError for a negative
    a or scale (on a GPU, which would have to be waited for, the value is NaN), and as `laplace`.
    """
    (shapes, width), shape = _spread("gamma", size, dtype, device, a=a, scale=scale)
    _check("gamma", "a", shapes, lambda x: x >= 0, "0 or more")
    _check("gamma", "scale", width, lambda x: x >= 0, "0 or more")
    keys = _keys("gamma", shape, shapes.device, generator)
    with no_grad():
        draws = maximum(gamma_op(shapes.detach(), keys, log=False),
                        finfo(shapes.dtype).smallest_normal)
    return gamma_path(broadcast_to(shapes, draws.shape), draws) * width


def log_gamma(
    a: Tensor | float, size: Shape | None = None, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, generator: Generator | Key | None = None,
) -> Tensor:
    """Logarithms of gamma distributed values, which hold draws that the dtype has no number for.

    Such are most of a concentration near 0. Arguments and errors are those of `gamma`.
    """
    (shapes,), shape = _spread("log_gamma", size, dtype, device, a=a)
    _check("log_gamma", "a", shapes, lambda x: x >= 0, "0 or more")
    return _logarithms(shapes, _keys("log_gamma", shape, shapes.device, generator))


def _logarithms(a: Tensor, keys: Tensor) -> Tensor:
    with no_grad():
        draws = gamma_op(a.detach(), keys, log=True)
    return log_gamma_path(broadcast_to(a, draws.shape), draws)


def beta(
    a: Tensor | float, b: Tensor | float, size: Shape | None = None, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
    generator: Generator | Key | None = None,
) -> Tensor:
    """Beta distributed values, with gradients to a and b through two gamma draws.

    The draws are above 0 and below 1, as the dtype has such numbers. Other arguments are those of
    `laplace`. Raises ValueError for an a or b that is not above 0 (on a GPU, which would have to be
    waited for, the value is NaN), and as `laplace`.
    """
    both, shape = _spread("beta", size, dtype, device, a=a, b=b)
    for label, x in zip("ab", both, strict=True):
        _check("beta", label, x, lambda x: x > 0, "a number above 0")
    keys = _keys("beta", (2, *shape), both[0].device, generator)
    return _inside(sigmoid(_logarithms(both[0], keys[0]) - _logarithms(both[1], keys[1])))


def dirichlet(
    alpha: Tensor | Sequence[float], size: Shape | None = None, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None, generator: Generator | Key | None = None,
) -> Tensor:
    """Dirichlet distributed shares (*size, *alpha.shape), which add up to 1 along the last axis.

    Args:
        alpha: concentrations (..., n).
        size: further axes in front; none by default.
        dtype, device: of the result for numbers.
        generator: a Generator or a Key to draw from.

    Gradients flow to alpha through n gamma draws. Raises ValueError for an alpha that is not above
    0 (on a GPU, which would have to be waited for, the shares are NaN) or has no last axis.
    """
    if not isinstance(alpha, Tensor):
        alpha, device = asarray(alpha, dtype=_floating("dirichlet", dtype), device=device), None
    if not alpha.ndim:
        raise ValueError(f"dirichlet was given an alpha of shape {alpha.shape}; wanted (..., n)")
    lead = () if size is None else shape_of(size)
    (shares,), shape = _spread("dirichlet", (*lead, *alpha.shape), dtype, device, alpha=alpha)
    _check("dirichlet", "alpha", shares, lambda x: x > 0, "numbers above 0")
    keys = _keys("dirichlet", shape, shares.device, generator)
    return _inside(softmax(_logarithms(shares, keys), -1))


def _inside(x: Tensor) -> Tensor:
    """Above 0 and below 1, as the dtype has such numbers."""
    found = finfo(x.dtype)
    return clip(x, found.smallest_normal, 1 - found.eps / 2)


def categorical(
    logits: Tensor, axis: int = -1, size: Shape | None = None, *,
    generator: Generator | Key | None = None,
) -> Tensor:
    """Numbers of classes, each drawn with probability softmax(logits) along an axis; int64.

    Args:
        logits: unnormalized log-probabilities.
        axis: of the classes.
        size: the shape, whose last axes are those of logits without `axis`, which is the default.
        generator: a Generator or a Key to draw from.

    The largest of the logits with Gumbel noise wins. Raises ValueError for no classes, a size that
    does not end so, and, but for a GPU, which would have to be waited for, NaN; TypeError for a
    dtype that is not floating.
    """
    with no_grad():
        x = asarray(logits).detach()
        _floating("categorical", x.dtype)
        if not x.ndim or not -x.ndim <= axis < x.ndim or not x.shape[axis]:
            raise ValueError(f"categorical was given logits of shape {x.shape} and axis={axis}; "
                             "wanted an axis of one class at least")
        _check("categorical", "logits", x, lambda x: x == x, "numbers")
        x = moveaxis(x, axis, -1)
        rows = x.shape[:-1]
        shape = rows if size is None else shape_of(size)
        if shape[len(shape) - len(rows):] != rows or len(shape) < len(rows):
            raise ValueError(f"categorical was given size={size} for logits of shape "
                             f"{asarray(logits).shape}; wanted one that ends with {rows}")
        place = x.device
        noise = _drawn("categorical", (*shape, x.shape[-1]), False, generator, lambda shape: tensor(
            _source().gumbel(size=shape), np.float64, place))
        return (x.astype(np.float64) + noise).argmax(axis=-1)


if TYPE_CHECKING:  # names of other libraries, for type checkers: see `gtensor.system.foreign_names`
    randint, randperm, seed = integers, permutation, manual_seed
    random = random_sample = ranf = sample = uniform
    standard_normal, standard_exponential = normal, exponential
    standard_gamma, loggamma = gamma, log_gamma
    get_rng_state, set_rng_state = get_state, set_state


_enter(globals())
