"""The mutations: contexts in which gtensor has one fault, which the docstring describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.special
from call_scopes import replaced

from gtensor.backend.host_device import HostDevice
from gtensor.engine.handle import tensor
from gtensor.engine.handle.methods import Methods
from gtensor.engine.handle.node import FREE, WALKED
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run import bind, in_place
from gtensor.engine.tape.levels import Traced, underlying
from gtensor.engine.tape.op import registry
from gtensor.engine.tape.record import Record
from gtensor.engine.tape.taken import Takeable
from gtensor.engine.walk import backward, slots, walk
from gtensor.engine.walk.slots import RawStep
from gtensor.hostcuda.kernels import text as cuda_text
from gtensor.hostcuda.libraries import cub, cublas, cublaslt, cufft, curand, cusolver
from gtensor.memory.arena.chunks import Chunk
from gtensor.memory.arena.free_lists import BlockPool
from gtensor.ops.define import batching, formula_numpy
from gtensor.system.bus import bus
from gtensor.train import trainer

Context = AbstractContextManager[Any]


def _path(name: str, wrap: Callable[[Any], Any]) -> Context:
    """An op whose CPU path is replaced by wrap(the right one)."""
    return patch.object(registry[name], "cpu", wrap(registry[name].cpu))


def _rule(name: str, wrap: Callable[[Any], Any]) -> Context:
    """An op whose backward rule is replaced by wrap(the right one)."""
    return patch.object(registry[name], "backward", wrap(registry[name].backward))


def _scaled(factor: float, when: Callable[[Any], bool] = lambda g: True) -> Callable[[Any], Any]:
    """A rule whose gradients are `factor` times the right ones."""
    def wrap(right: Any) -> Any:
        return lambda ns, step, g: right(ns, step, ns.multiply(g, factor) if when(g) else g)
    return wrap


# -- values ----------------------------------------------------------------------------------------


def value_off() -> Context:
    """exp is too large by a millionth"""
    def wrap(right: Any) -> Any:
        def path(x: Any, out: Any = None) -> Any:
            y = right(x, out)
            y *= np.array(1 + 1e-6, x.dtype)
            return y
        return path
    return _path("exp", wrap)


def composed_form_off() -> Context:
    """the composed form of tanh_grad is another function than its path"""
    return patch.object(registry["tanh_grad"], "composed", lambda g, y: g * (1 - y))


def wide_result() -> Context:
    """exp of float32 returns float64"""
    return _path("exp", lambda right: lambda x, out=None: right(x.astype(np.float64), out))


def out_ignored() -> Context:
    """exp ignores the given buffer and returns another one"""
    return _path("exp", lambda right: lambda x, out=None: right(x))


def _strip(path: Any, right: Any) -> Any:
    """Keep the name by which opcheck recognizes an elementwise path."""
    path.__qualname__, path.__module__ = right.__qualname__, right.__module__
    return path


def out_cleared_first() -> Context:
    """exp clears `out` before it reads its input"""
    def wrap(right: Any) -> Any:
        def path(x: Any, out: Any = None) -> Any:
            if out is not None:
                out[...] = 0
            return right(x, out)
        return _strip(path, right)
    return _path("exp", wrap)


def full_size_temporary() -> Context:
    """tanh_grad makes a temporary as large as its output"""
    def wrap(right: Any) -> Any:
        return _strip(lambda g, y, out=None: right(g, np.array(y), out=out), right)
    return _path("tanh_grad", wrap)


def last_tile_dropped() -> Context:
    """the last tile of an array is not computed"""
    right = formula_numpy.flat_tiles

    def tiles(size: int) -> Iterator[slice]:
        found = [*right(size)]
        return iter(found[:-1] if len(found) > 1 else found)
    return patch.object(formula_numpy, "flat_tiles", tiles)


def strides_ignored() -> Context:
    """exp reads an input of stride 0 as if it were contiguous"""
    def wrap(right: Any) -> Any:
        def path(x: Any, out: Any = None) -> Any:
            if x.ndim and x.strides[0] == 0 and x.size > 1:
                x = np.resize(np.arange(x.size, dtype=x.dtype), x.shape)
            return right(x, out)
        return path
    return _path("exp", wrap)


def input_written() -> Context:
    """exp writes its result over its input"""
    def wrap(right: Any) -> Any:
        def path(x: Any, out: Any = None) -> Any:
            y = right(x.copy(), out)
            if x.size > 1 and x.base is None and out is None:
                x[...] = y
            return y
        return path
    return _path("exp", wrap)


def refusal_without_name() -> Context:
    """the error for a missing derivative does not name the op"""
    return patch.object(walk, "refusal", lambda record: "something has no derivative")


# -- rules -----------------------------------------------------------------------------------------


def rule_off() -> Context:
    """the gradient of tanh is 0.05 % too large"""
    return _rule("tanh", _scaled(1.0005))


def rule_slightly_off() -> Context:
    """the gradient of tanh is 0.0005 % too large: too little for numeric differences"""
    return _rule("tanh", _scaled(1.000005))


def rule_rounds() -> Context:
    """the rule of tanh rounds float32 gradients to float16"""
    def wrap(right: Any) -> Any:
        def rule(ns: Any, step: Any, g: Any) -> None:
            right(ns, step, g.astype(np.float16).astype(g.dtype) if g.dtype == np.float32 else g)
        return rule
    return _rule("tanh", wrap)


def rule_skips_input() -> Context:
    """multiply gives its second input no gradient if the first needs none"""
    def wrap(right: Any) -> Any:
        return lambda ns, step, g: right(ns, step, g) if step.mask != 2 else None
    return _rule("multiply", wrap)


def gradient_not_summed() -> Context:
    """a gradient along broadcast axes is not summed: its first element is taken"""
    def first(ns: Any, a: Any, shape: tuple[int, ...]) -> Any:
        while len(a.shape) > len(shape):
            a = ns.slice(a, key=(0,)) if a.shape[0] else ns.sum(a, axis=(0,))
        cut = tuple(slice(0, 1) if n == 1 else slice(None) for n in shape)
        return ns.slice(a, key=cut)
    return patch.object(slots, "sum_to", first)


def recorded_rule_off() -> Context:
    """the gradient of tanh is 0.05 % too large when the backward pass is recorded"""
    return _rule("tanh", _scaled(1.0005, lambda g: isinstance(g, Tensor)))


def recorded_rule_detached() -> Context:
    """the recorded rule of tanh treats what it saved as a constant"""
    def wrap(right: Any) -> Any:
        def rule(ns: Any, step: Any, g: Any) -> None:
            step.saved = tuple(s.detach() if isinstance(s, Tensor) else s for s in step.saved)
            right(ns, step, g)
        return rule
    return _rule("tanh", wrap)


def batch_axis_broadcast() -> Context:
    """the batch axis of an example with fewer axes is aligned with an axis of the others"""
    return patch.object(batching, "aligned", lambda ns, inputs, mapped: list(inputs))


def tangent_off() -> Context:
    """the tangent of tanh is 0.05 % too large"""
    right = registry["tanh"].tangent

    def tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: Any) -> Any:
        return ns.multiply(right(ns, primals, tangents, out, params), 1.0005)  # type: ignore[misc]
    return patch.object(registry["tanh"], "tangent", tangent)


# -- ownership -------------------------------------------------------------------------------------


def _give_to_all(right: Any) -> Any:
    def rule(ns: Any, step: Any, g: Any) -> None:
        for i in range(2):
            if step.needs(i):
                step.give(i, g)
    return rule


def given_twice() -> Context:
    """add gives g to both inputs instead of lending it to the first"""
    return _rule("add", _give_to_all)


@contextmanager
def given_twice_unnoticed() -> Iterator[None]:
    """add gives g to both inputs, and the step does not notice"""
    with given_twice(), patch.object(RawStep, "_refuse_moved", lambda step: None):
        yield


def lent_without_hold() -> Context:
    """lending does not add a hold"""
    def hold_more(step: RawStep) -> Storage:
        step.hold = step.hold or Storage()
        return step.hold
    return patch.object(RawStep, "_hold_more", hold_more)


def written_by_any_holder() -> Context:
    """`reuse` returns g although it has other holders"""
    return patch.object(RawStep, "reuse", lambda step, g: g if g.base is None else None)


def taken_while_read() -> Context:
    """`take` returns a saved array that a tensor still reads"""
    return patch.object(Takeable, "free", lambda saved, a: True)


def reused_too_early() -> Context:
    """multiply overwrites g with its first gradient, and computes the second one from that"""
    def wrap(right: Any) -> Any:
        def rule(ns: Any, step: Any, g: Any) -> None:
            if step.mask != 3:
                right(ns, step, g)
                return
            step.give(0, ns.multiply(g, step.saved[0], out=_same(step.reuse(g), g)))
            step.give(1, ns.multiply(g, step.saved[1]))
        return rule

    def _same(buffer: Any, g: Any) -> Any:
        return buffer if buffer is not None and buffer.shape == g.shape else None
    return _rule("multiply", wrap)


def into_without_copy() -> Context:
    """`into` returns the slot's content even if it is lent"""
    def into(
        step: RawStep, i: int, wide: bool = False, dtype: Any = None
    ) -> tuple[Any, float]:
        slot = step.slots.get(step.parents[i])  # type: ignore[arg-type]
        if slot is None or not slot[0].flags.writeable:
            return right(step, i, wide, dtype)
        step.slots[step.parents[i]] = slot[0], None  # type: ignore[index]
        return slot[0], 1.0
    right = RawStep.into
    return patch.object(RawStep, "into", into)


