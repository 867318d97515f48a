"""A run of everything: every sample of every op in each dtype, writes in place, and a few walks.

An op without samples runs where another op's sample calls its path (`THROUGH`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

import gtensor.distributed  # noqa: F401  registers its ops
import gtensor.nn.functional as F  # and nn its own
from gtensor.backend import Device
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.tensor import FLOATING, Tensor, wrap
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.tape.op import Op, registry
from gtensor.ops.updates import clipping, moving_average, optimizers
from gtensor.testing.cases import samples_of
from ops.test_definitions import THROUGH

__all__ = ["FLOATING", "THROUGH", "Run", "names", "runs"]
Call = Callable[..., Any]  # of the inputs: a Tensor, or several
PRECISE, SINGLE = "float64", "float32"
_COMPLEX = {PRECISE: np.complex128, SINGLE: np.complex64}


@dataclass(frozen=True)
class Run:
    """One op on one sample in one dtype. Each call gets fresh inputs."""

    name: str
    number: int  # of the sample
    dtype: str  # of floating inputs; "given" if there are none
    arrays: Sequence[np.ndarray | None]
    prepare: Callable[[Device], Call]  # parameters are placed on the device once
    gradients: tuple[int, ...]  # inputs that gradients are asked of
    view: bool = False

    @property
    def key(self) -> str:
        return f"{self.name} {self.number} {self.dtype}"

    @property
    def shapes(self) -> str:
        return " ".join("-" if a is None else str(a.shape).replace(" ", "") for a in self.arrays)

    def rng(self) -> np.random.Generator:
        """For the upstream gradient; the same in every dtype."""
        return np.random.default_rng(_seed(self.name, self.number) + 1)

    def inputs(self, device: Device) -> list[Tensor | None]:
        made: list[Tensor | None] = []
        for i, a in enumerate(self.arrays):
            if a is None:
                made.append(None)
                continue
            x = wrap(device.copy(device.from_numpy(a)), device)
            if i in self.gradients:  # a leaf, also a complex one, which users cannot make
                x._node = Leaf(x.shape, x.dtype, device)
                x._own_storage().leaf = True
            made.append(x)
        return made

    def upstream(self, output: Tensor) -> Tensor:
        """A gradient of the output, never uniform."""
        rng = self.rng()
        values = np.asarray(rng.standard_normal(output.shape))
        if output.dtype.kind == "c":
            values = values + 1j * rng.standard_normal(output.shape)
        values = np.asarray(values, output.dtype)
        device = output._device
        return wrap(device.copy(device.from_numpy(values)), device)


def _seed(name: str, number: int) -> int:
    return zlib.crc32(name.encode()) + 2 * number


@cache
def names() -> tuple[str, ...]:
    """Every name that there are runs of, sorted."""
    return tuple(sorted({*registry, *OTHERS}))


def runs(name: str) -> Iterator[Run]:
    """The runs of an op; for one without samples, those of the op that makes its inputs."""
    if name in OTHERS:
        arrays, prepare, gradients = OTHERS[name]
        yield from _in_dtypes(name, 0, arrays(np.random.default_rng(_seed(name, 0))),
                              prepare, gradients)
        return
    op = registry[THROUGH.get(name, name)]
    for number, sample in enumerate(samples_of(op)):
        arrays = sample.arrays(np.random.default_rng(_seed(op.name, number)))
        yield from _in_dtypes(op.name, number, arrays, partial(_placed, op, sample.params),
                              op, op.view)


def _in_dtypes(name: str, number: int, arrays: Sequence[Any], prepare: Any, of: Any,
               view: bool = False) -> Iterator[Run]:
    floats = [i for i, a in enumerate(arrays) if a is not None and a.dtype.kind in FLOATING + "c"]
    gradients = of
    if isinstance(of, Op):
        rule = of.backward is not None or of.composed is not None
        gradients = tuple(i for i in floats if rule and (of.complex or arrays[i].dtype.kind != "c"))
    for dtype in (PRECISE, SINGLE) if floats else ("given",):
        cast = [a.astype(_COMPLEX[dtype] if a.dtype.kind == "c" else dtype) if i in floats else a
                for i, a in enumerate(arrays)]
        yield Run(name, number, dtype, cast, prepare, gradients, view)


def _placed(op: Op, params: dict[str, Any], device: Device) -> Call:
    return partial(op, **{name: _on(device, value) for name, value in params.items()})


def _on(device: Device, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return device.from_numpy(value)
    return tuple(_on(device, v) for v in value) if isinstance(value, tuple) else value


# -- others ----------------------------------------------------------------------------------------


def _normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [rng.standard_normal(shape) for shape in shapes]


def _update(op: Op, states: int, **params: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """One step of an optimizer: parameter, gradient, states."""

    def arrays(rng: np.random.Generator) -> list[np.ndarray]:
        given = [rng.standard_normal((3, 5)) for _ in range(2 + states)]
        return given[:3] + [np.abs(a) for a in given[3:]]  # a mean of squares

    def prepare(device: Device) -> Call:
        counter = device.from_numpy(np.array([_STEP - 1]))

        def call(parameter: Tensor, gradient: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            more: dict[str, Any] = {"steps": [_STEP]}
            if device.type != "cpu":
                more = {"steps": [(counter, 0)], "counts": [counter]}  # not counted
            write_all([Write(op, [parameter], [gradient], {
                "options": [params], "rows": [0], "state": tuple(s._array for s in state),
                **more})])
            return parameter, *state

        return call

    return arrays, prepare, ()


def _written(
    call: Callable[..., Any], *shapes: tuple[int, ...], gradients: tuple[int, ...] = ()
) -> tuple[Any, Any, tuple[int, ...]]:
    return _normal(*shapes), lambda device: call, gradients


def _over(change: Callable[[Tensor, Tensor], Any]) -> Call:
    """An in-place write to what an op made."""

    def call(x: Tensor, y: Tensor) -> Tensor:
        made = x * 2.0
        change(made, y)
        return made

    return call


def _abn(activation: str) -> Call:
    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.inplace_abn(x * 2.0, weight, bias, training=True, activation=activation)

    return call


def _shared_abn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Another tensor sees the memory, so it is not written over."""
    made = x * 2.0
    view = made[:1]
    return F.inplace_abn(made, weight, bias, training=True) + view.sum()


