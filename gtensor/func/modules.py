"""Modules as functions of their parameters, and gradients per example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.tensor import Tensor
from gtensor.func.batching import ChunkSize, Randomness, vmap
from gtensor.func.gradients import grad
from gtensor.func.trees import Tree

if TYPE_CHECKING:
    from gtensor.nn import Module


def functional_call(
    module: Module, params: Mapping[str, Tensor], args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """module(*args, **kwargs) with other tensors in the place of its parameters and buffers.

    Args:
        module: an `nn.Module`; it is as before afterwards, also after an error. It must not be
            used by another thread meanwhile.
        params: tensors by the names of `named_parameters()` and `named_buffers()`; what is not
            named stays the module's own. A tensor that several places share is replaced in all.
        args: the arguments as a tuple; anything else is the one argument.
        kwargs: keyword arguments.

    Raises KeyError for a name that the module does not have, ValueError or TypeError for a tensor
    that has not the shape of the one it stands for.

    Source: `torch.func.functional_call`.
    """
    given = args if isinstance(args, tuple) else (args,)
    with _replaced(module, params):
        return module(*given, **(kwargs or {}))


@contextmanager
def _replaced(module: Module, params: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block the module has these tensors."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}  # by the tensor that is there
    own: dict[str, Any] = {}
    for path, part in module._walk():
        registries: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for registry in registries:
            for name, value in registry.items():
                if value is not None:
                    own[f"{path}.{name}" if path else name] = value
                    places.setdefault(id(value), []).append((registry, name))
    for name, value in params.items():
        _check(module, name, value, own)
    try:
        for name, value in params.items():
            for registry, place in places[id(own[name])]:
                registry[place] = value
        yield
    finally:
        for name in params:
            for registry, place in places[id(own[name])]:
                registry[place] = own[name]


def _check(module: Module, name: str, value: object, own: dict[str, Any]) -> None:
    if name not in own:
        raise KeyError(f"functional_call() was given {name!r}, which {type(module).__name__} does "
                       f"not have; wanted some of {', '.join(own) or 'none'}")
    if not isinstance(value, Tensor):
        raise TypeError(f"functional_call() was given {type(value).__name__} for {name!r}; wanted "
                        "a Tensor")
    if value.shape != own[name].shape:
        raise ValueError(f"functional_call() was given a tensor of shape {value.shape} for "
                         f"{name!r} of shape {own[name].shape}; wanted the same")


def per_example_grad(
    loss: Callable[..., Tensor], params: Tree, batch: Tree, *,
    randomness: Randomness = "different", chunk_size: ChunkSize = None,
) -> Tree:
    """The gradient of `loss(params, example)` by the params, for each example of a batch.

    Args:
        loss: takes a tree of parameters and one example, returns a scalar.
        params: a tree of tensors, such as `dict(module.named_parameters())` for `functional_call`.
        batch: a tree of tensors with the examples along the first axis; an example has its
            structure.
        randomness, chunk_size: as of `vmap`; dropout draws for each example.

    Returns a tree of the params' structure with tensors (N, *shape). Raises as `grad` and `vmap`.

    Source: Goodfellow, "Efficient per-example gradient computations", 2015.
    """
    return vmap(grad(loss), (None, 0), 0, randomness, chunk_size=chunk_size)(params, batch)
