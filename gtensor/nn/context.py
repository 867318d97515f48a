"""Attention context: how alike a layer's input and output features are, given to the next layer."""

from __future__ import annotations

import threading
from math import isfinite
from typing import Any

from gtensor.backend import Device, DeviceError
from gtensor.creation.new_tensors import zeros
from gtensor.engine.handle.context import grad_enabled, is_recomputing, no_grad, same_again
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.cached_values import CachedValue
from gtensor.engine.run.double_buffer import DoubleBuffer
from gtensor.memory.workspace import Workspace
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops.attention import context as ops
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.system.fork_safety import free_at_forks


class _Memory:
    """What a context works in. Copies and pickles of a module begin with none.

    `lock` is held where the context, in any dtype, is written or taken to be saved by a record.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        free_at_forks(self.lock)
        self.workspaces: dict[Device, Workspace] = {}
        self.contexts = DoubleBuffer()
        self.rounded = DoubleBuffer()
        self.latest: dict[str, Tensor | None] = {"rounded": None}  # the context in a half type
        self.cached: CachedValue[Tensor] = CachedValue()

    def __reduce__(self) -> tuple[object, ...]:
        return _Memory, ()

    def scratch(self, device: Device) -> Any:
        """A function that makes work arrays there: `scratch(name, shape, dtype)`."""
        if device not in self.workspaces:
            self.workspaces.setdefault(device, Workspace(device))
        return self.workspaces[device].get

    def release(self) -> None:
        """Drop all of it that nothing else has."""
        with self.lock:
            for workspace in self.workspaces.values():
                workspace.release()
            self.latest["rounded"] = None
            self.cached.drop()
            self.contexts.drop_free()
            self.rounded.drop_free()

    def in_dtype(self, context: Tensor, dtype: Any) -> Tensor:
        """The context in another dtype, made once after each update."""
        return self.cached.get((context,), lambda: self._converted(context, dtype), dtype)

    def _converted(self, context: Tensor, dtype: Any) -> Tensor:
        self.cached.drop()  # a value that is no longer current must not keep its memory
        before, keep = self.latest["rounded"], grad_enabled()
        fits = before is not None and (before.dtype, before.device) == (dtype, context.device)
        del before
        with no_grad():
            if not fits:
                self.latest["rounded"] = context.to(dtype)
            else:
                _, target = self.rounded.turn(self.latest, "rounded", keep)
                target[...] = context
                self.latest["rounded"] = target
        made: Any = self.latest["rounded"]
        return made


class SharedAttentionContext(Module):
    """A similarity matrix between features, carried from a layer to the next.

        context = nn.SharedAttentionContext(width, strength=nn.Parameter(gt.tensor(0.1)))
        ...
        x = context.apply(x)            # at a layer's start
        y = layer(x)
        context.update(x, y)            # at its end

    Args:
        width: the number of features.
        rate: the share of the newest similarity in the running mean, from 0 to 1.
        strength: how much of the context is mixed in: a number, or a Parameter of shape (), which
            is learned.

    `context` (width, width) is a buffer, None before the first update. It has the dtype that its
    inputs are computed in: float32 for half types, in which small changes would be lost.

    An update writes memory that no open tape has saved, so a step that runs several layers with one
    context has as many contexts, which the next step uses again. Memory that is free is dropped by
    an update under `no_grad()`, and by `release_workspace()`.

    Raises ValueError for a width below 1, a rate outside of 0 to 1, and a strength that is no
    finite number.
    """

    context: Tensor | None
    strength: float | Tensor

    def __init__(self, width: int, rate: float = 0.01, strength: float | Tensor = 0.0) -> None:
        super().__init__()
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"SharedAttentionContext was given width={width!r}; wanted an integer "
                             "of 1 or more")
        if not 0 <= rate <= 1:
            raise ValueError(f"SharedAttentionContext was given rate={rate!r}; wanted a number "
                             "from 0 to 1")
        if isinstance(strength, Tensor):
            if strength.shape or strength.dtype.kind not in "fV":
                raise ValueError(f"SharedAttentionContext was given a strength of shape "
                                 f"{strength.shape} and dtype {strength.dtype}; wanted a number, "
                                 "or a floating-point tensor of shape ()")
        elif not isinstance(strength, (int, float)) or not isfinite(strength):
            raise ValueError(f"SharedAttentionContext was given strength={strength!r}; wanted a "
                             "finite number, or a Parameter of shape ()")
        self.width = width
        self.rate = rate
        self.strength = strength
        self.register_buffer("context", None)
        self._late_buffers = {"context": (width, width)}
        self._memory = _Memory()

    def forward(self, x: Tensor) -> Tensor:
        """`apply(x)`."""
        return self.apply(x)

    def apply(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """x + strength / width * x @ context: (..., width), or (width,) for one step.

        It is x itself if there is no context yet, or if the strength is the number 0. Raises
        ValueError for another width, TypeError for what is no floating-point tensor, DeviceError
        for a context on another device.
        """
        context = self._context_for(x, "apply")
        if context is None:
            return x
        return ops.context_mix(x, context, self.strength, self._memory.scratch(x.device))

    def apply_into(self, x: Tensor, out: Tensor) -> Tensor:
        """`apply(x)` written into `out`, of the shape, dtype and device of x; returns out.

        Raises as `apply`, and ValueError for an out of another kind or one that overlaps x: before
        anything is written. It is recorded; an out that a record saved raises GradientError.
        """
        context = self._context_for(x, "apply_into")
        if not isinstance(out, Tensor) or (out.shape, out.dtype, out.device) != (
                x.shape, x.dtype, x.device):
            given = (f"shape {out.shape}, {out.dtype}, on {out.device}"
                     if isinstance(out, Tensor) else f"type {type(out).__name__}")
            raise ValueError(f"apply_into was given an out of {given}; wanted shape {x.shape}, "
                             f"{x.dtype}, on {x.device}")
        if context is None:
            out[...] = x
            return out
        return ops.context_mix_into(
            out, x, context, self.strength, self._memory.scratch(x.device))

    def update(self, x: Tensor, y: Tensor) -> None:
        """Move the context towards the similarity of a layer's input x and output y.

        Both are (..., width), of one shape and dtype. At most 32 evenly spaced rows are read. With
        the columns of these minus their means, the similarity of feature i of x and feature j of y
        is tanh(cosine), and 0 where the product of their lengths is at most 1e-12. Values that are
        not finite count as 0. The first update starts from a context of zeros. Nothing is recorded,
        and nothing is done when a checkpointed function runs again.

        Raises ValueError, TypeError or DeviceError for tensors that do not fit, LevelError within a
        transform, GradientError in the capture of a graph while a record has saved the context
        (each replay would begin with the same one). Nothing is changed then.
        """
        if is_recomputing():
            return
        ops.check_context("update", self.width, x=x, y=y)
        if (x.shape, x.dtype, x.device) != (y.shape, y.dtype, y.device):
            raise ValueError(f"update was given x of shape {x.shape}, {x.dtype}, on {x.device}, "
                             f"and y of shape {y.shape}, {y.dtype}, on {y.device}; wanted two of "
                             "one kind")
        ops.refuse_traced_update(x, y)
        if not x.size:
            return
        self._check_device(x, "update")
        keep = grad_enabled()
        with self._memory.lock, no_grad():
            self._prepare(x)
            source, target = self._memory.contexts.turn(self._buffers, "context", keep)
            if source is not target and x.device.capturing():
                raise GradientError(
                    "a context that a record has saved was updated in the capture of a graph; "
                    "wanted the update after backward(), or outside of the capture")
            ops.context_update(target, source, x, y, self.rate, self._memory.scratch(x.device))
            if source is not target:
                self._note_change("context", "renewed in other memory")
            self._buffers["context"] = target

    def release_workspace(self) -> None:
        """Drop the work arrays, and the memory of older contexts that no record has saved."""
        self._memory.release()

    def _prepare(self, x: Tensor) -> None:
        """Make the context, or give it the dtype that x is computed in."""
        dtype, context = computed_in(x.dtype), self.context
        if context is None:
            self._set_registered("_buffers", "context",
                                 zeros((self.width, self.width), dtype, x.device))
        elif context.dtype != dtype:
            self._set_registered("_buffers", "context", context.to(dtype))

    def _context_for(self, x: Tensor, name: str) -> Tensor | None:
        """The context in the dtype of x; None if nothing is to be mixed in."""
        ops.check_context(name, self.width, x=x)
        if not isinstance(self.strength, Tensor) and self.strength == 0:
            return None
        with self._memory.lock:
            context = same_again(lambda: self.context)
            if context is None:
                return None
            self._check_device(x, name)
            return context if context.dtype == x.dtype else self._memory.in_dtype(context, x.dtype)

    def _check_device(self, x: Tensor, name: str) -> None:
        context = self.context
        if context is not None and context.device is not x.device:
            raise DeviceError(f"{name} was given x on {x.device} for a context on "
                              f"{context.device}; move the module with .to({str(x.device)!r})")

    def extra_repr(self) -> str:
        strength = "learned" if isinstance(self.strength, Parameter) else self.strength
        return f"{self.width}, rate={self.rate}, strength={strength}"
