"""GPT: a Transformer that predicts the next token; it loads the weights of GPT-2."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from gtensor.backend import Device
from gtensor.checkpoint import CheckpointMismatch, safe_open
from gtensor.creation.new_tensors import arange, zeros
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.models.language import check_tokens
from gtensor.models.stack import Stack
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.blocks.rotary import RotaryPositions
from gtensor.nn.blocks.transformer import NORMS, KVCache, TransformerBlock
from gtensor.nn.containers import ModuleList
from gtensor.nn.context import SharedAttentionContext
from gtensor.nn.layers import DeviceLike, Dropout, Embedding, Linear
from gtensor.nn.module import Module
from gtensor.nn.normalization import normalized
from gtensor.nn.parameter import Parameter
from gtensor.ops.attention.cache_length import CacheLength, NewPositions

if TYPE_CHECKING:
    from os import PathLike

    from gtensor.backend.typing import DTypeLike


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT; the rest as in `nn.blocks.TransformerBlock`.

    `length`: the most positions that are seen at once. `tied`: the output's weights are those of
    the embedding. `context`: the blocks share a `SharedAttentionContext` of learnable strength.
    """

    vocabulary: int = 256
    layers: int = 6
    width: int = 256
    heads: int = 8
    kv_heads: int | None = None
    hidden: int | None = None
    length: int = 1024
    activation: str = "swiglu"
    norm: str = "rms"
    rotary: bool = True  # else positions are learned
    bias: bool = False
    dropout: float = 0.0
    eps: float = 1e-5
    tied: bool = False
    context: bool = False


