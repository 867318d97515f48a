"""PyTorch's launches of three published steps, from the ops that PyTorch itself records.

A model of meta tensors runs forward and backward; each op of ATen is one launch, or those that
`KERNELS` lists. Casts of autocast are written out, as meta tensors have no autocast. Attention is
one op. PyTorch runs what cuBLAS, cuDNN and FlashAttention have, so a product is a product, and all
else is a pass over its inputs and outputs.

Sources of the launches of an op: PyTorch 2.13, aten/src/ATen/native/cuda, the file of the op's name
(layer_norm_kernel, SoftMax, Loss, Embedding, Normalization, DilatedMaxPool2d), and flash_attn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from cost_model import Work
from cost_workloads import bottlenecks
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

PUBLISHED_MS: dict[str, dict[str, float]] = {
    "gpt2": {"h100": 42}, "gpt2-plain": {"a100": 300},
    "resnet50": {"h100": 115, "a100": 103.6}}
"""By device. H100: told without a description of the program that was measured. A100,
ResNet-50: NVIDIA/DeepLearningExamples, ResNet-50 v1.5 for PyTorch, mixed precision, one GPU of a
DGX A100 80GB, 2,470 images a second. A100, GPT-2: Karpathy, "Let's reproduce GPT-2 (124M)", 2024,
the step called "float16, gradient scalers, bfloat16, 300ms": eager, 16 x 1,024 tokens of 50,257,
attention in single ops, AdamW as PyTorch has it by default."""

VIEWS = {
    "alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view",
    "_reshape_alias", "lift_fresh", "empty", "empty_like", "new_empty", "new_empty_strided",
    "empty_strided", "is_same_size"}  # without a launch
_SORTED = 8  # launches of a radix sort and of what follows it in embedding_dense_backward


class Recorded(TorchDispatchMode):
    """The launches of all ops in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []
        self.phase = "forward"

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None
                           ) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.__name__.split(".")[0]
        if name not in VIEWS:
            given = _tensors(args)
            made = _tensors(out if isinstance(out, (tuple, list)) else (out,))
            for work in KERNELS.get(name, _one_pass)(name, given, made, args):
                self.add(work)
        return out

    def add(self, work: Work) -> None:
        work.phase = self.phase
        self.works.append(work)


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    found = []
    for value in values:
        if isinstance(value, (tuple, list)):
            found += _tensors(value)
        elif isinstance(value, Tensor):
            found.append(value)
    return found


def nbytes(*tensors: Tensor) -> int:
    """Distinct bytes: an axis that repeats counts once."""
    return sum(tensor.element_size() * prod(
        n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step)
        for tensor in tensors)


# -- launches of ops -------------------------------------------------------------------------------

Kernel = Callable[[str, list[Tensor], list[Tensor], Sequence[Any]], Iterator[Work]]


def _one_pass(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
              ) -> Iterator[Work]:
    yield Work(name, reads=nbytes(*given), writes=nbytes(*made))


def _product(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
             ) -> Iterator[Work]:
    """The bias, if there is one, is in the product's epilogue."""
    a, b = given[-2:]
    *batch, m, k = a.shape
    yield Work(name, reads=nbytes(*given), writes=nbytes(*made), inputs=str(a.dtype)[6:],
               product=(m, b.shape[-1], k, prod(batch)), aligned=_aligned(a, b, *made))


def _aligned(*matrices: Tensor) -> bool:
    return all(max(x.stride()[-2:]) * x.element_size() % 16 == 0 for x in matrices)


def _layer_norm_backward(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                         ) -> Iterator[Work]:
    yield Work(f"{name}, input", reads=nbytes(*given), writes=nbytes(made[0]))
    yield Work(f"{name}, weight and bias", reads=nbytes(*given[:2]), writes=nbytes(*made[1:]))


def _embedding(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
               ) -> Iterator[Work]:
    yield Work(name, reads=nbytes(given[1], *made), writes=nbytes(*made))


def _embedding_backward(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                        ) -> Iterator[Work]:
    yield Work("fill", writes=nbytes(*made))
    for _ in range(_SORTED):
        yield Work(f"{name}, sort", reads=nbytes(given[1]), writes=nbytes(given[1]))
    yield Work(name, reads=nbytes(*given), writes=min(nbytes(given[0]), nbytes(*made)))


def _nll_backward(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                  ) -> Iterator[Work]:
    """Zeros, and a number in each row."""
    yield Work("fill", writes=nbytes(*made))
    yield Work(name, reads=nbytes(given[2]), writes=4 * given[2].numel())


def _nll(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]) -> Iterator[Work]:
    yield Work(name, reads=nbytes(given[1]) + 4 * given[1].numel(), writes=nbytes(*made))


def _convolution(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                 ) -> Iterator[Work]:
    """An implicit product of pixels and channels: m pixels, n filters, k entries of one."""
    x, weight, (out,) = given[0], given[1], made
    yield _implicit(name, (x, weight), out, out, weight)


