"""RMSprop (Hinton, 2012) and Adagrad (Duchi et al., 2011): steps over a root of squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from gtensor.ops.define.arguments import refuse_unsupported
from gtensor.ops.updates import optimizers
from gtensor.optim.optimizer import (
    Group,
    How,
    Optimizer,
    Parameters,
    check_how,
    check_numbers,
)

if TYPE_CHECKING:
    from gtensor.backend.typing import Params


class RMSprop(Optimizer):
    """Steps along the gradient over its running root mean square; PyTorch's arguments (`How`, too).

        square = alpha * square + (1 - alpha) * gradient ** 2
        parameter -= lr * gradient / (sqrt(square) + eps)

    `centered` subtracts the square of the gradient's running mean from `square`, and with
    `momentum` a buffer, momentum * buffer + the step, is followed instead. Centered it always keeps
    the buffer, PyTorch with momentum only. The mean square of a finite gradient stays finite, as
    that of `Adam`.

    Source: Hinton, lecture 6e of "Neural networks for machine learning", 2012. Raises ValueError
    for an option out of its range.
    """

    update = optimizers.rmsprop
    state_names = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(self, params: Parameters, lr: float = 1e-2, alpha: float = 0.99,
                 eps: float = 1e-8, weight_decay: float = 0.0, momentum: float = 0.0,
                 centered: bool = False, *, maximize: bool = False, **how: Unpack[How]) -> None:
        check_how(type(self).__name__, how)
        super().__init__(params, lr=lr, momentum=momentum, alpha=alpha, eps=eps, centered=centered,
                         weight_decay=weight_decay, maximize=maximize)

    def check_options(self, group: Group) -> None:
        """Alpha from 0 to below 1, the others not negative."""
        super().check_options(group)
        check_numbers(group, "momentum", "alpha", "eps")
        if group["alpha"] >= 1:
            raise ValueError(f"alpha={group['alpha']} given; wanted a number from 0 to below 1")

    def states_of(self, group: Group) -> int:
        """The buffer only with momentum, or the gradients' mean behind it."""
        return 3 if group["centered"] else 2 if group["momentum"] else 1

    def options(self, group: Group) -> Params:
        """See `updates.rmsprop`."""
        return {"rate": group["lr"], "alpha": group["alpha"], "eps": group["eps"],
                "weight_decay": group["weight_decay"], "momentum": group["momentum"],
                "maximize": group["maximize"]}


class Adagrad(Optimizer):
    """Steps along the gradient over the root of the sum of its squares; PyTorch's arguments.

        sum += gradient ** 2
        parameter -= lr / (1 + (step - 1) * lr_decay) * gradient / (sqrt(sum) + eps)

    `initial_accumulator_value` must be 0.

    Source: Duchi et al., "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011. Raises ValueError for an option out of its range.
    """

    update = optimizers.adagrad
    state_names = ("sum",)

    def __init__(self, params: Parameters, lr: float = 1e-2, lr_decay: float = 0.0,
                 weight_decay: float = 0.0, initial_accumulator_value: float = 0.0,
                 eps: float = 1e-10, *, maximize: bool = False, **how: Unpack[How]) -> None:
        refuse_unsupported(0, type(self).__name__,
                           initial_accumulator_value=initial_accumulator_value)
        check_how(type(self).__name__, how)
        super().__init__(params, lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay,
                         maximize=maximize)

    def check_options(self, group: Group) -> None:
        """None negative."""
        super().check_options(group)
        check_numbers(group, "lr_decay", "eps")

    def options(self, group: Group) -> Params:
        """See `updates.adagrad`."""
        return {"rate": group["lr"], "rate_decay": group["lr_decay"], "eps": group["eps"],
                "weight_decay": group["weight_decay"], "maximize": group["maximize"]}
