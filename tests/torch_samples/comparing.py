"""Compare one sample: values, result dtypes, gradients, and what the call did to its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from against_torch import LAYOUTS, NAMES, compare_second, gradients

import gtensor as gt
from gtensor.testing.compare import CheckError, close, to_numpy
from torch_samples.cases import COMPLEX, Case, Given

NUMPY = {torch.float64: np.float64, torch.float32: np.float32, torch.complex128: np.complex128,
         torch.complex64: np.complex64, torch.int64: np.int64, torch.int32: np.int32,
         torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8, torch.bool: np.bool_}
TOLERANCES = {"float64": 1e-10, "complex128": 1e-10, "float32": 1e-5, "complex64": 1e-5}
"""Of each element and of the largest one (at least 1); other dtypes agree exactly."""

Leaves = list[tuple[torch.Tensor, list[gt.Tensor]]]
"""PyTorch's leaf, and gtensor's: two real ones for a complex one."""


def compare(
    case: Case, op: Callable[..., Any], given: Given, layout: str, second: bool = False
) -> None:
    """Raise CheckError if gtensor's function and PyTorch's op differ on a sample.

    With `second`, the second derivatives of real inputs are compared, too.
    """
    if case.refuses(given) and _differentiable(given):
        _refused(case, given, layout)
        given = _constant(given)
    theirs, mine = (_copied(given, layout) for _ in range(2))
    leaves: Leaves = []
    pairs: list[tuple[torch.Tensor, gt.Tensor]] = []
    ours = _converted(mine, _flat(theirs), leaves, pairs)
    function = case.theirs or op
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of old names
        wanted = _tensors(case.outputs(function(theirs.input, *theirs.args, **theirs.kwargs)))
    results = _results(case, ours)
    if len(wanted) != len(results):
        raise CheckError(f"{len(results)} results; wanted {len(wanted)}")
    for i, (a, b) in enumerate(zip(results, wanted, strict=True)):
        what = f"result {i}" if len(wanted) > 1 else "the result"
        _same_dtype(what, a, b)
        _close(case, what, a, b)
    for i, (b, a) in enumerate(pairs):
        _close(case, f"input tensor {i} after the call", a, b)
    if leaves:
        second = second and given.dtype not in COMPLEX and not case.once(given) and not any(
            isinstance(b, torch.Tensor) and b.is_complex() for b in wanted)
        _compare_gradients(case, results, wanted, leaves, second)


def _results(case: Case, given: Given) -> list[Any]:
    return _tensors(case.outputs(case.ours(given.input, *given.args, **given.kwargs)))


def _refused(case: Case, given: Given, layout: str) -> None:
    """A gradient that gtensor does not have is refused in words, not cut off."""
    theirs = _copied(given, layout)
    leaves: Leaves = []
    ours = _converted(theirs, _flat(theirs), leaves, [])
    try:
        total = sum(gt.real(gt.sum(r)) for r in _results(case, ours) if r.requires_grad)
        gt.grad(total, [x for _, xs in leaves for x in xs], allow_unused=True)
    except gt.GradientError as error:
        if "has no derivative" in str(error):
            return
        raise
    raise CheckError("the table says that gtensor refuses a gradient here, and it gave one")


def _compare_gradients(
    case: Case, results: list[Any], wanted: list[Any], leaves: Leaves, second: bool
) -> None:
    """Gradients for a random upstream gradient; if `second`, recorded, and theirs in turn."""
    flowing = [i for i, b in enumerate(wanted) if isinstance(b, torch.Tensor) and b.requires_grad]
    if not flowing:
        return
    generator = torch.Generator().manual_seed(7)
    upstream = [torch.randn(wanted[i].shape, dtype=wanted[i].dtype, generator=generator)
                for i in flowing]
    theirs = [t for t, _ in leaves]
    parts = [x for _, xs in leaves for x in xs]
    expected = gradients(torch, [wanted[i] for i in flowing], theirs, upstream,
                         create_graph=second)
    found = gradients(gt, [results[i] for i in flowing], parts,
                      [gt.asarray(g.numpy()) for g in upstream], create_graph=second)
    given = iter(found)
    for i, ((_, xs), g) in enumerate(zip(leaves, expected, strict=True)):
        for view in [g.real, g.imag] if len(xs) == 2 else [g]:
            _close(case, f"the gradient of differentiable input {i}", next(given), view)
    if second:
        compare_second(parts, found, theirs, expected,
                       100 * _tolerance(case, expected[0].dtype))


# -- conversion --------------------------------------------------------------------------------


def _mapped(given: Given, change: Callable[[torch.Tensor], Any]) -> Given:
    """The arguments with every tensor replaced, in order."""

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(walk(v) for v in value)
        return value

    return replace(given, input=walk(given.input), args=tuple(walk(a) for a in given.args),
                   kwargs={name: walk(a) for name, a in given.kwargs.items()})


def _flat(given: Given) -> Iterator[torch.Tensor]:
    """All tensors among the arguments, in the order of `_mapped`."""
    found: list[torch.Tensor] = []
    _mapped(given, found.append)
    return iter(found)


def _differentiable(given: Given) -> bool:
    return any(t.requires_grad for t in _flat(given))


def _constant(given: Given) -> Given:
    return _mapped(given, torch.Tensor.detach)


def _copied(given: Given, layout: str) -> Given:
    """The arguments in memory of their own; which tensors want a gradient is kept."""
    return _mapped(given, lambda t: torch.from_numpy(
        LAYOUTS[layout](np, t.numpy(force=True))).requires_grad_(t.requires_grad))


def _converted(
    given: Given, theirs: Iterator[torch.Tensor], leaves: Leaves,
    pairs: list[tuple[torch.Tensor, gt.Tensor]],
) -> Given:
    """gtensor's tensors over the same strides; complex leaves are made of two real ones."""

    def convert(value: torch.Tensor) -> Any:
        x = gt.asarray(value.numpy(force=True))
        partner = next(theirs)
        if value.requires_grad and value.is_complex():
            parts = [part.clone().requires_grad_() for part in (gt.real(x), gt.imag(x))]
            leaves.append((partner, parts))
            return parts[0] + 1j * parts[1]
        pairs.append((partner, x))
        if value.requires_grad:
            leaves.append((partner, [x.requires_grad_()]))
        return x

    changed = _mapped(given, convert)
    return replace(
        changed, args=tuple(_numpy_dtype(a) for a in changed.args),
        kwargs={name: _numpy_dtype(a) for name, a in changed.kwargs.items()})


def _numpy_dtype(value: Any) -> Any:
    return np.dtype(NUMPY[value]) if isinstance(value, torch.dtype) else value


def _tensors(result: Any) -> list[Any]:
    """The tensors and numbers of a result, in order."""
    if isinstance(result, (list, tuple)):
        return [t for part in result for t in _tensors(part)]
    return [result]


# -- comparison --------------------------------------------------------------------------------


def _same_dtype(what: str, ours: Any, theirs: Any) -> None:
    if not isinstance(theirs, torch.Tensor):
        return
    if not isinstance(ours, gt.Tensor):
        raise CheckError(f"{what} is a {type(ours).__name__}; wanted a Tensor")
    if ours.dtype != NUMPY[theirs.dtype]:
        raise CheckError(f"{what} is of {ours.dtype}; PyTorch's is of {theirs.dtype}")


def _close(case: Case, what: str, ours: Any, theirs: Any) -> None:
    theirs = to_numpy(theirs)
    close(what, ours, theirs, _tolerance(case, theirs.dtype), NAMES)


def _tolerance(case: Case, dtype: Any) -> float:
    name = str(dtype).removeprefix("torch.")
    return case.tolerance if case.tolerance and name == "float64" else TOLERANCES.get(name, 0.0)
