"""Clipping of gradients in place, weight normalization (PyTorch's), and activation checkpointing;
parameters as one vector, and sequences as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, TypeVar

from gtensor.creation.generators import repetition
from gtensor.creation.new_tensors import zeros
from gtensor.engine.handle.context import again, grad_enabled, no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.cached_values import CachedValue
from gtensor.engine.run.checkpointing import run_region
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.tape.levels import Traced
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops import concat, stack
from gtensor.ops.arrange.padding import pad
from gtensor.ops.define.arguments import all_tensors, refuse_unsupported, takes_arrays
from gtensor.ops.linalg.norms import vector_norm, weight_norm_op
from gtensor.ops.updates import clipping
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "checkpoint", "clip_grad_norm_", "clip_grad_value_", "pad_sequence", "parameters_to_vector",
    "remove_weight_norm", "vector_to_parameters", "weight_norm",
]


@again
def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False, foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / norm), `norm` being that of all of them together.

    Args:
        parameters: tensors; those without a gradient are skipped.
        max_norm: the largest norm after clipping.
        norm_type: the order of the norm, above 0; float("inf") is the largest absolute value.
        error_if_nonfinite: raise if the norm is infinite or NaN; it waits for the GPU. Without it
            such a norm scales the gradients to 0 or NaN, as in PyTorch.
        foreach: PyTorch's; it changes nothing.

    Returns the norm before clipping, 0-d, on the gradients' device. Each gradient is read once for
    the norm, and read and written once to scale it; nothing waits for the GPU.

    Raises ValueError for a negative `max_norm`, an order that is not above 0, or a norm that is not
    finite, DeviceError for gradients on different devices: before any gradient is changed.
    """
    try:
        order = float(norm_type)
    except ValueError:
        order = 0.0
    if not max_norm >= 0:
        raise ValueError(f"max_norm={max_norm} given; wanted a number of 0 or more")
    if not order > 0:
        raise ValueError(f"norm_type={norm_type!r} given; wanted an order above 0, or inf")
    gradients = _gradients(parameters)
    if not gradients:
        return zeros(())
    norm, factor = clipping.total_norm(gradients, order, float(max_norm))
    with no_grad():
        if error_if_nonfinite and not isfinite(norm.item()):
            raise ValueError(f"the norm of order {order if order < inf else 'inf'} of the gradients"
                             f" is {norm.item()}, so they cannot be clipped; find the op with "
                             "gt.detect_anomaly()")
        if factor.device.type != "cpu" or factor.item() != 1:
            write_all([Write(clipping.scale, some, [factor], {})
                       for some in by_dtype(gradients)])
    return norm


