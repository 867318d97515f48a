"""The GPU paths of the ops without a GPU: NumPy stands in for CuPy, a host machine for kernels.

It proves which kernels a path launches, with which arguments in which order, and what it makes of
their results; `tests/kernels` proves the kernels themselves. A GPU runs the same comparison in the
test that is generated from each record.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gtensor.ops
from gtensor.backend import cuda, kernels
from gtensor.core.namespaces import raw
from gtensor.core.op import Op, registry

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
from kernel_host import HostMachine, Toolchain, bodies_text, file_text
from kernel_text import element_name, is_array

MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.iter_modules(gtensor.ops.__path__, "gtensor.ops.")
]
OPS = {
    record.name: record
    for module in MODULES
    for record in vars(module).values()
    if isinstance(record, Op)
}
RTOL = {"float16": 4e-3, "float64": 1e-12}  # the templates have no other two cases


class Host:
    """Kernels on the CPU: the machines of kernel files, and one of elementwise bodies."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.toolchain = toolchain
        self.machines: dict[str, HostMachine] = {}
        self.bodies = list(kernels.registered)

    def machine(self, name: str) -> HostMachine:
        if name not in self.machines:
            text = file_text(name) if name else bodies_text(self.bodies)
            self.machines[name] = HostMachine(self.toolchain.executable(text))
        return self.machines[name]

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()

    def launcher(self, raw: kernels.Raw, dtype: Any) -> Callable[..., None]:
        """Stands for `raw[dtype]`."""
        name = f"{raw.function}<{kernels.c_type(dtype)}>"
        assert raw.function in kernels.functions(raw.file)

        def launch(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            for value in args:
                if isinstance(value, np.ndarray):
                    assert value.flags.c_contiguous, f"{name} was given a strided array"
                else:
                    assert type(value) in (int, float), f"{name} was given {type(value)}"
            if 0 not in grid:
                self._run(self.machine(raw.file), name, grid, block, list(args), shared_mem)

        return launch

    def elementwise(
        self, kernel: kernels.Elementwise, *inputs: Any, out: Any = None, **named: Any
    ) -> Any:
        """Stands for calling an elementwise kernel."""
        inputs += tuple(named[p.name] for p in kernel.inputs[len(inputs) :])
        given = [(value, p) for value, p in zip(inputs, kernel.inputs, strict=True) if is_array(p)]
        shape = np.broadcast_shapes(*(np.shape(value) for value, _ in given))
        dtype = next(value.dtype for value, p in given
                     if p.ctype == "T" and isinstance(value, np.ndarray))
        result = np.empty(shape, dtype)
        name = element_name(self.bodies.index(kernel), kernel, dtype.name)
        args = (
            [result.size]
            + [
                np.ascontiguousarray(np.broadcast_to(value, shape), dtype)
                if is_array(p)
                else float(value)
                if p.ctype.startswith("float")
                else int(value)
                for value, p in zip(inputs, kernel.inputs, strict=True)
            ]
            + [result]
        )
        grid, block = kernels.flat_launch(result.size)
        if result.size:
            self._run(self.machine(""), name, grid, block, args)
        if out is None:
            return result
        out[...] = result
        return out

    def _run(
        self, machine: HostMachine, name: str, grid: Any, block: Any, args: list[Any],
        shared_mem: int = 0,
    ) -> None:
        distinct: dict[int, np.ndarray] = {id(a): a for a in args if isinstance(a, np.ndarray)}
        results = machine.launch(name, grid, block, args, shared_mem=shared_mem)
        for array, value in zip(distinct.values(), results, strict=True):
            if array.flags.writeable:
                array[...] = value


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest) -> Iterator[Host]:
    cache = request.config.cache
    assert cache is not None
    host = Host(Toolchain(cache.mkdir("gtensor-kernels")))
    yield host
    host.close()


