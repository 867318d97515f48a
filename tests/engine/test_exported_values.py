"""What is kept of a tensor's values, while and after other code can write its memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.engine.run.cached_values import CachedValue
from gtensor.engine.run.casting import _LeafCasts
from gtensor.nn.utils import weight_norm
from gtensor.ops.updates.casts import cast

EXPORTS: dict[str, Callable[[gt.Tensor], Any]] = {
    "numpy": lambda x: x.detach().numpy(),
    "array": lambda x: x.detach().array,
    "a slice": lambda x: x.detach().numpy()[1:],
    "a slice of a transposed view": lambda x: x.detach().mT.numpy()[..., ::-1][..., 1:],
    "asarray": lambda x: np.asarray(x.detach()),
    "DLPack": lambda x: np.from_dlpack(x.detach()),
    "a buffer": lambda x: np.frombuffer(x.detach().numpy().data, x.dtype),
    "a view of bits": lambda x: x.detach().numpy().view(np.uint8)[..., :4].view(np.float32),
}


def _weight_norm() -> tuple[gt.Tensor, Callable[[], Any]]:
    layer = weight_norm(nn.Linear(3, 4, bias=False))
    x = gt.ones((2, 3))

    def run() -> Any:
        with gt.no_grad():
            return layer(x)
    return layer.weight_v, run


def _autocast() -> tuple[gt.Tensor, Callable[[], Any]]:
    layer = nn.Linear(3, 4, bias=False)
    x = gt.ones((2, 3))
    return layer.weight, lambda: layer(x).astype("float32").detach()


def _context() -> tuple[gt.Tensor, Callable[[], Any]]:
    context = nn.SharedAttentionContext(4, strength=0.5)
    rows = gt.random.normal((6, 4))
    context.update(rows, rows * 2)
    x = gt.ones((2, 4), dtype="float16")
    return context.context, lambda: context.apply(x).astype("float32")


def _norm() -> tuple[gt.Tensor, Callable[[], Any]]:
    parameter = nn.Parameter(gt.random.normal((4, 3)))
    return parameter, parameter.norm


def _norm_of_module() -> tuple[gt.Tensor, Callable[[], Any]]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return next(model.parameters()), model.weight_norm


KEPT = {"a norm": _norm, "a module's norm": _norm_of_module, "weight_norm": _weight_norm,
        "autocast": _autocast, "a context in a half type": _context}


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("name", KEPT)
def test_a_write_through_an_exported_array_is_seen(name: str, export: str) -> None:
    source, run = KEPT[name]()
    with gt.autocast("bfloat16") if name == "autocast" else gt.no_grad():
        for _ in range(2):
            before = run().numpy().copy()
            array = EXPORTS[export](source)
            run()  # kept from before the write, if anything is
            for value in (2.0, 3.0):
                array[...] = value
                assert not np.array_equal(run().numpy(), before), "the values before the write"
                before = run().numpy().copy()
            array[...] = 5.0
            del array  # written after the last run, and gone before the next
            assert not np.array_equal(run().numpy(), before), "the values before the write"
            with gt.no_grad():
                source[...] = gt.random.normal(source.shape)


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("export", EXPORTS)
def test_a_write_through_an_array_from_before_an_update_is_seen(export: str, returns: bool) -> None:
    """`returns`: the context has had other memory meanwhile, and nothing had the array's but it."""
    context = nn.SharedAttentionContext(4, strength=0.5)
    rows, x = gt.random.normal((6, 4)), gt.ones((2, 4), dtype="float16")
    context.update(rows, rows * 2)
    address = context.context._array.ctypes.data
    array = EXPORTS[export](context.context)
    for value in (100.0, 200.0):
        for _ in range(2 if returns else 1):
            held = context.context if returns else None
            context.update(rows, rows * 2)
            del held
        assert context.context._array.ctypes.data == address
        before = context.apply(x).numpy().copy()
        array[...] = value
        assert not np.array_equal(context.apply(x).numpy(), before), "the values before the write"
    del array
    memory = context._memory
    assert len({id(memory.in_dtype(context.context, x.dtype)) for _ in range(3)}) == 1
    assert len(memory.contexts._buffers) == 1 + returns


def test_each_array_that_is_lent_counts_until_it_dies() -> None:
    """Also if two threads lend the first ones at once, which is to be one set."""
    x = gt.ones((4, 3))
    storage = x._own_storage()
    first: set[Any] = set()
    assert storage.lent_with(first) is storage.lent_with(set()) is first
    arrays = [x.numpy() for _ in range(3)]
    numbers = {storage.exports}
    while arrays:
        assert len(first) == len(arrays)
        arrays.pop()
        numbers.add(storage.exports)
    assert not first and len(numbers) == 1
    x.numpy()
    assert storage.exports not in numbers


