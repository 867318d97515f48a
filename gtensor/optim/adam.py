"""Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from gtensor.ops.updates import optimizers
from gtensor.optim.optimizer import (
    Group,
    How,
    Optimizer,
    Parameters,
    check_betas,
    check_how,
    check_numbers,
)

if TYPE_CHECKING:
    from gtensor.backend.typing import Params


class Adam(Optimizer):
    """Steps along the gradient's running mean over its running root mean square.

    `weight_decay` times the parameter is added to the gradient. `amsgrad` divides by the largest
    running mean square so far (Reddi et al., 2018), a third array per parameter. `maximize` negates
    the gradient. PyTorch's arguments, defaults and formulas; `foreach`, `fused` and `capturable`
    change nothing, as a step is one pass on CUDA anyway.

    The mean square of a finite gradient stays finite: at most the largest number of its dtype, and
    gradients are limited to the value that reaches it in one step (5.8e20 in float32). In PyTorch
    the mean square becomes infinite, and the parameter no longer changes.
    """

    update = optimizers.adam
    state_names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    decoupled = False

    def __init__(self, params: Parameters, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, amsgrad: bool = False, *,
                 maximize: bool = False, **how: Unpack[How]) -> None:
        check_how(type(self).__name__, how)
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                         amsgrad=amsgrad, maximize=maximize)

    def check_options(self, group: Group) -> None:
        """Betas from 0 to below 1, a non-negative epsilon."""
        super().check_options(group)
        check_betas(group["betas"])
        check_numbers(group, "eps")

    def states_of(self, group: Group) -> int:
        """The largest mean square only with AMSGrad."""
        return 3 if group["amsgrad"] else 2

    def options(self, group: Group) -> Params:
        """See `updates.adam`."""
        beta1, beta2 = group["betas"]
        return {"rate": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"],
                "weight_decay": group["weight_decay"], "decoupled": self.decoupled,
                "maximize": group["maximize"]}


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself: parameter *= 1 - lr * weight_decay.

    Arguments as for `Adam`. Raises ValueError for an option out of its range. Source: Loshchilov
    and Hutter, "Decoupled weight decay regularization", 2019.
    """

    decoupled = True

    def __init__(self, params: Parameters, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, *,
                 maximize: bool = False, **how: Unpack[How]) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, **how)
