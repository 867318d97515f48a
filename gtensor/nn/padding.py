"""Padding as modules, over `gtensor.nn.functional.pad`."""

from __future__ import annotations

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.module import Module
from gtensor.ops.define.arguments import want_tensors


class _Pad(Module):
    """Padding of the last axes; `padding` is one number, or (before, after) of the last axis, then
    of the one before it, and so on."""

    _axes: int
    _mode: str

    def __init__(self, padding: int | tuple[int, ...]) -> None:
        super().__init__()
        if isinstance(padding, int):
            padding = (padding,) * (2 * self._axes)
        if len(padding) != 2 * self._axes:
            raise ValueError(f"padding={padding} given to {type(self).__name__}; wanted one number "
                             f"or {2 * self._axes}, two for each padded axis, the last axis first")
        self.padding = tuple(padding)

    def forward(self, x: Tensor) -> Tensor:
        """The same axes, of larger sizes (smaller ones, for negative numbers)."""
        name = type(self).__name__
        want_tensors(name, input=x)
        if x.ndim not in (self._axes + 1, self._axes + 2):
            raise ValueError(f"{name} was given shape {x.shape}; wanted {self._axes + 2} axes, or "
                             f"{self._axes + 1} of one example")
        return self._padded(x)

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """Padding with a number."""

    def __init__(self, padding: int | tuple[int, ...], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    """Padding with zeros."""

    def __init__(self, padding: int | tuple[int, ...]) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad1d(_ConstantPad):
    """`value` around signals (N, C, L), or one (C, L).

    `padding` is one number, or (left, right). Raises ValueError for another length.
    """

    _axes = 1


class ConstantPad2d(_ConstantPad):
    """`value` around images (N, C, H, W), or one (C, H, W).

    `padding` is one number, or (left, right, top, bottom). Raises ValueError for another
    length.
    """

    _axes = 2


class ConstantPad3d(_ConstantPad):
    """`value` around volumes (N, C, D, H, W), or one (C, D, H, W).

    `padding` is one number, or (left, right, top, bottom, front, back). Raises ValueError for
    another length.
    """

    _axes = 3


class ZeroPad1d(_ZeroPad):
    """Zeros around signals (N, C, L), or one (C, L).

    `padding` is one number, or (left, right). Raises ValueError for another length.
    """

    _axes = 1


class ZeroPad2d(_ZeroPad):
    """Zeros around images (N, C, H, W), or one (C, H, W).

    `padding` is one number, or (left, right, top, bottom). Raises ValueError for another
    length.
    """

    _axes = 2


class ZeroPad3d(_ZeroPad):
    """Zeros around volumes (N, C, D, H, W), or one (C, D, H, W).

    `padding` is one number, or (left, right, top, bottom, front, back). Raises ValueError for
    another length.
    """

    _axes = 3


class ReflectionPad1d(_Pad):
    """Around signals (N, C, L), or one (C, L), the values mirrored, without the border.

    `padding` is one number, or (left, right). Raises ValueError for another length.
    """

    _axes = 1
    _mode = "reflect"


class ReflectionPad2d(_Pad):
    """Around images (N, C, H, W), or one (C, H, W), the values mirrored, without the border.

    `padding` is one number, or (left, right, top, bottom). Raises ValueError for another
    length.
    """

    _axes = 2
    _mode = "reflect"


class ReflectionPad3d(_Pad):
    """Around volumes (N, C, D, H, W), or one (C, D, H, W), the values mirrored, without the border.

    `padding` is one number, or (left, right, top, bottom, front, back). Raises ValueError for
    another length.
    """

    _axes = 3
    _mode = "reflect"


class ReplicationPad1d(_Pad):
    """Around signals (N, C, L), or one (C, L), the border repeated.

    `padding` is one number, or (left, right). Raises ValueError for another length.
    """

    _axes = 1
    _mode = "replicate"


class ReplicationPad2d(_Pad):
    """Around images (N, C, H, W), or one (C, H, W), the border repeated.

    `padding` is one number, or (left, right, top, bottom). Raises ValueError for another
    length.
    """

    _axes = 2
    _mode = "replicate"


class ReplicationPad3d(_Pad):
    """Around volumes (N, C, D, H, W), or one (C, D, H, W), the border repeated.

    `padding` is one number, or (left, right, top, bottom, front, back). Raises ValueError for
    another length.
    """

    _axes = 3
    _mode = "replicate"


class CircularPad1d(_Pad):
    """Around signals (N, C, L), or one (C, L), the values from the other end.

    `padding` is one number, or (left, right). Raises ValueError for another length.
    """

    _axes = 1
    _mode = "circular"


class CircularPad2d(_Pad):
    """Around images (N, C, H, W), or one (C, H, W), the values from the other end.

    `padding` is one number, or (left, right, top, bottom). Raises ValueError for another
    length.
    """

    _axes = 2
    _mode = "circular"


class CircularPad3d(_Pad):
    """Around volumes (N, C, D, H, W), or one (C, D, H, W), the values from the other end.

    `padding` is one number, or (left, right, top, bottom, front, back). Raises ValueError for
    another length.
    """

    _axes = 3
    _mode = "circular"
