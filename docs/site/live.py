"""What griffe cannot read from the text: ops are functions, and Tensor has methods made of them."""

from __future__ import annotations

import inspect
from typing import Any

import griffe
import numpy as np
import reference  # docs/site/pages.py has put its folder on the path

import gtensor
from gtensor import Tensor
from gtensor.engine.tape.op import Op

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}
# Classes that users get and do not make: their entries have no signature of a constructor.
NOT_CALLED = ("distributed.communicator.Communicator", "distributed.work.Work",
              "engine.handle.tensor.Tensor", "profiler.profiles.Profile")


def function(name: str, live: Any, parent: griffe.Object) -> griffe.Function:
    """griffe's picture of a living function."""
    parameters = [
        griffe.Parameter(p.name, kind=_KINDS[p.kind], annotation=None,
                         default=None if p.default is p.empty else repr(p.default))
        for p in inspect.signature(live).parameters.values()]
    made = griffe.Function(name, parameters=griffe.Parameters(*parameters), lineno=1, endlineno=1)
    made.docstring = griffe.Docstring(inspect.getdoc(live) or "", parent=made)
    return made


def constant(name: str, live: Any, parent: griffe.Object) -> griffe.Attribute:
    """griffe's picture of a constant: its value, unless that is an address, and what it is."""
    value, text = repr(live), ""
    if isinstance(live, np.dtype):
        whose = "ml_dtypes'" if name == "bfloat16" else "NumPy's"
        text = f"{whose} dtype, {live.itemsize} bytes an element."
    elif live is gtensor.SAME:
        text = "A partial of `gt.pointwise`: a derivative of 1, which hands the gradient on."
    made = griffe.Attribute(name, value=None if " at 0x" in value else value, lineno=1, endlineno=1)
    made.docstring = griffe.Docstring(text, parent=made)
    return made


class Live(griffe.Extension):
    """Puts what each public name is into its namespace, and the methods made later into Tensor."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.name != "gtensor":
            return
        for full, live in reference.public().items():
            space, _, name = full.rpartition(".")
            parent = pkg[space.removeprefix("gtensor").removeprefix(".")] if "." in space else pkg
            made = inspect.unwrap(live) if callable(live) else live  # of an entrance, its function
            target = f"{getattr(made, '__module__', '')}.{getattr(made, '__qualname__', '')}"
            if full == "gtensor.settings" or target == full:
                continue
            if isinstance(live, Op):
                parent.set_member(name, function(name, live, parent))
            elif callable(live):
                parent.set_member(name, griffe.Alias(name, target, parent=parent))
            elif name not in parent.members or parent is pkg:
                parent.set_member(name, constant(name, live, parent))
        for path in NOT_CALLED:
            pkg[path].del_member("__init__")
        known = pkg["engine.handle.tensor.Tensor"].all_members
        methods = pkg["engine.handle.methods.Methods"]  # declares some, without docstrings
        for name in dir(Tensor):
            live = getattr(Tensor, name)
            if name.startswith("_") or not callable(live) or (
                    name in known and known[name].has_docstring):
                continue
            if name not in methods.members:
                methods.set_member(name, function(name, live, methods))
            declared = methods.members[name]
            declared.docstring = griffe.Docstring(inspect.getdoc(live) or "", parent=declared)
