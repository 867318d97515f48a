"""The steps that `cost.py` counts: a model at its real sizes, its loss and its update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass
class Step:
    """A training step in three parts; `forward` returns what `backward` starts from."""

    name: str
    forward: Callable[[], Any]
    parameters: list[Any]
    about: str
    rate: float = 1e-4  # 0: without an update
    inputs: tuple[Any, ...] = ()  # of `forward`, for a peer

    def __post_init__(self) -> None:
        from gtensor import optim

        self.optimizer = optim.AdamW(self.parameters, lr=self.rate) if self.rate else None

    def backward(self, loss: Any) -> None:
        loss.backward()

    def update(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def gpt2(quick: bool) -> Iterator[Step]:
    """GPT-2 small, autocast to bfloat16, 8 x 1,024 tokens, AdamW."""
    import gtensor as gt
    from gtensor.models import GPT, GPTConfig
    from gtensor.nn import functional as F

    batch, length, layers, words = (2, 64, 2, 512) if quick else (8, 1024, 12, 50_304)
    model = GPT(GPTConfig(words, layers, 768, 12, hidden=3072, length=length,
                          activation="gelu_tanh", norm="layer", rotary=False, bias=True,
                          tied=True), device="cuda")
    tokens, targets = (gt.random.integers(0, words, shape, device="cuda")
                       for shape in ((batch, length), (batch * length,)))

    def forward() -> Any:
        with gt.autocast("bfloat16"):
            return F.cross_entropy(model(tokens).reshape((-1, words)), targets)

    yield Step("gpt2", forward, list(model.parameters()),
               f"GPT-2 small, {layers} layers, {batch} x {length} tokens of {words}, bfloat16",
               inputs=(tokens, targets))


def gpt2_layer(quick: bool) -> Iterator[Step]:
    """A layer of GPT-2 small, causal, in float32 and autocast to bfloat16."""
    import gtensor as gt
    from gtensor import nn

    batch, length = (2, 64) if quick else (8, 1024)
    for dtype in ("float32", "bfloat16"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True,
                                           norm_first=True, device="cuda")
        x = gt.zeros((batch, length, 768), device="cuda", requires_grad=True)
        seed = gt.zeros((batch, length, 768), device="cuda")
        mask = gt.zeros((length, length), dtype=gt.bool, device="cuda")

        def forward(layer: Any = layer, x: Any = x, mask: Any = mask, dtype: str = dtype) -> Any:
            x.grad = None
            with gt.autocast("bfloat16") if dtype != "float32" else nullcontext():
                return layer(x, mask, is_causal=True)

        step = Step(f"gpt2-layer {dtype}", forward, list(layer.parameters()),
                    f"TransformerEncoderLayer, causal, {batch} x {length} x 768, {dtype}")
        step.backward = lambda out, seed=seed: out.backward(seed)  # type: ignore[method-assign]
        yield step


def bottlenecks(make: Callable[[int, int, int], Any]) -> list[Any]:
    """The blocks of ResNet-50, in order: make(width of the input, width, stride)."""
    blocks, width_in = [], 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for place in range(count):
            blocks.append(make(width_in, width, 2 if stage and not place else 1))
            width_in = 4 * width
    return blocks


def resnet50(quick: bool) -> Iterator[Step]:
    """ResNet-50, autocast to bfloat16, 256 images of 224 x 224, SGD's place taken by AdamW."""
    import gtensor as gt
    from gtensor import nn
    from gtensor.nn import functional as F

    batch, side = (2, 64) if quick else (256, 224)
    model = _resnet50(nn).to("cuda")
    images = gt.random.normal((batch, 3, side, side), device="cuda")
    labels = gt.random.integers(0, 1000, (batch,), device="cuda")

    def forward() -> Any:
        with gt.autocast("bfloat16"):
            return F.cross_entropy(model(images), labels)

    yield Step("resnet50", forward, list(model.parameters()),
               f"ResNet-50, {batch} x 3 x {side} x {side}, bfloat16", inputs=(images, labels))


def _resnet50(nn: Any) -> Any:
    """He et al., "Deep residual learning", 2015, with the stride in the 3 x 3 convolution."""
    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, width_in: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
            self.norm3 = nn.BatchNorm2d(4 * width)
            self.relu = nn.ReLU()
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            ) if stride > 1 or width_in != 4 * width else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norm1(self.conv1(x)))
            y = self.relu(self.norm2(self.conv2(y)))
            return self.relu(self.norm3(self.conv3(y)) + self.shortcut(x))

    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *bottlenecks(Bottleneck), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2048, 1000))


def batchnorm2d(quick: bool) -> Iterator[Step]:
    """BatchNorm2d of an input that is no leaf, 64 x 64 channels of 56 x 56, float32."""
    import gtensor as gt
    from gtensor import nn

    shape = (4, 8, 16, 16) if quick else (64, 64, 56, 56)
    norm = nn.BatchNorm2d(shape[1], device="cuda")
    leaf = gt.zeros(shape, device="cuda", requires_grad=True)
    seed = gt.zeros(shape, device="cuda")

    def forward() -> Any:
        leaf.grad = None
        return norm(leaf.reshape(shape))

    step = Step("batchnorm2d", forward, list(norm.parameters()), f"BatchNorm2d, {shape}", 0.0)
    step.backward = lambda out: out.backward(seed)  # type: ignore[method-assign]
    yield step


def digits(quick: bool) -> Iterator[Step]:
    """The network of `gtensor train digits`, 64 images of 8 x 8, float32."""
    import gtensor as gt
    from gtensor.nn import functional as F
    from gtensor.train.digits import model as network

    model = network().to("cuda")
    images = gt.zeros((64, 1, 8, 8), device="cuda")
    labels = gt.zeros((64,), dtype=gt.int64, device="cuda")
    yield Step("digits", lambda: F.cross_entropy(model(images), labels), list(model.parameters()),
               "the network of `gtensor train digits`, 64 images")


def ssm(quick: bool) -> Iterator[Step]:
    """A state-space block, gated, 8 x 1,024 x 768, float32."""
    import gtensor as gt
    from gtensor import nn

    shape = (2, 64, 96) if quick else (8, 1024, 768)
    block = nn.blocks.SSMBlock(shape[2], device="cuda")
    x = gt.zeros(shape, device="cuda", requires_grad=True)
    seed = gt.zeros(shape, device="cuda")

    def forward() -> Any:
        x.grad = None
        return block(x)

    step = Step("ssm", forward, list(block.parameters()), f"SSMBlock, {shape}, float32")
    step.backward = lambda out: out.backward(seed)  # type: ignore[method-assign]
    yield step


def mlp(quick: bool) -> Iterator[Step]:
    """Three linear layers of 1,024 features, 128 rows, float32."""
    import gtensor as gt
    from gtensor import nn
    from gtensor.nn import functional as F

    width = 32 if quick else 1024
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, 10)).to("cuda")
    x = gt.zeros((128, width), device="cuda")
    labels = gt.zeros((128,), dtype=gt.int64, device="cuda")
    yield Step("mlp", lambda: F.cross_entropy(model(x), labels), list(model.parameters()),
               f"128 rows, three layers of {width}, float32")


WORKLOADS: dict[str, Callable[[bool], Iterator[Step]]] = {
    "gpt2": gpt2, "gpt2-layer": gpt2_layer, "resnet50": resnet50, "batchnorm2d": batchnorm2d,
    "digits": digits, "ssm": ssm, "mlp": mlp,
}
