"""The cost sheet: bytes of known launches, phases, the model's arithmetic, the printed sheet."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cost
import pytest
from cost_model import CONSTANTS, DEVICES, Device, Work, lines
from cost_sass import Code, Loop

from gtensor.hostcuda.children import VARIABLE

ROOT = Path(__file__).parents[2]

# Launches whose bytes are known. The path of `planted` reads and writes its array once too often.
PROGRAM = """
import json, sys
sys.path.insert(0, "profiling")
from gtensor import hostcuda
hostcuda.install(dry=True, compiler="nvrtc")
import cupy
import gtensor as gt
from cost_record import Recorder
from gtensor import optim
from gtensor.backend.kernels import elementwise
from gtensor.engine.tape.op import op

N = 1 << 20
double = elementwise("T x", "T y", "y = 2 * x", name="gt_double")
increase = elementwise("T x", "T y", "y = y + x", name="gt_increase")

def path(passes):
    def run(x):
        out = cupy.empty_like(x)
        double(x, out=out)
        for _ in range(passes - 1):
            double(out, out=out)
        return out
    return run

once, planted = (op(name, cpu=lambda x: 2 * x, gpu=path(passes), backward=None, tangent=None,
                    batch=None, samples=None)
                 for name, passes in (("once", 1), ("planted", 2)))
recorder = Recorder()
x = gt.ones((N,), device="cuda")
a, b = gt.ones((64, 32), device="cuda"), gt.ones((32, 16), device="cuda", requires_grad=True)
row, table = cupy.ones((1, 512), "f4"), cupy.ones((256, 512), "f4")
optimizer = optim.AdamW([b])
found = {}

def count(name, *phases):
    recorder.works.clear()
    recorder.events.clear()
    with recorder.recording():
        for phase, run in phases:
            with recorder.phase(phase):
                run()
    found[name] = [vars(work) | {"in_flight": None} for work in recorder.works]

for name, run in {
    "elementwise": lambda: double(x.array, out=cupy.empty(N, "f4")),
    "read and written": lambda: increase(x.array, out=x.array),
    "broadcast": lambda: cupy.add(table, row),
    "strided": lambda: table[:, ::2].copy(),
    "sum": lambda: table.sum(),
    "sum of columns": lambda: table.sum(0),
    "copy": lambda: table.data.copy_from_device_async(row.data, 2048),
    "memset": lambda: x.array.data.memset_async(0, 4 * N),
    "product": lambda: a @ b,
    "batched": lambda: gt.ones((4, 64, 32), device="cuda") @ b.detach(),
    "softmax": lambda: gt.nn.functional.softmax(gt.zeros((256, 512), device="cuda"), -1),
    "once": lambda: once(x),
    "planted": lambda: planted(x),
    "tokens": lambda: x.array.get(),
}.items():
    count(name, ("forward", run))
loss = []
count("step", ("forward", lambda: loss.append((a @ b).sum())),
      ("backward", lambda: loss.pop().backward()), ("update", optimizer.step))
