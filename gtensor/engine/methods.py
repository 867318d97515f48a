"""The operators and NumPy-like methods of a Tensor: each calls one op."""

from __future__ import annotations

from collections.abc import Sequence
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


class Methods:
    """Mixin of `Tensor`; it finds ops by name."""

    __slots__ = ()

    if not TYPE_CHECKING:  # with it, a checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; for names of PyTorch or NumPy it gives gtensor's name."""
            hint = f"; here it is {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"a Tensor has no attribute {name!r}{hint}")

    # arithmetic
    def __add__(self, other: Operand) -> Tensor:
        return ns.add(self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return ns.add(other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return ns.subtract(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return ns.subtract(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return ns.multiply(self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return ns.multiply(other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return ns.divide(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return ns.divide(other, self)

    def __floordiv__(self, other: Operand) -> Tensor:
        return ns.floor_divide(self, other)

    def __mod__(self, other: Operand) -> Tensor:
        return ns.remainder(self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return ns.floor_divide(other, self)

    def __rmod__(self, other: Operand) -> Tensor:
        return ns.remainder(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return ns.pow(self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return ns.pow(other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return ns.matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return ns.matmul(other, self)

    def __neg__(self) -> Tensor:
        return ns.negative(self)

    def __pos__(self) -> Tensor:
        return self  # type: ignore[return-value]

    def __abs__(self) -> Tensor:
        return ns.abs(self)

    # comparison: not differentiable
    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return ns.equal(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ns.not_equal(self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return ns.less(self, other)

    def __le__(self, other: Operand) -> Tensor:
        return ns.less_equal(self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return ns.greater(self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return ns.greater_equal(self, other)

    def __and__(self, other: Operand) -> Tensor:
        return ns.bitwise_and(self, other)

    def __or__(self, other: Operand) -> Tensor:
        return ns.bitwise_or(self, other)

    def __xor__(self, other: Operand) -> Tensor:
        return ns.bitwise_xor(self, other)

    def __rand__(self, other: Operand) -> Tensor:
        return ns.bitwise_and(other, self)

    def __ror__(self, other: Operand) -> Tensor:
        return ns.bitwise_or(other, self)

    def __rxor__(self, other: Operand) -> Tensor:
        return ns.bitwise_xor(other, self)

    def __invert__(self) -> Tensor:
        return ns.bitwise_invert(self)

    def __lshift__(self, other: Operand) -> Tensor:
        return ns.bitwise_left_shift(self, other)

    def __rshift__(self, other: Operand) -> Tensor:
        return ns.bitwise_right_shift(self, other)

    def __rlshift__(self, other: Operand) -> Tensor:
        return ns.bitwise_left_shift(other, self)

    def __rrshift__(self, other: Operand) -> Tensor:
        return ns.bitwise_right_shift(other, self)

    # in place: the handle stays, its memory is written, its version is incremented
    def __iadd__(self, other: Operand) -> Self:
        return ns.assign("add", self, other)

    def __isub__(self, other: Operand) -> Self:
        return ns.assign("subtract", self, other)

    def __imul__(self, other: Operand) -> Self:
        return ns.assign("multiply", self, other)

    def __itruediv__(self, other: Operand) -> Self:
        return ns.assign("divide", self, other)

    def __ipow__(self, other: Operand) -> Self:
        return ns.assign("pow", self, other)

    def __ifloordiv__(self, other: Operand) -> Self:
        return ns.assign("floor_divide", self, other)

    def __imod__(self, other: Operand) -> Self:
        return ns.assign("remainder", self, other)

    def __imatmul__(self, other: Operand) -> Self:
        ns.set_item(self, ..., ns.matmul(self, other))
        return self

    def __iand__(self, other: Operand) -> Self:
        return ns.assign("bitwise_and", self, other)

    def __ior__(self, other: Operand) -> Self:
        return ns.assign("bitwise_or", self, other)

    def __ixor__(self, other: Operand) -> Self:
        return ns.assign("bitwise_xor", self, other)

    def __ilshift__(self, other: Operand) -> Self:
        return ns.assign("bitwise_left_shift", self, other)

    def __irshift__(self, other: Operand) -> Self:
        return ns.assign("bitwise_right_shift", self, other)

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
