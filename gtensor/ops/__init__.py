"""The op definitions by family, and the public functions over them: each module's `__all__`.

Importing a family defines its ops, so every op has its name from the start. The public functions
over the ops of networks are in `gtensor.nn.functional`. The recurrent family and the attention
context are imported with `gtensor.nn`, as few programs need them.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle import methods
from gtensor.engine.handle.namespaces import public
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.call_text import short_operator, ufunc_of
from gtensor.engine.tape.op import Op, registry
from gtensor.ops.activations import *
from gtensor.ops.arrange import *
from gtensor.ops.arrange import index, shape, writing
from gtensor.ops.arrange.writing import in_place_form
from gtensor.ops.attention import *
from gtensor.ops.conv import *
from gtensor.ops.elementwise import *
from gtensor.ops.fft import *
from gtensor.ops.linalg import *
from gtensor.ops.losses import *
from gtensor.ops.norms import *
from gtensor.ops.order import *
from gtensor.ops.pool import *
from gtensor.ops.reduce import *
from gtensor.ops.scan import *
from gtensor.system.late_imports import late
from gtensor.system.package_names import declared, modules_in
from gtensor.system.written_code import entrance, is_written

if not TYPE_CHECKING:
    __all__ = declared(__name__)
    __getattr__, __dir__ = late(__name__)


def _publish() -> None:
    """Connect the methods and operators of Tensor to the public functions."""
    functions: dict[str, Any] = dict(registry)
    for family in modules_in(__name__):
        for module in modules_in(family.__name__):
            for name in (*getattr(module, "__all__", ()), *getattr(module, "METHODS", ())):
                functions[name] = getattr(module, name)
    for name, function in functions.items():  # which methods call, whose self is a Tensor
        _serve(public, name, getattr(function, "__wrapped__", function))
    for name, function in methods.functions():
        _serve(methods.Methods, name, functions[function])
    for name in methods.IN_PLACE:
        setattr(methods.Methods, f"{name}_", in_place_form(functions[name]))
    for name in ("reshape", "permute_dims"):  # a method's text is its function's
        getattr(methods.Methods, name).__doc__ = functions[name].__doc__
    shorts: dict[str, Any] = {**index.SHORT, **shape.SHORT, **writing.SHORT}
    for name, short in shorts.items():
        general: Any = vars(methods.Methods)[name]
        setattr(methods.Methods, name, property(short(general.fget), doc=general.__doc__)
                if isinstance(general, property) else short(general))
    for name, function in methods.ARITHMETIC.items():
        definition = registry[writing.RECORDS.get(function, function)]
        ufunc, operator = ufunc_of(definition), f"__i{name}__"
        if ufunc is not None:
            general = vars(methods.Methods)[operator]
            setattr(methods.Methods, operator, short_operator(definition, ufunc)(general))
    for kind in Tensor.__mro__[:-1]:
        for name, method in tuple(vars(kind).items()):
            if isinstance(method, FunctionType) and not is_written(method) and (
                    name[0] != "_" or name in methods.CONVERSIONS) and (
                    name not in methods.OWN_ENTRANCE and method.__module__ != Op.__module__):
                setattr(kind, name, entrance(method))


def _serve(holder: object, name: str, function: Any) -> None:
    if isinstance(function, Op):
        function.serve(holder, name)
    else:
        setattr(holder, name, function)


_publish()
