"""The operators and NumPy-like methods of a Tensor: each calls one op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Self

from gtensor.engine.handle.namespaces import public as ns

if TYPE_CHECKING:
    from gtensor import ops
    from gtensor.engine.handle.tensor import Operand, Tensor

_ELSEWHERE = {  # names of PyTorch or NumPy -> gtensor's
    "view": "reshape", "permute": "permute_dims", "transpose": "permute_dims", "ravel": "flatten",
    "unsqueeze": "expand_dims", "clamp": "clip", "numel": "size", "cumsum": "gt.cumulative_sum",
    "expand": "broadcast_to", "type": "astype", "float": "astype(gt.float32)",
    "long": "astype(gt.int64)", "cuda": "to('cuda')", "cpu": "to('cpu')", "data": "detach()",
    "sort": "gt.sort", "argsort": "gt.argsort", "topk": "gt.topk",
}


_METHODS = (  # of the public functions, those that are methods as they are
    "sum", "prod", "mean", "max", "min", "var", "std", "any", "all", "argmax", "argmin",
    "broadcast_to", "expand_dims", "moveaxis", "flip", "repeat", "flatten", "squeeze", "exp", "log",
    "sqrt", "tanh", "sigmoid", "relu", "abs", "clip", "round", "conj", "astype", "clone",
)
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

    if TYPE_CHECKING:  # made below, by `Tensor` and by `gtensor.ops`

        @property
        def shape(self) -> tuple[int, ...]: ...
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
        product = ns.matmul(self, other)
        if product.shape != self.shape:  # which an assignment might broadcast
            raise ValueError(f"in-place matmul of a tensor of shape {self.shape} and another with "
                             f"a product of shape {product.shape}; wanted the same shape")
        ns.set_item(self, ..., product)
        return self

    if TYPE_CHECKING:  # `gtensor.ops` puts its functions here
        sum = ops.sum
        prod = ops.prod
        mean = ops.mean
        max = ops.max
        min = ops.min
        var = ops.var
        std = ops.std
        any = ops.any
        all = ops.all
        argmax = ops.argmax
        argmin = ops.argmin
        broadcast_to = ops.broadcast_to
        expand_dims = ops.expand_dims
        moveaxis = ops.moveaxis
        flip = ops.flip
        repeat = ops.repeat
        flatten = ops.flatten
        squeeze = ops.squeeze
        clip = ops.clip
        astype = ops.astype

        def exp(self) -> Tensor: ...
        def log(self) -> Tensor: ...
        def sqrt(self) -> Tensor: ...
        def tanh(self) -> Tensor: ...
        def sigmoid(self) -> Tensor: ...
        def relu(self) -> Tensor: ...
        def abs(self) -> Tensor: ...
        def round(self) -> Tensor: ...
        def conj(self) -> Tensor: ...
        def clone(self) -> Tensor: ...

    def __setitem__(self, key: object, value: Operand) -> None:
        ns.set_item(self, key, value)

    def __getitem__(self, key: object) -> Tensor:
        return ns.get_item(self, key)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        return ns.reshape(self, shape[0] if len(shape) == 1 else shape)

    def permute_dims(self, *axes: int | Sequence[int]) -> Tensor:
        return ns.permute_dims(self, axes[0] if len(axes) == 1 else axes)

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix (the two axes of a 2-d tensor swapped)."""
        return ns.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return ns.matrix_transpose(self)

    @property
    def real(self) -> Tensor:
        """The real part."""
        return ns.real(self)

    @property
    def imag(self) -> Tensor:
        """The imaginary part, of a complex tensor."""
        return ns.imag(self)


def functions() -> Iterator[tuple[str, str]]:
    """The methods and operators that are a public function, and that function's name."""
    yield from zip(_METHODS, _METHODS, strict=True)
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