@again
def clip_grad_value_(
    parameters: Iterable[Tensor] | Tensor, clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value].

    `foreach` changes nothing: gradients are clipped together. Raises ValueError for a negative
    `clip_value`, before any gradient is changed.
    """
    if not clip_value >= 0:
        raise ValueError(f"clip_value={clip_value} given; wanted a number of 0 or more")
    params = {"options": [{"limit": float(clip_value)}]}
    with no_grad():
        write_all([Write(clipping.clip, some, [], params)
                   for some in by_dtype(_gradients(parameters))])


def by_dtype(gradients: list[Tensor]) -> list[list[Tensor]]:
    """The gradients in lists of one device and dtype."""
    found: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        found.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    return [*found.values()]


def _gradients(parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    if not isinstance(parameters, Iterable):
        raise TypeError(f"parameters of type {type(parameters).__name__} given; wanted Tensors")
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in given:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"{type(parameter).__name__} given as a parameter; wanted Tensors")
    return [p.grad for p in given if p.grad is not None]


T = TypeVar("T")


def checkpoint(
    function: Callable[..., T], *inputs: object, use_reentrant: bool = False, **kwargs: object
) -> T:
    """function(*inputs, **kwargs), whose records keep the inputs in place of what they saved.

    backward runs the function again when it reaches its first record, and frees the values saved by
    the second run as it passes. So a chain of checkpointed parts keeps the parts' inputs and the
    saved values of one part at a time; it costs a second forward pass.

    Args:
        function: called with the inputs and kwargs; other tensors that it reads, such as parameters
            of a module, get their gradients, too. It must do the same both times. Random numbers of
            gtensor repeat; running statistics of batch norms are updated once.
        inputs, kwargs: anything. Tensors among them (in tuples, lists and dicts, too) are saved and
            guarded; an in-place batch norm on one of them copies it.
        use_reentrant: False, as PyTorch advises.

    Returns the function's result. Only tensors within tuples, lists and dicts are found there;
    records behind other tensors keep their saved values.

    Raises TypeError for a function that cannot be called, ValueError for use_reentrant=True. The
    backward raises GradientError if an input or a saved parameter was written since, or if the
    second run makes other ops or shapes than the first; no `.grad` is changed then.

    Without gradients (`no_grad`), and within `vmap` and `jvp`, it only calls the function. Nesting,
    `retain_graph=True` and `create_graph=True` work; each walk runs the function again. What it
    reads beside its inputs and what its ops saved (a bias, buffers, arrays, a module's mode) must
    not change before: that it is read anew is noticed only where other ops, shapes or options come
    of it.
    """
    refuse_unsupported(False, "checkpoint", use_reentrant=use_reentrant)
    if not callable(function):
        raise TypeError(f"checkpoint was given {type(function).__name__} as its function; wanted "
                        "something to call")
    return run_region(function, inputs, kwargs, repetition())


# -- weight normalization --------------------------------------------------------------------------


M = TypeVar("M", bound=Module)


class _WeightNorm:
    """The pre-hook of a module whose parameter `name` is computed from two others."""

    def __init__(self, name: str, axis: tuple[int, ...], whole: bool) -> None:
        self.name = name
        self.axis = axis  # along which norms are taken
        self.whole = whole  # whether all of the parameter has one norm
        self.norms: CachedValue[Tensor] = CachedValue()
        self.weights: CachedValue[Tensor] = CachedValue()

    def __call__(self, module: Module, args: tuple[object, ...]) -> None:
        object.__setattr__(module, self.name, self.weight(module))

    def parts(self, module: Module) -> tuple[Parameter, Parameter]:
        """The length and the direction."""
        found = [module.get_parameter(self.name + end) for end in ("_g", "_v")]
        return found[0], found[1]

    def weight(self, module: Module) -> Tensor:
        """The weight, recorded; what needs no gradient is kept until a part is written."""
        g, v = self.parts(module)
        if isinstance(g, Traced) or isinstance(v, Traced):
            return weight_norm_op(v, g, None, axis=self.axis)
        if not grad_enabled() or not (g.requires_grad or v.requires_grad):
            return self.weights.get((g, v), lambda: self._made(g, v))
        return self._made(g, v)

    def _made(self, g: Parameter, v: Parameter) -> Tensor:
        return weight_norm_op(v, g, self.norm_of(v), axis=self.axis)

    def norm_of(self, v: Parameter) -> Tensor:
        """The norms of v, without history, in its dtype."""
        if self.whole:
            return v.kept_norm().to(v.dtype)
        return self.norms.get((v,), lambda: self._norms(v))

    def _norms(self, v: Parameter) -> Tensor:
        with no_grad():
            return vector_norm(v, axis=self.axis, keepdims=True)


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Let a parameter be g * v / |v|: its length and its direction are learned apart.

    Args:
        module: its parameter `name` is replaced by `name`_g and `name`_v, with which the weight
            has the value it had. Before each call of the module the weight is computed of them.
        name: of the parameter.
        dim: the axis whose indices have a norm each; None for one norm of the whole parameter.

    Names and shapes of the state are those of PyTorch's function of this name. The norms are kept
    while v is not written, and without gradients the weight, too. Returns the module.

    Raises ValueError if there is no such parameter, or for a `dim` that it does not have.

    Source: Salimans and Kingma, "Weight normalization", 2016.
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"weight_norm was given {name!r} of {type(module).__name__}, which has no "
                         "parameter of that name (or has its norm apart already); wanted one")
    if dim is not None and not 0 <= dim < weight.ndim:  # -1 is PyTorch's name for None
        raise ValueError(f"weight_norm was given dim={dim} for {name!r} of shape {weight.shape}; "
                         "wanted one of its axes, counted from 0, or None")
    axis = tuple(i - weight.ndim for i in range(weight.ndim) if i != dim)
    hook = _WeightNorm(name, axis, dim is None)
    with no_grad():
        g = weight.kept_norm().to(weight.dtype) if dim is None else vector_norm(
            weight, axis=axis, keepdims=True)
        parts = Parameter(g.clone(), weight.requires_grad), Parameter(weight.clone())
    delattr(module, name)
    for end, part in zip(("_g", "_v"), parts, strict=True):
        module.register_parameter(name + end, part)
        part.requires_grad_(weight.requires_grad)
    with no_grad():
        hook(module, ())
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Make the weight a parameter again, with the value that it has. Returns the module.

    Raises ValueError if `weight_norm` was not applied to it.
    """
    hooks = {hook.function: key for key, hook in module._forward_pre_hooks.items()
             if isinstance(hook.function, _WeightNorm) and hook.function.name == name}
    if not hooks:
        raise ValueError(f"remove_weight_norm was given {name!r} of {type(module).__name__}, to "
                         "which weight_norm was not applied; wanted a name to which it was")
    ((found, key),) = hooks.items()
    trained = any(part.requires_grad for part in found.parts(module))
    with no_grad():
        weight = Parameter(found.weight(module).clone(), trained)
    module._note_change("a hook", "removed")
    del module._forward_pre_hooks[key]
    for end in ("_g", "_v", ""):
        delattr(module, name + end)
    module.register_parameter(name, weight)
    return module


# -- vectors and sequences -------------------------------------------------------------------------


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after another: (elements,). Gradients flow to them.

    Raises ValueError for no parameters; for those on different devices and of different dtypes as
    `gtensor.concat` does.
    """
    flat = [p.flatten() for p in parameters]
    if not flat:
        raise ValueError("parameters_to_vector was given no parameters; wanted at least one")
    return concat(flat)


@takes_arrays
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of a vector into the parameters, in place and outside of the tape.

    PyTorch's function lets the parameters be views of the vector; here each keeps its own memory.
    Raises ValueError, before anything is written, unless `vec` is (elements,) of them all.
    """
    targets = list(parameters)
    sizes = [p.size for p in targets]
    if vec.shape != (sum(sizes),):
        raise ValueError(f"vector_to_parameters was given a vector of shape {vec.shape} for "
                         f"parameters of {sum(sizes)} elements; wanted ({sum(sizes)},)")
    start = 0
    with no_grad():
        for parameter, size in zip(targets, sizes, strict=True):
            parameter[...] = vec[start:start + size].reshape(parameter.shape)
            start += size


def pad_sequence(
    sequences: Iterable[Tensor] | Sequence[Tensor], batch_first: bool = False,
    padding_value: float = 0.0, padding_side: str = "right",
) -> Tensor:
    """Sequences (length, ...) of several lengths as one tensor (T, N, ...), T the longest length.

    Args:
        sequences: tensors that differ in their first axis only.
        batch_first: make it (N, T, ...).
        padding_value: behind the end of the shorter ones.
        padding_side: "right", or "left" for padding before their start.

    Raises ValueError for no sequences, other shapes and another side.
    """
    given = all_tensors("pad_sequence", "sequences", sequences)
    shapes = [s.shape for s in given]
    if not given or any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        raise ValueError(f"pad_sequence was given shapes {shapes}; wanted one sequence at least, "
                         "whose shapes differ in the first axis only")
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side={padding_side!r} given; wanted 'left' or 'right'")
    longest, rest = max(shape[0] for shape in shapes), (0, 0) * (len(shapes[0]) - 1)
    padded = []
    for sequence in given:
        missing = longest - sequence.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(pad(sequence, (*rest, *ends), value=padding_value))
    return stack(padded, axis=0 if batch_first else 1)


if TYPE_CHECKING:  # names of other libraries, for type checkers: see `gtensor.system.foreign_names`
    from gtensor.nn import utils as _self

    rnn = clip_grad = convert_parameters = _self
    clip_grad_norm = clip_grad_norm_


_enter(globals(), check=True)