def seed_as_own() -> Context:
    """the walk treats the caller's gradient as its own buffer"""
    def seed(step: RawStep, node: Any, grad: Tensor) -> None:
        step._put(node, grad._array, None)
    return patch.object(RawStep, "seed", seed)


def rule_writes_upstream() -> Context:
    """the rule of tanh writes into g without calling `reuse`"""
    def wrap(right: Any) -> Any:
        def rule(ns: Any, step: Any, g: Any) -> None:
            if isinstance(g, np.ndarray) and g.flags.writeable:
                g *= 1.0625
            right(ns, step, g)
        return rule
    return _rule("tanh", wrap)


def grad_replaced() -> Context:
    """a second backward replaces `.grad`"""
    return patch.object(backward, "_added", lambda fresh, *others: fresh)


def grad_forgotten() -> Context:
    """a walk takes a leaf's `.grad` and starts with an empty slot"""
    right = RawStep._adopt

    def adopt(step: RawStep, node: Any) -> None:
        if right(step, node) is not None:
            del step.slots[node]
    return patch.object(RawStep, "_adopt", adopt)


def read_grad_added_to() -> Context:
    """reading `.grad` leaves it to the walks"""
    return patch.object(tensor, "UNREAD", None)


def grad_not_put_back() -> Context:
    """a walk that raises keeps the `.grad` that it has taken"""
    return patch.object(backward, "_put_back", lambda step, error: None)