print(json.dumps(found))
"""
FLOAT, N, TABLE = 4, 1 << 20, 256 * 512


def outside() -> dict[str, str]:
    """The environment of a program that installs the host device itself."""
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return without | {"PYTHONPATH": str(ROOT)}


def program(*command: str | Path, fails: bool = False) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run([sys.executable, *command], env=outside(), cwd=ROOT, capture_output=True,
                         text=True)
    assert bool(ran.returncode) == fails, ran.stderr
    return ran


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(program("-c", PROGRAM).stdout)
    return result


@pytest.mark.host_cuda
@pytest.mark.parametrize(("name", "reads", "writes"), [
    ("elementwise", FLOAT * N, FLOAT * N),
    ("read and written", 2 * FLOAT * N, FLOAT * N),
    ("broadcast", FLOAT * (TABLE + 512), FLOAT * TABLE),
    ("strided", FLOAT * TABLE // 2, FLOAT * TABLE // 2),
    ("sum", FLOAT * TABLE, FLOAT),
    ("sum of columns", FLOAT * TABLE, FLOAT * 512),
    ("copy", 2048, 2048),
    ("memset", 0, FLOAT * N),
    ("product", FLOAT * (64 * 32 + 32 * 16), FLOAT * 64 * 16),
    ("softmax", FLOAT * TABLE, FLOAT * TABLE),
])
def test_bytes_of_a_launch_are_exact(
    found: dict[str, Any], name: str, reads: int, writes: int
) -> None:
    work = found[name][-1]
    assert (work["known"], work["reads"], work["writes"]) == (True, reads, writes)


@pytest.mark.host_cuda
def test_flops_and_instructions_are_counted(found: dict[str, Any]) -> None:
    assert found["product"][-1]["flops"] == 2 * 64 * 32 * 16
    assert found["batched"][-1]["flops"] == 4 * 2 * 64 * 32 * 16
    instructions = found["elementwise"][0]["instructions"] / (N / 32)
    assert 10 < instructions < 60  # of a thread, which has one element


@pytest.mark.host_cuda
def test_an_op_that_moves_its_bytes_twice_is_seen(found: dict[str, Any]) -> None:
    for name, ratio in (("once", 1), ("planted", 2)):
        works = found[name]
        assert {work["op"] for work in works} == {f"{name} forward"}
        moved = sum(work["reads"] + work["writes"] for work in works)
        assert moved / sum(work["needed"] for work in works) == ratio


@pytest.mark.host_cuda
def test_a_launch_belongs_to_the_phase_in_which_it_is_queued(found: dict[str, Any]) -> None:
    phases = [work["phase"] for work in found["step"]]
    assert phases == sorted(phases, key=cost.PHASES.index) and {*phases} == {*cost.PHASES}
    update, = (work for work in found["step"] if work["phase"] == "update")
    assert update["name"].startswith("gt_adam<")
    assert (update["reads"], update["writes"]) == (4 * 4 * 32 * 16, 3 * 4 * 32 * 16)


@pytest.mark.host_cuda
def test_the_sheet_adds_up(tmp_path: Path) -> None:
    ran = program("profiling/cost.py", "mlp", "--quick", "--out", tmp_path)
    sheet = json.loads((tmp_path / "mlp-h100.json").read_text())
    assert (tmp_path / "mlp-h100.png").stat().st_size > 10_000
    assert [sheet["phases"][phase]["launches"] for phase in cost.PHASES] == [6, 9, 1]
    assert not sheet["unknown"] and sheet["published_ms"] is None
    for key, total in (("ms", "gpu_ms"), ("bytes", "bytes"), ("flops", "flops")):
        assert sum(row[key] for row in sheet["kernels"]) == pytest.approx(sheet[total])
        assert sum(phase[total] for phase in sheet["phases"].values()) == pytest.approx(
            sheet[total])
    assert sum(row["share"] for row in sheet["kernels"]) == pytest.approx(1)
    assert sum(row["needed_bytes"] for row in sheet["ops"]) == pytest.approx(sheet["needed_bytes"])
    assert "mlp: 128 rows, three layers of 32, float32; predicted for H100" in ran.stdout
    assert ran.stderr.count("cost: ") == 2  # progress


def test_pytorchs_launches_come_from_its_ops() -> None:
    from cost_torch import steps

    (name, _, works, _), = steps("gpt2", quick=True)
    layer = sum(work.name.startswith("flash_bwd") for work in works) // 3
    assert name == "torch-gpt2" and layer == 2
    products = [work for work in works if work.product]
    assert sum(work.name == "addmm" for work in products) == 4 * layer
    assert len(products) == 3 * (4 * layer + 1)
    assert works[-1].phase == "update" and works[-1].reads == 4 * works[-1].writes // 3


# -- the model -------------------------------------------------------------------------------------


def test_a_launch_takes_its_start_and_the_longest_of_its_parts() -> None:
    device = Device("h100", {"copy": 1e12, "start": 2e-6, "latency": 1e-6})
    pass_ = Work("copy", reads=500_000, writes=500_000)
    assert device.seconds(pass_) == pytest.approx(3e-6) and device.bound(pass_) == "start"
    slow = Work("few threads", reads=10_000_000, in_flight=1e6)
    assert device.seconds(slow) == pytest.approx(12e-6)  # 10 trips, and memory's 10 us at once
    many = Work("divisions", writes=1000, instructions=3e9)
    assert device.bound(many) == "issue"
    assert device.seconds(many) == pytest.approx(2e-6 + 3e9 / (3 * 132 * 1.83e9))
    up = Work("host to device", "copies", reads=50_000_000)
    assert device.seconds(up) == pytest.approx(2e-6 + 1e-3)


def test_products_run_in_whole_waves_at_the_rate_of_their_dtype() -> None:
    device = Device()
    large = Work("p", product=(8192, 8192, 8192, 1), inputs="bfloat16")
    assert large.flops / device.seconds(large) == pytest.approx(650e12, rel=0.1)
    single = Work("p", product=(8192, 8192, 8192, 1), inputs="float32")
    assert single.flops / device.seconds(single) == pytest.approx(50e12, rel=0.1)
    odd = Work("p", product=(8192, 8192, 8192, 1), inputs="bfloat16", aligned=False)
    assert device.seconds(odd) == pytest.approx(2 * device.seconds(large), rel=0.05)
    one, more = (Work("p", product=(128, 256, 64, count), inputs="bfloat16")
                 for count in (1, 132))
    assert device.seconds(one) <= device.seconds(more) < 3 * device.seconds(one)


def test_of_loops_beside_each_other_the_cheapest_runs() -> None:
    code = Code(500, Loop(40, 4, 4), 40, 40, 0, (Loop(300, 4, 4), Loop(100, 16, 16)))
    assert code.executed(1, 128, 128) == 40  # the shortest way moves these bytes
    assert code.executed(1, 128 + 512, 128 + 1024) == 40 + 2 * 100
    assert code.on_the_way == 16


def test_each_constant_has_a_source_and_a_value_for_each_device() -> None:
    for name, constant in CONSTANTS.items():
        assert len(constant.source) > 5 and constant.h100 > 0, name
        assert all(Device(device)[name] > 0 for device in DEVICES)


def test_lines_are_sums_with_the_largest_time_first() -> None:
    works = [Work("a", writes=10**9), Work("b"), Work("b"), Work("a", writes=10**6)]
    first, second = lines(works, Device())
    assert (first.name, first.launches, first.nbytes) == ("a", 2, 10**9 + 10**6)
    assert (second.launches, second.bound) == (2, "start") and first.bound == "memory"


# -- the command -----------------------------------------------------------------------------------


def test_the_ratios_that_the_readme_shows_are_those_of_the_sheets() -> None:
    folder = Path(cost.__file__).parent
    rows = re.findall(r"\| ([\d.]+) \| \[[\w-]+\.json\]\((results/\S+\.json)\)",
                      (folder / "README.md").read_text())
    assert len(rows) == len(list((folder / "results/cpu-2core/cost").glob("torch-*.json")))
    for shown, path in rows:
        sheet = json.loads((folder / path).read_text())
        taken = sheet["published_ms"] or sheet["measured_ms"]
        assert shown == f"{sheet['gpu_ms'] / taken:.2f}"


def test_a_step_that_a_gpu_has_measured_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "RESULTS", tmp_path)
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "ladder_steps.json").write_text(json.dumps({"ladders": [
        {"name": "gpt2 step", "rungs": [{"name": "gtensor", "seconds": {"median": 0.05}},
                                        {"name": "pytorch", "seconds": {"median": 0.03}}]}]}))
    assert [cost.measured_ms(name, "h200") for name in ("gpt2", "torch-gpt2", "mlp")] == [
        50, 30, None]
    assert cost.measured_ms("gpt2", "h100") is None


def test_help_says_what_the_columns_are() -> None:
    shown = program("profiling/cost.py", "--help").stdout
    assert "python profiling/cost.py gpt2" in shown and "share" in shown


def test_an_unknown_workload_is_one_sentence() -> None:
    shown = program("profiling/cost.py", "gpt3", fails=True).stderr
    assert shown.splitlines()[-1].startswith(
        "cost.py: error: 'gpt3' is no workload; wanted one of gpt2, gpt2-layer, resnet50")


def test_measured_constants_give_a_second_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "measured.json"
    rungs = [{"name": "copy", "seconds": {"median": 2e-3}, "moved": 2_000_000_000, "flops": None},
             {"name": "start", "seconds": {"median": 1e-6}, "moved": None, "flops": None}]
    given.write_text(json.dumps({"ladders": [{"rungs": rungs}]}))
    assert cost.measured_constants(given) == {"copy": 1e12, "start": 1e-6}
    assert cost.main(["torch-gpt2", "--quick", "--measured", str(given)]) == 0
    assert "with the measured constants" in capsys.readouterr().out
    given.write_text(json.dumps({"ladders": []}))
    with pytest.raises(SystemExit):
        cost.main(["torch-gpt2", "--quick", "--measured", str(given)])
    assert "has no floor of copy, product float16" in capsys.readouterr().err
