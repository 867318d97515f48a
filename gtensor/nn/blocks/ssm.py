"""The block of a state-space model: a causal convolution, a linear recurrence, a gate.

Inside a block the time is the first axis, so that each step of all sequences is contiguous: the
scan and the convolution read one step after another. The block returns a view with the batch first,
which the next one turns back.
"""

from __future__ import annotations

from math import log, prod
from typing import TYPE_CHECKING, Any

from gtensor.creation.new_tensors import arange, empty, zeros
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.blocks.workspaces import Block, BlockWorkspace
from gtensor.nn.layers import DeviceLike, Linear, residual
from gtensor.nn.module import Module
from gtensor.nn.normalization import RMSNorm
from gtensor.nn.parameter import Parameter
from gtensor.ops import concat, exp, expm1, log1p
from gtensor.ops.activations.smooth_activations import swish_gated

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.nn.context import SharedAttentionContext

LONGEST = 256.0  # steps over which the slowest channels of a gated recurrence average at first
STEP_SIZES = 1e-3, 0.1  # of a selective recurrence at first: Mamba's


class SSMState:
    """What one block has seen of its sequences, whatever their length.

    `window` (K - 1, batch, channels) has the last inputs of the convolution, `hidden` (batch,
    states..., channels) the state of the recurrence. A step writes both in place.
    """

    def __init__(self, window: Tensor, hidden: Tensor) -> None:
        self.window, self.hidden = window, hidden

    def clear(self) -> None:
        """Make it that of before the first step."""
        self.window[...] = 0
        self.hidden[...] = 0