def grad_left_with_its_leaf() -> Context:
    """a walk adds to a `.grad` that the leaf still has"""
    right = RawStep._adopt

    def adopt(step: RawStep, node: Any) -> Any:
        grad = node.grad
        slot = right(step, node)
        node.grad = grad
        return slot
    return patch.object(RawStep, "_adopt", adopt)


# -- the graph -------------------------------------------------------------------------------------


def version_not_counted() -> Context:
    """an in-place operator does not increase the version of the storage"""
    right = in_place.write

    def write(op: Any, target: Tensor, *given: Any) -> Tensor:
        before = target._own_storage().version
        right(op, target, *given)
        target._storage.version = target._version = before
        return target
    return patch.object(in_place, "write", write)


def short_write_not_counted() -> Context:
    """the short text of an in-place operator does not increase the version of the storage"""
    right = Tensor.__imul__

    def multiply(x: Tensor, other: object) -> Tensor:
        before = x._own_storage().version
        result = right(x, other)
        if not bus.listeners:
            x._storage.version = x._version = before
        return result
    return patch.object(Methods, "__imul__", multiply)


def short_view_apart() -> Context:
    """the short text of a slice makes a storage of its own"""
    right = Tensor.__getitem__

    def get_item(x: Tensor, key: object) -> Tensor:
        result = right(x, key)
        if not bus.listeners:
            result._storage = Storage()
        return result
    return patch.object(Methods, "__getitem__", get_item)


