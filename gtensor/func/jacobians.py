"""Whole derivatives: Jacobians in both modes, Hessians, and products with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from gtensor.creation.new_tensors import eye
from gtensor.engine.handle.tensor import Tensor, is_floating, zeros
from gtensor.func.batching import ChunkSize, check_chunk_size, in_chunks, joined, moved_axis
from gtensor.func.forward import along_all, jvp
from gtensor.func.gradients import grad, vjp
from gtensor.func.trees import Tree, leaves, mapped, rebuilt

Argnums = int | Sequence[int]


def jacfwd(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *,
    chunk_size: ChunkSize = None,
) -> Callable[..., Any]:
    """A function that returns the Jacobian, by forward mode: one run for all columns.

    Best where the arguments have fewer elements than the result. For a result of shape R and an
    argument of shape S it is a tensor of shape (*R, *S): for trees a tree of the result's
    structure, with one of the argument's in each place; for several argnums tuples of these.

    Args:
        function: of trees of tensors, returns one.
        argnums: position of the argument to differentiate, or positions.
        has_aux: the function returns (result, more), and (Jacobian, more) is returned.
        chunk_size: as of `vmap`: at most so many columns at a time.

    Raises as `jvp`. Source: `torch.func.jacfwd`.
    """
    check_chunk_size("jacfwd()", chunk_size)

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        part, chosen = _function_of(function, argnums, args, kwargs)
        inputs = _inputs("jacfwd()", argnums, chosen)
        starts = [0, *accumulate(x.size for x in inputs)]

        def columns(start: int, stop: int) -> tuple[Any, ...]:
            stacked = [eye(stop - start, x.size, k=start - first, dtype=x.dtype, device=x.device)
                       .reshape(stop - start, *x.shape)
                       for x, first in zip(inputs, starts, strict=False)]
            return along_all("jacfwd()", part, chosen, stacked, has_aux, None)

        chunks = list(in_chunks(columns, starts[-1], chunk_size, inputs[0].device))
        form = chunks[0][1]
        tangents = [joined([y for _, y in column], 0)
                    for column in zip(*(leaves(chunk[1]) for chunk in chunks), strict=True)]
        rows = []
        for t in tangents:  # (columns, *R)
            blocks = [_last(t[first:first + x.size]).reshape(*t.shape[1:], *x.shape)
                      for x, first in zip(inputs, starts, strict=False)]
            rows.append(_single(argnums, rebuilt(tuple(chosen), blocks)))
        found = rebuilt(form, rows)
        return (found, chunks[0][2]) if has_aux else found

    return jacobian


def jacrev(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *,
    chunk_size: ChunkSize = None,
) -> Callable[..., Any]:
    """A function that returns the Jacobian, by reverse mode: one run, and a pullback for all rows.

    Best where the result has fewer elements than the arguments. Arguments, structure of the result
    and errors are those of `jacfwd`; chunk_size bounds the rows taken at a time.

    Source: `torch.func.jacrev`.
    """
    check_chunk_size("jacrev()", chunk_size)

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        part, chosen = _function_of(function, argnums, args, kwargs)
        _inputs("jacrev()", argnums, chosen)
        value, pullback, *aux = vjp(part, *chosen, has_aux=has_aux)
        found = _rows(value, pullback, argnums, chunk_size)
        return (found, *aux) if has_aux else found

    return jacobian


def _rows(
    value: Tree, pullback: Callable[..., Any], argnums: Argnums, chunk_size: ChunkSize
) -> Tree:
    """The Jacobian by the pullback of a function with that value."""
    results = [y for _, y in leaves(value)]
    found = []
    for i, y in enumerate(results):
        def rows(start: int, stop: int, i: int = i, y: Tensor = y) -> Tree:
            one = eye(stop - start, y.size, k=start, dtype=y.dtype, device=y.device)
            given: list[Tensor | None] = [None] * len(results)
            if y.size == 1:  # no batch
                given[i] = one.reshape(y.shape)
                return mapped(_as_row, pullback(rebuilt(value, given)))
            given[i] = one.reshape(stop - start, *y.shape)
            return pullback(rebuilt(value, given), batched=True)

        chunks = list(in_chunks(rows, y.size, chunk_size, y.device))
        parts = [joined([g for _, g in part], 0)
                 for part in zip(*map(leaves, chunks), strict=True)]
        blocks = [g.reshape(*y.shape, *g.shape[1:]) for g in parts]
        found.append(_single(argnums, rebuilt(chunks[0], blocks)))
    return rebuilt(value, found)


def jacobian(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *,
    chunk_size: ChunkSize = None,
) -> Callable[..., Any]:
    """`jacrev` or `jacfwd`: forward mode if the result has more elements than the arguments.

    The function runs once to see the result's shape; forward mode runs it again. Arguments,
    structure of the result and errors are those of `jacfwd`.
    """
    check_chunk_size("jacobian()", chunk_size)

    def whole(*args: Any, **kwargs: Any) -> Any:
        part, chosen = _function_of(function, argnums, args, kwargs)
        columns = sum(x.size for x in _inputs("jacobian()", argnums, chosen))
        value, pullback, *aux = vjp(part, *chosen, has_aux=has_aux)
        if sum(y.size for _, y in leaves(value)) > columns:
            del value, pullback, aux  # and with them the graph
            return jacfwd(function, argnums, has_aux, chunk_size=chunk_size)(*args, **kwargs)
        found = _rows(value, pullback, argnums, chunk_size)
        return (found, *aux) if has_aux else found

    return whole


def hessian(function: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives: `jacfwd(jacrev(function))`.

    For a scalar result and an argument of shape S it is a tensor of shape (*S, *S). Source:
    `torch.func.hessian`; Pearlmutter, "Fast exact multiplication by the Hessian", 1994.
    """
    return jacfwd(jacrev(function, argnums), argnums)


