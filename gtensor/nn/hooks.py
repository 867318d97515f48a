"""Forward hooks of a Module: functions that see, and may replace, its inputs and outputs.

There are no backward hooks of modules: the engine reuses the memory of gradients in place, so the
gradients of a module's outputs never exist all together. Hooks of tensors see gradients one at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from gtensor.engine.handle.hooks import RemovableHandle
from gtensor.nn.running import run
from gtensor.system.bus import bus
from gtensor.system.written_code import refuse_call

Args = tuple[Any, ...]
Options = dict[str, Any]


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class _WithForward(Protocol[P, R]):
    """A module, for checkers: its call takes what its `forward` takes and returns the same."""

    _forward_pre_hooks: dict[int, Hook]
    _forward_hooks: dict[int, Hook]

    @property
    def _modules(self) -> Mapping[str, Any]: ...

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def _call(self, args: Args, kwargs: Options) -> Any: ...


@dataclass(frozen=True)
class Hook:
    """A hook, and whether it takes keyword arguments."""

    function: Callable[..., Any]
    with_kwargs: bool

    def __call__(self, module: Hooked, args: Args, kwargs: Options, *output: object) -> Any:
        """Call the hook."""
        if self.with_kwargs:
            return self.function(module, args, kwargs, *output)
        return self.function(module, args, *output)

    def replaced(self, given: object, args: Args, kwargs: Options) -> tuple[Args, Options]:
        """The arguments after this pre-hook returned `given`."""
        if given is None:
            return args, kwargs
        if not self.with_kwargs:
            return given if isinstance(given, tuple) else (given,), kwargs
        if isinstance(given, tuple) and [type(part) for part in given] == [tuple, dict]:
            return given[0], given[1]
        raise TypeError(f"a forward pre-hook with with_kwargs=True returned {given!r}; wanted None "
                        "or a pair of a tuple (args) and a dict (kwargs)")


class Hooked:
    """Mixin of `Module`: a call runs its pre-hooks, `forward` and its hooks."""

    _forward_pre_hooks: dict[int, Hook]
    _forward_hooks: dict[int, Hook]
    forward: Callable[..., Any]

    def __call__(self: _WithForward[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if bus.listeners:
            return run(self, self._call, args, kwargs)
        try:
            if not self._forward_pre_hooks and not self._forward_hooks:
                return self.forward(*args, **kwargs)
            return self._call(args, kwargs)
        except Exception as error:
            refuse_call(self.forward, args, kwargs, error)
            raise

    def _call(self, args: Args, kwargs: Options) -> Any:
        for hook in list(self._forward_pre_hooks.values()):
            args, kwargs = hook.replaced(hook(self, args, kwargs), args, kwargs)
        output = self.forward(*args, **kwargs)
        for hook in list(self._forward_hooks.values()):
            replacement = hook(self, args, kwargs, output)
            if replacement is not None:
                output = replacement
        return output

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Let `hook(module, args)` be called before each forward; what it returns replaces args.

        With with_kwargs it is `hook(module, args, kwargs)` and returns None or (args, kwargs). The
        handle's `remove()` takes the hook away.
        """
        return _register(self._forward_pre_hooks, Hook(hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Let `hook(module, args, output)` be called after each forward; an output that it returns
        replaces the module's.

        With with_kwargs it is `hook(module, args, kwargs, output)`. The handle's `remove()` takes
        the hook away.
        """
        return _register(self._forward_hooks, Hook(hook, with_kwargs), prepend)


def _register(hooks: dict[int, Hook], hook: Hook, prepend: bool) -> RemovableHandle:
    """Add a hook after the others, or before them."""
    before = dict(hooks) if prepend else {}
    for key in before:
        del hooks[key]
    handle = RemovableHandle(hooks, hook)
    hooks.update(before)
    return handle


def is_plain(module: Hooked, kind: type) -> bool:
    """Whether a call of the module is that kind's `forward` alone, so that an op may do it, too."""
    return (type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks
            and "forward" not in vars(module))  # one of the instance's own, as wrappers set it
