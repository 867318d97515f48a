"""What `import gtensor` loads: modules are counted, because times depend on the machine.

`profiling/ladder_overhead.py --only import` measures its CPU time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gtensor as gt
from gtensor.system.late_imports import late
from gtensor.system.moved_modules import MOVED

ROOT = Path(__file__).resolve().parents[1]
MOST_MODULES = 201  # of gtensor; each costs about 0.15 ms beside what it defines
# Beyond those of `import numpy`; of a package, all its modules.
ALLOWED = {"_bisect", "bisect", "copy", "dataclasses", "gc", "gtensor", "ml_dtypes", "mmap",
           "threading"}
LATE = {"amp", "autograd", "checkpoint", "data", "distributions", "fft", "func", "ndimage",
        "nn", "optim", "profiler", "random", "testing"}
LATE_MODULES = {f"gtensor.{name}" for name in (
    *LATE, "system.atomic", "backend.blas", "backend.cublas", "backend.cuda_graphs",
    "backend.cuda_guards", "cli",
    "engine.walk.anomaly", "engine.run.casting", "execution.streams", "hostcuda",
    "memory.workspace", "ops.recurrent", "ops.sampling",
    "memory.trace.curves", "memory.trace.lifetimes", "memory.plan.plan", "memory.trace.reading",
    "memory.plan.recording", "memory.trace.snapshots", "memory.trace.timeline_page",
    "memory.trace.timelines", "ops.scan.linear_scan", "profiler.find_owners", "train")}

LATE_OPS = {"all_gather", "all_reduce", "binomial_draw", "context_add", "context_dot",
            "context_mix", "context_mix_into", "expm", "gamma_draw", "gamma_slope", "gru",
            "gru_grad", "linear_scan", "linear_scan_grad", "logcumsumexp", "logcumsumexp_grad",
            "lstm", "lstm_grad", "packed_attention", "packed_attention_grad", "poisson_draw",
            "reduce_scatter", "rotary", "running_extreme", "spline_sample", "spline_spread",
            "truncated_draw", "weigh_gradient"}


def fresh(text: str) -> Any:
    """What a program prints as JSON in a process of its own."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True,
                          cwd=ROOT)
    return json.loads(done.stdout)


def loaded(first: str) -> set[str]:
    """The modules that statements load beyond those of NumPy."""
    return set(fresh(f"import sys, numpy; before = {{*sys.modules}}; {first}; "
                     "names = {*sys.modules} - before; import json; print(json.dumps([*names]))"))


def heavy(modules: set[str]) -> set[str]:
    """Those of the standard library, or of others, that `import gtensor` need not load."""
    return {name for name in modules if name.partition(".")[0] not in ALLOWED}


def test_importing_gtensor_loads_what_every_program_needs() -> None:
    modules = loaded("import gtensor") - {*MOVED}
    assert not heavy(modules)
    assert not modules & LATE_MODULES
    assert sum(name.partition(".")[0] == "gtensor" for name in modules) <= MOST_MODULES


@pytest.mark.parametrize("planted", ["fractions", "json", "numpy.random"])
def test_a_heavy_module_is_seen(planted: str) -> None:
    assert planted in heavy(loaded(f"import gtensor, {planted}"))


def test_the_late_modules_exist() -> None:
    """A renamed module would no longer be looked for."""
    places = [ROOT.joinpath(*name.split(".")) for name in LATE_MODULES]
    assert all(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def test_late_names_are_there_right_after_the_import() -> None:
    missing = fresh(
        "import json, sys, gtensor as gt\n"
        f"missing = [n for n in {sorted(LATE)} if n not in dir(gt)]\n"
        f"missing += [n for n in {sorted(LATE)} if getattr(gt, n) is not "
        "sys.modules['gtensor.' + n]]\n"
        "missing += [n for n in gt.memory.__all__ if n not in dir(gt.memory)]\n"
        "missing += [n for n in gt.memory.__all__ if getattr(gt.memory, n, None) is None]\n"
        "exec('from gtensor import *', names := {})\n"
        "missing += {*gt.__all__} - {*names}\n"
        "print(json.dumps(missing))")
    assert missing == []


@pytest.mark.parametrize("late_import", ["import gtensor.nn as nn", "from gtensor import nn",
                                         "import gtensor; nn = gtensor.nn"])
def test_a_late_package_is_imported_in_every_way(late_import: str) -> None:
    assert fresh(f"{late_import}; print(len(nn.Linear(2, 3).weight))") == 3


def test_all_ops_are_defined_from_the_start() -> None:
    """But a few, which come with what uses them; with `gtensor.testing` all are there."""
    count, *later = fresh(
        "import importlib, json, pkgutil, gtensor\n"
        "from gtensor.engine.tape.op import registry\n"
        "before = {*registry}\n"
        "for found in pkgutil.walk_packages(gtensor.__path__, 'gtensor.'):\n"
        "    if 'hostcuda' not in found.name and not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "print(json.dumps([len(before), *{*registry} - before]))")
    assert count > 250 and {*later} == LATE_OPS
    assert fresh("import json, gtensor.testing, gtensor.distributed\n"
                 "from gtensor.engine.tape.op import registry\n"
                 f"print(json.dumps([*{LATE_OPS!r} - {{*registry}}]))") == []


def test_recordings_know_a_late_network() -> None:
    """Its classes are registered when a recording begins, whenever they were imported."""
    found = fresh(
        "import json, gtensor as gt\n"
        "gt.settings.arena_min_bytes = 0\n"
        "with gt.memory.timeline() as recording:\n"
        "    net = gt.nn.Linear(300, 300)\n"
        "print(json.dumps(sorted({life.category for life in recording.history().lives})))")
    assert "parameters" in found


def test_threads_get_one_module() -> None:
    count = fresh(
        "import json, threading, gtensor as gt\n"
        "start, found = threading.Barrier(8), []\n"
        "def first():\n"
        "    start.wait()\n"
        "    found.append((gt.nn.Linear, gt.memory.Timeline, gt.random.generator()))\n"
        "threads = [threading.Thread(target=first) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(json.dumps([len(found), len({tuple(map(id, them)) for them in found})]))")
    assert count == [8, 1]


def test_an_error_of_a_late_import_is_raised_at_each_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "late_and_broken.py").write_text("raise ImportError('no such library')")
    load, _ = late("gtensor", {"broken": "late_and_broken"})
    for _ in range(2):
        with pytest.raises(ImportError, match="no such library"):
            load("broken")


def test_a_name_that_is_none_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'gtensor' has no attribute 'conv9d'"):
        gt.conv9d  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'gtensor\.memory' has no attribute"):
        gt.memory.stat  # noqa: B018