@pytest.fixture
def host(machines: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """NumPy in CuPy's place in all ops, and kernels on the host."""
    monkeypatch.setitem(sys.modules, "cupy", np)
    cuda.cupy.cache_clear()
    monkeypatch.setattr(
        kernels.Raw, "__getitem__", lambda raw, dtype: machines.launcher(raw, dtype)
    )
    monkeypatch.setattr(kernels.Elementwise, "__call__", _elementwise_of(machines))
    yield machines
    cuda.cupy.cache_clear()


def _elementwise_of(machines: Host) -> Any:
    def call(kernel: kernels.Elementwise, *inputs: Any, **named: Any) -> Any:
        return machines.elementwise(kernel, *inputs, **named)

    return call


def outputs(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def agree(given: Any, wanted: Any, dtype: str, what: str) -> None:
    for i, (a, b) in enumerate(zip(outputs(given), outputs(wanted), strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype == b.dtype, f"{what} {i}: {a.shape} {a.dtype}"
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        scale = max(1.0, float(np.abs(b.astype(wide)).max(initial=0)))
        np.testing.assert_allclose(
            a.astype(wide),
            b.astype(wide),
            rtol=RTOL[dtype],
            atol=RTOL[dtype] * scale,
            err_msg=f"{what}, output {i}",
        )


def laid_out(a: Any, dtype: str, layout: str) -> Any:
    if a is None:
        return None
    a = a.astype(dtype) if a.dtype.kind == "f" else a
    return np.ascontiguousarray(a.T).T if layout == "transposed" and a.ndim else a.copy()


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", sorted(n for n, r in OPS.items() if r.samples is not None))
def test_gpu_path_equals_cpu_path(
    name: str, dtype: str, host: Host, rng: np.random.Generator
) -> None:
    record = OPS[name]
    for sample in record.samples:  # type: ignore[union-attr]
        arrays, params = sample.arrays(rng), dict(sample.params)
        if params.get("dtype") is not None:
            params["dtype"] = np.dtype(dtype)
        for layout in ("contiguous", "transposed"):
            inputs = [laid_out(a, dtype, layout) for a in arrays]
            before = [None if a is None else a.copy() for a in inputs]
            wanted = record.cpu(*inputs, **params)
            agree(record.gpu(*inputs, **params), wanted, dtype, layout)
            for a, b in zip(inputs, before, strict=True):
                assert a is None or np.array_equal(a, b), "an input was written"
            compare_out(record, inputs, params, wanted, dtype)


def compare_out(record: Op, inputs: list[Any], params: Any, wanted: Any, dtype: str) -> None:
    """Into a dense and into a strided buffer, and added to what is there where the path can."""
    first = np.asarray(outputs(wanted)[0])
    accepts = inspect.signature(record.gpu).parameters
    for strided in (False, True):
        big = np.full((*first.shape, 2), 0.5, first.dtype)
        out = big[..., 0] if strided else big[..., 0].copy()
        result = outputs(record.gpu(*inputs, out=out, **params))[0]
        assert result is out
        agree(result, first, dtype, f"out, strided {strided}")
        if "beta" in accepts:
            out[...] = 0.5
            record.gpu(*inputs, out=out, beta=1.0, **params)
            agree(out, (first.astype(np.float64) + 0.5).astype(first.dtype), dtype, "beta")


class Recorder:
    """The backward step of an op on raw arrays: which gradients it gives."""

    def __init__(self, params: Any, saved: Any, shapes: Any) -> None:
        self.params, self.saved, self.shapes = params, saved, shapes
        self.given: dict[int, Any] = {}

    def needs(self, i: int) -> bool:
        return self.shapes[i] is not None

    def shape(self, i: int) -> Any:
        return self.shapes[i]

    def into(self, i: int) -> Any:
        return None, 0.0

    def reuse(self, g: Any) -> Any:
        return None

    def give(self, i: int, a: Any) -> None:
        self.given[i] = a


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", sorted(
    n for n, r in OPS.items() if r.extra_names and r.samples is not None))
def test_gpu_gradients_equal_cpu_gradients(
    name: str, dtype: str, host: Host, rng: np.random.Generator
) -> None:
    """Of ops that save what only they compute: their gradient paths have no samples."""
    record = registry[name]
    for sample in record.samples:  # type: ignore[union-attr]
        if any(s == 0 for s in sample.shapes[0]):  # type: ignore[union-attr]
            continue
        inputs = [laid_out(a, dtype, "contiguous") for a in sample.arrays(rng)]
        out, *extras = record.cpu(*inputs, **sample.params)
        values = dict(
            zip(
                (*record.input_names, "out", *record.extra_names),
                (*inputs, out, *extras),
                strict=True,
            )
        )
        saved = tuple(values[n] for n in record.save_names)
        shapes = [None if a is None or a.dtype.kind != "f" else a.shape for a in inputs]
        g = np.asarray(rng.standard_normal(out.shape)).astype(dtype)
        steps = [Recorder(sample.params, saved, shapes) for _ in range(2)]
        for step, device in zip(steps, ("cpu", "cuda"), strict=True):
            record.backward(raw[device], step, g)  # type: ignore[misc]
        assert steps[0].given.keys() == steps[1].given.keys() and steps[0].given
        for i in steps[0].given:
            agree(steps[1].given[i], steps[0].given[i], dtype, f"gradient {i} of {sample}")


@pytest.mark.parametrize("value", [300.0, 1e-4])
@pytest.mark.parametrize("name", ["squared_error", "huber_sum"])
def test_sums_of_halves_are_no_halves(name: str, value: float, host: Host) -> None:
    """Neither are the squares, of which half numbers hold too large ones and too small ones."""
    a, b = np.full(16, value, np.float16), np.zeros(16, np.float16)
    scale = 1 / (16 * value**2)
    params = {"delta": 1e4, "factor": 1.0} if name == "huber_sum" else {}
    total = registry[name].gpu(a, b, scale=scale, **params)
    assert total.dtype == np.float16
    np.testing.assert_allclose(float(total), 0.5 if params else 1.0, rtol=2e-3)


def test_factors_of_gradients_of_halves_are_no_halves(host: Host) -> None:
    g, a, b = (np.full(3, v, np.float16) for v in (2000, 3, 1))
    for scale in (1e-7, 40.0):
        given = registry["squared_error_grad"].gpu(g / np.float16(scale > 1 and 1e3 or 1), a, b,
                                                   scale=scale)
        wanted = 2000 / (1e3 if scale > 1 else 1) * 4 * scale
        np.testing.assert_allclose(given.astype(float), wanted, rtol=2e-3)
    logits, target = np.array([[8, 0, 0]], np.float16), np.array([0])
    options = {"reduction": "sum", "ignore_index": -100, "label_smoothing": 0.0,
               "weight": np.full(3, 100, np.float16)}
    record, gradient = registry["cross_entropy"], registry["cross_entropy_grad"]
    _, largest, total, count = record.cpu(logits, target, **options)
    results = [path(np.asarray(4096, np.float16), logits, target, largest, total, count, **options)
               for path in (gradient.cpu, gradient.gpu)]
    assert np.isfinite(results[0]).all()
    np.testing.assert_allclose(results[1].astype(float), results[0].astype(float), rtol=2e-3)


LIE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "channels first": np.ascontiguousarray,
    "channels last": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "reversed": lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
    "one number": lambda a: np.broadcast_to(a[:1, :1, :1], a.shape),  # as a sum's gradient
}


@pytest.mark.parametrize("shape", ((3, 5, 7), (4, 8, 16), (2, 1, 9), (6, 4, 1)))
@pytest.mark.parametrize("layout", list(LIE)[:-1])
def test_in_place_norms_take_any_layout(
    shape: tuple[int, ...], layout: str, host: Host, rng: np.random.Generator
) -> None:
    """z over x and dx over dz, in the layout that they have; dz may have another one."""
    c = shape[1]
    weight, bias = rng.uniform(0.5, 1, c), rng.standard_normal(c)
    options = {"training": True, "eps": 1e-5, "activation": "tanh", "parameter": 0.1}
    forward, grad = registry["inplace_abn"], registry["inplace_abn_grad"]
    for theirs in LIE:
        x, g = LIE[layout](rng.standard_normal(shape)), LIE[theirs](rng.standard_normal(shape))
        wanted, mean, var = forward.cpu(x.copy(), weight, bias, None, None, **options)
        z, *statistics = forward.gpu(x, weight, bias, None, None, out=x, **options)
        assert z is x
        agree((z, *statistics), (wanted, mean, var), "float64", f"z, {layout}")
        expected = grad.cpu(g, wanted, weight, bias, mean, var, **options)
        agree(grad.gpu(g, z, weight, bias, mean, var, **options), expected, "float64", theirs)
        if theirs != "one number":
            dx, _ = grad.gpu(g, z, weight, bias, mean, var, out=g, **options)
            assert dx is g
            agree(dx, expected[0], "float64", f"dx over {theirs}")


def test_every_kernel_file_was_reached(machines: Host) -> None:
    """Every file's kernels are launched by some op, but for the rung that is only compared with."""
    assert machines.machines.keys() == {*kernels.files(), ""} - {"batch_norm.cu"}
