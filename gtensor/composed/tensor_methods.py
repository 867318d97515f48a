"""Methods of a Tensor under PyTorch's, NumPy's and CuPy's names, where they are no plain alias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gtensor.backend import element_type, get_device
from gtensor.creation import dtypes
from gtensor.creation.new_tensors import empty, full, ones, sizes_of, tensor, zeros
from gtensor.ops import broadcast_to, clone, permute_dims, reshape, tile
from gtensor.ops.arrange import shape
from gtensor.ops.define.arguments import takes_arrays

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.handle.tensor import Tensor


# -- shape -----------------------------------------------------------------------------------------


@shape.SHORT["reshape"]
def view(self: Tensor, *shape: Any) -> Tensor:
    """`reshape`, which copies where no view can have the shape; a dtype is not taken.

    Raises TypeError for a dtype: `astype` converts values, `.numpy().view(dtype)` reads bits.
    """
    if len(shape) == 1 and not (
            isinstance(shape[0], (tuple, list)) or hasattr(shape[0], "__index__")):
        raise TypeError(f"view was given {shape[0]!r}; wanted a shape (astype(dtype) converts the "
                        "values, x.numpy().view(dtype) reads their bits)")
    return reshape(self, sizes_of(shape))


@takes_arrays
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """`reshape` to the shape of another tensor."""
    return reshape(self, other.shape)


def expand(self: Tensor, *sizes: Any) -> Tensor:
    """`broadcast_to`, in which -1 is an axis's own size: a view, as PyTorch's."""
    wanted = sizes_of(sizes)
    own = (*(1,) * (len(wanted) - self.ndim), *self.shape)
    return broadcast_to(self, tuple(m if n == -1 else n
                                    for n, m in zip(wanted, own[-len(wanted):], strict=False)))


@takes_arrays
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """`broadcast_to` the shape of another tensor."""
    return broadcast_to(self, other.shape)


@shape.short_permute("dims")
def permute(self: Tensor, *dims: Any) -> Tensor:
    """`permute_dims`: the axes in another order, a view."""
    return permute_dims(self, sizes_of(dims))


def t(self: Tensor) -> Tensor:
    """A matrix transposed: a view; a vector is as it is. Raises ValueError for more axes."""
    return self.T if self.ndim > 1 else self


@takes_arrays
def contiguous(self: Tensor) -> Tensor:
    """This tensor if its elements lie in order, without gaps; else a copy in which they do."""
    return self if self._array.flags.c_contiguous else clone(self)


def is_contiguous(self: Tensor) -> bool:
    """Whether the elements lie in order, without gaps."""
    return bool(self._array.flags.c_contiguous)


def tiled(self: Tensor, *dims: Any) -> Tensor:
    """`gt.tile`: the tensor laid so many times along each axis."""
    return tile(self, sizes_of(dims))


def dim(self: Tensor) -> int:
    """The number of axes, `ndim`."""
    return self.ndim


def numel(self: Tensor) -> int:
    """The number of elements, `size`."""
    return self._array.size


def element_size(self: Tensor) -> int:
    """The bytes of an element, `dtype.itemsize`."""
    return self.dtype.itemsize


# -- dtype and place -------------------------------------------------------------------------------


def cast(self: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """`astype(dtype, copy=False)`. Raises TypeError without a dtype: `x.dtype` is the own one."""
    if dtype is None:
        raise TypeError("type() was given no dtype; wanted one (x.dtype is the tensor's own)")
    return self.astype(dtype, copy=False)


@takes_arrays
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """In the dtype of another tensor; this tensor itself if it has it."""
    return self.astype(other.dtype, copy=False)


def _to(dtype: Any, name: str) -> Any:
    def method(self: Tensor) -> Tensor:
        return self.astype(dtype, copy=False)

    method.__name__ = name
    method.__doc__ = f"In {dtype}; this tensor itself if it has it, `astype({dtype}, copy=False)`."
    return method


half, bfloat16, float, double, short, int_, long, bool_, cfloat, cdouble = (
    _to(dtype, name) for name, dtype in (
        ("half", dtypes.float16), ("bfloat16", dtypes.bfloat16), ("float", dtypes.float32),
        ("double", dtypes.float64), ("short", dtypes.int16), ("int", dtypes.int32),
        ("long", dtypes.int64), ("bool", dtypes.bool), ("cfloat", dtypes.complex64),
        ("cdouble", dtypes.complex128)))


def cpu(self: Tensor) -> Tensor:
    """On the CPU, `to("cpu")`; this tensor itself if it is there."""
    return self.to(get_device("cpu"))


def cuda(self: Tensor, device: Device | str | int | None = None,
         non_blocking: bool = False) -> Tensor:
    """On a GPU, `to("cuda")`; this tensor itself if it is there. Copies are ordered by streams."""
    wanted = f"cuda:{device}" if isinstance(device, int) else device or "cuda"
    return self.to(get_device(wanted))


def pin_memory(self: Tensor) -> Tensor:
    """The tensor itself: copies to a GPU pass through pinned memory of CuPy's."""
    return self