def views_left_behind() -> Context:
    """an in-place form moves a handle whose memory a view has, too"""
    def may_move(x: Tensor) -> bool:
        storage = underlying(x)._storage
        return storage.made and not (storage.exported or storage.leaf)
    return patch.object(in_place, "may_move", may_move)


def kept_input_overwritten() -> Context:
    """an in-place form writes memory that an earlier op saved"""
    return patch.object(in_place, "may_move", lambda x: isinstance(x, Traced))


def never_consumed() -> Context:
    """a walked record can be walked again"""
    return patch.object(slots, "CONSUMED", FREE)


def unclaimed_walk() -> Context:
    """a walk checks its records but does not claim them"""
    right = walk.claim

    def claim(records: list[Record], step: RawStep) -> None:
        right(records, step)
        for record in records:
            record.state = FREE
    return patch.object(walk, "claim", claim)


def claim_kept() -> Context:
    """a walk that ends by an error keeps its claim"""
    return patch.object(slots, "FREE", WALKED)


def slots_kept() -> Context:
    """a walk that ends by an error does not empty its slots"""
    class Kept(dict[Any, Any]):
        def clear(self) -> None:
            """The fault."""

    right = RawStep.__init__

    def init(step: RawStep, wanted: Any) -> None:
        right(step, wanted)
        step.slots = Kept()
    return patch.object(RawStep, "__init__", init)


def committed_on_arrival() -> Context:
    """a gradient is stored in `.grad` when it arrives at a leaf"""
    right = RawStep.give

    def give(step: RawStep, i: int, a: Any) -> None:
        right(step, i, a)
        node = step.parents[i]
        if node is not None and not isinstance(node, Record):
            node.grad = step.result(node, step.slots[node])
    return patch.object(RawStep, "give", give)


# -- memory ----------------------------------------------------------------------------------------


def saves_leaked() -> Context:
    """the walk leaves a record's saved arrays with it"""
    right = RawStep.enter

    def enter(step: RawStep, record: Record, slot: Any) -> Any:
        kept, step.keep = step.keep, True
        g = right(step, record, slot)
        step.keep = kept
        return g
    return patch.object(RawStep, "enter", enter)


def record_refers_to_tensor() -> Context:
    """a record refers to its input's handle, through the storage that it guards"""
    right = bind.saving

    def saving(x: Tensor) -> Storage | None:
        storage = right(x)
        if storage is not None:
            storage.reader = x  # type: ignore[attr-defined]
        return storage
    return replaced("saving", saving)


def live_block_reused() -> Context:
    """every second allocation gets a chunk that a live block holds"""
    right = BlockPool.take
    given: list[Chunk] = []

    def take(pool: BlockPool, size: int, breaking: bool = False) -> Chunk | None:
        if given and given[-1].pool is pool and given[-1].size >= size and len(given) % 2:
            given.append(given[-1])
        else:
            chunk = right(pool, size, breaking)
            if chunk is None:
                return None
            given.append(chunk)
        return given[-1]
    return patch.object(BlockPool, "take", take)


