"""EMA: an exponential moving average of a module's weights, to evaluate with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gtensor.creation.new_tensors import asarray, empty, tensor
from gtensor.engine.handle.context import again, no_grad
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.updates import moving_average
from gtensor.system.documents import UNLOADED, Facts
from gtensor.system.interrupts import Undone, undivided

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.ordering import Replays
    from gtensor.backend.typing import Array, Params
    from gtensor.nn.module import Module

_PREFIX = "module."  # of the names in PyTorch's AveragedModel


class EMA:
    """average = decay * average + (1 - decay) * weight, for every parameter of a module.

        ema = gt.optim.EMA(model, decay=0.999)
        ...
        optimizer.step()
        ema.update()
        ...
        with ema.swapped():
            evaluate(model)

    Args:
        module: its parameters are averaged; they are tracked by identity.
        decay: the share of the average that an update keeps, from 0 to 1.
        use_buffers: average floating buffers (running statistics) too. Otherwise, and for integers,
            the module's own buffers serve with the averages.
        warmup: keep only min(decay, (1 + n) / (10 + n)) in update n = 0, 1, ..., so that the
            average forgets the first weights (as in TensorFlow's ExponentialMovingAverage).

    The first update copies, as PyTorch's `AveragedModel(multi_avg_fn=get_ema_multi_avg_fn(decay))`
    does, with the same values. Averages of half types are kept in float32, which keeps small steps.
    Memory: one copy of the parameters, made here; an update allocates a tile.

    Raises ValueError for another decay, or a module without parameters.
    """

    def __init__(
        self, module: Module, decay: float = 0.999, *, use_buffers: bool = False,
        warmup: bool = False,
    ) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"decay={decay} given; wanted a number from 0 to 1")
        self.module = module
        self.decay = decay
        self.use_buffers = use_buffers
        self.warmup = warmup
        self.n_averaged = 0
        self._swapped = False
        followed: list[tuple[str, Tensor]] = list(module.named_parameters())
        if not followed:
            raise ValueError(f"{type(module).__name__} has no parameters to average; wanted some")
        if use_buffers:
            followed += [(n, b) for n, b in module.named_buffers() if is_floating(b.dtype)]
        self._averages = {name: empty(value.shape, computed_in(value.dtype), value.device)
                          for name, value in followed}
        with no_grad():
            for name, value in followed:
                self._averages[name][...] = value

    @again
    def update(self) -> None:
        """Take the module's weights into the averages, in place.

        A captured update takes, in each replay, the next number and the decay of by then.

        Raises RuntimeError within `swapped()`, and while a graph is captured if it is the first
        update, which copies; ValueError or DeviceError if a weight no longer fits its average.
        Nothing is changed then.
        """
        if self._swapped:
            raise RuntimeError("update() within swapped(), where the module holds the averages; "
                               "update after the block")
        together: dict[tuple[Device, Any], list[tuple[Tensor, Tensor]]] = {}
        for weight, average in self._pairs():
            together.setdefault((average.device, weight.dtype), []).append((weight, average))
        captured = {device: replays for device, _ in together
                    if (replays := device.replays()) is not None}
        if captured and not self.n_averaged:
            raise RuntimeError(
                f"the first update of {self!r} was to be captured into a graph, each replay of "
                "which would copy the weights again; wanted a first one before it")
        live = {device: self._next_weight(device, replays, count=not number)
                for number, (device, replays) in enumerate(captured.items())}
        if not self.n_averaged:  # a copy that is interrupted is made again by the next call
            with no_grad():
                for pairs in together.values():
                    for weight, average in pairs:
                        average[...] = weight
            self.n_averaged = 1
            return
        writes = []
        for (device, _), pairs in together.items():
            weights, averages = ([*some] for some in zip(*pairs, strict=True))
            params: Params = {"options": [{"weight": 1 - self._share()}]}
            if device in live:
                params["live"] = [live[device]]
            writes.append(Write(moving_average.average, averages, weights, params))

        def count() -> None:
            self.n_averaged += not captured

        with no_grad():
            write_all(writes, count)

    def _next_weight(self, device: Device, replays: Replays, count: bool) -> Array:
        """A number in device memory, which each replay sets to the share of the weights then."""
        number = replays.empty((1,), "float64", "average")

        def refresh() -> None:
            device.upload(number, (1 - self._share(),))
            self.n_averaged += count

        replays.functions[refresh] = refresh
        return number

    def _share(self) -> float:
        """The share of the averages that the next update keeps."""
        n = self.n_averaged
        return min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Every weight of the module with its average, checked."""
        weights = self._weights()
        for name, average in self._averages.items():
            weight = weights.get(name)
            if weight is None or weight.shape != average.shape:
                found = "missing" if weight is None else f"of shape {weight.shape}"
                raise ValueError(f"{name!r} of {type(self.module).__name__} is {found}, and its "
                                 f"average of shape {average.shape}; make the EMA after changing "
                                 "the module")
            if weight.device is not average.device or computed_in(weight.dtype) != average.dtype:
                raise ValueError(f"{name!r} of {type(self.module).__name__} is {weight.dtype} on "
                                 f"{weight.device}, and its average {average.dtype} on "
                                 f"{average.device}; make the EMA after moving or converting the "
                                 "module")
        return [(weights[name], average) for name, average in self._averages.items()]

    def _weights(self) -> dict[str, Tensor]:
        """The module's tensors that may have an average, each under its first name."""
        weights: dict[str, Tensor] = dict(self.module.named_parameters())
        weights.update(self.module.named_buffers() if self.use_buffers else ())
        return weights

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The module holds the averages within the block, and its own weights after it, exactly.

        The weights are kept in a copy meanwhile. They are overwritten in place, so a graph recorded
        before the block cannot be walked after it.

        Raises RuntimeError in a block of the same EMA.
        """
        if self._swapped:
            raise RuntimeError("swapped() within swapped(); the module holds the averages already")
        pairs = self._pairs()
        with no_grad():
            own = [(weight, weight.detach().clone()) for weight, _ in pairs]

        def put_back() -> None:
            _assign(own)
            self._swapped = False

        with Undone(put_back):
            self._swapped = True
            _assign(pairs)
            yield

    def __repr__(self) -> str:
        return (f"EMA({type(self.module).__name__}, decay={self.decay}, "
                f"use_buffers={self.use_buffers}, warmup={self.warmup}, "
                f"n_averaged={self.n_averaged})")

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """PyTorch's layout: "n_averaged" (0-d), and "module.<name>" for each average and buffer.

        The names are those of the module's state: tied weights have an entry for each name, buffers
        that are not persistent have none. The tensors share memory with the averages and with the
        module's buffers.
        """
        weights = self._weights()
        averages = {id(weights[name]): average
                    for name, average in self._averages.items() if name in weights}
        named = {}
        for name, value in self.module.state_dict().items():
            path, _, own = name.rpartition(".")  # perhaps a tied weight: found by identity
            held = getattr(self.module.get_submodule(path), own)
            named[_PREFIX + name] = averages.get(id(held), value)
        return {"n_averaged": tensor(self.n_averaged, device="cpu"), **named}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Copy the averages of a `state_dict()`, or of PyTorch's AveragedModel.

        Its buffers are ignored; the module's own state has them. Raises ValueError, with nothing
        changed, which names what is missing or of another shape.
        """
        facts = Facts("the EMA's state given", state, UNLOADED)
        unsaved = dict(self.module.named_buffers()).keys() - self.module.state_dict().keys()
        values = {name: asarray(state[_PREFIX + name]) if _PREFIX + name in state else None
                  for name in self._averages if name not in unsaved}
        wrong = [f"{name!r} is missing" if value is None else
                 f"{name!r} has shape {value.shape}, wanted {self._averages[name].shape}"
                 for name, value in values.items()
                 if value is None or value.shape != self._averages[name].shape]
        if wrong or "n_averaged" not in state:
            wrong += ["'n_averaged' is missing"] * ("n_averaged" not in state)
            raise ValueError(f"the state given does not fit this EMA: {'; '.join(wrong)}; nothing "
                             "was loaded")
        averaged = facts.count("n_averaged")
        with undivided():
            _assign((self._averages[name], value) for name, value in values.items()
                    if value is not None)
            self.n_averaged = averaged


def _assign(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Overwrite each first tensor by the second, in its dtype and on its device."""
    with no_grad():
        ready = [(place, value.detach().to(place.device).to(place.dtype)) for place, value in pairs]
        for place, value in ready:
            place[...] = value