# Walks of several records: in one of a single op, the gradient is the caller's and never written.


def _residual(x: Tensor, y: Tensor) -> Tensor:
    made = x * y
    return (made + F.relu(made) + made) * 2.0


def _diamond(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    return (made - x) * (made + y)


def _views(x: Tensor, y: Tensor) -> Tensor:
    rows = (x * 2.0)[1:3] + (y * 3.0)[:2]
    return rows.T.reshape(3, 4) + (x * 0.5).sum() + y.mean(axis=0)[:4]


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    once = F.tanh(F.linear(x, weight, bias))
    return once @ weight + F.linear(x, weight, bias).sum(axis=1, keepdims=True) * x


def _all(op: Op, params: dict[str, Any]) -> Call:
    """A write of the first tensor by an update of many."""

    def call(target: Tensor, *values: Tensor) -> Tensor:
        write_all([Write(op, [target], values, {**params, "rows": [0]})])
        return target

    return call


def _scaled(device: Device) -> Call:
    """On CUDA the factor is float64, whatever the gradient."""
    wide = wrap(device.from_numpy(np.array(0.3)), device)
    return lambda x, y: _all(clipping.scale, {})(x, y if device.type == "cpu" else wide)


_STEP = 3
_SGD = {"rate": 0.1, "weight_decay": 0.01, "dampening": 0.1, "maximize": False}
_ADAM = {"rate": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.01,
         "maximize": False}
_ROWS, _CHANNELS = (4, 3, 2), (3,)
OTHERS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "update sgd": _update(optimizers.sgd, 0, **_SGD, momentum=0.0, nesterov=False),
    "update sgd, momentum": _update(optimizers.sgd, 1, **_SGD, momentum=0.9, nesterov=False),
    "update sgd, nesterov": _update(optimizers.sgd, 1, **_SGD, momentum=0.9, nesterov=True),
    "update adam": _update(optimizers.adam, 2, **_ADAM, decoupled=False),
    "update adamw": _update(optimizers.adam, 2, **_ADAM, decoupled=True),
    "update amsgrad": _update(optimizers.adam, 3, **_ADAM, decoupled=False),
    "update lion": _update(optimizers.lion, 1, rate=0.1, beta1=0.9, beta2=0.99,
                           weight_decay=0.01),
    "update average": _written(
        _all(moving_average.average, {"options": [{"weight": 0.1}]}), (3, 5), (3, 5)),
    "update scale": (_normal((3, 5), ()), _scaled, ()),
    "update clip": _written(_all(clipping.clip, {"options": [{"limit": 0.5}]}), (3, 5)),
    "update norm, 2": _written(lambda *x: clipping.norm(*x, order=2.0), (3, 5), (7,)),
    "update norm, 3": _written(lambda *x: clipping.norm(*x, order=3.0), (3, 5), (7,)),
    "update norm, inf": _written(lambda *x: clipping.norm(*x, order=np.inf), (3, 5), (7,)),
    "in place +=": _written(_over(lambda a, b: a.__iadd__(b)), (3, 5), (5,), gradients=(0, 1)),
    "in place -=": _written(_over(lambda a, b: a.__isub__(b)), (3, 5), (3, 5), gradients=(0, 1)),
    "in place *=": _written(_over(lambda a, b: a.__imul__(b)), (3, 5), (5,), gradients=(0, 1)),
    "in place /=": _written(_over(lambda a, b: a.__itruediv__(b)), (3, 5), (5,),
                            gradients=(0, 1)),
    "in place *= itself": _written(_over(lambda a, _: a.__imul__(a)), (3, 5), (), gradients=(0,)),
    "in place += its transpose": _written(
        _over(lambda a, _: a.__iadd__(a.T)), (4, 4), (), gradients=(0,)),
    "in place [rows] =": _written(
        _over(lambda a, b: a.__setitem__(slice(0, 3, 2), b)), (4, 5), (5,), gradients=(0, 1)),
    "in place [indices] =": _written(
        _over(lambda a, b: a.__setitem__(([2, 0, 2],), b)), (4, 5), (3, 5), gradients=(0, 1)),
    "in place batch norm": _written(_abn("identity"), _ROWS, _CHANNELS, _CHANNELS,
                                    gradients=(0, 1, 2)),
    "in place batch norm, leaky": _written(_abn("leaky_relu"), _ROWS, _CHANNELS, _CHANNELS,
                                           gradients=(0, 1, 2)),
    "in place batch norm, kept": _written(_abn("gelu"), _ROWS, _CHANNELS, _CHANNELS,
                                          gradients=(0, 1, 2)),
    "in place batch norm, copied": _written(_shared_abn, _ROWS, _CHANNELS, _CHANNELS,
                                            gradients=(0, 1, 2)),
    "walk residual": _written(_residual, (3, 5), (3, 5), gradients=(0, 1)),
    "walk diamond": _written(_diamond, (3, 5), (5,), gradients=(0, 1)),
    "walk views": _written(_views, (4, 6), (4, 6), gradients=(0, 1)),
    "walk layer": _written(_layer, (4, 5), (3, 5), (3,), gradients=(0, 1, 2)),
}
"""Name -> arrays by a generator, the call for a device, the inputs that gradients are asked of."""

