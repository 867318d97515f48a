"""Normalization: modules over `gtensor.nn.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import empty, zeros
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.hooks import is_plain
from gtensor.nn.layers import DeviceLike
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops.define.arguments import refuse_unsupported, want_tensors
from gtensor.ops.norms.layer_norm import layer_norm_for_products
from gtensor.ops.norms.rms_norm import rms_norm_for_products

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.ops.norms.replicas import Gather


def _affine(module: Module, shape: int | tuple[int, ...], weight: bool, bias: bool | None,
            device: DeviceLike, dtype: DTypeLike | None) -> None:
    """Register a weight of ones and a bias of zeros (False: None; a bias of None: neither)."""
    for name, wanted, fill in (("weight", weight, init.ones_), ("bias", bias, init.zeros_)):
        if wanted is not None:
            parameter = Parameter(empty(shape, dtype, device)) if wanted else None
            module.register_parameter(name, parameter)
            if parameter is not None:
                fill(parameter)


class _RowNorm(Module):
    """A norm of each row over the trailing axes `normalized_shape`."""

    weight: Parameter | None

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float | None,
                 elementwise_affine: bool) -> None:
        super().__init__()
        self.normalized_shape = ((normalized_shape,) if isinstance(normalized_shape, int)
                                 else tuple(normalized_shape))
        self.eps = eps
        self.elementwise_affine = elementwise_affine

    def extra_repr(self) -> str:
        return (f"{self.normalized_shape}, eps={self.eps}, "
                f"elementwise_affine={self.elementwise_affine}")


class LayerNorm(_RowNorm):
    """Each row over the trailing axes `normalized_shape` to mean 0, variance 1; then scaled.

    Args:
        normalized_shape: the last sizes of the input; an integer is the last one.
        eps: added to the (biased) variance.
        elementwise_affine: whether there is a weight of that shape.
        bias: whether there is a bias beside the weight.

    Raises ValueError, when it is called, for an input with other last sizes. Source: Ba et al.,
    "Layer normalization", 2016.
    """

    eps: float
    bias: Parameter | None

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5,
                 elementwise_affine: bool = True, bias: bool = True, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)
        _affine(self, self.normalized_shape, elementwise_affine, elementwise_affine and bias,
                device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape), the same shape out."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_RowNorm):
    """Each row over the trailing axes `normalized_shape` divided by its root mean square.

    Args:
        normalized_shape: the last sizes of the input; an integer is the last one.
        eps: added to the mean square; None for the dtype's.
        elementwise_affine: whether there is a weight of that shape.

    Raises ValueError, when it is called, for an input with other last sizes. Source: Zhang and
    Sennrich, "Root mean square layer normalization", 2019.
    """

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float | None = None,
                 elementwise_affine: bool = True, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)
        _affine(self, self.normalized_shape, elementwise_affine, None, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape), the same shape out."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


def normalized(norm: Module, x: Tensor, for_products: bool) -> Tensor:
    """norm(x); if only products read it, row norms write what these cast to under `gt.autocast`."""
    if for_products and isinstance(norm, LayerNorm) and is_plain(norm, LayerNorm):
        return layer_norm_for_products(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    if for_products and isinstance(norm, RMSNorm) and is_plain(norm, RMSNorm):
        return rms_norm_for_products(x, norm.normalized_shape, norm.weight, norm.eps)
    made: Tensor = norm(x)
    return made


class GroupNorm(Module):
    """Each group of channels of each image to mean 0 and variance 1, then weight * x + bias.

    Raises ValueError unless num_groups divides num_channels.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"num_groups={num_groups} given for {num_channels} channels; wanted a "
                             "divisor of them")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        _affine(self, num_channels, affine, affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...), the same shape out."""
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class BatchNorm2d(Module):
    """Each channel to mean 0 and variance 1 over the batch, then weight * x + bias.

    Takes (N, C, H, W). While training it also moves `running_mean` and `running_var` towards the
    batch's by `momentum` (None: their plain average over batches), which it normalizes by in
    `eval()` mode.
    """

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _dimensions: tuple[int, ...] = (4,)
    _gather: Gather | None = None  # set by gtensor.distributed.convert_sync

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        _affine(self, num_features, affine, affine, device, dtype)
        for name, fill in (("running_mean", init.zeros_), ("running_var", init.ones_)):
            self.register_buffer(name, fill(empty(num_features, dtype, device))
                                 if track_running_stats else None)
        self.register_buffer("num_batches_tracked", zeros((), "int64", device)
                             if track_running_stats else None)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...), the same shape out."""
        return self._normalized(F.batch_norm, x)

    def _normalized(self, function: Callable[..., Tensor], x: Tensor) -> Tensor:
        """A batch norm of x by `function`; in training it is counted."""
        want_tensors(type(self).__name__, input=x)
        if x.ndim not in self._dimensions or x.shape[1] != self.num_features:
            raise ValueError(f"{type(self).__name__}({self.num_features}) was given shape "
                             f"{x.shape}; wanted {self.num_features} channels on axis 1 of "
                             f"{' or '.join(map(str, self._dimensions))} axes")
        counting = self.training and self.track_running_stats
        count = self.num_batches_tracked if counting else None
        momentum = self.momentum
        if momentum is None:
            momentum = 0.0 if count is None else 1.0 / (count.item() + 1)
        return function(x, self.running_mean, self.running_var, self.weight, self.bias,
                        self.training or not self.track_running_stats, momentum, self.eps,
                        num_batches_tracked=count,
                        gather=self._gather if self.training else None)

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
                f"affine={self.affine}, track_running_stats={self.track_running_stats}")


