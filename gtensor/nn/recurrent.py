"""Recurrent networks, plain ones, LSTM and GRU, with PyTorch's state dicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import empty, zeros
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.containers import check_layers
from gtensor.nn.layers import DeviceLike
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops import concat, flip, stack, unstack
from gtensor.ops.arrange.shape import clone
from gtensor.ops.define.arguments import refuse_unsupported, same_dtype, want_tensors
from gtensor.ops.recurrent.gru import gru_layer
from gtensor.ops.recurrent.lstm import lstm_layer

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class _Gated(Module):
    """What networks and cells share: parameters of gates, one after another along the first axis.
    """

    _gates: int
    input_size: int
    hidden_size: int
    bias: bool

    def _add_layer(self, ending: str, features: int, device: DeviceLike,
                   dtype: DTypeLike | None) -> None:
        """Register the parameters of a layer, uniform in +-1 / sqrt(hidden_size)."""
        rows, bound = self._gates * self.hidden_size, 1 / math.sqrt(self.hidden_size)
        shapes = (rows, features), (rows, self.hidden_size), (rows,), (rows,)
        for name, shape in zip(_PARAMETERS, shapes, strict=True):
            given = Parameter(empty(shape, dtype, device)) if self.bias or len(shape) > 1 else None
            self.register_parameter(name + ending, given)
            if given is not None:
                init.uniform_(given, -bound, bound)

    def _parameters_of(self, ending: str) -> tuple[Parameter, Parameter, Parameter | None,
                                                   Parameter | None]:
        w_ih, w_hh, b_ih, b_hh = (getattr(self, name + ending) for name in _PARAMETERS)
        return w_ih, w_hh, b_ih, b_hh

    def _check_sizes(self, **sizes: int) -> None:
        for label, size in sizes.items():
            if size < 1:
                raise ValueError(f"{label}={size} given to {type(self).__name__}; wanted a "
                                 "positive number")

    def _check(
        self, x: Tensor, weight: Parameter, features: int, dims: tuple[int, int], wanted: str
    ) -> None:
        """Raise TypeError or ValueError unless an input fits."""
        name = type(self).__name__
        want_tensors(name, input=x)
        if x.ndim not in dims or x.shape[-1] != features:
            raise ValueError(f"{name} was given an input of shape {x.shape}; wanted {wanted}")
        same_dtype(name, input=x, weight=weight)

    def _states(
        self, given: Tensor | tuple[Tensor, ...] | None, count: int, shape: tuple[int, ...],
        like: Tensor,
    ) -> tuple[Tensor, ...]:
        """So many states of a shape: those given, or zeros. Raises where they do not fit."""
        name = type(self).__name__
        if given is None:
            return tuple([zeros(shape, like.dtype, like.device) for _ in range(count)])
        states = given if isinstance(given, (tuple, list)) else (given,)
        if len(states) != count:
            raise ValueError(f"{name} was given {len(states)} state tensors; wanted {count}")
        same_dtype(name, input=like, **{f"state {i}": s for i, s in enumerate(states)})
        for s in states:
            if s.shape != shape:
                raise ValueError(f"{name} was given a state of shape {s.shape} for an input of "
                                 f"shape {like.shape}; wanted {shape}")
        return tuple(states)

    def extra_repr(self) -> str:
        """The sizes, and what is not the default."""
        defaults = {"num_layers": 1, "nonlinearity": "tanh", "bias": True, "batch_first": False,
                    "dropout": 0.0, "bidirectional": False}
        others = [f"{name}={given!r}" for name, usual in defaults.items()
                  if (given := getattr(self, name, usual)) != usual]
        return ", ".join([str(self.input_size), str(self.hidden_size), *others])


class _Network(_Gated):
    """Layers of one kind, in one direction or in two."""

    _count: int  # of the state tensors

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
                 proj_size: int = 0, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        refuse_unsupported(0, type(self).__name__, proj_size=proj_size)
        self._check_sizes(input_size=input_size, hidden_size=hidden_size)
        check_layers(type(self).__name__, num_layers, 1)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self._endings = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            features = hidden_size * len(self._endings) if layer else input_size
            for ending in self._endings:
                self._add_layer(f"_l{layer}{ending}", features, device, dtype)

    def _run(
        self, x: Tensor, state: Tensor | tuple[Tensor, ...] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The outputs of the last layer, and the final states of all."""
        weight, _, _, _ = self._parameters_of("_l0")
        size = self.input_size
        wanted = f"(N, T, {size})" if self.batch_first else f"(T, N, {size})"
        self._check(x, weight, size, (2, 3), f"{wanted} or (T, {size})")
        batched = x.ndim == 3
        turned = batched and self.batch_first
        if not x.shape[1 if turned else 0]:
            raise ValueError(f"{type(self).__name__} was given an input of shape {x.shape}; wanted "
                             "a step at least")
        n = () if not batched else (x.shape[0 if turned else 1],)
        layers = self.num_layers * len(self._endings)
        states = self._states(state, self._count, (layers, *n, self.hidden_size), x)
        if turned:
            x = clone(x.permute_dims((1, 0, 2)))  # all steps are rows of one product
        elif not batched:
            x = x.reshape((x.shape[0], 1, x.shape[1]))
            states = tuple([s.reshape((layers, 1, self.hidden_size)) for s in states])
        x, final = self._layers(x, states)
        found = [stack([each[k] for each in final]) for k in range(self._count)]
        if turned:
            return x.permute_dims((1, 0, 2)), found
        return (x, found) if batched else (x[:, 0], [s[:, 0] for s in found])

    def _layers(
        self, x: Tensor, states: tuple[Tensor, ...]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """(T, N, features) through all layers; dropout acts between two of them."""
        final: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for ending in self._endings:
                y, *last = self._layer(x, [s[len(final)] for s in states],
                                       f"_l{layer}{ending}", bool(ending))
                outputs.append(y)
                final.append(tuple(last))
            x = outputs[0] if len(outputs) == 1 else concat(outputs, axis=-1)
        return x, final

    def _layer(
        self, x: Tensor, states: list[Tensor], ending: str, reverse: bool
    ) -> tuple[Tensor, ...]:
        """The outputs of one layer in one direction, and its final states."""
        raise NotImplementedError


class LSTM(_Network):
    """Layers of long short-term memory.

    An input (T, N, input_size), with batch_first (N, T, input_size), or without a batch
    (T, input_size) gives `output, (h_n, c_n)`: outputs of hidden_size features, twice as many if
    bidirectional, and the last states (layers * directions, N, hidden_size).

    A layer is one record in each direction: its backward pass runs through all steps, two launches
    each on CUDA. Dropout acts on the outputs of all layers but the last, in training. proj_size
    must be 0.

    Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997.
    """

    _gates, _count = 4, 2

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The outputs and the final states; `state` is (h_0, c_0), zeros by default."""
        y, (h, c) = self._run(x, state)
        return y, (h, c)

    def _layer(
        self, x: Tensor, states: list[Tensor], ending: str, reverse: bool
    ) -> tuple[Tensor, ...]:
        h, c = states
        return lstm_layer(x, h, c, *self._parameters_of(ending), reverse=reverse)


class GRU(_Network):
    """Layers of gated recurrent units.

    Inputs and outputs are those of `LSTM`, with one state: `output, h_n`.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014.
    """

    _gates, _count = 3, 1

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs and the final states; `state` is h_0, zeros by default."""
        y, (h,) = self._run(x, state)
        return y, h

    def _layer(
        self, x: Tensor, states: list[Tensor], ending: str, reverse: bool
    ) -> tuple[Tensor, ...]:
        (h,) = states
        return gru_layer(x, h, *self._parameters_of(ending), reverse=reverse)


class RNN(_Network):
    """Layers of plain recurrent units: h = tanh(W x + b + U h + c), or relu of that.

    Args:
        input_size, hidden_size, num_layers: sizes, and how many layers.
        nonlinearity: "tanh" or "relu".
        bias, batch_first, dropout, bidirectional, proj_size: as for `LSTM`.

    Inputs and outputs are those of `LSTM`, with one state: `output, h_n`. Each step is a few ops,
    recorded one by one; `LSTM` and `GRU` have one record a layer.

    Source: Elman, "Finding structure in time", 1990. Raises ValueError for another nonlinearity.
    """

    _gates, _count = 1, 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1,
                 nonlinearity: str = "tanh", bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout,
                         bidirectional, proj_size, device, dtype)
        self.nonlinearity = _nonlinearity(nonlinearity)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs and the final states; `state` is h_0, zeros by default."""
        y, (h,) = self._run(x, state)
        return y, h

    def _layer(
        self, x: Tensor, states: list[Tensor], ending: str, reverse: bool
    ) -> tuple[Tensor, ...]:
        (h,), (w_ih, w_hh, b_ih, b_hh) = states, self._parameters_of(ending)
        act, given, outputs = _NONLINEAR[self.nonlinearity], F.linear(x, w_ih, b_ih), []
        for row in unstack(flip(given, axis=0) if reverse else given):
            h = act(row + F.linear(h, w_hh, b_hh))
            outputs.append(h)
        return stack(outputs[::-1] if reverse else outputs), h


_NONLINEAR = {"tanh": F.tanh, "relu": F.relu}


def _nonlinearity(name: str) -> str:
    if name not in _NONLINEAR:
        raise ValueError(f"nonlinearity={name!r} given; wanted 'tanh' or 'relu'")
    return name


class _Cell(_Gated):
    """One step of a network."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self._check_sizes(input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self._add_layer("", input_size, device, dtype)

    def _inputs(
        self, x: Tensor, state: Tensor | tuple[Tensor, ...] | None, count: int
    ) -> tuple[Tensor, ...]:
        """The input (1, N, input_size) and the states (N, hidden_size)."""
        size, weight = self.input_size, self._parameters_of("")[0]
        self._check(x, weight, size, (1, 2), f"(N, {size}) or ({size},)")
        states = self._states(state, count, (*x.shape[:-1], self.hidden_size), x)
        rows = [s.reshape((math.prod(s.shape[:-1]), self.hidden_size)) for s in states]
        return (x.reshape((1, math.prod(x.shape[:-1]), size)), *rows)


