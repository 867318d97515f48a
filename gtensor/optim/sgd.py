"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Unpack

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


class SGD(Optimizer):
    """parameter -= lr * direction; PyTorch's arguments, defaults and formulas (`How`, too).

    The direction is the gradient plus `weight_decay` times the parameter; with `momentum` it is
    averaged into a buffer, buffer = momentum * buffer + (1 - dampening) * direction, which is
    followed instead (or, with `nesterov`, in advance). `maximize` negates the gradient.
    """

    update = optimizers.sgd
    state_names = ("momentum_buffer",)

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.0,
                 dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, *,
                 maximize: bool = False, **how: Unpack[How]) -> None:
        check_how(type(self).__name__, how)
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening,
                         weight_decay=weight_decay, nesterov=nesterov, maximize=maximize)

    def check_options(self, group: Group) -> None:
        """As in PyTorch, Nesterov's momentum goes undamped."""
        super().check_options(group)
        check_numbers(group, "momentum")
        check_numbers(group, "dampening", least=-inf)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(f"nesterov with momentum={group['momentum']} and "
                             f"dampening={group['dampening']} given; wanted momentum above 0 and "
                             "no dampening")

    def states_of(self, group: Group) -> int:
        """A buffer only with momentum."""
        return 1 if group["momentum"] else 0

    def options(self, group: Group) -> Params:
        """See `updates.sgd`."""
        return {"rate": group["lr"], "weight_decay": group["weight_decay"],
                "momentum": group["momentum"], "dampening": group["dampening"],
                "nesterov": group["nesterov"], "maximize": group["maximize"]}
