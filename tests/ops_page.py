"""The page of all ops: read from the registry, and found out by running each op.

`PYTHONPATH=tests python -m ops_page > docs/ops.md` writes `docs/ops.md`. Nothing on it is typed by
hand: what a definition declares is read, what it takes and moves is tried on its samples (by fixed
seeds), and whether it ran on a GPU stands in the file that a GPU run leaves behind.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from ops.test_definitions import THROUGH

import gtensor as gt
import gtensor.distributed  # registers its ops
import gtensor.nn.functional  # and nn its own
import gtensor.ops
from gtensor.backend import cuda, kernels
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.storage import BORROWED
from gtensor.engine.handle.tensor import FLOATING
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.tape.samples import Sample
from gtensor.engine.walk.slots import RawStep
from gtensor.ops.define import batching
from gtensor.system.foreign_names import ALIASES
from gtensor.testing.cases import samples_of

ON_GPU = Path(__file__).resolve().parents[1] / "profiling" / "results" / "h200" / "ops.json"
NONE = "-"

HEAD = """# All ops

{counts}

The others are parts of rules, or of public functions of another name: `gt.nn.functional.huber_loss`
runs the op `huber`.

This page is written by `PYTHONPATH=tests python -m ops_page > docs/ops.md`; a test compares it.

- **dtypes**: b bool, i signed and u unsigned integers, h float16 and bfloat16, f float32 and
  float64, c complex. Found by running the op: a dtype counts if the value agrees with float64's on
  the same inputs; complex, if it agrees with PyTorch's, or the definition declares complex values.
- **saves**: what the backward rule needs, for each input that a gradient is asked of: names of
  inputs, `out`, or extras that the op computes beside its output. `nothing` keeps no array alive.
- **passes**: arrays read + arrays written, forward; then backward, with all gradients. A view moves
  nothing, and a rule that hands on its gradient, or a view of it, moves nothing either. An array
  counts once whatever its size: the output of a reduction is small.
- **derivatives**: reverse by a backward rule, forward by a tangent rule; the second order follows
  from the backward rule, which is made of ops. `composed`: where a gradient is asked, the op is
  recorded as other ops, which have the higher orders, too. `zero`: constant almost everywhere.
  `none`: asking for a gradient raises an error, or the output is not floating.
- **vmap**: by which kind of rule the op runs for N examples. `broadcasting`: inputs are aligned at
  their last axes. `unchanged`: the axes it names count from the end. `moved`: a shape, an order of
  axes or a key gets the batch axis in front. `trailing`: inputs have as many axes, and those that
  all examples share are views. `in channels`: images are folded into channels. `own`: a rule of its
  own. `composed`: it runs as other ops. `refused`: the values decide the size of the output.
- **complex**: whether gradients may pass through complex values; others raise an error.
- **autocast**: the dtype of its inputs under `gt.autocast`: `low` is the block's, `float32` is
  float32; others run on what they are given.
- **CPU**: on how many samples the generated checks (`gt.testing.opcheck`) run; or in which op's
  checks it is one of the rules.
- **CUDA**: what the GPU path launches: functions of CuPy, elementwise or reduction kernels, or
  those of a file of `kernels/`. The checks run over it on a [host device](testing.md), too.
