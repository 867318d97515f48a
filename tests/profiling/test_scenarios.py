"""Reported failures: which allocator fits on which device; the command; CuPy's policy."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cupy_policy import CupyPool
from scenarios import SCENARIOS, main, run
from simulated import SimulatedSegments

from gtensor.memory import OutOfMemoryError

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize("name", SCENARIOS)
def test_virtual_memory_and_the_arena_fit_where_the_policy_of_cupy_does_not(name, capsys):
    assert main([name, "--policy", "cupy", "--source", "cudamalloc"]) == 3
    assert f"{name}, cupy on cudamalloc" in (said := capsys.readouterr().out)
    assert "OUT OF MEMORY" in said
    assert main([name, "--policy", "arena", "--source", "virtual"]) == 0
    assert "fits\npeak " in capsys.readouterr().out


@pytest.mark.thorough
def test_httomo_667_with_the_reported_sizes():
    command = [sys.executable, "profiling/scenarios.py", "httomo-667", "--capacity", "8GiB"]
    here = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run([*command, "--policy", "cupy"], capture_output=True, text=True, **here)
    assert done.returncode == 3, done.stderr
    assert "but 3 GiB are left of 8 GiB" in done.stdout
    assert "temporary of A" in done.stdout and "output of B" in done.stdout
    done = subprocess.run([*command, "--source", "virtual"], capture_output=True, text=True,
                          **here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "peak 7 GiB live, 7 GiB reserved" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("source", ["cudamalloc", "virtual", "host"])
@pytest.mark.parametrize("policy", ["arena", "cupy"])
def test_with_room_enough_everything_fits_and_without_nothing(name, source, policy):
    if (policy, name) != ("cupy", "cupy-7678"):  # there the limit is the capacity
        assert run(name, source, policy, 16 * GIB, "simulated")[0]
    if name != "cupy-7678":
        assert not run(name, source, policy, GIB, "simulated")[0]


def test_the_table_shows_which_scenario_fits_on_which_device(capsys):
    assert main(["all"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["scenario", "device", "cupy/cudamalloc", "cupy/virtual", "cupy/host",
                            "arena/cudamalloc", "arena/virtual", "arena/host"]
    cells = {row.split()[0]: "".join(cell[0] for cell in row.split()[3:]) for row in rows}
    assert cells == dict.fromkeys(SCENARIOS, "OOOOff") | {"cupy-7678": "OOOfff"}


def test_the_command_teaches(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    taught = capsys.readouterr().out
    for name, scenario in SCENARIOS.items():
        assert name in listed and name in taught
        assert scenario.meaning in listed and "\n" not in scenario.meaning
    assert "exit code: 0 it fits, 3 out of memory" in taught


@pytest.mark.parametrize(("given", "said"), [
    (["httomo"], "invalid choice"),
    (["httomo-667", "--capacity", "8 houses"], "wanted bytes above 0"),
    (["httomo-667", "--device", "cuda", "--source", "host"], "the machine's own memory"),
])
def test_wrong_arguments_end_with_2_and_a_sentence(given, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.whole_device
@pytest.mark.parametrize("name", [
    "httomo-667", pytest.param("producer-consumer", marks=pytest.mark.slow)])
def test_the_same_on_a_real_device_with_a_limit(name):
    assert main([name, "--policy", "cupy", "--source", "cudamalloc", "--device", "cuda"]) == 3
    assert main([name, "--policy", "arena", "--source", "virtual", "--device", "cuda"]) == 0


# -- CuPy's policy ---------------------------------------------------------------------------------


def test_the_smallest_chunk_that_fits_is_split():
    pool = CupyPool(SimulatedSegments(GIB))
    large, small = pool.allocate(8 * MIB), pool.allocate(4 * MIB)
    wall = pool.allocate(MIB)
    places = large.ptr, small.ptr
    del large, small
    first = pool.allocate(3 * MIB)
    assert first.ptr == places[1]
    assert pool.allocate(MIB).ptr == places[1] + 3 * MIB
    assert pool.allocate(2 * MIB).ptr == places[0]
    assert pool.stats().misses == 3 and wall.size == MIB


def test_a_split_segment_stays_and_a_whole_one_goes_back():
    device = SimulatedSegments(8 * MIB)
    pool = CupyPool(device)
    pool.allocate(4 * MIB)
    part = pool.allocate(MIB)
    assert pool.empty_cache() == 0
    with pytest.raises(OutOfMemoryError):
        pool.allocate(5 * MIB)
    del part
    assert pool.allocate(5 * MIB).size == 5 * MIB
    assert (device.acquired, device.released) == (6, 1)


def test_streams_never_share():
    pool = CupyPool(SimulatedSegments(GIB))
    pool.allocate(MIB, 1)
    pool.allocate(MIB, 2)
    assert pool.stats().misses == 2


def test_random_runs_of_the_pool_lose_no_byte():
    rng = np.random.default_rng(0)
    device = SimulatedSegments(GIB)
    pool = CupyPool(device)
    live = []
    for _ in range(2000):
        if live and rng.random() < 0.5:
            live.pop(rng.integers(len(live)))
        else:
            live.append(pool.allocate(int(2 ** rng.uniform(0, 20)), int(rng.integers(2))))
        stats = pool.stats()
        assert stats.allocated == sum(block.size for block in live) <= stats.reserved == device.used
        for low, high in pairwise(sorted(live, key=lambda block: block.ptr)):
            assert low.ptr + low.size <= high.ptr
        low = high = None
    live.clear()
    assert pool.empty_cache() == pool.stats().peak_reserved
    assert pool.stats().reserved == device.used == 0


def test_the_table_shows_the_source_and_the_policy_that_are_asked_for(capsys):
    assert main(["all", "--policy", "cupy", "--source", "cudamalloc"]) == 0
    heading = capsys.readouterr().out.splitlines()[0]
    assert heading.split() == ["scenario", "device", "cupy/cudamalloc"]


def test_the_list_has_columns(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()[1:1 + len(SCENARIOS)]
    assert len({line.index("GiB  ") for line in lines}) == 1
