"""Pytrees: values nested in dicts, lists, tuples, named tuples and dataclasses.

Every other object is a leaf, None too. Types that are registered with the library optree, in its
global namespace, are containers where it has been imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, ParamSpec, TypeAlias, TypeVar

from gtensor.engine.handle.tensor import Tensor

Tree: TypeAlias = Any
# Of a function that is transformed: its parameters, its result, what it returns beside that.
P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")
Rebuild: TypeAlias = Callable[[list[Any]], Tree]


def parts_of(tree: Tree) -> tuple[dict[str, Any], Rebuild] | None:
    """The parts of a container by their names, and what rebuilds it of others; None for a leaf."""
    if isinstance(tree, Tensor) or tree is None:
        return None
    kind = type(tree)
    if isinstance(tree, dict):
        return ({f"[{key!r}]": part for key, part in tree.items()},
                lambda parts: _like(tree, dict(zip(tree, parts, strict=True))))
    if isinstance(tree, (tuple, list)):
        if hasattr(tree, "_fields"):
            names = [f".{name}" for name in tree._fields]
            return dict(zip(names, tree, strict=True)), lambda parts: kind(*parts)
        return {f"[{i}]": part for i, part in enumerate(tree)}, kind
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in fields(tree) if field.init]
        return ({f".{name}": getattr(tree, name) for name in names},
                lambda parts: replace(tree, **dict(zip(names, parts, strict=True))))
    return _registered(tree)


def _like(tree: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
    """The parts in a dict of the tree's type."""
    if type(tree) is dict:
        return parts
    made = tree.copy()  # keeps what a subclass has beside its items
    made.update(parts)
    return made


def _registered(tree: Tree) -> tuple[dict[str, Any], Rebuild] | None:
    """The parts of a type that is registered with optree."""
    optree = sys.modules.get("optree")
    if optree is None:
        return None
    try:
        parts, data, names, rebuild = optree.tree_flatten_one_level(tree, none_is_leaf=True)
    except ValueError:  # a leaf
        return None
    return ({f"[{name!r}]": part for name, part in zip(names, parts, strict=True)},
            lambda parts: rebuild(data, parts))


def leaves(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """The leaves in order, each with its path: "argument 0['w'][1]"."""
    found = None if isinstance(tree, Tensor) else parts_of(tree)  # short for the most frequent leaf
    if found is None:
        return [(path, tree)]
    return [leaf for name, part in found[0].items() for leaf in leaves(part, path + name)]


def rebuilt(tree: Tree, values: Iterable[Any]) -> Tree:
    """A tree of the same structure with other leaves, in the order of `leaves`."""
    return _rebuilt(tree, iter(values))


def _rebuilt(tree: Tree, values: Iterator[Any]) -> Tree:
    found = None if isinstance(tree, Tensor) else parts_of(tree)
    if found is None:
        return next(values)
    parts, rebuild = found
    return rebuild([_rebuilt(part, values) for part in parts.values()])


def mapped(change: Callable[[Any], Any], tree: Tree) -> Tree:
    """The tree with every leaf changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    return rebuilt(tree, [change(leaf) for _, leaf in leaves(tree)])


def at_leaves(tree: Tree, other: Tree, what: str, path: str = "") -> list[Any]:
    """What `other` has where the tree has leaves; a leaf of it stands for all below its place.

    Raises ValueError, which names `what` the other is and the place, if structures differ.
    """
    found = None if isinstance(tree, Tensor) else parts_of(tree)
    if found is None:
        return [other]
    given = parts_of(other)
    if given is None:
        return [other] * len(leaves(tree))
    if found[0].keys() != given[0].keys():
        raise ValueError(f"{what}{path} has {_said(given[0])}; wanted {_said(found[0])}, the "
                         "structure of what belongs to it")
    return [leaf for name, part in found[0].items()
            for leaf in at_leaves(part, given[0][name], what, path + name)]


def _said(parts: dict[str, Any]) -> str:
    return f"{len(parts)} parts ({', '.join(list(parts)[:4])})" if parts else "no part"
