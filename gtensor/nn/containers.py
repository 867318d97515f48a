"""Modules that hold modules or parameters: in order, or by name."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, Unpack, overload

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple

    Ms = TypeVarTuple("Ms", default=Unpack[tuple[Any, ...]])  # the types of a Sequential's modules
else:
    from typing import TypeVarTuple

    Ms = TypeVarTuple("Ms")
M = TypeVar("M")  # a member: Module, or Tensor where a Parameter is made of it
A = TypeVar("A", bound=Module)  # to D: the modules of a short Sequential, by position
B = TypeVar("B", bound=Module)
C = TypeVar("C", bound=Module)
D = TypeVar("D", bound=Module)


def _nth(held: list[M], index: int, what: str) -> M:
    if not -len(held) <= index < len(held):
        raise IndexError(f"{what} {index} of {len(held)} asked; wanted {-len(held)} to "
                         f"{len(held) - 1}")
    return held[index]


class _Ordered(Module):
    """Modules by position; their names are their positions, unless given."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self.children()))

    @overload
    def __getitem__(self, index: int) -> Module: ...

    @overload
    def __getitem__(self, index: slice) -> _Ordered: ...

    def __getitem__(self, index: int | slice) -> Module:
        """A module, or a container of some of them, which it shares with this one."""
        if isinstance(index, slice):
            return self._of(dict(list(self._modules.items())[index]))
        return _nth(list(self.children()), index, "module")

    def _of(self, modules: dict[str, Any]) -> _Ordered:
        """The container of a slice."""
        return ModuleList(modules.values())

    def append(self, module: Module) -> Self:
        """Add a module at the end. Returns the container."""
        taken = self._modules  # a slice's names may be larger than their positions
        self.register_module(next(n for n in map(str, count(len(self))) if n not in taken), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end. Returns the container."""
        for module in modules:
            self.append(module)
        return self


_MOST_LAYERS = 1 << 16


def check_layers(name: str, num_layers: int, least: int) -> None:
    """Raise ValueError for a number of layers that none has, such as one given for another."""
    if not least <= num_layers <= _MOST_LAYERS:
        raise ValueError(f"{name} was given num_layers={num_layers}; wanted a number from {least} "
                         f"to {_MOST_LAYERS}")


class Sequential(_Ordered, Generic[*Ms]):
    """Each module is called on the output of the one before.

    `Sequential(first, second)`, or `Sequential({"name": first, "other": second})`. A slice of it
    is a Sequential of the same modules by the same names, as in PyTorch.
    """

    @overload
    def __init__(self: Sequential[A], a: A, /) -> None: ...

    @overload
    def __init__(self: Sequential[A, B], a: A, b: B, /) -> None: ...

    @overload
    def __init__(self: Sequential[A, B, C], a: A, b: B, c: C, /) -> None: ...

    @overload
    def __init__(self: Sequential[A, B, C, D], a: A, b: B, c: C, d: D, /) -> None: ...

    @overload
    def __init__(self: Sequential, *modules: Module) -> None: ...

    @overload
    def __init__(self: Sequential, modules: dict[str, Any], /) -> None: ...

    def __init__(self, *modules: Module | dict[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            for name, module in modules[0].items():
                self.register_module(name, module)
        else:
            self.extend(modules)  # type: ignore[arg-type]  # `append` says what is wrong

    @overload
    def __getitem__(self: Sequential[A, *tuple[Any, ...]], index: Literal[0]) -> A: ...

    @overload
    def __getitem__(self: Sequential[Any, B, *tuple[Any, ...]], index: Literal[1]) -> B: ...

    @overload
    def __getitem__(
        self: Sequential[Any, Any, C, *tuple[Any, ...]], index: Literal[2]) -> C: ...

    @overload
    def __getitem__(self: Sequential[*tuple[Any, ...], D], index: Literal[-1]) -> D: ...

    @overload
    def __getitem__(self, index: int) -> Module: ...

    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: int | slice) -> Module:
        """A module, or a Sequential of some of them, which it shares with this one."""
        return super().__getitem__(index)

    def _of(self, modules: dict[str, Any]) -> _Ordered:
        return Sequential(modules)

    def forward(self, x: Tensor) -> Tensor:
        """The last module's output."""
        for module in self.children():
            x = module(x)
        return x


class ModuleList(_Ordered):
    """A list of modules whose parameters belong to the module that holds the list.

    A slice of it is a ModuleList, numbered anew.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(() if modules is None else modules)

    def insert(self, index: int, module: Module) -> None:
        """Put a module before the one at `index`, as a list does; those behind move on by one."""
        modules = list(self)
        modules.insert(index, module)
        self.register_module(str(len(self)), module)  # checks it
        self._modules = {str(i): held for i, held in enumerate(modules)}


class _Named(Module, Generic[M]):
    """Members of one registry by name, as a dict has them."""

    _kind = "_modules"

    def __len__(self) -> int:
        return len(self._held())

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __contains__(self, name: object) -> bool:
        return name in self._held()

    def __getitem__(self, name: str) -> M:
        held = self._held()
        if name not in held:
            raise KeyError(f"{name!r} asked of {type(self).__name__}; it has "
                           f"{', '.join(map(repr, held)) or 'nothing'}")
        return held[name]

    def __delitem__(self, name: str) -> None:
        self._note_change(name, "deleted")
        del self._held()[name]

    def _held(self) -> dict[str, M]:
        return self.__dict__[self._kind]

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._held().keys()

    def values(self) -> ValuesView[M]:
        """The members."""
        return self._held().values()

    def items(self) -> ItemsView[str, M]:
        """(name, member) pairs."""
        return self._held().items()

    def update(self, members: Mapping[str, M] | Iterable[tuple[str, M]]) -> None:
        """Add members, or replace those of the same names."""
        for name, member in dict(members).items():
            self[name] = member

    def __setitem__(self, name: str, member: M) -> None:
        raise TypeError(f"{type(self).__name__} holds nothing; use ModuleDict or ParameterDict")


class ModuleDict(_Named[Module]):
    """Modules by name, whose parameters belong to the module that holds the dict."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __setitem__(self, name: str, module: Module) -> None:
        self.register_module(name, module)


class ParameterDict(_Named[Tensor]):
    """Parameters by name; a plain tensor becomes one."""

    _kind = "_parameters"

    def __init__(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.register_parameter(name, value if isinstance(value, Parameter) else Parameter(value))


class ParameterList(Module):
    """A list of parameters; a plain tensor becomes one."""

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(() if values is None else values)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._held())

    def _held(self) -> list[Any]:
        return list(self._parameters.values())

    def __getitem__(self, index: int) -> Parameter:
        return _nth(self._held(), index, "parameter")

    def append(self, value: Tensor) -> Self:
        """Add a parameter at the end. Returns the list."""
        parameter = value if isinstance(value, Parameter) else Parameter(value)
        self.register_parameter(str(len(self)), parameter)
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Add parameters at the end. Returns the list."""
        for value in values:
            self.append(value)
        return self
