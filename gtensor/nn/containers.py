"""Modules that hold modules in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from gtensor.nn.module import Module


class _Ordered(Module):
    """Modules by position; their names are their positions, unless given."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self.children()))

    def __getitem__(self, index: int) -> Module:
        modules = list(self.children())
        if not -len(modules) <= index < len(modules):
            raise IndexError(f"module {index} of {len(modules)} asked; wanted {-len(modules)} to "
                             f"{len(modules) - 1}")
        return modules[index]

    def append(self, module: Module) -> Self:
        """Add a module at the end. Returns the container."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end. Returns the container."""
        for module in modules:
            self.append(module)
        return self


class Sequential(_Ordered):
    """Each module is called on the output of the one before.

    `Sequential(first, second)`, or `Sequential({"name": first, "other": second})`.
    """

    def __init__(self, *modules: Module | dict[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            for name, module in modules[0].items():
                self.register_module(name, module)
        else:
            self.extend(modules)  # type: ignore[arg-type]  # `append` says what is wrong

    def forward(self, x: Any) -> Any:
        """The last module's output."""
        for module in self.children():
            x = module(x)
        return x


class ModuleList(_Ordered):
    """A list of modules whose parameters belong to the module that holds the list."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)
