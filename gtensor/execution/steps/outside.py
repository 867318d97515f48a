"""What a function reads from outside: a captured step is recorded anew when it has changed.

A replay does not run the function, so a global number that was changed would go unnoticed. The code
of the function says what it reads: closure cells, globals, default arguments, the attributes of
objects, and the same of the functions that it calls, unless they are gtensor's or of an installed
package. `state()` has the values of numbers, texts, dtypes and the like, and the identity of all
other objects; of small lists, tuples, dicts and sets their items.

Attributes of an nn.Module are left to `system.structure`, which counts when they are set; only what
can change in place, such as a list in an attribute, is read here. So is an attribute of an
optimizer or of another object of gtensor that the function itself reads (`opt.lr`).

Methods and the code of functions count, too. Nothing is kept alive but the function, its cells, its
module's names and the classes whose methods it calls: objects are known by weak references, so that
another object at the place of a dead one is another.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gtensor.backend import Device

_MOST_ITEMS = 64  # of a container whose items are compared
_DEPTH = 3  # of containers and attributes within each other
_MOST_FUNCTIONS = 256
_MOST_PLACES = 512
_MOST_NAMED = 4  # changes named in one message
_MOST_LETTERS = 60  # of a text in a message

State: TypeAlias = tuple[Hashable, ...]
Token: TypeAlias = Any  # what a state has for a value

# Compared by value, told apart by type. Only these are kept from call to call.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range})
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class _Missing:
    """In the place of a value that is not there: an empty cell, a name that was never set."""


_MISSING: Any = _Missing()
_NOTHING: Any = _Missing()  # equal to no value and no token
_GONE: Any = weakref.ref(_Missing())  # dead: it is no object's


class _Identity:
    """Stands for one object, as long as that lives."""

    __slots__ = ("kind", "ref")

    def __init__(self, value: object) -> None:
        self.kind = type(value)
        self.ref = weakref.ref(value, functools.partial(_died, id(value)))


_identities: dict[int, _Identity] = {}  # of living objects, by id
_deaths = [0]  # how many of them have died


def _died(address: int, _: object) -> None:
    _deaths[0] += 1
    _identities.pop(address, None)


def _identity(value: object) -> Token:
    """What stands for an object itself; for one without weak references, its address."""
    known = _identities.get(id(value))
    if known is None or known.ref() is not value:
        if not _has_weak(value):
            return _Address(type(value), id(value))
        known = _identities[id(value)] = _Identity(value)
    return known


def _has_weak(value: object) -> bool:
    return type(value).__weakrefoffset__ != 0


class _Address(NamedTuple):
    """Another object may lie there later, if it has the same type."""

    kind: type
    address: int


class _Value(NamedTuple):
    kind: type
    value: Hashable  # floats by their text: 0.0 is not -0.0, and nan is itself


class _Items(NamedTuple):
    kind: type
    keys: tuple[Token, ...] | None  # of a dict
    items: tuple[Token, ...] | frozenset[Token]


class _Long(NamedTuple):
    """A container that is not looked into."""

    kind: type
    address: int
    length: int
    ends: tuple[Token, ...]


class _Attributes(NamedTuple):
    """Of an object of the user's, or a module or class as a namespace."""

    kind: type
    owner: Token
    keys: tuple[str, ...]
    items: tuple[Token, ...]


# -- which code is read ----------------------------------------------------------------------------