def _itemsize(self: Tensor) -> int:
    """The bytes of an element, `dtype.itemsize`."""
    return self.dtype.itemsize


def _is_cuda(self: Tensor) -> bool:
    """Whether the elements are in a GPU's memory: `x.device.type == "cuda"`."""
    return self.device.type == "cuda"


itemsize, is_cuda = property(_itemsize), property(_is_cuda)


def is_floating_point(self: Tensor) -> bool:
    """Whether the dtype is a floating one."""
    return dtypes.isdtype(self.dtype, "real floating")


def is_complex(self: Tensor) -> bool:
    """Whether the dtype is complex."""
    return self.dtype.kind == "c"


def get_device_index(self: Tensor) -> int:
    """The number of the GPU, -1 on the CPU, as PyTorch's `get_device`."""
    return -1 if self.device.type == "cpu" else self.device.index


# -- new tensors -----------------------------------------------------------------------------------


def _options(self: Tensor, dtype: DTypeLike | None, device: Any, requires_grad: bool) -> Any:
    return {"dtype": self.dtype if dtype is None else element_type(dtype),
            "device": self.device if device is None else device, "requires_grad": requires_grad}


def new_zeros(self: Tensor, *size: Any, dtype: DTypeLike | None = None,
              device: Device | str | None = None, requires_grad: bool = False) -> Tensor:
    """`gt.zeros` in this tensor's dtype and place."""
    return zeros(sizes_of(size), **_options(self, dtype, device, requires_grad))


def new_ones(self: Tensor, *size: Any, dtype: DTypeLike | None = None,
             device: Device | str | None = None, requires_grad: bool = False) -> Tensor:
    """`gt.ones` in this tensor's dtype and place."""
    return ones(sizes_of(size), **_options(self, dtype, device, requires_grad))


def new_empty(self: Tensor, *size: Any, dtype: DTypeLike | None = None,
              device: Device | str | None = None, requires_grad: bool = False) -> Tensor:
    """`gt.empty` in this tensor's dtype and place."""
    return empty(sizes_of(size), **_options(self, dtype, device, requires_grad))


def new_full(self: Tensor, size: int | Sequence[int], fill_value: complex, *,
             dtype: DTypeLike | None = None, device: Device | str | None = None,
             requires_grad: bool = False) -> Tensor:
    """`gt.full` in this tensor's dtype and place."""
    return full(size, fill_value, **_options(self, dtype, device, requires_grad))


def new_tensor(self: Tensor, data: Any, *, dtype: DTypeLike | None = None,
               device: Device | str | None = None, requires_grad: bool = False) -> Tensor:
    """`gt.tensor(data)` in this tensor's dtype and place."""
    return tensor(data, **_options(self, dtype, device, requires_grad))