- **GPU**: {gpu}
"""
_NAMES = ("op", "dtypes", "saves", "passes", "derivatives", "vmap", "complex", "autocast", "CPU",
          "CUDA", "GPU")
COLUMNS = f"| {' | '.join(_NAMES)} |\n|{' --- |' * len(_NAMES)}"


# -- public names ----------------------------------------------------------------------------------


@cache
def public_names() -> set[str]:
    """The names of ops that a program can call: functions, methods, and their names elsewhere."""
    names = {*dir(gt.Tensor), *ALIASES["gtensor"], *ALIASES["gtensor.Tensor"]}
    for space in (gt, gt.linalg, gt.fft, gt.nn.functional):
        for name in space.__all__:
            value = getattr(space, name)
            names.add(value.name if isinstance(value, Op) else name)
    return names


# -- families --------------------------------------------------------------------------------------


@cache
def families() -> dict[str, list[str]]:
    """Family (a folder of `gtensor.ops`, or "distributed") -> its ops, in their order.

    An op in a module's namespace is that module's unless imported; one that no module names was
    made just before the next that has a name.
    """
    home: dict[str, str] = {}
    for found in (*pkgutil.walk_packages(gtensor.ops.__path__, "gtensor.ops."),
                  *pkgutil.iter_modules(gtensor.distributed.__path__, "gtensor.distributed.")):
        module = importlib.import_module(found.name)
        imported = {alias.asname or alias.name
                    for node in ast.walk(ast.parse(inspect.getsource(module)))
                    if isinstance(node, ast.ImportFrom) for alias in node.names}
        parts = found.name.split(".")
        family = parts[2] if parts[1] == "ops" else parts[1]
        home |= {value.name: family for name, value in vars(module).items()
                 if isinstance(value, Op) and name not in imported}
    grouped: dict[str, list[str]] = {}
    waiting: list[str] = []
    for name in registry:
        waiting.append(name)
        if name in home:
            grouped.setdefault(home[name], []).extend(waiting)
            waiting = []
    assert not waiting, f"no module of gtensor.ops names {waiting}"
    return dict(sorted(grouped.items()))


# -- a sample to try things on ---------------------------------------------------------------------


def rng_of(name: str) -> np.random.Generator:
    """The same numbers for an op in every process."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def sample_of(op: Op) -> Sample:
    """A sample with as many inputs as there are, none of them empty, and not 0-d if possible."""

    def rank(sample: Sample) -> tuple[bool, int, bool]:
        shapes = [shape for shape in sample.shapes if shape is not None]
        return (any(0 in shape for shape in shapes), -len(shapes), () in shapes)

    return min(samples_of(op), key=rank)


def arrays_of(op: Op, sample: Sample) -> list[np.ndarray | None]:
    return sample.arrays(rng_of(op.name))


# -- dtypes ----------------------------------------------------------------------------------------

DTYPES: dict[str, tuple[Any, ...]] = {
    "b": (np.bool_,), "i": (np.int8, np.int64), "u": (np.uint8, np.uint64),
    "h": (np.float16, ml_dtypes.bfloat16), "f": (np.float32, np.float64),
    "c": (np.complex64, np.complex128),
}
WHOLE: tuple[Callable[[Any], Any], ...] = (  # whole numbers that may be in the op's domain
    np.rint, lambda a: np.rint(4 * a), lambda a: np.abs(np.rint(4 * a)) + 1, lambda a: a > 0)


def dtypes(op: Op) -> str:
    """The letters of the dtypes in which the op gives float64's value."""
    return " ".join(letter for letter, group in DTYPES.items()
                    if all(takes(op, np.dtype(dtype)) for dtype in group)) or NONE


def takes(op: Op, dtype: np.dtype) -> bool:
    """Whether the op runs on inputs of a dtype, and gives the value that it should."""
    sample = sample_of(op)
    arrays = arrays_of(op, sample)
    varied = [i for i, a in enumerate(arrays)
              if a is not None and a.dtype.kind in "fc" and i not in op.constants]
    varied = varied or [i for i, a in enumerate(arrays) if a is not None]
    if dtype.kind == "c":
        turned = [a + 1j * a.mean() if i in varied else a for i, a in enumerate(arrays)]
        return _takes_complex(op, sample, [a.astype(dtype) if i in varied else a
                                           for i, a in enumerate(turned)])
    for change in WHOLE if dtype.kind in "biu" else (lambda a: a,):
        given = [change(a).astype(dtype) if i in varied and a.dtype.kind != "c" else a
                 for i, a in enumerate(arrays)]
        found = _value(op, given, sample)
        wanted = _value(op, [a.astype(np.float64) if i in varied else a
                             for i, a in enumerate(given)], sample)
        if found is not None and (wanted is None or _agree(found, wanted, dtype)):
            return True
    return False


def _takes_complex(op: Op, sample: Sample, arrays: list[Any]) -> bool:
    """Whether the op runs on complex inputs as PyTorch does, or declares that it takes them."""
    found = _value(op, arrays, sample)
    if found is None or op.reference is None:
        return found is not None and op.complex
    try:
        wanted = op.reference(torch, *[None if a is None else torch.from_numpy(a.copy())
                                       for a in arrays], **sample.params)
    except Exception:  # PyTorch lacks some that are right
        return op.complex
    return _agree(found, wanted.resolve_conj().numpy(), found.dtype)


