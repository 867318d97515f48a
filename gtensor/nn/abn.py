"""Activated batch norm: out of place, and in place in half the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gtensor.creation.new_tensors import empty
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.convolution import Conv2d
from gtensor.nn.layers import DeviceLike, Linear
from gtensor.nn.normalization import BatchNorm2d
from gtensor.ops.norms.batch_norm import check_activation

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.ops.norms.replicas import Gather


class ABN(BatchNorm2d):
    """Batch norm and activation of (N, C, ...), in one op; saves its input.

    act((x - mean) / sqrt(var + eps) * (|weight| + eps) + bias): the scale is never 0, so that
    `InPlaceABN`, which computes the same, can invert it. A state of `BatchNorm2d` can be loaded:
    positive weights get eps added, negative ones lose their sign; `from_batch_norm` converts
    exactly.

    Args:
        num_features: C.
        eps: added to the variance and to |weight|.
        momentum, affine, track_running_stats: as for `BatchNorm2d`.
        activation, activation_param: see `gtensor.nn.functional.abn`.
    """

    _dimensions = tuple(range(2, 65))

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True,
                 activation: str = "leaky_relu", activation_param: float = 0.01,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        check_activation(activation, activation_param, empty(0, dtype).dtype, type(self).__name__)
        self.activation = activation
        self.activation_param = activation_param

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...), the same shape out."""
        return self._normalized(self._activated, x)

    def _activated(self, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
                   weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                   eps: float, num_batches_tracked: Tensor | None,
                   gather: Gather | None) -> Tensor:
        return F.abn(x, weight, bias, running_mean, running_var, training, momentum, eps,
                     self.activation, self.activation_param, num_batches_tracked, gather)

    @classmethod
    def from_batch_norm(cls, norm: BatchNorm2d, activation: str = "leaky_relu",
                        activation_param: float = 0.01, producer: Conv2d | Linear | None = None
                        ) -> Self:
        """A module that computes activation(norm(x)), with the norm's parameters and statistics.

        The scale |weight| + eps equals the norm's weight, which is raised to eps if it is smaller.
        A negative weight is made positive by a change of sign of the channel's input: `producer`,
        the convolution or linear layer in front of the norm, and the running mean are then changed
        in place.

        Raises ValueError for negative weights without a producer that fits, TypeError for an ABN.
        Nothing is changed then.
        """
        if isinstance(norm, ABN):
            raise TypeError(f"from_batch_norm was given an {type(norm).__name__}; wanted a "
                            "BatchNorm1d or BatchNorm2d")
        like = norm.running_mean if norm.weight is None else norm.weight
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine,
                   norm.track_running_stats, activation, activation_param,
                   None if like is None else like.device, None if like is None else like.dtype)
        made.load_state_dict(norm.state_dict())
        made.train(norm.training)
        made._gather = norm._gather
        if norm.weight is None:
            return made
        for name, parameter in norm.named_parameters():
            getattr(made, name).requires_grad_(parameter.requires_grad)
        with no_grad():
            sign = 1.0 - 2.0 * (norm.weight < 0).astype(norm.weight.dtype)
            if bool((sign < 0).any()):
                _turn(producer, sign)
                if made.running_mean is not None:
                    made.running_mean *= sign
            made.get_parameter("weight")[...] = F.relu(abs(norm.weight) - norm.eps)
        return made

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class InPlaceABN(ABN):
    """`ABN` over its input's memory, which it consumes: one kept buffer per layer instead of two.

    After `y = norm(x)` only y can be used; a later use of x is an error that names this line. The
    input is overwritten only if it has no other reader; otherwise y gets a new buffer, which
    `gtensor.memory.copies()` counts. See `gtensor.nn.functional.inplace_abn`.
    """

    def _activated(self, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
                   weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                   eps: float, num_batches_tracked: Tensor | None,
                   gather: Gather | None) -> Tensor:
        return F.inplace_abn(x, weight, bias, running_mean, running_var, training, momentum, eps,
                             self.activation, self.activation_param, num_batches_tracked, gather)


def _turn(producer: Any, sign: Tensor) -> None:
    """Change the sign of the output channels of a layer where `sign` is -1."""
    fits = isinstance(producer, (Conv2d, Linear)) and producer.weight.shape[0] == sign.shape[0]
    if not fits:
        negative = [i for i, s in enumerate(sign.tolist()) if s < 0]
        raise ValueError(
            f"a batch norm with negative weights (channels {negative[:8]}) was given with "
            f"{type(producer).__name__} as its producer; wanted the convolution or linear layer "
            f"with {sign.shape[0]} outputs whose output it takes, to change their sign there")
    producer.weight *= sign.reshape((-1,) + (1,) * (producer.weight.ndim - 1))
    if producer.bias is not None:
        producer.bias *= sign
