"""Forward mode: `jvp`, one derivative in one run, and `jvp_batched`, N of them in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from gtensor.engine.handle.tensor import Tensor, check_like, is_floating, zeros
from gtensor.engine.tape.levels import running
from gtensor.engine.transforms.dual import Directional
from gtensor.func.batching import ChunkSize, vmap
from gtensor.func.trees import M, R, Tree, at_leaves, leaves, rebuilt
from gtensor.ops.arrange.joining import stack


@overload
def jvp(
    function: Callable[..., R], primals: Sequence[Tree], tangents: Sequence[Tree],
    *, has_aux: Literal[False] = False,
) -> tuple[R, R]: ...


@overload
def jvp(
    function: Callable[..., tuple[R, M]], primals: Sequence[Tree], tangents: Sequence[Tree],
    *, has_aux: Literal[True],
) -> tuple[R, R, M]: ...


def jvp(
    function: Callable[..., Any], primals: Sequence[Tree], tangents: Sequence[Tree],
    *, has_aux: bool = False,
) -> Any:
    """(function(*primals), its derivative in the direction of the tangents): forward mode.

    The function runs once. It nests with itself, `vmap`, `vjp` and `grad`: grad of a jvp, or a jvp
    of `grad(f)`, which is a Hessian-vector product. Values within the function have shape and dtype
    but no memory: `.numpy()`, `.item()` and in-place writes raise LevelError.

    Args:
        function: takes a tree of tensors per primal (a tensor, or dicts, lists, tuples, dataclasses
            of them) and returns one.
        primals: the arguments.
        tangents: per primal a tree of its structure, with tensors of the shapes, dtypes and devices
            of the primal's; None for a constant.
        has_aux: the function returns (result, more), and `more` is returned third, as values.

    Raises ValueError or TypeError for tangents that do not fit their primals, TypeError if the
    function returns something else than tensors, LevelError for an op without a tangent rule.

    Source: `torch.func.jvp`; Griewank and Walther, "Evaluating Derivatives", 2008, chapter 3.
    """
    moves = _Moves("jvp()", "tangent", primals, tangents)
    for (path, x), t in zip(moves.leaves, moves.given, strict=True):
        if t is not None:
            _check_tensor("jvp()", f"the tangent of {path}", t)
            check_like(f"the tangent of {path}", t, x)
    return directional("jvp()", function, primals, moves.given, has_aux)


def directional(
    name: str, function: Callable[..., Any], primals: Sequence[Tree],
    tangents: Sequence[Tensor | None], has_aux: bool,
) -> Any:
    """`jvp` with a tangent, or None, for each leaf of the primals."""
    values = [x for tree in primals for _, x in leaves(tree)]
    with running(Directional()) as level:
        handles = rebuilt(tuple(primals), [
            level.start(x, t) if isinstance(x, Tensor) else x
            for x, t in zip(values, tangents, strict=True)])
        out, aux = split(name, function(*handles), has_aux)
        results = [level.end(y) for y in result_tensors(name, out)]
        more = [level.end(y)[0] if isinstance(y, Tensor) else y for _, y in leaves(aux)]
    found = (rebuilt(out, [value for value, _ in results]), rebuilt(out, [
        zeros(value._device, value.shape, value.dtype) if tangent is None else tangent
        for value, tangent in results]))
    return (*found, rebuilt(aux, more)) if has_aux else found


@overload
def jvp_batched(
    function: Callable[..., R], primals: Sequence[Tree], shadows: Sequence[Tree],
    layout: Literal["stack", "concat"] = "stack", *, has_aux: Literal[False] = False,
    chunk_size: ChunkSize = None,
) -> tuple[R, R]: ...


@overload
def jvp_batched(
    function: Callable[..., tuple[R, M]], primals: Sequence[Tree], shadows: Sequence[Tree],
    layout: Literal["stack", "concat"] = "stack", *, has_aux: Literal[True],
    chunk_size: ChunkSize = None,
) -> tuple[R, R, M]: ...


def jvp_batched(
    function: Callable[..., Any], primals: Sequence[Tree], shadows: Sequence[Tree],
    layout: Literal["stack", "concat"] = "stack", *, has_aux: bool = False,
    chunk_size: ChunkSize = None,
) -> Any:
    """(function(*primals), its N derivatives in N directions): forward mode in one run.

    The function's values are computed once, and N tangents beside them, equal to those of N calls
    of `jvp`. The tangents of a result of shape S are one tensor of shape (N, *S).

    Args:
        function: as of `jvp`.
        primals: the arguments.
        shadows: per tensor of the primals its N tangents, or None for a constant. They are a list
            of N tensors of its shape S, or one tensor of shape (N, *S). Arguments may differ in
            that.
        layout: with "concat" those of an argument of shape (L,) may also be one tensor of shape
            (N * L,).
        has_aux: the function returns (result, more), and `more` is returned third.
        chunk_size: of `vmap`: take at most so many directions at a time. Every chunk computes the
            values again.

    Raises ValueError for numbers or shapes of shadows that do not fit, and as `jvp`.

    Source: Enzyme's batched forward mode; Rust's autodiff, where an argument has N shadows, or one
    that is N times longer.
    """
    moves = _Moves("jvp_batched()", "shadows", primals, shadows)
    stacked = [None if given is None else _stacked(path, x, given, layout)
               for (path, x), given in zip(moves.leaves, moves.given, strict=True)]
    counts = {path: s.shape[0] for (path, _), s in zip(moves.leaves, stacked, strict=True)
              if s is not None}
    if len(set(counts.values())) != 1:
        found = ", ".join(f"{n} for {path}" for path, n in counts.items())
        raise ValueError(f"jvp_batched() was given shadows for {len(counts)} arguments"
                         f"{': ' * bool(found)}{found}; wanted them for one at least, and the same "
                         "number for each")
    return along_all("jvp_batched()", function, primals, stacked, has_aux, chunk_size)


def along_all(
    name: str, function: Callable[..., Any], primals: Sequence[Tree],
    stacked: Sequence[Tensor | None], has_aux: bool, chunk_size: ChunkSize,
) -> Any:
    """`jvp_batched` with all tangents of a leaf as one tensor (N, *S), or None."""

    def along(tangents: list[Tensor | None]) -> Any:
        return directional(name, function, primals, tangents, has_aux)

    return vmap(along, ([None if s is None else 0 for s in stacked],),
                (None, 0, None) if has_aux else (None, 0), "same",
                chunk_size=chunk_size)(list(stacked))


class _Moves:
    """The tensors of the primals, and what is given for each; both checked as arguments."""

    def __init__(
        self, name: str, what: str, primals: Sequence[Tree], given: Sequence[Tree]
    ) -> None:
        plural = what if what.endswith("s") else what + "s"
        for kind, trees in (("primals", primals), (plural, given)):
            if not isinstance(trees, (tuple, list)):
                raise TypeError(f"{name} was given {kind} of type {type(trees).__name__}; wanted a "
                                "tuple with one per argument")
        if len(primals) != len(given):
            raise ValueError(f"{name} was given {len(primals)} primals and {len(given)} {plural}; "
                             f"wanted {plural} for each primal, or None")
        self.leaves: list[tuple[str, Any]] = []
        self.given: list[Any] = []
        for i, (primal, moves) in enumerate(zip(primals, given, strict=True)):
            self.leaves += leaves(primal, f"argument {i}")
            self.given += at_leaves(primal, moves, f"{plural} of argument {i}")
        for (path, x), moves in zip(self.leaves, self.given, strict=True):
            if moves is None and not isinstance(x, Tensor):
                continue  # a constant
            _check_tensor(name, path, x)
            if moves is not None and not is_floating(x.dtype) and x.dtype.kind != "c":
                raise TypeError(f"{name} was given {path} of dtype {x.dtype} with {plural}; wanted "
                                "a floating-point or complex one, or None as its tangent")


def _check_tensor(name: str, what: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} was given {type(x).__name__} as {what}; wanted a Tensor "
                        "(gt.asarray makes one)")
    x._current_node(name)


def _stacked(path: str, x: Tensor, given: object, layout: str) -> Tensor:
    """The N tangents of x as one tensor of shape (N, *x.shape)."""
    if isinstance(given, (list, tuple)):
        for i, t in enumerate(given):
            _check_tensor("jvp_batched()", f"shadow {i} of {path}", t)
            check_like(f"shadow {i} of {path}", t, x)
        return stack(list(given)) if given else zeros(x._device, (0, *x.shape), x.dtype)
    _check_tensor("jvp_batched()", f"the shadows of {path}", given)
    assert isinstance(given, Tensor)
    if layout == "concat" and x.ndim == 1 and given.ndim == 1 and x.size and not (
            given.size % x.size):
        given = given.reshape(given.size // x.size, x.size)
    if given.shape[1:] != x.shape or not given.ndim:
        also = f", or of {x.size} times N elements" if layout == "concat" and x.ndim == 1 else ""
        raise ValueError(f"jvp_batched() was given shadows of shape {given.shape} for {path} of "
                         f"shape {x.shape}; wanted N of its shape, in a list or along a first axis"
                         + also)
    if (given.dtype, given.device) != (x.dtype, x.device):
        raise TypeError(f"jvp_batched() was given shadows of dtype {given.dtype} on {given.device} "
                        f"for {path} of dtype {x.dtype} on {x.device}; wanted the same")
    return given


def result_tensors(name: str, out: Tree) -> list[Tensor]:
    """The leaves of a function's result, all of which must be tensors, and one at least."""
    found = leaves(out)
    for path, y in found or [("", out)]:
        if not isinstance(y, Tensor):
            raise TypeError(f"the function given to {name} returned {type(y).__name__}"
                            f"{f' as result{path}' if path else ''}; wanted a Tensor, or a tree of "
                            "Tensors")
    return [y for _, y in found]


def split(name: str, out: Any, has_aux: bool) -> tuple[Tree, Tree]:
    """The result, and what the function returned beside it."""
    if not has_aux:
        return out, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"the function given to {name} with has_aux=True returned "
                        f"{type(out).__name__}; wanted a tuple (result, more)")
    return out
