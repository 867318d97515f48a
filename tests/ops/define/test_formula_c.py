"""Formulas in C: the text that is compiled is the one that the writer writes, and it is right."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import compiled
from gtensor.engine.tape.op import registry
from gtensor.ops.define.formula import Formula
from gtensor.ops.define.formula_numpy import numpy_path
from gtensor.settings import settings

ROOT = Path(gt.__file__).parents[1]
FOLDER = ROOT / "gtensor" / "ops" / "define" / "c"
built = pytest.mark.skipif(not compiled.NUMBERS, reason="kernels in C were not built")
DTYPES = ("float32", "float64")


def test_the_compiled_text_is_what_the_formulas_are(tmp_path: Path) -> None:
    """In a process of its own: tests have made more ops here."""
    subprocess.run([sys.executable, "-m", "formulas_in_c", str(tmp_path)], check=True,
                   cwd=ROOT / "tests")
    for file in sorted(FOLDER.glob("*.c")):
        assert file.read_text("utf-8") == (tmp_path / file.name).read_text("utf-8")


# -- functions of kernels/cpu/functions.h ----------------------------------------------------------

KINDS = ["-march=x86-64-v4", "-march=x86-64-v3", "-march=x86-64"]
FUNCTIONS = {"exp": (-104, 89), "tanh": (-12, 12), "log": (0, 10), "log1p": (-1, 10)}
C_TYPES = {"float32": "float", "float64": "double"}


@pytest.fixture(scope="module", params=KINDS if platform.machine() == "x86_64" else ["-O2"])
def functions(request: pytest.FixtureRequest, tmp_path_factory: Any) -> ctypes.CDLL:
    """Loops over the functions, for one kind of processor."""
    if request.param == KINDS[0] and "v4" not in compiled.described():
        pytest.skip("this processor has no AVX-512")
    folder = tmp_path_factory.mktemp("functions")
    loops = [f"void {f}_{k}s(const {k} *x, {k} *y, long n) {{ EACH_ALONE\n"
             f"for (long i = 0; i < n; i++) y[i] = {f}_{k}(x[i]); }}\n"
             for f in (*FUNCTIONS, "exp_raised") for k in C_TYPES.values()]
    (folder / "f.c").write_text("\n".join(['#include "functions.h"', *loops]))
    subprocess.run(
        ["gcc", "-O2", "-ftree-vectorize", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=off", request.param, "-shared", "-fPIC", "-I", ROOT / "kernels" / "cpu",
         folder / "f.c", "-o", folder / "f.so", "-lm"], check=True)
    return ctypes.CDLL(str(folder / "f.so"))


def call(functions: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    getattr(functions, f"{name}_{C_TYPES[x.dtype.name]}s")(
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size))
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_to_two_units_in_the_last_place(
    functions: ctypes.CDLL, name: str, dtype: str
) -> None:
    rng = np.random.default_rng()
    low, high = FUNCTIONS[name]
    least, most = np.log([np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max])
    if name == "exp":
        low, high = least, most
    wide = np.exp(rng.uniform(least, most, 20_000)) * rng.choice([-1, 1], 20_000)
    x = np.concatenate([rng.uniform(low, high, 40_000), rng.uniform(-1e-3, 1e-3, 5_000),
                        1 + rng.uniform(-0.4, 0.4, 20_000), wide]).astype(dtype)
    with np.errstate(all="ignore"):
        right = getattr(np, name)(x.astype(np.longdouble))
        made = call(functions, name, x)
        rounded = right.astype(dtype)
        some = np.isfinite(rounded) & np.isfinite(right)
        units = np.abs(made.astype(np.longdouble) - right) / np.spacing(np.abs(rounded))
    assert np.max(units[some]) < 2
    assert np.array_equal(made[~some], rounded[~some], equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_special_values(functions: ctypes.CDLL, name: str, dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, tiny, -tiny] * 3, dtype)
    with np.errstate(all="ignore"):
        right = getattr(np, name)(x)
    made = call(functions, name, x)
    assert np.allclose(made, right, 1e-6, 0, equal_nan=True)
    numbers = ~np.isnan(right)
    assert np.array_equal(np.signbit(made)[numbers], np.signbit(right)[numbers])


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_raised_is_exp_in_a_sum(functions: ctypes.CDLL, dtype: str) -> None:
    x = np.append(np.random.default_rng().uniform(-800, 800, 20_000), [np.inf, -np.inf])
    x = x.astype(dtype)
    assert np.array_equal(1 + call(functions, "exp_raised", x), 1 + call(functions, "exp", x))
    assert np.isnan(call(functions, "exp_raised", np.full(20, np.nan, dtype))).all()


# -- kernels ---------------------------------------------------------------------------------------

PARAMETERS = {"approximate": "tanh", "negative_slope": 0.1, "alpha": 1.5, "factor": 1.5,
              "threshold": 2.0}  # of others 0.5
OPS = [name for name, op in registry.items() if hasattr(op.cpu, "made")]
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-30, -1e-30, 1e30, -1e30, 88, -100, 0.5]


def both(name: str, *arrays: Any, **params: Any) -> Iterator[tuple[Any, set[str]]]:
    """An op's output by a kernel and by NumPy, and of what each warned."""
    for way in (2, 0):
        with settings.override(compiled=way), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield (registry[name].cpu(*arrays, **params),
                   {str(w.message).partition(" encountered")[0] for w in heard})


