"""Module: parameters, buffers and submodules by attribute, with PyTorch's names and state dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gtensor.creation.new_tensors import zeros
from gtensor.engine.handle.context import again, no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.cached_values import CachedValue
from gtensor.nn.conversion import Movable, value_of
from gtensor.nn.hooks import Hooked
from gtensor.nn.parameter import Parameter
from gtensor.ops.updates.clipping import total_norm
from gtensor.system import structure
from gtensor.system.documents import UNLOADED, Facts
from gtensor.system.interrupts import undivided
from gtensor.system.late_imports import foreign
from gtensor.system.written_code import enter_class


class Mismatch(NamedTuple):
    """The names that `load_state_dict(strict=False)` did not find in the state or in the module."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module(Movable, Hooked):
    """A part of a network. Subclasses assign parameters and modules in `__init__`, write `forward`.

        class Block(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.norm = nn.LayerNorm(width)
                self.linear = nn.Linear(width, width)

            def forward(self, x: gt.Tensor) -> gt.Tensor:
                return x + self.linear(self.norm(x)).relu()

    Assigning a Parameter or a Module registers it under the attribute's name; other state that
    belongs to the module (running statistics) is registered with `register_buffer`.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _transient: set[str]
    _made_at: object  # the time, as recorded steps count it
    _late_buffers: Mapping[str, tuple[int, ...]] = {}  # made only while it runs: name -> shape

    def __init__(self) -> None:
        for name, value in (("_parameters", {}), ("_buffers", {}), ("_modules", {}),
                            ("_transient", set()), ("_forward_pre_hooks", {}),
                            ("_forward_hooks", {}), ("training", True),
                            ("_made_at", structure.age)):
            object.__setattr__(self, name, value)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("gtensor."):
            enter_class(cls, check=True)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's computation; every subclass defines it."""
        raise TypeError(f"{type(self).__name__} was called but has no forward(); write one")

    # -- registration -----------------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.register_module(name, value)
        elif name in self._registry("_buffers"):
            self._set_registered("_buffers", name, _tensor_or_none(self, "buffer", name, value))
        elif name in self._registry("_modules") and value is None:
            self._set_registered("_modules", name, None)
        elif name in self._registry("_parameters"):
            if value is not None:
                raise TypeError(
                    f"{type(self).__name__}.{name} is a parameter and was assigned "
                    f"{type(value).__name__}; wanted a Parameter or None (to write its values: "
                    f"with gt.no_grad(): module.{name}[...] = values)")
            self._set_registered("_parameters", name, None)
        else:
            if not structure.same(self.__dict__.get(name, structure), value):
                self._note_change(name, "set")
            object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # with it, a checker would accept any name

        def __getattr__(self, name: str) -> Any:
            """Registered names; Python calls it only if there is no ordinary attribute."""
            known = self.__dict__
            if "_modules" in known:  # else it is not set up
                if name in known["_modules"]:
                    return known["_modules"][name]
                if name in known["_parameters"]:
                    return known["_parameters"][name]
                if name in known["_buffers"]:
                    return known["_buffers"][name]
            return foreign("gtensor.nn.Module", name, type(self).__name__,
                           lambda: [n for n in dir(self) if n[0] != "_" and n != name])

    def __delattr__(self, name: str) -> None:
        self._note_change(name, "deleted")
        for kind in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(kind, {}):
                del self.__dict__[kind][name]
                self._transient.discard(name)
                return
        object.__delattr__(self, name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make `param` the module's attribute `name`; None keeps the place empty."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"parameter {name!r} was given {type(param).__name__}; wanted a "
                            "Parameter or None")
        self._register("_parameters", name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make `tensor` state of the module that is saved (if persistent) but not trained."""
        self._register("_buffers", name, _tensor_or_none(self, "buffer", name, tensor))
        if not persistent:
            self._transient.add(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Make `module` the attribute `name`."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"module {name!r} was given {type(module).__name__}; wanted a Module "
                            "or None")
        self._register("_modules", name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """`register_module`, by PyTorch's older name."""
        self.register_module(name, module)

    def _register(self, kind: str, name: str, value: Tensor | Module | None) -> None:
        registry = self._registry(kind, needed=True)
        if not name or "." in name:
            raise ValueError(f"name {name!r} given; wanted one without a dot that is not empty")
        if hasattr(type(self), name):
            raise ValueError(f"{type(self).__name__} has an attribute {name!r} of its class; "
                             "choose another name")
        if registry.get(name, structure) is not value:
            self._note_change(name, "replaced" if name in registry else "registered")
        self.__dict__.pop(name, None)
        for other in ("_parameters", "_buffers", "_modules"):
            if other != kind:
                self.__dict__[other].pop(name, None)
        self._transient.discard(name)
        registry[name] = value

    def _set_registered(self, kind: str, name: str, value: Tensor | Module | None) -> None:
        """Let a registered name have another value."""
        registry = self.__dict__[kind]
        if registry.get(name) is not value:
            self._note_change(name, "replaced")
        registry[name] = value

    def _note_change(self, name: str, how: str) -> None:
        """Tell recorded steps of a change, if any of them may have read this module."""
        if self.__dict__.get("_made_at") is not structure.age:
            structure.changed(f"{type(self).__name__}.{name} was {how}")

    def _registry(self, kind: str, needed: bool = False) -> dict[str, Any]:
        registry = self.__dict__.get(kind)
        if registry is None:
            if needed:
                raise AttributeError(f"{type(self).__name__} registers before it is set up; call "
                                     "super().__init__() first in its __init__")
            return {}
        return registry

    # -- what it holds ----------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules, with their names."""
        for name, module in self._modules.items():
            if module is not None:
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        for _, module in self.named_children():
            yield module

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module (named `prefix`) and all below, each once, outer before inner."""
        seen: set[Module] = set()
        for name, module in self._walk(prefix):
            if module not in seen:
                seen.add(module)
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all below, each once."""
        for _, module in self.named_modules():
            yield module

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below, as often as they occur."""
        yield prefix, self
        for name, module in self.named_children():
            yield from module._walk(_joined(prefix, name))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters (without recurse only this module's own) with their dotted names.

        Each comes once, shared ones under their first name.
        """
        return self._members("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, or only this module's own, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers, or only this module's own, with their dotted names, each once."""
        return self._members("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, or only this module's own, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The module below at a dotted name; this module for "".

        Raises AttributeError naming the first part that is not there.
        """
        module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(f"submodule {target!r} of {type(self).__name__} asked for; "
                                     f"{type(module).__name__} has no module {name!r}")
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted name; AttributeError if there is none."""
        return self._member("_parameters", "parameter", target)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted name; AttributeError if there is none."""
        return self._member("_buffers", "buffer", target)

    def _member(self, kind: str, what: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        found = owner.__dict__[kind].get(name)
        if found is None:
            raise AttributeError(f"{what} {target!r} of {type(self).__name__} asked for; "
                                 f"{type(owner).__name__} has no {what} {name!r}")
        return found

    def _members(self, kind: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self._walk(prefix) if recurse else ((prefix, self),):
            for name, value in module.__dict__[kind].items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield _joined(path, name), value

    def weight_norm(self) -> Tensor:
        """The Euclidean norm of all parameters together, 0-d, float32 or wider, without history.

        It is kept until one of them is written, as `Parameter.kept_norm`. Without
        parameters it is 0. Raises DeviceError for parameters on different devices.
        """
        parameters = tuple(self.parameters())
        if not parameters:
            return zeros(())
        kept = self.__dict__.setdefault("_weight_norm", CachedValue())
        return kept.get(parameters, lambda: total_norm(parameters)[0])

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and persistent buffers by their dotted names, as PyTorch names them.

        The tensors share the module's memory, so later loads and updates change them.
        """
        found: dict[str, Tensor] = {}
        for path, module in self._walk(prefix):
            for name, value in module._saved():
                found[_joined(path, name)] = value.detach()
        return found

    def load_state_dict(self, state_dict: Mapping[str, object], strict: bool = True) -> Mismatch:
        """Copy values into parameters and buffers, casting to their dtype and device.

        Args:
            state_dict: by dotted name; tensors, or anything that `gtensor.asarray` takes; PyTorch's
                parameters, too.
            strict: whether the names must be exactly the module's own. Of a buffer that a module
                makes only while it runs, an absent name means that there is none yet.

        Raises ValueError, with nothing changed (PyTorch loads what fits), which lists every missing
        or unexpected name (if strict) and every shape that differs.
        """
        places = {_joined(path, name): value for path, module in self._walk()
                  for name, value in module._saved()}
        late = self.late_buffers()
        Facts(f"the state given to {type(self).__name__}", state_dict, UNLOADED)
        mismatch = Mismatch(
            [name for name in places if name not in state_dict and name not in late],
            [name for name in state_dict if name not in places and name not in late])
        values = {name: value_of(state_dict[name]) for name in (*places, *late)
                  if name in state_dict}
        wrong = []
        if strict:
            wrong += [f"{what} {', '.join(map(repr, names))}" for what, names in
                      zip(("missing", "unexpected"), mismatch, strict=True) if names]
        shapes = {name: value.shape for name, value in places.items()}
        shapes |= {name: shape for name, (_, _, shape) in late.items()}
        wrong += [f"{name!r} has shape {value.shape}, wanted {shapes[name]}"
                  for name, value in values.items() if value.shape != shapes[name]]
        if wrong:
            raise ValueError(f"the state given does not fit {type(self).__name__}: "
                             f"{'; '.join(wrong)}; nothing was loaded")
        for value in values.values():
            value._refuse_cut("load_state_dict()")
        with no_grad():
            home = next((place.device for place in places.values()), None)
            ready = {name: value.detach().to(places[name].device).to(places[name].dtype)
                     if name in places else value.detach().to(home or value.device).clone()
                     for name, value in values.items()}
            with undivided():
                for name, value in ready.items():
                    if name in places:
                        places[name][...] = value
                for name, (module, own, _) in late.items():
                    if name not in places or strict and name not in ready:
                        module._set_registered("_buffers", own, ready.get(name))
        return mismatch

    def late_buffers(self) -> dict[str, tuple[Module, str, tuple[int, ...]]]:
        """By its name here, each buffer that a module makes only while it runs.

        The module that has it, its name there, and its shape.
        """
        return {_joined(path, name): (module, name, shape) for path, module in self._walk()
                for name, shape in module._late_buffers.items()}

    def _saved(self) -> Iterator[tuple[str, Tensor]]:
        """This module's own parameters and persistent buffers."""
        for registry in (self._parameters, self._buffers):
            for name, value in registry.items():
                if value is not None and name not in self._transient:
                    yield name, value

    # -- modes ------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set `training` here and below: dropout drops, batch norm uses the batch."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """The opposite of `train()`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let all parameters be trained, or frozen. Returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    @again
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or fill them with zeros."""
        for parameter in self.parameters():
            if parameter.requires_grad and set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                with no_grad():
                    parameter.grad[...] = 0

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call `fn` on this module and all below, inner before outer. Returns the module."""
        for module in self.children():
            Module.apply(module, fn)  # a module below may use the name for its own purpose
        fn(self)
        return self

    # -- text -------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """The text between the brackets of the module's repr."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ")
                 for name, module in self._modules.items()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        body = "\n  ".join([*([self.extra_repr()] if self.extra_repr() else []), *lines])
        return f"{type(self).__name__}(\n  {body}\n)"

    def _repr_html_(self) -> str:
        """What a notebook shows: the modules as a tree, with the number of their parameters."""
        return _tree(self)


def _tree(module: Module, name: str = "", depth: int = 0, most: int = 16) -> str:
    """A module and those below it as HTML; of more than `most` in one module some of both ends."""
    from gtensor.system.notebook import tree

    held = [(name, below) for name, below in module._modules.items() if below is not None]
    shown = held if len(held) <= most else [*held[:3], *held[-3:]]
    branches = [_tree(below, f"({name}) ", depth + 1) for name, below in shown]
    if len(shown) < len(held):
        branches.insert(3, tree("...", f"{len(held) - len(shown)} more", (), False))
    count = sum(parameter.size for parameter in module.parameters())
    return tree(f"{name}{type(module).__name__}({module.extra_repr()})",
                f"{count:,} parameters" * bool(count), branches, depth < 2)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _tensor_or_none(module: Module, what: str, name: str, value: object) -> Tensor | None:
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"{what} {name!r} of {type(module).__name__} was given "
                        f"{type(value).__name__}; wanted a Tensor or None")
    return value
