"""The operators and NumPy-like methods of a Tensor: each calls one op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Self

from gtensor.engine.namespaces import public as ns

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.tensor import Tensor
    from gtensor.engine.typing import Operand

Axis = int | tuple[int, ...] | None


_ELSEWHERE = {  # names of PyTorch or NumPy -> gtensor's
    "view": "reshape", "permute": "permute_dims", "transpose": "permute_dims", "ravel": "flatten",
    "unsqueeze": "expand_dims", "clamp": "clip", "numel": "size", "cumsum": "gt.cumulative_sum",
    "expand": "broadcast_to", "type": "astype", "float": "astype(gt.float32)",
    "long": "astype(gt.int64)", "cuda": "to('cuda')", "cpu": "to('cpu')", "data": "detach()",
    "sort": "gt.sort", "argsort": "gt.argsort", "topk": "gt.topk",
}


# Operators by their special name without underscores -> the public function.
_ARITHMETIC = {  # also reflected, and in place: the handle stays, its memory is written
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "pow",
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}
_OTHERS = {
    "matmul": "matmul", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal", "neg": "negative", "abs": "abs",
    "invert": "bitwise_invert",
}


class Methods:
    """Mixin of `Tensor`; it finds ops by name."""

    __slots__ = ()

    if not TYPE_CHECKING:  # with it, a checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; for names of PyTorch or NumPy it gives gtensor's name."""
            hint = f"; here it is {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"a Tensor has no attribute {name!r}{hint}")

    if TYPE_CHECKING:  # made below, and by `gtensor.ops`

        def __add__(self, other: Operand, /) -> Tensor: ...
        def __radd__(self, other: Operand, /) -> Tensor: ...
        def __iadd__(self, other: Operand, /) -> Self: ...
        def __sub__(self, other: Operand, /) -> Tensor: ...
        def __rsub__(self, other: Operand, /) -> Tensor: ...
        def __isub__(self, other: Operand, /) -> Self: ...
        def __mul__(self, other: Operand, /) -> Tensor: ...
        def __rmul__(self, other: Operand, /) -> Tensor: ...
        def __imul__(self, other: Operand, /) -> Self: ...
        def __truediv__(self, other: Operand, /) -> Tensor: ...
        def __rtruediv__(self, other: Operand, /) -> Tensor: ...
        def __itruediv__(self, other: Operand, /) -> Self: ...
        def __floordiv__(self, other: Operand, /) -> Tensor: ...
        def __rfloordiv__(self, other: Operand, /) -> Tensor: ...
        def __ifloordiv__(self, other: Operand, /) -> Self: ...
        def __mod__(self, other: Operand, /) -> Tensor: ...
        def __rmod__(self, other: Operand, /) -> Tensor: ...
        def __imod__(self, other: Operand, /) -> Self: ...
        def __pow__(self, other: Operand, /) -> Tensor: ...
        def __rpow__(self, other: Operand, /) -> Tensor: ...
        def __ipow__(self, other: Operand, /) -> Self: ...
        def __and__(self, other: Operand, /) -> Tensor: ...
        def __rand__(self, other: Operand, /) -> Tensor: ...
        def __iand__(self, other: Operand, /) -> Self: ...
        def __or__(self, other: Operand, /) -> Tensor: ...
        def __ror__(self, other: Operand, /) -> Tensor: ...
        def __ior__(self, other: Operand, /) -> Self: ...
        def __xor__(self, other: Operand, /) -> Tensor: ...
        def __rxor__(self, other: Operand, /) -> Tensor: ...
        def __ixor__(self, other: Operand, /) -> Self: ...
        def __lshift__(self, other: Operand, /) -> Tensor: ...
        def __rlshift__(self, other: Operand, /) -> Tensor: ...
        def __ilshift__(self, other: Operand, /) -> Self: ...
        def __rshift__(self, other: Operand, /) -> Tensor: ...
        def __rrshift__(self, other: Operand, /) -> Tensor: ...
        def __irshift__(self, other: Operand, /) -> Self: ...
        def __matmul__(self, other: Operand, /) -> Tensor: ...
        def __rmatmul__(self, other: Operand, /) -> Tensor: ...
        def __eq__(self, other: object, /) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object, /) -> Tensor: ...  # type: ignore[override]
        def __lt__(self, other: Operand, /) -> Tensor: ...
        def __le__(self, other: Operand, /) -> Tensor: ...
        def __gt__(self, other: Operand, /) -> Tensor: ...
        def __ge__(self, other: Operand, /) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...

    def __pos__(self) -> Tensor:
        return self  # type: ignore[return-value]

    def __imatmul__(self, other: Operand) -> Self:
        ns.set_item(self, ..., ns.matmul(self, other))
        return self

    def __setitem__(self, key: object, value: Operand) -> None:
        ns.set_item(self, key, value)

    def __getitem__(self, key: object) -> Tensor:
        return ns.get_item(self, key)

    # reductions
    def sum(
        self, axis: Axis = None, *, dtype: DTypeLike | None = None, keepdims: bool = False
    ) -> Tensor:
        return ns.sum(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        return ns.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        return ns.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        return ns.min(self, axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        return ns.var(self, axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        return ns.std(self, axis=axis, correction=correction, keepdims=keepdims)

    def prod(
        self, axis: Axis = None, *, dtype: DTypeLike | None = None, keepdims: bool = False
    ) -> Tensor:
        return ns.prod(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        return ns.any(self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        return ns.all(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        return ns.argmax(self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        return ns.argmin(self, axis=axis, keepdims=keepdims)

    # shape
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        return ns.reshape(self, shape[0] if len(shape) == 1 else shape)

    def permute_dims(self, *axes: int | Sequence[int]) -> Tensor:
        return ns.permute_dims(self, axes[0] if len(axes) == 1 else axes)

    def broadcast_to(self, shape: tuple[int, ...]) -> Tensor:
        return ns.broadcast_to(self, shape)

    def expand_dims(self, axis: int | tuple[int, ...]) -> Tensor:
        return ns.expand_dims(self, axis=axis)

    def moveaxis(self, source: Axis, destination: Axis) -> Tensor:
        return ns.moveaxis(self, source, destination)

    def flip(self, axis: Axis = None) -> Tensor:
        return ns.flip(self, axis=axis)

    def repeat(self, repeats: Operand, axis: int | None = None) -> Tensor:
        return ns.repeat(self, repeats, axis=axis)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        return ns.flatten(self, start_dim, end_dim)

    def squeeze(self, axis: Axis = None) -> Tensor:
        return ns.squeeze(self, axis)

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix (the two axes of a 2-d tensor swapped)."""
        return ns.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return ns.matrix_transpose(self)

    # elementwise
    def exp(self) -> Tensor:
        return ns.exp(self)

    def log(self) -> Tensor:
        return ns.log(self)

    def sqrt(self) -> Tensor:
        return ns.sqrt(self)

    def tanh(self) -> Tensor:
        return ns.tanh(self)

    def sigmoid(self) -> Tensor:
        return ns.sigmoid(self)

    def relu(self) -> Tensor:
        return ns.relu(self)

    def abs(self) -> Tensor:
        return ns.abs(self)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        return ns.clip(self, min, max)

    def round(self) -> Tensor:
        return ns.round(self)

    def conj(self) -> Tensor:
        return ns.conj(self)

    @property
    def real(self) -> Tensor:
        """The real part."""
        return ns.real(self)

    @property
    def imag(self) -> Tensor:
        """The imaginary part, of a complex tensor."""
        return ns.imag(self)

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> Tensor:
        return ns.astype(self, dtype, copy=copy)

    def clone(self) -> Tensor:
        """A copy in memory of its own; gradients flow through it."""
        return ns.clone(self)


def operators() -> Iterator[tuple[str, str]]:
    """The operators of Tensor that are a public function, and their function."""
    for name, function in {**_ARITHMETIC, **_OTHERS}.items():
        yield f"__{name}__", function


def _reflected(function: str) -> Callable[[Tensor, Operand], Tensor]:
    return lambda self, other: getattr(ns, function)(other, self)


def _in_place(function: str) -> Callable[[Tensor, Operand], Tensor]:
    return lambda self, other: ns.assign(function, self, other)


for _name, _function in {**_ARITHMETIC, "matmul": "matmul"}.items():
    setattr(Methods, f"__r{_name}__", _reflected(_function))
for _name, _function in _ARITHMETIC.items():
    setattr(Methods, f"__i{_name}__", _in_place(_function))