@built
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_are_numpys_paths(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ops, on random and on special values, with the warnings that NumPy's path gives."""
    ran = []
    right = compiled.run
    monkeypatch.setattr(compiled, "run", lambda *given: (ran.append(given[0]), right(*given))[1])
    rng = np.random.default_rng()
    eps = np.finfo(dtype).eps
    for name in OPS:
        formula = registry[name].cpu.made
        params = {p: PARAMETERS.get(p, 0.5) for p in formula.params}
        random = [rng.standard_normal(1_003).astype(dtype) for _ in formula.inputs]
        special = [rng.choice(np.array(SPECIAL, dtype), 1_003) for _ in formula.inputs]
        for given in (random, special):
            (made, warned), (wanted, right_warnings) = both(name, *given, **params)
            assert warned == right_warnings, name
            assert np.array_equal(np.isnan(made), np.isnan(wanted)), name
            size = np.nanmax(np.abs(wanted), initial=1, where=np.isfinite(wanted))
            assert np.allclose(made, wanted, 64 * eps, 64 * eps * size, equal_nan=True), name
    assert len({*ran}) > 30


@built
def test_flags_do_what_errstate_says() -> None:
    x = gt.asarray(np.full(3_000, -3e38, np.float32))
    with pytest.warns(RuntimeWarning, match="overflow encountered in multiply"):
        gt.nn.functional.leaky_relu(x, 10.0)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
        gt.nn.functional.leaky_relu(x, 10.0)


@built
def test_another_formula_of_the_same_name() -> None:
    other = numpy_path(Formula("gelu", lambda ns, x: ns.tanh(x * x) + x * 3))
    x = np.random.default_rng().standard_normal(5_000)
    assert np.allclose(other(x), np.tanh(x * x) + x * 3)


UPDATES: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1}, "Adam": {"weight_decay": 0.1}, "AdamW": {},
    "Lion": {}, "RMSprop": {}, "Adagrad": {}}


@built
@pytest.mark.parametrize("name", UPDATES)
def test_updates_are_numpys(name: str) -> None:
    """Three steps of small, large and strided tensors, with a gradient too large to be squared."""
    rng = np.random.default_rng()
    shapes = [(7,), (3, 700), (64, 64)]
    begun = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    gradients = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes]
                 for _ in range(3)]
    gradients[1][1][0, :3] = 1e30, -1e25, np.nan
    ended = []
    for way in (1, 0):
        tensors = [gt.tensor(a.copy(), requires_grad=True) for a in begun]
        tensors[2] = gt.tensor(begun[2].T.copy()).T.requires_grad_()
        optimizer = getattr(gt.optim, name)(tensors, lr=1e-2, **UPDATES[name])
        with settings.override(compiled=way), patch.object(
                compiled, "run", wraps=compiled.run) as ran:
            for step in gradients:
                for x, g in zip(tensors, step, strict=True):
                    x.grad = gt.tensor(g)
                optimizer.step()
        ended.append([x.numpy() for x in tensors])
        assert bool(way) is ran.called
    for made, wanted in zip(*ended, strict=True):
        assert np.allclose(made, wanted, 1e-5, 1e-6, equal_nan=True)


@built
def test_an_output_may_be_an_input() -> None:
    x = np.random.default_rng().standard_normal((50, 101)).astype(np.float32)
    wanted = registry["silu"].cpu(x)
    assert registry["silu"].cpu(x, out=x) is x
    assert np.array_equal(x, wanted)


@built
def test_a_captured_step_has_the_bits_of_kernels() -> None:
    """What a kernel computes is no part of a fused call, whose bits are NumPy's."""
    x = gt.asarray(np.random.default_rng().standard_normal(5_000).astype(np.float32))

    def step(x: gt.Tensor) -> gt.Tensor:
        return gt.nn.functional.gelu(x * 2 + 1) * x - 1

    captured = gt.capture(step)
    wanted = step(x).numpy()
    for _ in range(4):
        assert np.array_equal(captured(x).numpy(), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_c", [0, 1])
def test_a_captured_update_is_made_once(dtype: str, in_c: int) -> None:
    """By the kernel or by NumPy, where there is a kernel or none."""
    weights = []
    with settings.override(compiled=in_c):
        for wrap in (lambda step: step, gt.capture):
            p = gt.ones(300, dtype=dtype).requires_grad_()
            optimizer = gt.optim.SGD([p], lr=0.1)

            def step(p: gt.Tensor = p, optimizer: Any = optimizer) -> None:
                optimizer.zero_grad()
                p.sum().backward()
                optimizer.step()

            taken = wrap(step)
            for _ in range(5):
                taken()
            weights.append(p.detach().numpy())
    assert np.array_equal(*weights)
    np.testing.assert_allclose(weights[0], 0.5, atol=1e-6)


def test_the_tests_have_the_extension() -> None:
    """What is optional for users is not for the tests, which need gcc in any case."""
    assert compiled.extension is not None


def test_info_says_why_there_are_no_kernels() -> None:
    assert "compiler" in compiled.described(None)
    old = SimpleNamespace(processor=lambda: "", names=lambda: ["one"])
    assert "AVX2" in compiled.described(old)
    assert compiled.numbered(old) == compiled.numbered(None) == {}


def test_a_compiler_that_fails_leaves_an_installation(tmp_path: Path) -> None:
    """The extension is optional: setuptools builds without it."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "gtensor" / "backend").mkdir(parents=True)
    for source in tomllib.loads(text)["tool"]["setuptools"]["ext-modules"][0]["sources"]:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_text("int one;")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import setuptools; setuptools.setup()", "build_ext",
         "--inplace"], cwd=tmp_path, env=os.environ | {"CC": "false"}, capture_output=True,
        text=True)
    assert done.returncode == 0, done.stderr
    assert "failed" in done.stdout + done.stderr
    assert not [*tmp_path.rglob("*.so")]