_HOMES = tuple(os.path.join(os.path.realpath(path), "") for path in (
    Path(__file__).parents[2], sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")))


@functools.cache
def _is_foreign_file(name: str) -> bool:
    """Whether code of a file is gtensor's, Python's, or of an installed package."""
    path = os.path.realpath(name)
    return (name.startswith("<frozen") or path.startswith(_HOMES)
            or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts))


@functools.cache
def _is_foreign(module: str) -> bool:
    """The same of a module by its name."""
    if module.partition(".")[0] in ("gtensor", "builtins"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # built in, or made by hand, as that of a notebook is
        return module in sys.builtin_module_names
    return _is_foreign_file(file)


def _is_of_gtensor(kind: type) -> bool:
    """Whether a class is gtensor's, or inherits from one."""
    return any(base.__module__.partition(".")[0] == "gtensor" for base in kind.__mro__)


def _is_module(value: object) -> bool:
    """Whether it is an nn.Module, which lies above this room."""
    return _is_of_gtensor(type(value)) and "_modules" in getattr(value, "__dict__", ())


def _is_namespace(value: object) -> bool:
    """Whether attributes that code names are looked at: the user's modules, classes, objects."""
    if isinstance(value, _FUNCTIONS):
        return False
    if isinstance(value, types.ModuleType):
        return not _is_foreign(value.__name__)
    if isinstance(value, type):
        return not _is_foreign(value.__module__)
    kind = type(value)
    return not _is_of_gtensor(kind) and (hasattr(value, "__dict__")
                                         or not _is_foreign(kind.__module__))


class _Reads:
    """What some code reads by name: globals, attributes of anything, and of globals and cells."""

    def __init__(self, code: types.CodeType) -> None:
        self.names: dict[str, None] = {}
        self.attributes: set[str] = set()
        self.direct: dict[str, set[str]] = {}  # root -> attributes
        self._read(code)

    def _read(self, code: types.CodeType) -> None:
        root = None
        for step in dis.get_instructions(code):
            name = step.opname
            if name in ("LOAD_GLOBAL", "LOAD_NAME"):
                self.names[step.argval] = None
                root = step.argval
            elif name == "LOAD_DEREF":
                root = step.argval
            elif name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                self.attributes.add(step.argval)
                if root is not None:
                    self.direct.setdefault(root, set()).add(step.argval)
                root = None
            elif name not in ("CACHE", "PUSH_NULL"):
                root = None
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._read(inner)


_reads = functools.lru_cache(256)(_Reads)


class _Place:
    """Where a value is read from, and what it is called: "the global `cfg.p` that `f` reads"."""

    __slots__ = ("depth", "key", "of", "path", "source", "what")

    def __init__(self, what: str, path: str, of: str, source: Any, key: str | None = None,
                 depth: int = _DEPTH) -> None:
        self.what, self.path, self.of = what, path, of
        self.source = source  # a cell; a dict, of which `key` is read; else a function to call
        self.key = key
        self.depth = depth

    def read(self) -> Any:
        """The value now."""
        if self.key is not None:
            return self.source.get(self.key, _MISSING)
        if type(self.source) is not types.CellType:
            return self.source()
        try:
            return self.source.cell_contents
        except ValueError:
            return _MISSING


class Outside:
    """What a function, or another object that is called, reads from outside.

    It is made when a step is recorded, since what code reads depends on what it finds, and lives as
    long as its states are compared. Two threads must not call `state` at once.

    `reads` is False if there is nothing. `whole` is False if the function calls so much other code
    that some of it was left out.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        walk = _Walk(function)
        self.whole = walk.whole
        self.attributes = tuple(sorted(walk.attributes))  # that the code names
        cells = [p for p in walk.places if type(p.source) is types.CellType]
        named = [p for p in walk.places if p.key is not None]
        self._calls = [p for p in walk.places if p not in cells and p not in named]
        self._cells = [p.source for p in cells]
        self._named = [(p.source, p.key) for p in named]
        self._places = [*cells, *named, *self._calls]
        self.reads = bool(self._places)
        self._plain: list[Any] = [_NOTHING] * len(self._places)  # the values seen last
        self._refs: list[Any] = [_GONE] * len(self._places)  # of other objects
        # of lists of objects: the type, the deaths until then, the items' ids
        self._ids: list[Any] = [None] * len(self._places)
        self._tokens: list[Token] = [_NOTHING] * len(self._places)
        self._makers: dict[type, Callable[[Any, int], Token]] = {}
        self._state: State = ()
        self.state()

    def state(self) -> State:
        """What the function would find now, to be compared with another state of this object.

        It is the same tuple as the last one if nothing has changed.
        """
        try:
            values = [cell.cell_contents for cell in self._cells]
        except ValueError:  # one is empty
            values = [place.read() for place in self._places[:len(self._cells)]]
        if self._named:
            values += [names.get(key, _MISSING) for names, key in self._named]
        if self._calls:
            values += [place.source() for place in self._calls]
        for value, plain, ref in zip(values, self._plain, self._refs, strict=True):
            if value is not plain and (value is not ref() or value is None):
                break
        else:
            return self._state
        moved = [self._note(i, value) for i, value in enumerate(values)]
        if True in moved:
            self._state = tuple(self._tokens)
        return self._state

    def _note(self, i: int, value: Any) -> bool:
        """Store what a place has; whether it is something else than before."""
        kind, ids = type(value), None
        if kind is list or kind is tuple:
            ids = kind, _deaths[0], [*map(id, value)]
            if ids == self._ids[i]:
                return False
        token = self._token(value, self._places[i].depth)
        self._plain[i] = value if kind in _PLAIN else _NOTHING
        self._refs[i] = token.ref if type(token) is _Identity else _GONE
        alone = type(token) is _Items and {*map(type, token.items)} == {_Identity}
        self._ids[i] = ids if alone else None
        if token == self._tokens[i]:
            return False
        self._tokens[i] = token
        return True

    def _token(self, value: Any, depth: int) -> Token:
        """What a state has for a value."""
        kind = type(value)
        make = self._makers.get(kind)
        if make is None:
            make = self._makers[kind] = self._maker(value)
        return make(value, depth)

    def _maker(self, value: Any) -> Callable[[Any, int], Token]:
        """What makes the tokens of a type of values."""
        kind = type(value)
        if kind in _PLAIN:
            return lambda value, _: _Value(kind, _exact(value))
        if value is _MISSING:
            return lambda value, _: value
        if isinstance(value, (Enum, np.generic)):
            return lambda value, _: _Value(kind, repr(value))
        if isinstance(value, (np.dtype, Device)):
            return lambda value, _: _Value(kind, str(value))
        if isinstance(value, _CONTAINERS):
            return self._container
        if isinstance(value, (type, types.ModuleType)):
            return lambda value, depth: (
                self._namespace if _is_namespace(value) else _alone)(value, depth)
        return self._namespace if _is_namespace(value) else _alone

    def _namespace(self, value: Any, depth: int) -> Token:
        found = {} if not depth else {
            name: self._token(held, depth - 1) for name in self.attributes
            if (held := _attribute(value, name)) is not _MISSING}
        return _Attributes(type(value), _identity(value), tuple(found), tuple(found.values()))

    def _container(self, value: Any, depth: int) -> Token:
        kind, length = type(value), len(value)
        if not depth or length > _MOST_ITEMS:
            ends = (value[0], value[-1]) if length and isinstance(value, (list, tuple)) else ()
            return _Long(kind, id(value), length, tuple([
                self._token(end, 0) for end in ends if not isinstance(end, _CONTAINERS)]))
        if isinstance(value, (set, frozenset)):
            return _Items(kind, None, frozenset([self._token(item, 0) for item in [*value]]))
        if isinstance(value, dict):
            pairs = [*value.items()]
            return _Items(kind, tuple([self._token(key, 0) for key, _ in pairs]),
                          tuple([self._token(held, depth - 1) for _, held in pairs]))
        return _Items(kind, None, tuple([self._token(item, depth - 1) for item in value]))

    # -- in words ---------------------------------------------------------------------------------

    def changed(self, before: State, after: State) -> str:
        """What differs between two states, for a message; "" if nothing does.

        "the global `temperature` was 0.5 and is 0.7; the closure's `net` is another Linear".
        """
        found = [text for place, old, new in zip(self._places, before, after, strict=True)
                 for text in _differences(place, place.path, old, new)]
        more = len(found) - _MOST_NAMED
        return "; ".join([*found[:_MOST_NAMED], *[f"and {more} more"] * (more > 0)])


def _alone(value: Any, _: int) -> Token:
    return _identity(value)


def _exact(value: Any) -> Hashable:
    """Floats by their text: 0.0 is not -0.0, and nan is itself."""
    if type(value) is float:
        return value.hex()
    if type(value) is complex:
        return value.real.hex(), value.imag.hex()
    return value


def _attribute(owner: Any, name: str) -> Any:
    """A value that an object, a module or a class has under a name, without running any code."""
    own = getattr(owner, "__dict__", None)
    if own is not None and name in own:
        found = own[name]
        return _MISSING if isinstance(owner, type) and hasattr(found, "__get__") else found
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            if type(found) is types.MemberDescriptorType and not isinstance(owner, type):
                return getattr(owner, name, _MISSING)  # of __slots__
            return _MISSING if hasattr(found, "__get__") or _is_foreign(base.__module__) else found
    return _MISSING


def _differences(place: _Place, path: str, old: Token, new: Token) -> Iterator[str]:
    """The differences of two tokens at a place, each at the innermost path."""
    if old == new:
        return
    mine, its = _parts(old), _parts(new)
    found = []
    if mine is not None and its is not None and old.kind is new.kind and (
            old.owner == new.owner if isinstance(old, _Attributes) else [*mine] == [*its]):
        found = [text for step in {**mine, **its} for text in _differences(
            place, path + step, mine.get(step, _MISSING), its.get(step, _MISSING))]
    yield from found or [f"{place.what} `{path}`{place.of} {_compared(old, new)}".strip()]


def _parts(token: Token) -> dict[str, Token] | None:
    """What is in a container or an object, by how code names it; None for other values."""
    if isinstance(token, _Attributes):
        return {f".{key}": item for key, item in zip(token.keys, token.items, strict=True)}
    if not isinstance(token, _Items) or isinstance(token.items, frozenset):
        return None
    if token.keys is None:
        return {f"[{i}]": item for i, item in enumerate(token.items)}
    form = ".{}" if token.kind is _Named else "[{!r}]"
    return {form.format(key.value if isinstance(key, _Value) else key): item
            for key, item in zip(token.keys, token.items, strict=True)}


def _compared(old: Token, new: Token) -> str:
    if old is _MISSING:
        return f"was not there and is {_said(new)}"
    if new is _MISSING:
        return f"was {_said(old)} and is gone"
    if old.kind is not new.kind or isinstance(old, _Value):
        return f"was {_said(old)} and is {_said(new)}"
    if not isinstance(old, (_Items, _Long)):
        return f"is another {old.kind.__name__}"
    counts = [t.length if isinstance(t, _Long) else len(t.items) for t in (old, new)]
    return ("has other items" if counts[0] == counts[1] else
            f"had {counts[0]} items and has {counts[1]}")


def _said(token: Token) -> str:
    """A token as words of a message."""
    if isinstance(token, _Value):
        value: Any = token.value
        if token.kind is float:
            return repr(float.fromhex(value))
        if token.kind is complex:
            return repr(complex(*map(float.fromhex, value)))
        text = repr(value) if token.kind in _PLAIN else value
        return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
    name = "object" if token.kind is _Named else token.kind.__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# -- what code can reach ---------------------------------------------------------------------------


class Version:
    """Stands for the code that a step runs, until some of it is replaced."""


class _Code:
    """The user's functions and methods that a step runs, which a reloaded module replaces."""

    def __init__(self) -> None:
        self._functions: dict[int, tuple[Any, types.CodeType]] = {}  # weak references, by id
        # by the class's id and the name: how to read it, and a reference to what it was
        self._methods: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._version = Version()

    def is_some(self) -> bool:
        return bool(self._functions or self._methods)

    def function(self, function: types.FunctionType) -> None:
        """Note a function, whose code may be replaced."""
        self._functions[id(function)] = weakref.ref(function), function.__code__

    def method(self, kind: type, name: str) -> Any:
        """What a class has under a name; that of the user's classes is noted."""
        for base in kind.__mro__:
            if name in vars(base):
                found = vars(base)[name]
                if hasattr(found, "__get__") and not _is_foreign(base.__module__):
                    self._methods[id(base), name] = vars(base).get, name, _reference(found)
                return found
        return None

    def version(self) -> Version:
        """The same object, unless something has been replaced since it was asked for."""
        moved = False
        for key, (get, name, ref) in self._methods.items():
            found = get(name)
            if found is not ref():
                self._methods[key] = get, name, _reference(found)
                moved = True
        for number, (ref, code) in self._functions.items():
            function = ref()
            if function is not None and function.__code__ is not code:
                self._functions[number] = ref, function.__code__
                moved = True
        if moved:
            self._version = Version()
        return self._version


def _reference(value: Any) -> Callable[[], Any]:
    """A weak reference to it, if there can be one."""
    return weakref.ref(value) if _has_weak(value) else lambda: value


class _Named(dict[str, Any]):
    """Some attributes of an object."""


class _Walk:
    """The places that a function and those that it calls read, found once."""

    def __init__(self, function: Any) -> None:
        self.whole = True
        self.places: list[_Place] = []
        self.attributes: set[str] = set()  # that any of the code reads, of anything
        self._code = _Code()
        self._placed: set[tuple[int, str | None]] = set()  # cells, and names of dicts
        self._visited: dict[tuple[int, int], Any] = {}  # by id; they must live until the end
        self._modules: dict[int, Any] = {}
        owner = function.__self__ if isinstance(function, types.MethodType) else function
        if not isinstance(owner, (functools.partial, type)) and _is_namespace(owner):
            self._add("", "self", "", _reference(owner))
        self._reach(function, None, _DEPTH)
        for module in self._modules.values():
            if self._changeable(module):
                self._add("", type(module).__name__, "",
                          functools.partial(_of_living, weakref.ref(module), self._changeable),
                          depth=_DEPTH + 1)
        if self._code.is_some():
            self._add("the", "code", " of what it calls", self._code.version)
        self._visited.clear()
        self._modules.clear()

    def _add(self, what: str, path: str, of: str, source: Any, key: str | None = None,
             depth: int = _DEPTH) -> _Place:
        """A place, noted once."""
        place = _Place(what, path, of, source, key, depth)
        if (id(source), key) not in self._placed:
            if len(self.places) < _MOST_PLACES:
                self._placed.add((id(source), key))
                self.places.append(place)
            else:
                self.whole = False
        return place

    def _reach(self, value: Any, reads: _Reads | None, depth: int) -> None:
        """Visit what code may run that has this value, and reads attributes of these names."""
        names = () if reads is None else reads.attributes
        if isinstance(value, functools.partial):
            given: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
            for key, each in given.items():
                self._add("the argument", str(key), " of a partial", given, key)
                self._reach(each, reads, depth - 1)
            self._reach(value.func, reads, depth)
        elif isinstance(value, types.MethodType):
            if isinstance(value.__func__, types.FunctionType):
                self._function(value.__func__, value.__self__)
        elif isinstance(value, types.FunctionType):
            self._function(value, None)
        elif isinstance(value, type):
            if not _is_foreign(value.__module__):
                for name in ("__init__", "__call__", "forward", *names):
                    self._method(value, None, name)
        elif isinstance(value, types.ModuleType):
            for name in names if depth and _is_namespace(value) else ():
                self._reach(vars(value).get(name), reads, depth - 1)
        elif _is_module(value):
            self._module(value)
        elif isinstance(value, _CONTAINERS):
            for item in [*(value.values() if isinstance(value, dict) else value)][:_MOST_ITEMS]:
                if depth:
                    self._reach(item, reads, depth - 1)
        elif "__wrapped__" in getattr(value, "__dict__", ()):  # such as a cached function
            self._reach(value.__wrapped__, reads, depth)
        elif _is_of_gtensor(type(value)):  # such as a transformed function
            for each in [*getattr(value, "__dict__", {}).values()]:
                if isinstance(each, (*_FUNCTIONS, functools.partial)):
                    self._reach(each, reads, depth)
        elif depth and type(value) not in _PLAIN and _is_namespace(value):
            for name in ("__call__", *names):
                self._method(type(value), value, name)
                self._reach(getattr(value, "__dict__", {}).get(name), reads, depth - 1)

    def _method(self, kind: type, owner: Any, name: str) -> None:
        """The function that a class, of which `owner` is an object, has under a name."""
        found = self._code.method(kind, name)
        for part in ("fget", "func", "__func__"):  # of properties, cached ones, static methods
            found = getattr(found, part, None) or found
        if isinstance(found, types.FunctionType):
            self._function(found, owner)

    def _module(self, module: Any) -> None:
        """An nn.Module and those below: their `forward`s and hooks."""
        if id(module) in self._modules:
            return
        self._modules[id(module)] = module
        known = vars(module)
        if "forward" in known:
            self._reach(known["forward"], None, _DEPTH)
        for name in ("forward", "__call__"):
            self._method(type(module), module, name)
        for hook in [*known["_forward_pre_hooks"].values(), *known["_forward_hooks"].values()]:
            self._reach(hook.function, None, _DEPTH)
        for below in [*known["_modules"].values()]:
            if below is not None:
                self._module(below)

    def _changeable(self, module: Any) -> _Named:
        """The attributes of a module that change without being set, and those of its class."""
        found = _Named()
        for name in sorted(self.attributes):
            value = _attribute(module, name)
            if value is not _MISSING and name not in _REGISTRIES and (
                    name not in vars(module) or isinstance(value, (list, dict, set, deque))
                    or not isinstance(value, (type, types.ModuleType)) and _is_namespace(value)):
                found[name] = value
        return found

    def _function(self, function: types.FunctionType, owner: Any) -> None:
        """What a function reads; its owner is the object whose method it is, if any."""
        key = id(function), id(type(owner) if _is_module(owner) else owner)
        if key in self._visited:
            return
        if len(self._visited) == _MOST_FUNCTIONS:
            self.whole = False
            return
        of = f" that `{function.__name__}` reads" if self._visited else ""
        self._visited[key] = function, owner
        if _is_module(owner):
            self._module(owner)
        code, cells = function.__code__, function.__closure__ or ()
        if _is_foreign_file(code.co_filename):  # perhaps it calls a function that it was given
            for inside in (_inside(cell) for cell in cells):
                if isinstance(inside, (*_FUNCTIONS, functools.partial)) or _is_module(inside):
                    self._reach(inside, None, _DEPTH)
            self._reach(vars(function).get("__wrapped__"), None, _DEPTH)
            return
        if len(self._visited) > 1:
            self._code.function(function)
        reads = _reads(code)
        self.attributes |= reads.attributes
        self._reach(vars(function).get("__wrapped__"), reads, _DEPTH)
        for name, cell in zip(code.co_freevars, cells, strict=True):
            if name != "__class__":
                self._read("the closure's", name, of, cell, None, reads)
        for name in reads.names:
            held = function.__globals__.get(name, _MISSING)
            if not (isinstance(held, types.ModuleType) and _is_foreign(held.__name__)
                    or held is _MISSING and hasattr(builtins, name)):
                self._read("the global", name, of, function.__globals__, name, reads)
        for name in _defaults(function):
            place = self._add("the default of", name, f" of `{function.__name__}`" * bool(of),
                              functools.partial(_default, function, name))
            self._reach(place.read(), reads, _DEPTH)
        if owner is not None:
            kind = owner if isinstance(owner, type) else type(owner)
            for name in reads.attributes:
                self._method(kind, owner, name)
                self._reach(getattr(owner, "__dict__", {}).get(name), reads, _DEPTH - 1)

    def _read(self, what: str, name: str, of: str, source: Any, key: str | None,
              reads: _Reads) -> None:
        """A cell or a global of a function."""
        place = self._add(what, name, of, source, key)
        value = place.read()
        direct = tuple(sorted(reads.direct.get(name, ())))
        if _is_of_gtensor(type(value)) and not _is_module(value) and _direct(place, direct):
            self._add(what, name, of, functools.partial(_direct, place, direct), depth=_DEPTH + 1)
        self._reach(value, reads, _DEPTH)


_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules", "_transient",
                         "_forward_pre_hooks", "_forward_hooks"})


def _of_living(ref: Any, find: Callable[[Any], Any]) -> Any:
    value = ref()
    return _MISSING if value is None else find(value)


def _inside(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _direct(place: _Place, names: tuple[str, ...]) -> Any:
    """The attributes of gtensor's object at a place that code reads there, such as `opt.lr`."""
    owner = place.read()
    own = getattr(owner, "__dict__", {})
    found = _Named({name: own[name] for name in names if name in own})
    if "lr" in names and "param_groups" in own:
        found["lr"] = owner.lr
    return found


def _defaults(function: types.FunctionType) -> list[str]:
    """The names of the parameters that have a default."""
    code, given = function.__code__, function.__defaults__ or ()
    return [*code.co_varnames[code.co_argcount - len(given):code.co_argcount],
            *(function.__kwdefaults__ or ())]


def _default(function: types.FunctionType, name: str) -> Any:
    """The default of a parameter now."""
    code, given = function.__code__, function.__defaults__ or ()
    if name in (function.__kwdefaults__ or ()):
        return function.__kwdefaults__[name]  # type: ignore[index]
    place = code.co_varnames.index(name) - code.co_argcount
    return given[place] if -len(given) <= place < 0 else _MISSING