class GPT(Stack):
    """Token embedding, Transformer blocks, norm, and a linear map to the vocabulary.

    Its blocks share one workspace. Initially weights are normal with standard deviation 0.02, and
    those that write into the residual stream have theirs divided by sqrt(2 * layers).

    Source: Radford et al., "Language models are unsupervised multitask learners", 2019.
    """

    norm: Module
    capturable = True  # see `LanguageModel`

    def __init__(self, config: GPTConfig | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        c = config or GPTConfig()
        super().__init__(c.width)
        self.config = c
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = Embedding(c.vocabulary, c.width, **place)
        self.positions = None if c.rotary else Embedding(c.length, c.width, **place)
        self.dropout = Dropout(c.dropout)
        context = SharedAttentionContext(
            c.width, strength=Parameter(zeros((), **place))) if c.context else None
        rotary: RotaryPositions | bool = c.rotary
        self.blocks = ModuleList()
        for _ in range(c.layers):
            block = TransformerBlock(
                c.width, c.heads, c.kv_heads, c.hidden, c.activation, c.norm, rotary, c.dropout,
                c.bias, c.eps, context, self.workspace, **place)
            rotary = block.self_attn.positions or False  # one table for all
            self.blocks.append(block)
        self.norm = NORMS[c.norm](c.width, c.eps, **place)
        self.head = None if c.tied else Linear(c.width, c.vocabulary, False, **place)
        self._initialize()

    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                into_stream = name.endswith(("out_proj.weight", "linear2.weight"))
                shrunk = sqrt(2 * self.config.layers) if into_stream else 1.0
                init.normal_(parameter, 0.0, 0.02 / shrunk)
            elif name.endswith("bias"):
                init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token numbers (batch, T) -> scores of the token after each (batch, T, vocabulary)."""
        check_tokens("GPT", tokens, 2)
        return self._scores(self._run(tokens, None, None))

    def initial_state(self, batch: int = 1, capacity: int | None = None) -> list[KVCache]:
        """An empty cache of each block for `capacity` positions (None: `config.length`)."""
        if capacity is None:
            capacity = self.config.length
        known = capacity if self.positions is None else min(capacity, self.config.length)
        filled = CacheLength(known, self.embedding.weight.device)
        return [block.initial_state(batch, capacity, filled) for block in self.blocks]

    @property
    def limit(self) -> int:
        """The most positions that are seen at once."""
        return self.config.length

    def clear(self, state: list[KVCache]) -> None:
        """Empty the caches, whose memory stays."""
        for length in {cache.filled for cache in state}:
            length.number = 0

    def read(self, tokens: Tensor, state: list[KVCache]) -> Tensor:
        """The scores of the next token (batch, vocabulary) after further tokens (batch, T).

        The state then holds them, too; after an error it is as before. Nothing is recorded. Raises
        ValueError for more positions than the state has room for, and for a state of another model.
        """
        check_tokens("GPT", tokens, 2)
        if len(state) != len(self.blocks) or len({cache.filled for cache in state}) != 1:
            raise ValueError(f"GPT was given a state of {len(state)} caches of "
                             f"{sorted({cache.length for cache in state})} positions; wanted "
                             f"{len(self.blocks)} of one initial_state()")
        with no_grad(), state[0].filled.adding(tokens.shape[1]) as new:
            return self._scores(self._run(tokens, state, new)[:, -1])

    def step(self, tokens: Tensor, state: list[KVCache]) -> Tensor:
        """As `read`, of one token (batch,) each."""
        return self.read(tokens.reshape((-1, 1)), state)

    def _run(self, tokens: Tensor, state: list[KVCache] | None, new: NewPositions | None) -> Tensor:
        """The stream behind the last norm (batch, T, width)."""
        length = tokens.shape[1]
        if new is None and length > self.config.length:
            raise ValueError(f"GPT was given positions 0 to {length}; wanted at most "
                             f"{self.config.length}")
        with self.places(tokens.device) as place:
            with place("stream 0"):
                x = self.embedding(tokens)
                if self.positions is not None:
                    x = x + self.positions(_numbers(new, length, tokens.device))
                x = self.dropout(x)
            for i, block in enumerate(self.blocks):
                with place.saved(f"stream {(i + 1) % 2}"):
                    x = block(x, None if state is None else state[i])
            with place.saved("norm output"):
                return normalized(self.norm, x, for_products=True)

    def _scores(self, x: Tensor) -> Tensor:
        return F.linear(x, (self.embedding if self.head is None else self.head).weight)

    @classmethod
    def from_gpt2(cls, path: str | PathLike[str], heads: int | None = None,
                  device: DeviceLike = None) -> GPT:
        """The model of a GPT-2 checkpoint in safetensors, as published.

        Args:
            path: a file with `wte.weight`, `wpe.weight`, `h.0.attn.c_attn.weight` and so on, with
                or without "transformer." before each name. Linear weights are stored transposed.
            heads: None for one for each 64 features, as all published sizes have.
            device: where the parameters are put.

        Raises CheckpointMismatch, which names it, for a tensor that is missing or of another shape.

        Source: Radford et al., 2019; names of the checkpoints on huggingface.co/openai-community.
        """
        with safe_open(path, device) as file:
            prefix = "transformer." if "transformer.wte.weight" in file else ""
            needed = [prefix + "wte.weight", prefix + "wpe.weight",
                      prefix + "h.0.mlp.c_fc.weight"]
            shapes = [_shape_in(file, name) for name in needed]
            if any(len(shape) != 2 for shape in shapes):
                raise CheckpointMismatch(f"{path} has {', '.join(needed)} of shapes {shapes}; "
                                         "wanted matrices")
            (vocabulary, width), (length, _), (_, hidden) = shapes
            layers = len({name.removeprefix(prefix).split(".")[1] for name in file
                          if name.startswith(f"{prefix}h.")})
            # So that the model is about as large as the file, before it is made.
            wanted = {"wpe.weight": (length, width)}
            for number in range(layers):
                wanted[f"h.{number}.attn.c_attn.weight"] = width, 3 * width
                wanted[f"h.{number}.mlp.c_fc.weight"] = width, hidden
            for name, shape in wanted.items():
                if _shape_in(file, prefix + name) != shape:
                    raise CheckpointMismatch(
                        f"{path} has {prefix}{name} of shape {_shape_in(file, prefix + name)}; "
                        f"wanted {shape}")
            if heads is None and (width % 64 or not width):
                raise CheckpointMismatch(f"{path} has a width of {width}, which is no multiple of "
                                         "64; wanted the number of heads, too")
            head = "lm_head.weight" in file
            heads = width // 64 if heads is None else heads
            config = GPTConfig(vocabulary, layers, width, heads, None, hidden, length, "gelu_tanh",
                               "layer", False, True, tied=not head)
            model = cls(config, device)
            state = {}
            for name in model.state_dict():
                source, transposed = _gpt2_name(name)
                source = source if name == "head.weight" else prefix + source
                _shape_in(file, source)
                value = file.get_tensor(source)
                if value.dtype.kind not in "fV":
                    raise CheckpointMismatch(f"{path} has {source} of dtype {value.dtype}; wanted "
                                             "floating-point weights")
                state[name] = value.mT if transposed else value
        model.load_state_dict(state)
        return model


def _numbers(new: NewPositions | None, length: int, device: Device) -> Tensor:
    """The numbers of so many positions: of new ones of a cache, or from 0."""
    if new is not None and new.start is None:
        first = new.first.reshape((1,))
        return first if length == 1 else first + arange(length, device=device)
    start = 0 if new is None or new.start is None else new.start
    return arange(start, start + length, device=device)


def _shape_in(file: safe_open, name: str) -> tuple[int, ...]:
    """A tensor's shape in a checkpoint of GPT-2. Raises CheckpointMismatch if it is missing."""
    if name not in file:
        raise CheckpointMismatch(f"{file.path} has no {name}; wanted a checkpoint of GPT-2")
    return file.entry(name).shape


_GPT2 = {
    "norm1": "ln_1", "norm2": "ln_2", "self_attn.in_proj": "attn.c_attn",
    "self_attn.out_proj": "attn.c_proj", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj",
}
_GPT2_WHOLE = {
    "embedding.weight": "wte.weight", "positions.weight": "wpe.weight",
    "norm.weight": "ln_f.weight", "norm.bias": "ln_f.bias", "head.weight": "lm_head.weight",
}


def _gpt2_name(name: str) -> tuple[str, bool]:
    """The name in GPT-2's checkpoints, and whether the weight is stored transposed there."""
    if name in _GPT2_WHOLE:
        return _GPT2_WHOLE[name], False
    _, number, part = name.split(".", 2)
    part = part.replace("in_proj_", "in_proj.")  # PyTorch's name has no dot there
    module, kind = part.rsplit(".", 1)
    return f"h.{number}.{_GPT2[module]}.{kind}", kind == "weight" and not module.startswith("norm")