def hvp(function: Callable[..., Any], primals: Sequence[Tree], tangents: Sequence[Tree]) -> Any:
    """The Hessian of a scalar function times a direction, for about the cost of two gradients.

    It has the structure of the primals: a tuple with one tree per primal. Arguments and errors are
    those of `jvp`. Source: Pearlmutter, "Fast exact multiplication by the Hessian", 1994.
    """
    gradient = grad(function, tuple(range(len(primals))), allow_unused=True)
    return jvp(gradient, primals, tangents)[1]


def linearize(function: Callable[..., Any], *primals: Tree) -> tuple[Any, Callable[..., Any]]:
    """(function(*primals), its derivative there as a function of tangents).

    The function runs once; each call of the derivative, which is linear, takes one tangent tree per
    primal, None for a constant, and walks the recorded graph. For one direction `jvp` is faster and
    records nothing. It can be called under `vmap`.

    Raises as `vjp`. Source: `torch.func.linearize`; the derivative is the transpose of the
    pullback: Radul et al., "You only linearize once", 2023.
    """
    value, pullback = vjp(function, *primals)
    start = mapped(lambda y: zeros(y._device, y.shape, y.dtype), value)
    _, transposed = vjp(pullback, start)
    return value, lambda *tangents: transposed(tangents)[0]


# -- arguments -------------------------------------------------------------------------------------


def _function_of(
    function: Callable[..., Any], argnums: Argnums, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], list[Tree]]:
    """The function of the arguments at argnums alone, and these arguments."""
    positions = _positions(argnums)
    for i in positions:
        if not -len(args) <= i < len(args):
            raise ValueError(f"a derivative by argument {i} was asked of a call with {len(args)} "
                             "positional arguments; wanted it among them")

    def part(*chosen: Tree) -> Any:
        whole = list(args)
        for i, tree in zip(positions, chosen, strict=True):
            whole[i] = tree
        return function(*whole, **kwargs)

    return part, [args[i] for i in positions]


def _inputs(name: str, argnums: Argnums, chosen: list[Tree]) -> list[Tensor]:
    found = [leaf for i, tree in zip(_positions(argnums), chosen, strict=True)
             for leaf in leaves(tree, f"argument {i}")]
    for path, x in found:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} was given {type(x).__name__} as {path}; wanted a Tensor")
        if not is_floating(x.dtype):
            raise TypeError(f"{name} was given {path} of dtype {x.dtype}; wanted a floating-point "
                            "one")
    if not found:
        raise TypeError(f"{name} was given no tensor to differentiate; wanted one at least")
    return [x for _, x in found]


def _positions(argnums: Argnums) -> Sequence[int]:
    return [argnums] if isinstance(argnums, int) else argnums


def _single(argnums: Argnums, trees: tuple[Tree, ...]) -> Tree:
    return trees[0] if isinstance(argnums, int) else trees


def _as_row(g: Tensor) -> Tensor:
    return g.reshape(1, *g.shape)


def _last(t: Tensor) -> Tensor:
    """The first axis as the last one."""
    return moved_axis(t, 0, -1)