class LSTMCell(_Cell):
    """One step of an LSTM: (N, input_size) or (input_size,) and (h, c) give the next (h, c).

    Args:
        input_size: features of the input.
        hidden_size: features of h and c, (N, hidden_size) or (hidden_size,); zeros if they are not
            given.
        bias: whether both linear maps have one.

    Raises ValueError for sizes below 1 and inputs of another shape. Source: Hochreiter and
    Schmidhuber, 1997.
    """

    _gates = 4

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The next states; zeros are the default of those before."""
        step, h, c = self._inputs(x, state, 2)
        _, h, c = lstm_layer(step, h, c, *self._parameters_of(""))
        shape = *x.shape[:-1], self.hidden_size
        return h.reshape(shape), c.reshape(shape)


class GRUCell(_Cell):
    """One step of a GRU: (N, input_size) or (input_size,) and h give the next h.

    Args:
        input_size: features of the input.
        hidden_size: features of the state h, (N, hidden_size) or (hidden_size,); zeros if it is not
            given.
        bias: whether both linear maps have one.

    Raises ValueError for sizes below 1 and inputs of another shape. Source: Cho et al., 2014.
    """

    _gates = 3

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """The next state; zeros are the default of that before."""
        step, h = self._inputs(x, state, 1)
        _, h = gru_layer(step, h, *self._parameters_of(""))
        return h.reshape((*x.shape[:-1], self.hidden_size))


class RNNCell(_Cell):
    """One step of a plain RNN: (N, input_size) or (input_size,) and h give the next h.

    Args:
        input_size: features of the input.
        hidden_size: features of the state h, (N, hidden_size) or (hidden_size,); zeros if it is not
            given.
        bias: whether both linear maps have one.
        nonlinearity: "tanh" or "relu".

    Raises ValueError for sizes below 1, another nonlinearity and inputs of another shape. Source:
    Elman, 1990.
    """

    _gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True,
                 nonlinearity: str = "tanh", device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = _nonlinearity(nonlinearity)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """The next state; zeros are the default of that before."""
        step, h = self._inputs(x, state, 1)
        w_ih, w_hh, b_ih, b_hh = self._parameters_of("")
        h = _NONLINEAR[self.nonlinearity](F.linear(step[0], w_ih, b_ih) + F.linear(h, w_hh, b_hh))
        return h.reshape((*x.shape[:-1], self.hidden_size))