def block_not_held() -> Context:
    """an array over a block does not keep the block"""
    right = HostDevice.empty

    def empty(device: HostDevice, shape: Any, dtype: Any, label: str = "") -> np.ndarray:
        array = right(device, shape, dtype, label)
        if array.base is None:
            return array

        address = SimpleNamespace(__array_interface__=dict(array.__array_interface__))
        return np.asarray(address)
    return patch.object(HostDevice, "empty", empty)


# -- stand-ins of NVIDIA's libraries ---------------------------------------------------------------


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Context:
    """A function of a module replaced by wrap(the right one)."""
    return patch.object(owner, name, wrap(getattr(owner, name)))


def short_leading_dimension_taken() -> Context:
    """cuBLAS accepts a leading dimension below the number of rows"""
    return patch.object(cublas, "leads", lambda ld, rows: None)


def leading_dimension_ignored() -> Context:
    """columns of a matrix are assumed to be contiguous"""
    return _wrapped(cublas, "matrix", lambda right: lambda address, rows, columns, ld, dtype: right(
        address, rows, columns, max(1, rows), dtype))


def beta_zero_reads_c() -> Context:
    """a product computes 0 * C + ..., which is NaN where C is NaN"""
    def wrap(right: Any) -> Any:
        def call(name: str, *arguments: Any) -> int:
            if not name.endswith("gemm") or arguments[10]:
                return right(name, *arguments)
            _, _, m, n, *_, c, ldc = arguments
            out = cublas.matrix(c.value, m, n, ldc, cublas.DTYPES[name[0].upper()])
            before = out.copy()
            right(name, *arguments)
            out += 0 * before
            return 0
        return call
    return _wrapped(cublas, "call", wrap)


def conjugation_forgotten() -> Context:
    """cuBLAS computes the transpose for the conjugate transpose"""
    return patch.dict(cublas.OPERATIONS, {2: b"T"})


def triangles_exchanged() -> Context:
    """the upper and the lower triangle are exchanged"""
    return patch.dict(cublas.FILLS, {0: b"U", 1: b"L"})


def unit_diagonal_read() -> Context:
    """the diagonal of a unit triangle is read"""
    return patch.dict(cublas.DIAGONALS, {1: b"N"})


def undocumented_types_taken() -> Context:
    """GemmEx accepts a combination of types that NVIDIA does not document"""
    row = {(cublas.R16BF, cublas.R16F): ("f4", cublas.R32F)}
    return patch.dict(cublas.COMPUTE, {68: cublas.COMPUTE[68] | row})


def half_precision_sums() -> Context:
    """products of bfloat16 are summed in bfloat16"""
    def accumulate(sides: Any, types: Any, alpha: Any) -> Any:
        total = np.zeros((sides[0].shape[0], sides[1].shape[1]), types.a)
        for k in range(sides[0].shape[1]):
            total += sides[0][:, k:k + 1] * sides[1][k:k + 1]
        return total.astype(types.compute) * types.compute.type(alpha)
    return patch.object(cublas, "accumulate", accumulate)


def device_scalars_read_early() -> Context:
    """alpha on the device is read at the call, not in stream order"""
    def number(handle: Any, address: int, dtype: Any) -> Any:
        value = cublas.scalar(address, dtype)
        return lambda: value
    return patch.object(cublas, "number", number)


def host_scalars_read_late() -> Context:
    """alpha on the host is read in stream order, when the caller may have changed it"""
    def number(handle: Any, address: int, dtype: Any) -> Any:
        return lambda: cublas.scalar(address, dtype)
    return patch.object(cublas, "number", number)


def workspace_kept() -> Context:
    """cublasSetStream keeps the workspace"""
    def set_stream(handle: int, stream: int) -> int:
        cublas.handles[handle].stream = stream
        return 0
    return patch.dict(cublas.library.entries, {"cublasSetStream_v2": set_stream})