class CausalConvolution(Module):
    """y[t] = bias + weight[0] * x[t - K + 1] + ... + weight[K - 1] * x[t] for each channel alone.

    Its state dict is that of PyTorch's Conv1d(width, width, K, groups=width), and of Mamba's.
    """

    def __init__(self, width: int, kernel: int, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.weight = Parameter(empty((width, 1, kernel), dtype, device))
        self.bias = Parameter(empty(width, dtype, device))
        init.kaiming_uniform_(self.weight, a=5**0.5)
        init.zeros_(self.bias)

    def forward(self, x: Tensor, window: Tensor | None = None) -> Tensor:
        """x (T, N, width) -> the same; before it comes window (K - 1, N, width), by default zeros.

        The window then has the last steps.
        """
        width, _, kernel = self.weight.shape
        steps, before = x.shape[0], kernel - 1
        x = F.pad(x, (0, 0, 0, 0, before, 0)) if window is None else concat([window, x])
        taps = self.weight.permute_dims((2, 1, 0)).reshape((kernel, width))
        y: Tensor = self.bias
        for k in range(kernel):
            y = y + x[k:k + steps] * taps[k]
        if window is not None:
            window[...] = x[steps:]
        return y


class GatedRecurrence(Module):
    """h[t] = a[t] * h[t - 1] + (1 - a[t]) * u[t] with a = sigmoid(gates(u)), for each channel.

    Initially channels average over 2 to 256 steps, in equal ratios.

    Sources: Feng et al., "Were RNNs all we needed?" (minGRU), 2024; De et al., "Griffin", 2024.
    """

    states: tuple[int, ...] = ()

    def __init__(self, width: int, device: DeviceLike = None, dtype: DTypeLike | None = None
                 ) -> None:
        super().__init__()
        self.gates = Linear(width, width, True, device, dtype)
        bias: Any = self.gates.bias
        with no_grad():
            places = arange(width, device=device).astype(bias.dtype) / max(1, width - 1)
            bias[...] = (2 * exp(places * log(LONGEST / 2)) - 1).log()  # a = 1 - 1 / steps

    def terms(self, u: Tensor) -> tuple[Tensor, Tensor, None]:
        """What the scan takes: a and b of u's shape."""
        gates = self.gates(u)
        if gates.dtype != u.dtype:  # of a half type, by `gt.autocast`, which rounds what is near 1
            gates = gates.astype(u.dtype)
        a = F.sigmoid(gates)
        return a, u - a * u, None

    def read(self, h: Tensor, u: Tensor, reading: None) -> Tensor:
        """The states themselves."""
        return h


class SelectiveRecurrence(Module):
    """h[t] = exp(d[t] * A) * h[t - 1] + d[t] * u[t] * B[t], y[t] = C[t] . h[t] + D * u[t].

    Each channel has `state` states. The step size d, B and C depend on the input. Parameters have
    Mamba's names and shapes.

    Source: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.
    """

    def __init__(self, width: int, state: int, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.states = (state,)
        self.rank = -(-width // 16)
        self.x_proj = Linear(width, self.rank + 2 * state, False, device, dtype)
        self.dt_proj = Linear(self.rank, width, True, device, dtype)
        self.A_log = Parameter(empty((width, state), dtype, device))
        self.D = Parameter(empty(width, dtype, device))
        init.ones_(self.D)
        init.uniform_(self.dt_proj.weight, -self.rank**-0.5, self.rank**-0.5)
        bias: Any = self.dt_proj.bias
        least, most = map(log, STEP_SIZES)
        init.uniform_(bias, least, most)
        with no_grad():
            self.A_log[...] = log1p(arange(state, device=device).astype(self.D.dtype))
            bias[...] = expm1(exp(bias)).log()  # softplus of it is the step size

    def terms(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(d * A) and d * u * B, both (..., state, width), and C (..., state) to read with.

        The states lie before the channels: products along the channels are contiguous.
        """
        (n,), rank, lead = self.states, self.rank, u.shape[:-1]
        row = *lead, 1, u.shape[-1]
        packed = self.x_proj(u)
        size = F.softplus(self.dt_proj(packed[..., :rank]))
        a = exp(size.reshape(row) * -exp(self.A_log.permute_dims((1, 0))))
        b = packed[..., rank:rank + n].reshape((*lead, n, 1)) * (size * u).reshape(row)
        return a, b, packed[..., rank + n:]

    def read(self, h: Tensor, u: Tensor, reading: Tensor) -> Tensor:
        """C . h + D * u, of u's shape."""
        y = reading.reshape((*u.shape[:-1], 1, self.states[0])) @ h
        return y.reshape(u.shape) + self.D * u


class SSMBlock(Block):
    """x + mixing(norm(x)), then x + feed_forward(norm(x)); each step sees itself and those before.

    The mixing is a projection, a causal convolution of each channel, SiLU, a linear recurrence
    along the time, and the product with a SiLU gate. The feed-forward part is SwiGLU.

    Args:
        width: features of a position.
        mixer: "gated" (one state for each channel) or "selective" (`state` of them).
        state: states of a channel of the selective recurrence.
        expansion: channels of the recurrence for each feature.
        conv: steps that the convolution sees.
        hidden: features of the feed-forward part; None for 8 / 3 * width rounded up to a multiple
            of 32, 0 for no such part.
        context: what the layers before have learned of their features (`SharedAttentionContext`):
            applied to the input; updated with input and output in training mode.
        workspace: that of the blocks that run before and after, to share its buffers.

    Sources: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023;
    De et al., "Griffin: mixing gated linear recurrences with local attention", 2024.

    Raises ValueError for an unknown mixer, or sizes below 1.
    """

    mixer: GatedRecurrence | SelectiveRecurrence

    def __init__(self, width: int, mixer: str = "gated", state: int = 16, expansion: int = 1,
                 conv: int = 4, hidden: int | None = None, eps: float = 1e-5,
                 context: SharedAttentionContext | None = None,
                 workspace: BlockWorkspace | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__(width, workspace)
        if mixer not in ("gated", "selective"):
            raise ValueError(f"SSMBlock was given mixer={mixer!r}; wanted 'gated' or 'selective'")
        if hidden is None:
            hidden = -(-8 * width // 96) * 32
        if min(width, state, expansion, conv) < 1 or hidden < 0:
            raise ValueError(
                f"SSMBlock was given width={width}, state={state}, expansion={expansion}, "
                f"conv={conv} and hidden={hidden}; wanted 1 or more of each, or hidden=0")
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        inner = expansion * width
        self.norm1 = RMSNorm(width, eps, **place)
        self.in_proj = Linear(width, inner, False, **place)
        self.gate_proj = Linear(width, inner, False, **place)
        self.conv1d = CausalConvolution(inner, conv, **place)
        self.mixer = (GatedRecurrence(inner, **place) if mixer == "gated"
                      else SelectiveRecurrence(inner, state, **place))
        self.out_proj = Linear(inner, width, False, **place)
        self.norm2 = RMSNorm(width, eps, **place) if hidden else None
        self.linear1 = Linear(width, hidden, False, **place) if hidden else None
        self.linear_gate = Linear(width, hidden, False, **place) if hidden else None
        self.linear2 = Linear(hidden, width, False, **place) if hidden else None
        self.context = context

    def forward(self, x: Tensor, state: SSMState | None = None) -> Tensor:
        """(batch, T, width) -> the same.

        With a state, of the steps after those that it has seen; it then has seen these, too, and
        nothing is recorded.
        """
        if x.ndim != 3 or x.shape[2] != self.width:
            raise ValueError(f"SSMBlock was given x of shape {x.shape}; wanted (batch, T, "
                             f"{self.width})")
        if state is None:
            return self._run(x, None)
        if state.hidden.shape[0] != x.shape[0]:
            raise ValueError(f"SSMBlock was given x of shape {x.shape} and the state of "
                             f"{state.hidden.shape[0]} sequences; wanted as many")
        with no_grad():
            return self._run(x, state)

    def _run(self, x: Tensor, state: SSMState | None) -> Tensor:
        given = x = x.permute_dims((1, 0, 2))  # (T, batch, width)
        with self.places(x.device) as place:
            if self.context is not None:
                with place.saved("context"):
                    x = self.context.apply(x)
            with place.saved("norm output"):
                h = self.norm1(x)
            with place.saved("mixing"):
                h = self._mixed(h, state)
            last: Any = self.out_proj
            if self.norm2 is not None:
                with place.saved("residual"):
                    x = residual(x, last, h)
                with place.saved("norm output"):
                    h = self.norm2(x)
                with place.saved("feed-forward"):
                    h = self._gated(h)
                last = self.linear2
        y = residual(x, last, h)
        if self.context is not None and self.training:
            self.context.update(given, y)
        return y.permute_dims((1, 0, 2))

    def _mixed(self, x: Tensor, state: SSMState | None) -> Tensor:
        u = F.silu(self.conv1d(self.in_proj(x), None if state is None else state.window))
        a, b, reading = self.mixer.terms(u)
        initial = None if state is None else state.hidden.reshape(-1)
        flat = len(a), prod(a.shape[1:])  # all channels of all sequences
        h = F.linear_scan(a.reshape(flat), b.reshape(flat), initial).reshape(a.shape)
        if state is not None and len(h):
            state.hidden[...] = h[-1]
        y = self.mixer.read(h, u, reading)  # type: ignore[arg-type]
        return swish_gated(self.gate_proj(x), y)

    def _gated(self, x: Tensor) -> Tensor:
        """The feed-forward part before its last matrix."""
        gate: Any = self.linear_gate
        up: Any = self.linear1
        return swish_gated(gate(x), up(x))

    def widths(self) -> dict[str, int]:
        inner, hidden = self.in_proj.weight.shape[0], 0
        if self.linear1 is not None:
            hidden = self.linear1.weight.shape[0]
        found = {"norm output": self.width, "mixing": inner, "residual": self.width,
                 "feed-forward": hidden}
        return {name: each for name, each in found.items() if each}

    def initial_state(self, batch: int) -> SSMState:
        """The state of `batch` sequences before their first step."""
        inner, _, kernel = self.conv1d.weight.shape
        dtype, device = self.conv1d.weight.dtype, self.conv1d.weight.device
        return SSMState(zeros((kernel - 1, batch, inner), dtype, device),
                        zeros((batch, *self.mixer.states, inner), dtype, device))

    def step(self, x: Tensor, state: SSMState) -> Tensor:
        """The next step (batch, width) of each sequence -> the same; the state moves on."""
        return self.forward(x.reshape((len(x), 1, -1)), state).reshape(x.shape)