def _value(op: Op, arrays: list[Any], sample: Sample) -> Any:
    """The op's value, None where it refuses these inputs."""
    try:
        value = op(*[None if a is None else gt.asarray(a) for a in arrays], **sample.params)
    except Exception:
        return None
    return value.numpy()


def _agree(found: np.ndarray, wanted: np.ndarray, dtype: np.dtype) -> bool:
    tolerance = 0.1 if dtype.itemsize == 2 and dtype.kind in "fV" else 1e-3
    if "c" in found.dtype.kind + wanted.dtype.kind:
        found, wanted = (a.astype(np.complex128) for a in (found, wanted))
    else:
        found, wanted = (a.astype(np.float64) for a in (found, wanted))
    return found.shape == wanted.shape and np.allclose(found, wanted, tolerance, tolerance,
                                                       equal_nan=True)


# -- saves, passes, derivatives --------------------------------------------------------------------


def saves(op: Op) -> str:
    """What is kept for which input's gradient."""
    if op.backward is None:
        return NONE
    names = (*op.input_names, "out", *op.extra_names)
    needed = {name: ", ".join(f"`{names[p]}`" for p in sorted(places))
              for name, places in zip(op.input_names, op.plans.needed, strict=True) if places}
    if not needed:
        return "nothing"
    if len(set(needed.values())) == 1:
        return next(iter(needed.values()))
    return "; ".join(f"{name}: {what}" for name, what in needed.items())


def passes(op: Op) -> str:
    """Arrays read + written, forward; and backward where there is a rule and a sample for it."""
    inputs = "n" if op.variadic else str(len(op.input_names))
    forward = "0" if op.view else f"{inputs}+{1 + len(op.extra_names)}"
    if op.backward is None or op.samples is None:
        return forward
    record, g, given = gradients(op, sample_of(op))
    written = sum(not np.may_share_memory(array, g) for array in given)
    read = 1 + sum(value is not None for value in record.saved)
    return f"{forward}, {f'{read}+{written}' if written else '0'}"


def gradients(op: Op, sample: Sample) -> tuple[Any, np.ndarray, list[np.ndarray]]:
    """The record of a sample, the gradient that its rule gets, and those that it gives."""
    inputs = [None if a is None else gt.asarray(a) for a in arrays_of(op, sample)]
    for x in inputs:
        if x is not None and x.dtype.kind in FLOATING + "c":
            x._node = Leaf(x.shape, x.dtype, x._device)  # which users get for real values only
    record = op(*inputs, **sample.params)._node
    g = np.asarray(rng_of(op.name).standard_normal(record.shape)).astype(record.dtype)
    step = RawStep(None)
    step.keep = True
    step.enter(record, (g, BORROWED))
    op.backward(step.ns, step, g)
    return record, g, [array for array, _ in step.slots.values()]


def is_zero(op: Op) -> bool:
    """Whether the rule gives zeros for every sample."""
    return op.samples is not None and not any(
        np.any(array) for sample in samples_of(op) for array in gradients(op, sample)[2])


def derivatives(op: Op) -> str:
    """The modes, as the legend says."""
    if op.backward is None:
        return "composed" if op.composed is not None else "none"
    if is_zero(op):
        return "zero"
    return "reverse, forward, second" if op.tangent is not None else "reverse, second"


def batching_kind(op: Op) -> str:
    """The kind of the batch rule, as the legend says."""
    if op.batch is None:
        return "composed" if op.composed is not None else NONE
    if op.batch.__module__ != batching.__name__:
        return "own"
    name = op.batch.__name__
    moved = ("to_shape", "broadcast_shape", "in_order", "whole_axis_first")
    return "moved" if name in moved else name.replace("_", " ")


# -- where it is proven ----------------------------------------------------------------------------


