"""GradScaler: a loss scale that keeps small gradients of half types from becoming 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakKeyDictionary

from gtensor.backend import get_device
from gtensor.creation.new_tensors import asarray, full
from gtensor.engine.handle.context import again, no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.nn.utils import by_dtype
from gtensor.ops.updates import loss_scale
from gtensor.system.documents import UNLOADED, Facts
from gtensor.system.interrupts import undivided, undivided_wait

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.optim.optimizer import Optimizer

_ZERO, _INFINITY = 2.0**-150, (2 - 2.0**-24) * 2.0**127  # the nearest that float32 rounds to them
_UNSCALED, _STEPPED = "unscale_", "step"


class GradScaler:
    """Multiplies the loss, divides the gradients, and leaves out steps with infinite ones.

        scaler = gt.optim.GradScaler()
        ...
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)                      # only if gradients are clipped, or read
        gt.optim.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)                          # nothing, if a gradient is infinite or NaN
        scaler.update()

    The scale and what was found lie on the gradients' device, and no call waits for it except
    `get_scale` and `state_dict`. The update's kernel itself leaves out the step: parameters, state
    and step counts stay. After a first step all of it may be captured into a `gt.Graph`. On the CPU
    the optimizer is not called.

    Args:
        device: where the scale lies; None is the device of the first loss or gradient.
        init_scale: the scale at first.
        growth_factor: multiplies the scale after `growth_interval` steps without an infinity.
        backoff_factor: multiplies it after a step with one, down to float32's least normal number.
        growth_interval: see `growth_factor`.
        enabled: if not, `scale` returns the loss, and `step` only calls the optimizer.

    Names and rules are those of `torch.amp.GradScaler`; gradients of half types are scaled, too.

    Raises ValueError for a growth factor of 1 or less, a backoff factor of 1 or more, a scale that
    is not above 0 or an interval below 1.

    Source: Micikevicius et al., "Mixed precision training", 2018.
    """

    def __init__(
        self, device: Device | str | None = None, init_scale: float = 2.0**16,
        growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if not growth_factor > 1:
            raise ValueError(f"growth_factor={growth_factor} given; wanted a number above 1")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"backoff_factor={backoff_factor} given; wanted a number from 0 to 1")
        if not growth_interval >= 1:
            raise ValueError(f"growth_interval={growth_interval} given; wanted 1 or more")
        self._check_scale(init_scale)
        self._enabled = enabled
        self._device = None if device is None else get_device(device)
        self._initial = float(init_scale), 0  # scale and tracker before they are on a device
        self._growth_factor, self._backoff_factor = float(growth_factor), float(backoff_factor)
        self._growth_interval = int(growth_interval)
        self._scale: Tensor | None = None
        self._tracker: Tensor | None = None  # steps without an infinity since the last change
        self._found: WeakKeyDictionary[Optimizer, dict[Device, Array]] = WeakKeyDictionary()
        self._stages: WeakKeyDictionary[Optimizer, str] = WeakKeyDictionary()

    @staticmethod
    def _check_scale(value: float) -> None:
        try:
            number = float(value)
        except OverflowError:  # an integer
            number = inf
        if not _ZERO < number < _INFINITY:  # NaN is not
            raise ValueError(f"a loss scale of {value} given; wanted a finite number above 0, as a "
                             "float32")

    def _placed(self, device: Device) -> Tensor:
        """The scale, which the first call puts on the device."""
        if self._scale is None:
            device = self._device or device
            self._refuse_capture(device)
            scale, tracker = self._initial
            self._scale = full((), scale, dtype="float32", device=device)
            self._tracker = full((), tracker, dtype="int32", device=device)
        return self._scale

    @staticmethod
    def _refuse_capture(device: Device) -> None:
        if device.capturing():
            raise RuntimeError("the first step with a GradScaler was to be captured into a graph, "
                               "each replay of which would start again; wanted a first step before")

    @overload
    def scale(self, outputs: Tensor) -> Tensor: ...

    @overload
    def scale(self, outputs: Iterable[Tensor]) -> Any: ...

    def scale(self, outputs: Any) -> Any:
        """A loss, or those in tuples and lists, times the scale; of half types in float32.

        Raises TypeError for other values.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._placed(outputs.device).to(outputs.device)
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(each) for each in outputs])
        raise TypeError(f"a {type(outputs).__name__} was to be scaled; wanted Tensors, or tuples "
                        "and lists of them")

    @again
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, in place.

        `step` does so if this was not called before. Raises RuntimeError if the gradients of this
        step were divided already.
        """
        if not self._enabled:
            return
        self._enter(optimizer, _UNSCALED)
        gradients = [parameter.grad for group in optimizer.param_groups
                     for parameter in group["params"] if parameter.grad is not None]
        if not gradients:
            return
        found = self._found.setdefault(optimizer, {})
        writes = []
        with no_grad():
            for some in by_dtype(gradients):
                device = some[0].device
                scale = self._placed(device).to(device)
                if device not in found:
                    self._refuse_capture(device)
                    found[device] = device.fill(device.empty((), "float32", "GradScaler"), 0)
                flag = asarray(found[device], device=device)
                writes.append(Write(loss_scale.unscale, [*some, flag], [scale], {}))
            write_all(writes, partial(self._stages.__setitem__, optimizer, _UNSCALED))

    def _enter(self, optimizer: Optimizer, stage: str) -> None:
        """Raise RuntimeError if the optimizer has been there, or further, since `update`."""
        before = self._stages.get(optimizer, "")
        if before in (stage, _STEPPED):
            raise RuntimeError(f"{stage}() of a GradScaler was called after {before}() of the same "
                               "optimizer; wanted update() between")

    @again
    def step(self, optimizer: Optimizer, *args: object, **kwargs: object) -> Any:
        """optimizer.step(), which changes nothing if a gradient is infinite or NaN.

        Raises RuntimeError for a closure, a second step without `update`, and an optimizer none of
        whose parameters has a gradient.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)  # type: ignore[call-overload]
        if args or kwargs:
            raise RuntimeError("step() of a GradScaler was given a closure; wanted gradients that "
                               "were computed before")
        self._enter(optimizer, _STEPPED)
        if self._stages.get(optimizer) != _UNSCALED:
            self.unscale_(optimizer)
        if self._stages.get(optimizer) != _UNSCALED:
            raise RuntimeError(f"step() of a GradScaler was given an {type(optimizer).__name__} "
                               "without gradients; wanted backward() before")
        with undivided_wait():
            result = self._stepped(optimizer, self._found[optimizer])
            self._stages[optimizer] = _STEPPED
        return result

    def _stepped(self, optimizer: Optimizer, found: dict[Device, Array]) -> Any:
        """The step, unless a flag of a device says that a gradient is infinite or NaN.

        On one CUDA device the update's kernel reads the flag; on the CPU, and with gradients on
        several devices, Python does, which waits for them.
        """
        if len(found) > 1 or "cpu" in [device.type for device in found]:
            bad = any(asarray(flag, device=device).item() for device, flag in found.items())
            return None if bad else optimizer.step()
        try:
            (optimizer.skip,) = found.values()
            return optimizer.step()
        finally:
            optimizer.skip = None

    @again
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Change the scale by what was found in this step, or set it.

        Raises RuntimeError if no gradients were divided since the last call.
        """
        if not self._enabled:
            return
        found = [asarray(flag, device=device) for optimizer in self._stages
                 for device, flag in self._found.get(optimizer, {}).items()]
        if new_scale is None and not found:
            raise RuntimeError("update() of a GradScaler was called without a step since the last "
                               "one; wanted step() before")
        if new_scale is not None and not isinstance(new_scale, Tensor):
            self._check_scale(new_scale)
        scale = self._placed(found[0].device if found else get_device(None))
        with no_grad():
            flags = [flag.to(scale.device) for flag in found]
            while len(flags) > 1:
                flags[:2] = [flags[0] + flags[1]]
            with undivided():
                if new_scale is not None:
                    scale[...] = new_scale
                else:
                    write_all([Write(loss_scale.update_scale, [scale, self._counted(),
                                                                      *flags], [], {
                        "growth": self._growth_factor, "backoff": self._backoff_factor,
                        "interval": self._growth_interval})])
                    found = [flag for flag in found if flag is not flags[0]]  # which became 0
                for flag in found:
                    flag[...] = 0
                self._stages.clear()

    def _counted(self) -> Tensor:
        assert self._tracker is not None
        return self._tracker

    def get_scale(self) -> float:
        """The scale, 1 if not enabled; waits for the device."""
        if not self._enabled:
            return 1.0
        return self._initial[0] if self._scale is None else float(self._scale.item())

    def is_enabled(self) -> bool:
        """Whether losses are scaled."""
        return self._enabled

    def get_growth_factor(self) -> float:
        """See the class."""
        return self._growth_factor

    def get_backoff_factor(self) -> float:
        """See the class."""
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        """See the class."""
        return self._growth_interval

    def __getstate__(self) -> dict[str, Any]:
        """All but what lasts from `unscale_` to `update`."""
        return {name: value for name, value in vars(self).items()
                if name not in ("_found", "_stages")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _found=WeakKeyDictionary(), _stages=WeakKeyDictionary())

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's layout, of numbers; empty if not enabled. Waits for the device."""
        if not self._enabled:
            return {}
        tracker = self._initial[1] if self._tracker is None else int(self._tracker.item())
        return {"scale": self.get_scale(), "growth_factor": self._growth_factor,
                "backoff_factor": self._backoff_factor, "growth_interval": self._growth_interval,
                "_growth_tracker": tracker}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a `state_dict()`, PyTorch's too.

        Raises ValueError, with nothing changed, for one that is empty or does not fit. Does nothing
        if not enabled.
        """
        if not self._enabled:
            return
        facts = Facts("the GradScaler's state given", state, UNLOADED)
        scale, growth, backoff = (float(facts.like(name, 1.0)) for name in (
            "scale", "growth_factor", "backoff_factor"))
        interval, tracker = facts.count("growth_interval", 1), facts.count("_growth_tracker")
        made = GradScaler(self._device, scale, growth, backoff, interval)
        with undivided(), no_grad():
            self._growth_factor, self._backoff_factor = made._growth_factor, made._backoff_factor
            self._growth_interval, self._initial = interval, (scale, tracker)
            if self._scale is not None:
                self._scale[...] = scale
                self._counted()[...] = tracker
