"""A CUDA device of NumPy arrays that reports every race between its streams.

Work is done at once, so values are always right. What is simulated is order: each stream carries a
clock of what it has waited for, and every access of a path to an array is compared with all earlier
ones of other streams. Guards, order and the engine are gtensor's own.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
from simulated import SimulatedSegments

from gtensor.backend.cuda import CudaDevice
from gtensor.backend.cuda_guards import guarded_rule
from gtensor.backend.devices import Device
from gtensor.backend.ordering import Ordering
from gtensor.engine.handle import namespaces
from gtensor.engine.handle.tensor import wrap
from gtensor.engine.tape.op import registry
from gtensor.memory import Arena
from gtensor.ops.updates import optimizers
from tests.memory.arena.model_streams import ModelStream

_UPDATES = {op.name: op for op in (
    optimizers.sgd, optimizers.adam, optimizers.lion)}


class Stream(ModelStream):
    """One that can be made the current one."""

    def __init__(self, device) -> None:
        super().__init__()
        self.device = device

    @property
    def stream(self):
        return self

    def __enter__(self):
        self.device.stack.append(self)
        return self

    def __exit__(self, *exception) -> None:
        self.device.stack.pop()


class RacingCuda(CudaDevice):
    """`races` are the accesses that were not ordered, in words without numbers.

    Arrays whose ids are in `foreign` (all of them if it is None) are no memory of the arena's.
    """

    def __init__(self) -> None:
        Device.__init__(self, 0)
        self.cupy_device = nullcontext()
        self.current_index = lambda: 0
        self.bind_thread = str
        self.stream_on = lambda index: SimpleNamespace(_gtensor=[self.current_stream()])
        self.array_type = np.ndarray
        self._paths = {}
        self.rule = guarded_rule(self)
        self._by_id = {}
        self._ordering = Ordering(self._by_id.get)
        self._arena = Arena(SimulatedSegments(1 << 40), "racing", stream_of=self._by_id.get)
        self._blocks = {}  # by id of an array that owns its memory: it, and a block to stand for it
        self._accesses = {}  # by block: stream, its position, whether it wrote, name
        self._logged = {}
        self.foreign: set[int] | None = set()
        self.streams = SimpleNamespace(ids=lambda: tuple(self._by_id))
        self.races: list[str] = []
        self.stack: list[Stream] = [self.new_stream()]

    @property
    def xp(self):
        return _Module(self)

    def new_stream(self, priority: int = 0) -> Stream:
        stream = Stream(self)
        self._by_id[stream.id] = stream
        return stream

    def current_stream(self) -> Stream:
        return self.stack[-1]

    def block_of(self, array):
        if not isinstance(array, np.ndarray):
            return None
        block, root = self._standing_for(array)
        return None if self.foreign is None or id(root) in self.foreign else block

    def _standing_for(self, array):
        while isinstance(array.base, np.ndarray):
            array = array.base
        if id(array) not in self._blocks:
            block = self._arena.allocate(max(array.nbytes, 1), self.current_stream().id)
            self._blocks[id(array)] = array, block
        return self._blocks[id(array)][1], array

    def empty(self, shape, dtype, label: str = ""):
        array = np.empty(shape, dtype)
        self.block_of(array)
        return array

    def copy(self, array, dtype=None, label: str = "copy"):
        self.order((array,))
        return self._log(label, lambda x: np.array(x, dtype))(array)

    def fill(self, array, value):
        self.order((), (array,))
        self._log("fill", lambda out: np.copyto(out, value))(out=array)
        return array

    def from_numpy(self, array):
        return array

    def to_numpy(self, array):
        self.order((array,))
        return self.logged("to_numpy", np.array)(array)

    def path(self, name, path, inputs=None):
        op = registry.get(name) or _UPDATES.get(name)
        if op is not None and path is op.gpu:
            path = op.cpu
        return super().path(name, self.logged(name, path), inputs)

    def tensor(self, values):
        array = np.array(values, np.float32)
        self._access("tensor", (), (array,))
        return wrap(array, self)

    def logged(self, name, function):
        """The function, with a note of what each call reads and writes."""
        if (name, function) not in self._logged:
            self._logged[name, function] = self._log(name, function)
        return self._logged[name, function]

    def _log(self, name, function):
        def call(*arrays, **params):
            given, counters = params, params.get("steps", ())
            if name in _UPDATES:  # the path for the CPU, in the place of the kernel
                given = {key: params[key] for key in ("out", "state", "options", "rows")}
                given["steps"] = [int(array[place]) + 1 for array, place in counters]
            result = function(*arrays, **given)
            for array, place in counters:
                array[place] += 1
            if isinstance(result, np.generic):  # NumPy's answer for 0-d, which CuPy gives as array
                result = np.asarray(result)
            written = [*_arrays((params.get("out"),)), *_arrays((result,)),
                       *_arrays((params.get("state"), params.get("counts")))]
            self._access(name, _arrays((*arrays, *params.values())),
                         [a for a in written if a.base is None or a is params.get("out")])
            return result

        return call

    def _access(self, name, reads, writes) -> None:
        stream = self.current_stream()
        stream.launch()
        for arrays, writing in ((reads, False), (writes, True)):
            for array in arrays:
                past = self._accesses.setdefault(self._standing_for(array)[0], [])
                for other, position, wrote, earlier in past:
                    if (other is not stream and (writing or wrote)
                            and stream.clock.get(other.id, 0) < position):
                        self.races.append(f"{name} {'writes' if writing else 'reads'} what "
                                          f"{earlier} {'writes' if wrote else 'reads'}")
                past.append((stream, stream.launched, writing, name))


class _Module:
    """NumPy, whose functions that gtensor calls for CUDA arrays are logged."""

    def __init__(self, device) -> None:
        self._device = device

    def __getattr__(self, name):
        found = getattr(np, name)
        return self._device.logged(name, found) if name in ("add", "ones") else found


def _arrays(values):
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


def racing(monkeypatch) -> RacingCuda:
    """The device, with rules of backward that compute on it."""
    device = RacingCuda()
    monkeypatch.setitem(namespaces.raw, "cuda", SimpleNamespace(**{
        name: device.logged(name, function)
        for name, function in vars(namespaces.raw["cpu"]).items() if callable(function)}))
    return device
