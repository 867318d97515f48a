"""Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.ops.updates import optimizers
from gtensor.optim.optimizer import Group, Optimizer, Parameters, check_betas

if TYPE_CHECKING:
    from gtensor.backend.typing import Params


class Lion(Optimizer):
    """Steps of size lr along the sign of the momentum, with one array of state per parameter.

        parameter *= 1 - lr * weight_decay
        parameter -= lr * sign(beta1 * momentum + (1 - beta1) * gradient)
        momentum = beta2 * momentum + (1 - beta2) * gradient

    Arguments, defaults and the name of the state are those of the authors' PyTorch code. They
    advise a learning rate 3 to 10 times smaller than AdamW's, and a weight decay larger by as much.
    """

    update = optimizers.lion
    state_names = ("exp_avg",)

    def __init__(self, params: Parameters, lr: float = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay)

    def check_options(self, group: Group) -> None:
        """Betas from 0 to below 1."""
        super().check_options(group)
        check_betas(group["betas"])

    def options(self, group: Group) -> Params:
        """See `updates.lion`."""
        return {"rate": group["lr"], "beta1": group["betas"][0], "beta2": group["betas"][1],
                "weight_decay": group["weight_decay"]}
