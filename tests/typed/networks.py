"""Networks of modules, and what is read and changed in them."""

from typing import assert_type

import gtensor as gt
from gtensor import Tensor, nn
from gtensor.nn import functional as F


class Attention(nn.Module):
    """Layers in a list, members by name, a buffer and a parameter of its own."""

    def __init__(self, width: int, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.heads = nn.ModuleDict({"mean": nn.Linear(width, 1), "scale": nn.Linear(width, 1)})
        self.gain = nn.Parameter(gt.ones(width))
        self.seen: Tensor
        self.register_buffer("seen", gt.zeros(1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attention of a sequence to itself, then two heads."""
        for layer in self.layers:
            x = x + F.relu(layer(x))
        self.seen += 1
        x = F.scaled_dot_product_attention(x, x, x, attn_mask=mask) * self.gain
        return self.heads["mean"](x), F.softplus(self.heads["scale"](x))


def perceptron() -> nn.Sequential:
    """A stack whose members keep their types."""
    net = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 2))
    assert_type(net[0], nn.Linear)
    assert_type(net[2].p, float)
    assert_type(net[-1].weight.shape, tuple[int, ...])
    net[0].weight.requires_grad_(False)
    longer = nn.Sequential(*net, nn.ReLU(), nn.Linear(2, 2))
    longer[0].weight.requires_grad_(True)
    assert_type(longer[:2](gt.ones((1, 3))), Tensor)
    return longer


def steps(net: nn.Module, x: Tensor) -> float:
    """What a training loop does."""
    optimizer = gt.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    average = gt.optim.EMA(net)
    losses: list[float] = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), gt.zeros_like(net(x)))
        loss.backward()
        norm = gt.optim.clip_grad_norm_(net.parameters(), 1.0)
        assert_type(norm, Tensor)
        optimizer.step()
        schedule.step()
        average.update()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def run() -> None:
    """All of it."""
    net = Attention(4)
    mean, scale = net(gt.ones((2, 5, 4)))
    assert_type(mean, Tensor)
    assert scale.shape == (2, 5, 1)
    net.load_state_dict(net.state_dict())
    net.apply(lambda module: module.train(False))
    sizes = {name: parameter.size for name, parameter in net.named_parameters()}
    assert sizes["gain"] == 4 and net.layers[0](gt.ones(4)).shape == (4,)
    assert steps(perceptron(), gt.ones((4, 3))) >= 0