class BatchNorm1d(BatchNorm2d):
    """Batch norm of (N, C) or (N, C, L).

    Arguments as for `BatchNorm2d`. Raises ValueError for another number of axes or channels, and in
    training for one value per channel.
    """

    _dimensions = (2, 3)


class BatchNorm3d(BatchNorm2d):
    """Batch norm of (N, C, D, H, W).

    Arguments as for `BatchNorm2d`. Raises ValueError for another number of axes or channels.
    """

    _dimensions = (5,)


class InstanceNorm2d(Module):
    """Each channel of each image (N, C, H, W), or of one (C, H, W), to mean 0 and variance 1.

    Args:
        num_features: C.
        eps: added to the (biased) variance.
        momentum: has no effect, as there are no running statistics.
        affine: whether there are a weight and a bias (C), which are applied then.
        track_running_stats: False.

    Source: Ulyanov et al., "Instance normalization", 2016. Raises ValueError, when it is called,
    for another number of axes or channels.
    """

    weight: Parameter | None
    bias: Parameter | None
    _dimensions = 4

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1,
                 affine: bool = False, track_running_stats: bool = False,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        refuse_unsupported(False, type(self).__name__, track_running_stats=track_running_stats)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = False
        _affine(self, num_features, affine, affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape out."""
        name, dims = type(self).__name__, self._dimensions
        want_tensors(name, input=x)
        if x.ndim not in (dims, dims - 1) or x.shape[x.ndim - dims + 1] != self.num_features:
            raise ValueError(f"{name}({self.num_features}) was given shape {x.shape}; wanted "
                             f"{self.num_features} channels on the axis before the last "
                             f"{dims - 2} of {dims} or {dims - 1}")
        batch = x if x.ndim == dims else x.reshape((1, *x.shape))
        return F.instance_norm(batch, None, None, self.weight, self.bias,
                               eps=self.eps).reshape(x.shape)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}"


class InstanceNorm1d(InstanceNorm2d):
    """Instance norm of (N, C, L), or of one signal (C, L).

    Arguments as for `InstanceNorm2d`. Raises ValueError for another number of axes or channels.
    """

    _dimensions = 3


class InstanceNorm3d(InstanceNorm2d):
    """Instance norm of (N, C, D, H, W), or of one volume (C, D, H, W).

    Arguments as for `InstanceNorm2d`. Raises ValueError for another number of axes or channels.
    """

    _dimensions = 5