def overlapping_batches_taken() -> Context:
    """results of a batch may overlap"""
    return patch.object(cublas, "apart", lambda *_: None)


def host_results_captured() -> Context:
    """a function that returns a number to the host can be captured"""
    def deliver(handle: Any, name: str, address: int, dtype: Any, compute: Any) -> None:
        handle.enqueue(name, lambda: cublas.store(address, compute(), dtype))
    return patch.object(cublas, "deliver", deliver)


def gelu_by_erf() -> Context:
    """cuBLASLt's GELU is the exact one"""
    def gelu(x: np.ndarray) -> np.ndarray:
        return x * (1 + scipy.special.erf(x / np.sqrt(2))) / 2
    return patch.object(cublaslt, "gelu", gelu)


def any_epilogue_taken() -> Context:
    """cuBLASLt accepts every epilogue in every order and type"""
    return patch.object(cublaslt.Matmul, "_epilogue", lambda self: None)


def factor_not_conjugated() -> Context:
    """gesvdj returns the transpose of V"""
    def wrap(right: Any) -> Any:
        def decompose(t: str, job: int, rank: int, whole: bool, shape: Any, *rest: Any) -> Any:
            found = right(t, job, rank, whole, shape, *rest)
            *_, v, ldv = rest
            if whole and job:
                out = cusolver.matrix(v, shape[1], shape[1], ldv, cusolver.DTYPES[t])
                out[...] = out.T.copy()
            return found
        return decompose
    return _wrapped(cusolver, "decompose", wrap)


def workspace_untouched() -> Context:
    """cuSOLVER does not write its workspace, so a missing one is not detected"""
    return patch.object(cusolver, "used", lambda *_: lambda: None)


def inverse_transform_scaled() -> Context:
    """an inverse transform is divided by its length"""
    return _wrapped(cufft.scipy.fft, "ifftn", lambda right: lambda x, axes, norm: right(
        x, axes=axes))


def padding_in_place_forgotten() -> Context:
    """real rows have the same length in place as out of place"""
    return _wrapped(cufft.Layout, "view", lambda right: lambda self, address, batch, dtype, padded:
                    right(self, address, batch, dtype, False))


def offset_of_random_numbers_ignored() -> Context:
    """a generator starts at the beginning of its sequence at each call"""
    def wrap(right: Any) -> Any:
        def words(self: Any, count: int) -> Any:
            self.position = 0
            return right(self, count)
        return words
    return _wrapped(curand.Generator, "words", wrap)


def nan_left_out_of_reductions() -> Context:
    """CUB's min and max ignore NaN"""
    return patch.dict(cub.REDUCTIONS, {cub.MIN: np.nanmin, cub.MAX: np.nanmax})


def last_edge_counted() -> Context:
    """a histogram counts values on its last edge"""
    def counted(y: int, places: Any, inside: Any, count: int) -> None:
        places = np.minimum(places, count - 1)
        cub.view(y, (count,), "i8")[...] = np.bincount(places[places >= 0], minlength=count)
    return patch.object(cub, "counted", counted)


# -- training -------------------------------------------------------------------------------------


def collector_running() -> Context:
    """the garbage collector runs while a trainer's step is recorded"""
    return patch.object(trainer, "collector_paused", nullcontext)


# -- kernels of the host device --------------------------------------------------------------------


def comments_are_compiled() -> Context:
    """the host device translates comments and literals as CUDA code"""
    return patch.object(cuda_text, "visible", lambda text: text)


def launch_bounds_are_forgotten() -> Context:
    """every kernel of the host device may be launched with 1024 threads"""
    right = cuda_text._kernel

    def kernel(*given: Any) -> Any:
        found = right(*given)
        return found and replace(found, bound="1024")
    return patch.object(cuda_text, "_kernel", kernel)