def test_a_tensor_is_freed_at_once_though_its_array_lives() -> None:
    """No reference cycle keeps its storage."""
    x = gt.ones(3)
    array, storage = x.numpy(), weakref.ref(x._own_storage())
    gc.disable()
    try:
        del x
        assert storage() is None
    finally:
        gc.enable()
    assert array.tolist() == [1, 1, 1]


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "whole": lambda a: a, "0-d": lambda a: a[1, 2, ...], "empty": lambda a: a[:0],
    "reversed": lambda a: a[::-1, ::2], "transposed": lambda a: a.T,
    "broadcast": lambda a: np.broadcast_to(a[0], (3, 5))}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bool", "int64", "q", "float16", "complex64", "longdouble",
                                   "bfloat16", "float8_e5m2"])
def test_a_lent_array_is_the_same_but_in_identity(dtype: str, layout: str) -> None:
    array = LAYOUTS[layout](np.ones((4, 5), getattr(gt, dtype, dtype)))
    made, lender = gt.device("cpu").shared(array)
    assert made is not array
    assert (made.dtype, made.dtype.num) == (array.dtype, array.dtype.num)
    assert (made.shape, made.flags.writeable) == (array.shape, array.flags.writeable)
    if array.size:
        assert (made.strides, made.ctypes.data) == (array.strides, array.ctypes.data)
    alive = weakref.ref(lender)
    view = np.asarray(made[...].view(np.ndarray).T)
    del made, lender
    assert alive() is not None, "a view keeps it"
    del view
    assert alive() is None


def counted(cached: CachedValue[Any], tensor: gt.Tensor) -> int:
    """How often three readings compute."""
    calls: list[int] = []
    for _ in range(3):
        cached.get((tensor,), lambda: calls.append(1))
    return len(calls)


@pytest.mark.parametrize("export", EXPORTS)
def test_values_are_kept_again_once_the_array_has_died(export: str) -> None:
    x, cached = gt.ones((4, 3)), CachedValue[Any]()
    assert counted(cached, x) == 1
    array = EXPORTS[export](x)
    assert counted(cached, x) == 3
    del array
    assert counted(cached, x) == 1
    EXPORTS[export](x)
    assert counted(cached, x) == 1  # not the value from before
    assert counted(cached, x) == 0


def test_a_checkpoint_of_the_weights_costs_one_computation(tmp_path: Any) -> None:
    model = nn.Linear(3, 4)
    cached = [(CachedValue[Any](), p) for p in model.parameters()]
    gt.checkpoint.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    assert [counted(*each) for each in cached] == [1, 1]
    assert [counted(*each) for each in cached] == [0, 0]


def test_casts_are_kept_again_once_the_array_has_died() -> None:
    source, casts = nn.Parameter(gt.ones((4, 3))), _LeafCasts()
    array = source.detach().numpy()
    made = casts.cast(source, gt.bfloat16, cast)
    assert not made.serves(source, gt.bfloat16)
    del array
    assert not made.serves(source, gt.bfloat16)
    assert casts.cast(source, gt.bfloat16, cast).serves(source, gt.bfloat16)


def test_a_kept_value_that_is_written_from_outside_is_computed_anew() -> None:
    x = nn.Parameter(gt.ones(4))
    x.kept_norm().numpy()[...] = 7.0
    assert x.kept_norm().item() == 2.0


def test_nothing_is_kept_of_memory_that_was_made_outside() -> None:
    memory = np.ones(4, np.float32)
    for tensor in (gt.asarray(memory), gt.from_dlpack(memory)):
        x = nn.Parameter(tensor)
        x.kept_norm()
        memory[...] = 3.0
        assert x.kept_norm().item() == 6.0
        memory[...] = 1.0
        assert x.kept_norm().item() == 2.0


@pytest.mark.gpu
def test_a_write_through_an_exported_array_is_seen_on_a_gpu() -> None:
    x = nn.Parameter(gt.ones(4, device="cuda"))
    one = x.kept_norm()
    array = x.detach().array[1:]
    assert x.kept_norm() is not one
    array[...] = 0.0
    assert x.kept_norm().item() == 1.0
    array[...] = 1.0
    del array
    assert x.kept_norm().item() == 2.0
    assert x.kept_norm() is x.kept_norm()
