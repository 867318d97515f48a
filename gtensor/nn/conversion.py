"""Moving a Module's tensors: to a device, to a dtype, and from PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from gtensor.backend import Device
from gtensor.creation.new_tensors import asarray, from_dlpack
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import FLOATING, Tensor
from gtensor.nn.parameter import Parameter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike


class Movable:
    """Mixin of `Module`: its parameters and buffers on other devices and in other dtypes."""

    _buffers: dict[str, Tensor | None]

    if TYPE_CHECKING:

        def parameters(self) -> Iterator[Parameter]:
            """Module's."""

        def buffers(self) -> Iterator[Tensor]:
            """Module's."""

        def modules(self) -> Iterator[Movable]:
            """Module's."""

        def _set_registered(self, kind: str, name: str, value: Tensor) -> None:
            """Module's."""

    def to(
        self, *targets: Device | DTypeLike, device: Device | str | None = None,
        dtype: DTypeLike | None = None, non_blocking: bool = False,
    ) -> Self:
        """Move to a device and/or convert to a floating dtype: `to("cuda")`, `to(gt.float64)`.

        Both may be given by name, too. `non_blocking` changes nothing: streams order copies. A
        dtype converts floating parameters and buffers only. Parameters stay the same objects. An
        optimizer must be made again if the dtype or device changes, since its state does not.
        Returns the module.
        """
        targets += tuple([target for target in (device, dtype) if target is not None])
        tensors: list[Tensor] = [*self.parameters(), *self.buffers()]
        moved = [_moved(tensor, targets) for tensor in tensors]
        replaced: dict[int, Tensor] = {}
        for tensor, there in zip(tensors, moved, strict=True):
            if there is tensor:
                continue
            if not isinstance(tensor, Parameter):
                replaced[id(tensor)] = there
                continue
            trained, grad = tensor.requires_grad, tensor.grad
            tensor.become(there)
            if trained:
                tensor.requires_grad_()
                tensor.grad = None if grad is None else _moved(grad, targets)
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._set_registered("_buffers", name, replaced.get(id(buffer), buffer))
        return self

    def cpu(self) -> Self:
        """`to("cpu")`."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """`to("cuda")`, or to the device of that number."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def half(self) -> Self:
        """`to("float16")`."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """`to("bfloat16")`."""
        return self.to("bfloat16")

    def float(self) -> Self:
        """`to("float32")`."""
        return self.to("float32")

    def double(self) -> Self:
        """`to("float64")`."""
        return self.to("float64")


def _moved(tensor: Tensor, targets: Sequence[Device | DTypeLike]) -> Tensor:
    """The tensor on a device and in a dtype, without history; itself if it fits already."""
    place = tensor
    with no_grad():
        for target in targets:
            if isinstance(target, Device) or (
                    isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda")):
                place = place.to(target)
            elif place.dtype.kind in FLOATING and place.dtype != target:
                place = place.to(target)
                if place.dtype.kind not in FLOATING:
                    raise TypeError(f"to({target!r}) was asked of a module; wanted a device or a "
                                    "floating-point dtype")
    return place


def value_of(given: Any) -> Tensor:
    """A tensor of a value in a state dict: a PyTorch tensor, or a value that `asarray` takes.

    PyTorch does not export parameters, so they are detached. PyTorch need not be installed.
    """
    if isinstance(given, Tensor) or not type(given).__module__.startswith("torch"):
        return asarray(given)
    return from_dlpack(given.detach())