class Launched(Exception):
    """A kernel would have been launched; `where` is its file, or its kind."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


@contextmanager
def numpy_for_cupy() -> Iterator[None]:
    """`cupy()` answers NumPy, and launches raise `Launched`."""

    def elementwise(kernel: kernels.Elementwise, *arrays: Any, **named: Any) -> Any:
        raise Launched("elementwise")

    def raw(kernel: kernels.Raw, dtype: Any) -> Any:
        raise Launched(kernel.file)

    def reduction(*text: str) -> Any:
        raise Launched("reduction")

    before = kernels.Elementwise.__call__, kernels.Raw.__getitem__, sys.modules.get("cupy")
    stand_in = types.ModuleType("cupy")
    stand_in.__dict__.update(np.__dict__, ReductionKernel=reduction)
    kernels.Elementwise.__call__, kernels.Raw.__getitem__ = elementwise, raw  # type: ignore
    sys.modules["cupy"] = stand_in
    cuda.cupy.cache_clear()
    try:
        yield
    finally:
        kernels.Elementwise.__call__, kernels.Raw.__getitem__ = before[:2]  # type: ignore
        del sys.modules["cupy"]
        if before[2] is not None:
            sys.modules["cupy"] = before[2]
        cuda.cupy.cache_clear()


def launches(op: Op) -> str:
    """What the GPU path launches, over all samples."""
    found: set[str] = set()
    with numpy_for_cupy():
        for sample in samples_of(op):
            try:
                op.gpu(*sample.arrays(rng_of(op.name)), **sample.params)
                found.add("CuPy")
            except Launched as launched:
                found.add(launched.where)
    # a kernel's path may leave empty or unusual inputs to CuPy
    return ", ".join(sorted(found - {"CuPy"}) or sorted(found))


@cache
def gpu_results() -> dict[str, Any]:
    """What the last GPU run found: {"device": ..., "date": ..., "passed": [...], "failed": [...]}.

    Empty where there was none.
    """
    return json.loads(ON_GPU.read_text()) if ON_GPU.is_file() else {}


def on_gpu(name: str) -> str:
    results = gpu_results()
    return ("yes" if name in results.get("passed", ()) else
            "FAILED" if name in results.get("failed", ()) else "not yet")


# -- the page --------------------------------------------------------------------------------------


def row(name: str) -> list[str]:
    """The cells of an op. Those without samples have those of the op that makes their inputs."""
    op = registry[name]
    title = f"`{name}` {first_sentence(op.__doc__ or '')}"
    measured = registry[THROUGH[name]] if op.samples is None else op
    proven = [str(len(samples_of(op))), launches(op)] if measured is op else [
        f"in `{measured.name}`"] * 2
    modes = derivatives(op)
    return [title, dtypes(measured), saves(op), passes(op), modes, batching_kind(op),
            NONE if modes == "none" else "yes" if op.complex else "no", op.autocast or NONE,
            *proven, on_gpu(name)]


def first_sentence(text: str) -> str:
    """A doc's first sentence as a cell of a table."""
    line = " ".join(text.split())
    end = min((line.find(mark) for mark in (". ", "; ") if mark in line), default=len(line))
    return line[:end].rstrip(".").replace("|", "\\|").replace("*", "\\*")


def markdown() -> str:
    """The text of `docs/ops.md`."""
    results = gpu_results()
    gpu = "no results of a GPU yet; they are read from `profiling/results/h200/ops.json`."
    if results:
        gpu = f"the same checks on {results['device']}, {results['date']}."
    parts: list[str] = []
    cells: list[list[str]] = []
    with warnings.catch_warnings(), np.errstate(all="ignore"), gt.device("cpu"):
        warnings.simplefilter("ignore")
        for module, names in families().items():
            home = f"gtensor.{module if module == 'distributed' else f'ops.{module}'}"
            doc = inspect.getdoc(importlib.import_module(home)) or ""
            rows = [row(name) for name in names if name in public_names()]
            cells += rows
            if not rows:
                continue
            parts += [f"\n## {module}\n\n{doc.splitlines()[0]}\n", COLUMNS,
                      *(f"| {' | '.join(r)} |" for r in rows)]
    modes = [r[4] for r in cells]
    counts = (
        f"{len(registry)} ops, of which {len(cells)} have a public name and stand here: "
        f"{sum(m.startswith('reverse') for m in modes)} with rules of their own, "
        f"{modes.count('composed')} recorded as others, {modes.count('zero')} constant almost "
        f"everywhere, {modes.count('none')} without a derivative; "
        f"{sum(r[10] == 'yes' for r in cells)} proven on a GPU.")
    return HEAD.format(counts=counts, gpu=gpu) + "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