def _implicit(name: str, read: Sequence[Tensor], written: Tensor, pixels: Tensor, weight: Tensor,
              order: tuple[int, int, int] = (0, 1, 2)) -> Work:
    sizes = pixels.numel() // pixels.shape[1], weight.shape[0], prod(weight.shape[1:])
    m, n, k = (sizes[place] for place in order)
    return Work(name, reads=nbytes(*read), writes=nbytes(written), product=(m, n, k, 1),
                inputs=str(weight.dtype)[6:], aligned=weight.shape[1] % 8 == 0)


def _convolution_backward(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                          ) -> Iterator[Work]:
    g, x, weight = given
    input_wanted, weight_wanted, _ = args[10]
    if input_wanted:  # as many multiplications: pixels of the input for strides of 1
        m, n, k = g.numel() // g.shape[1], weight.shape[1], weight.shape[0]
        work = _implicit(f"{name}, input", (g, weight), x, g, weight)
        work.product = m, n * prod(weight.shape[2:]), k, 1
        work.__post_init__()
        yield work
    if weight_wanted:
        yield _implicit(f"{name}, weight", (g, x), weight, g, weight, (1, 2, 0))


def _batch_norm(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                ) -> Iterator[Work]:
    yield Work(f"{name}, statistics", reads=nbytes(given[0]), writes=nbytes(*made[1:]))
    yield Work(name, reads=nbytes(*given), writes=nbytes(made[0]))


def _batch_norm_backward(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                         ) -> Iterator[Work]:
    yield Work(f"{name}, sums", reads=nbytes(*given[:2]), writes=nbytes(*made[1:]))
    yield Work(name, reads=nbytes(*given), writes=nbytes(made[0]))


def _masked_fill(name: str, given: list[Tensor], made: list[Tensor], args: Sequence[Any]
                 ) -> Iterator[Work]:
    """A copy, which is then filled (ATen/native, TensorAdvancedIndexing)."""
    yield Work("clone", reads=nbytes(given[0]), writes=nbytes(*made))
    yield Work(name, reads=nbytes(*given), writes=nbytes(*made))


