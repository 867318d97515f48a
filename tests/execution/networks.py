"""Training steps of small networks, made twice alike: one runs as it is, the other is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import gtensor as gt
from gtensor import nn
from gtensor.models.denoiser import Denoiser, DenoiserConfig
from gtensor.models.gpt import GPT, GPTConfig
from gtensor.models.resnet import ResNet, ResNetConfig
from gtensor.models.ssm import SSM, SSMConfig
from gtensor.nn import functional as F
from gtensor.optim.lr_scheduler import warmup_cosine


class Training(NamedTuple):
    """A step of a batch, what it changes, and what runs between steps."""

    step: Callable[..., gt.Tensor]
    net: nn.Module
    between: Callable[[], object]


def training(
    net: nn.Module, loss: Callable[..., gt.Tensor], device: str, inside: bool = True,
    **how: Any,
) -> Training:
    """AdamW with a schedule (inside of the step or after it), clipping and an average."""
    net = net.to(device)
    optimizer = gt.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = warmup_cosine(optimizer, 4, 50)
    average = gt.optim.EMA(net, 0.9)

    def step(*batch: gt.Tensor) -> gt.Tensor:
        found = loss(net, *batch)
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        average.update()
        if inside:
            schedule.step()
        return found

    return Training(step, net, lambda: inside or schedule.step())


def mlp(device: str) -> Training:
    """With dropout; the loss is scaled, as for half types."""
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 5)).to(device)
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = gt.optim.GradScaler(init_scale=8.0, growth_interval=3)

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(step, net, lambda: setattr(optimizer, "lr", optimizer.lr * 0.97))


def digits(device: str) -> Training:
    """Convolutions and in-place norms, as the recipe of that name."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.InPlaceABN(4), nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.InPlaceABN(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return training(net, lambda net, x, y: F.cross_entropy(net(x), y), device, inside=False)


def resnet(device: str) -> Training:
    net = ResNet(ResNetConfig(channels=3, widths=(4, 8), classes=5))
    return training(net, lambda net, x, y: F.cross_entropy(net(x), y), device)


def _language(net: Any, x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
    return F.cross_entropy(net(x).flatten(0, 1), y.flatten())


def gpt(device: str) -> Training:
    net = GPT(GPTConfig(vocabulary=17, length=8, layers=2, heads=2, width=16, dropout=0.2))
    return training(net, _language, device)


def low(device: str) -> Training:
    """The same under autocast, its blocks checkpointed."""
    net = GPT(GPTConfig(vocabulary=17, length=8, layers=2, heads=2, width=16, dropout=0.2))

    def loss(net: Any, x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        with gt.autocast("bfloat16"):
            return nn.utils.checkpoint(_language, net, x, y)

    return training(net, loss, device)


def ssm(device: str) -> Training:
    net = SSM(SSMConfig(vocabulary=17, layers=2, width=16))
    return training(net, _language, device)


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm(device: str) -> Training:
    return training(_LSTM(), lambda net, x, y: F.cross_entropy(net(x), y), device)


def diffusion(device: str) -> Training:
    """Noise is drawn in each step."""
    net = Denoiser(DenoiserConfig(size=4, patch=2, classes=5, layers=1, width=16, heads=2))
    return training(net, lambda net, x, y: net.denoising_loss(x, y), device)


NETWORKS: dict[Callable[[str], Training], tuple[str, tuple[int, ...]]] = {
    mlp: ("vectors", (6, 12)), digits: ("images", (6, 1, 8, 8)), resnet: ("images", (4, 3, 8, 8)),
    gpt: ("tokens", (3, 8)), low: ("tokens", (3, 8)), ssm: ("tokens", (3, 8)),
    lstm: ("vectors", (4, 5, 6)), diffusion: ("images", (4, 1, 4, 4)),
}


def batches(make: Callable[[str], Training], device: str, seed: int) -> Iterator[Any]:
    """Fresh batches without end."""
    kind, shape = NETWORKS[make]
    rng = np.random.default_rng(seed)
    while True:
        if kind == "tokens":
            x, y = rng.integers(0, 17, (2, *shape))
        else:
            x, y = rng.standard_normal(shape).astype("float32"), rng.integers(0, 5, shape[0])
        yield gt.tensor(x, device=device), gt.tensor(y, device=device)
