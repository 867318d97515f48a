"""A state-space model that predicts the next token of a text of any length."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from gtensor.creation.new_tensors import zeros
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.models.language import check_tokens
from gtensor.models.stack import Stack
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.blocks.ssm import SSMBlock, SSMState
from gtensor.nn.containers import ModuleList
from gtensor.nn.context import SharedAttentionContext
from gtensor.nn.layers import DeviceLike, Embedding, Linear
from gtensor.nn.normalization import RMSNorm
from gtensor.nn.parameter import Parameter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

_INTO_STREAM = ("out_proj.weight", "linear2.weight")
_DRAWN = (*_INTO_STREAM, "in_proj.weight", "gate_proj.weight", "gates.weight", "linear1.weight",
          "linear_gate.weight", "embedding.weight", "head.weight")


@dataclass(frozen=True)
class SSMConfig:
    """The sizes of an SSM; the rest as in `nn.blocks.SSMBlock`.

    `tied`: the output's weights are those of the embedding. `context`: the blocks share a
    `SharedAttentionContext` of learnable strength.
    """

    vocabulary: int = 256
    layers: int = 4
    width: int = 128
    mixer: str = "gated"
    state: int = 16  # of a channel, in a selective mixer
    expansion: int = 1
    conv: int = 4
    hidden: int | None = None
    eps: float = 1e-5
    tied: bool = False
    context: bool = False


class SSM(Stack):
    """Token embedding, state-space blocks, norm, and a linear map to the vocabulary.

    Initially weights are normal with standard deviation 0.02, and those that write into the
    residual stream have theirs divided by sqrt(2 * layers); the recurrences begin as their classes
    say. A state has a fixed size, so a text may be of any length.

    Raises ValueError for a config with less than one layer or one token.
    """

    capturable = True  # see `LanguageModel`
    limit: int | None = None
    """The most tokens that a state holds: any number."""

    def __init__(self, config: SSMConfig | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        c = config or SSMConfig()
        super().__init__(c.width)
        self.config = c
        if min(c.vocabulary, c.layers) < 1:
            raise ValueError(f"SSM was given vocabulary={c.vocabulary} and layers={c.layers}; "
                             "wanted 1 or more of each")
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = Embedding(c.vocabulary, c.width, **place)
        context = SharedAttentionContext(
            c.width, strength=Parameter(zeros((), **place))) if c.context else None
        self.blocks = ModuleList([SSMBlock(
            c.width, c.mixer, c.state, c.expansion, c.conv, c.hidden, c.eps, context,
            self.workspace, **place) for _ in range(c.layers)])
        self.norm = RMSNorm(c.width, c.eps, **place)
        self.head = None if c.tied else Linear(c.width, c.vocabulary, False, **place)
        for name, parameter in self.named_parameters():
            if name.endswith(_DRAWN):
                shrunk = sqrt(2 * c.layers) if name.endswith(_INTO_STREAM) else 1.0
                init.normal_(parameter, 0.0, 0.02 / shrunk)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token numbers (batch, T) -> scores of the token after each (batch, T, vocabulary)."""
        check_tokens("SSM", tokens, 2)
        return self._scores(self._run(tokens, None)).permute_dims((1, 0, 2))

    def initial_state(self, batch: int = 1) -> list[SSMState]:
        """The state of each block before the first token."""
        return [block.initial_state(batch) for block in self.blocks]

    def clear(self, state: list[SSMState]) -> None:
        """Make a state that of before the first token; its memory stays."""
        for each in state:
            each.clear()

    def read(self, tokens: Tensor, state: list[SSMState]) -> Tensor:
        """The scores of the next token (batch, vocabulary) after further tokens (batch, T).

        The state then has seen them, too; after an error within the blocks, such as out of memory,
        only some of it has, and it must be cleared. Nothing is recorded.
        """
        check_tokens("SSM", tokens, 2)
        if len(state) != len(self.blocks):
            raise ValueError(f"SSM was given a state of {len(state)} blocks; wanted one of "
                             f"{len(self.blocks)}")
        with no_grad():
            return self._scores(self._run(tokens, state)[-1])

    def step(self, tokens: Tensor, state: list[SSMState]) -> Tensor:
        """As `read`, of one token (batch,) each."""
        check_tokens("SSM", tokens, 1)
        return self.read(tokens.reshape((-1, 1)), state)

    def _run(self, tokens: Tensor, state: list[SSMState] | None) -> Tensor:
        """The stream behind the last norm (T, batch, width)."""
        with self.places(tokens.device) as place:
            with place("stream 0"):
                x = self.embedding(tokens.permute_dims((1, 0))).permute_dims((1, 0, 2))
            for i, block in enumerate(self.blocks):
                with place.saved(f"stream {(i + 1) % 2}"):
                    x = block(x, None if state is None else state[i])
            with place.saved("norm output"):
                y: Tensor = self.norm(x.permute_dims((1, 0, 2)))
                return y

    def _scores(self, x: Tensor) -> Tensor:
        return F.linear(x, (self.embedding if self.head is None else self.head).weight)