KERNELS: dict[str, Kernel] = {
    "masked_fill": _masked_fill,
    "addmm": _product, "mm": _product, "bmm": _product,
    "native_layer_norm_backward": _layer_norm_backward, "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward, "nll_loss_forward": _nll,
    "nll_loss_backward": _nll_backward, "convolution": _convolution,
    "convolution_backward": _convolution_backward, "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}


class Attention(torch.autograd.Function):
    """Causal attention by FlashAttention-2: one launch forward, three backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, recorded: Recorded) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.recorded = recorded
        rows = q.numel() // q.shape[-1]
        recorded.add(Work("flash_fwd", reads=nbytes(q, k, v), writes=nbytes(q) + 4 * rows,
                          flops=2.0 * q.numel() * k.shape[-2], rate="attention"))
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        rows, whole = q.numel() // q.shape[-1], nbytes(q)
        for name, reads, writes in (("flash_bwd_dot", 2 * whole, 4 * rows),
                                    ("flash_bwd", 4 * whole + 8 * rows, 4 * whole),
                                    ("flash_bwd_convert_dq", 2 * whole, whole)):
            work = Work(name, reads=reads, writes=writes)
            if name == "flash_bwd":
                work.flops, work.rate = 5.0 * q.numel() * k.shape[-2], "attention backward"
            ctx.recorded.add(work)
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


# -- models ----------------------------------------------------------------------------------------

HALF = torch.bfloat16


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # causal attention of q, k, v


class Linear(nn.Linear):
    """Under autocast: input, weight and bias are cast."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(HALF)
        return F.linear(x.to(HALF), self.weight.to(HALF), bias)


class Block(nn.Module):
    """A layer of nanoGPT (class Block), without dropout; parameters in the order of gtensor's."""

    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.in_proj, self.out_proj = Linear(width, 3 * width), Linear(width, width)
        self.linear1, self.linear2 = Linear(width, 4 * width), Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (part.view(n, length, self.heads, -1).transpose(1, 2)
                   for part in self.in_proj(self.norm1(x)).split(width, 2))
        x = x + self.out_proj(self.attend(q, k, v).transpose(1, 2).reshape(n, length, width))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as it was written before PyTorch had an op for it; softmax in float32."""
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1]**-0.5
    mask = torch.empty(scores.shape[-2:], device=q.device) == 0
    return F.softmax(scores.masked_fill(mask, float("-inf")).float(), -1).to(HALF) @ v


class GPT2(nn.Module):
    def __init__(self, words: int, length: int, layers: int, attend: Attend) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(words, 768), nn.Embedding(length, 768)
        self.blocks = nn.ModuleList([Block(768, 12, attend) for _ in range(layers)])
        self.norm = nn.LayerNorm(768)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        scores = F.linear(self.norm(x).to(HALF), self.embedding.weight.to(HALF))
        return F.cross_entropy(scores.float().view(-1, scores.shape[-1]), targets.view(-1))


class Convolution(nn.Conv2d):
    """Under autocast: input and weight are cast. Without a bias, as batch norm follows."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(HALF)
        return F.conv2d(x.to(HALF), weight, None, self.stride, self.padding)


class Bottleneck(nn.Module):
    """torchvision's block: the stride is in the 3 x 3 convolution, ReLUs overwrite."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Convolution(width_in, width, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            Convolution(width, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            Convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Sequential(
            Convolution(width_in, 4 * width, 1, stride), nn.BatchNorm2d(4 * width)
        ) if stride > 1 or width_in != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def _resnet50() -> nn.Module:
    return nn.Sequential(
        Convolution(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), *bottlenecks(Bottleneck), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        Linear(2048, 1000))


# -- steps -----------------------------------------------------------------------------------------


def steps(name: str, quick: bool) -> Iterator[tuple[str, str, list[Work], dict[str, Any]]]:
    """The launches of a step, forward, backward and update, as `cost.recorded` gives them."""
    recorded = Recorded()
    with torch.device("meta"):
        run, model, about = (_resnet if name == "resnet50" else _gpt2)(recorded, quick, name)
    with recorded:
        loss = run()
        recorded.phase = "backward"
        loss.backward()
    recorded.phase = "update"
    for work in _update(name, model):
        recorded.add(work)
    facts = {} if quick else {"published_ms": PUBLISHED_MS[name]}
    yield f"torch-{name}", about, recorded.works, facts


def _gpt2(recorded: Recorded, quick: bool, name: str
          ) -> tuple[Callable[[], Tensor], nn.Module, str]:
    plain = name == "gpt2-plain"
    batch, length, layers, words = (2, 64, 2, 512) if quick else (
        (16, 1024, 12, 50_257) if plain else (8, 1024, 12, 50_304))
    model = GPT2(words, length, layers, plain_attention if plain else
                 lambda q, k, v: Attention.apply(q, k, v, recorded))
    tokens = torch.empty((batch, length), dtype=torch.int64)
    targets = torch.empty((batch, length), dtype=torch.int64)
    return lambda: model(tokens, targets), model, (
        f"PyTorch's GPT-2 small, {layers} layers, {batch} x {length} tokens of {words}, bfloat16 "
        f"by autocast, {'attention in single ops, AdamW' if plain else 'fused AdamW'}")


def _resnet(recorded: Recorded, quick: bool, name: str
            ) -> tuple[Callable[[], Tensor], nn.Module, str]:
    batch, side = (2, 64) if quick else (256, 224)
    model = _resnet50()
    images = torch.empty((batch, 3, side, side)).to(memory_format=torch.channels_last)
    labels = torch.empty((batch,), dtype=torch.int64)
    return lambda: F.cross_entropy(model(images).float(), labels), model, (
        f"PyTorch's ResNet-50, {batch} x 3 x {side} x {side}, channels last, bfloat16 by autocast, "
        "fused SGD with momentum")


def on_gpu(name: str, parameters: Sequence[Any], inputs: Sequence[Any], rate: float
           ) -> Callable[[], Tensor]:
    """The step as PyTorch runs it on a GPU, from such weights of gtensor's; gives its loss."""
    given, targets = (torch.tensor(x.numpy(), device="cuda") for x in inputs)
    with torch.device("cuda"):
        if name == "gpt2":
            words, length = parameters[0].shape[0], given.shape[1]
            layers = (len(parameters) - 4) // 12
            model: nn.Module = GPT2(words, length, layers, lambda q, k, v:
                                    F.scaled_dot_product_attention(q, k, v, is_causal=True))
        else:
            model = _resnet50().to(memory_format=torch.channels_last)
            given = given.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for theirs, own in zip(model.parameters(), parameters, strict=True):
            theirs.copy_(torch.tensor(own.detach().numpy()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)

    def run() -> Tensor:
        optimizer.zero_grad()
        out = model(given, targets) if name == "gpt2" else F.cross_entropy(
            model(given).float(), targets)
        out.backward()
        optimizer.step()
        return out.detach()

    return run


# What AdamW reads and writes by default, in passes over all parameters (torch.optim,
# _multi_tensor_adam): decay, both averages, square root, division, addition of eps, the step.
_PASSES = ((1, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1))


def _update(name: str, model: nn.Module) -> Iterator[Work]:
    """Fused: one launch, of AdamW with two states, of SGD with one."""
    size = nbytes(*model.parameters())
    if name == "gpt2-plain":
        for reads, writes in _PASSES:
            yield Work("foreach_adamw", reads=size * reads, writes=size * writes)
        return
    states = 2 if name == "gpt2" else 1
    yield Work("fused_adamw" if states == 2 else "fused_sgd", reads=size * (2 + states),
               writes=size * (1 + states))
