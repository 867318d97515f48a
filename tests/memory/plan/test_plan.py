"""Plans: places that never collide, close to the peak; recordings, from which they are made."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import SimulatedSegments

from gtensor.memory import Arena, Recording
from gtensor.memory.plan import plan as planner
from gtensor.memory.plan.plan import Lifetime, make_plan, pack

from ..loops import MIB, Loop

G = 512


def alive_together(a: tuple[int, int], b: tuple[int, int], period: int) -> bool:
    """Said slowly: two lives on the circle of time share a moment."""
    moments = [{t % period for t in range(*life)} for life in (a, b)]
    return bool(moments[0] & moments[1])


def assert_sound(sizes, births, deaths, period, places, total) -> None:
    """No two blocks that live together share a byte, and all lie below `total`, aligned."""
    blocks = list(zip(places, sizes, births, deaths, strict=True))
    for i, (at, size, birth, death) in enumerate(blocks):
        assert at >= 0 and at % G == 0 and at + size <= total
        for other, other_size, start, stop in blocks[:i]:
            if alive_together((birth, death), (start, stop), period):
                assert at + size <= other or other + other_size <= at, "blocks collide"


def peak_of(sizes, births, deaths, period) -> int:
    return max(sum(size * sum(t % period == now for t in range(birth, death))
                   for size, birth, death in zip(sizes, births, deaths, strict=True))
               for now in range(period))


@st.composite
def lives(draw):
    """Sizes, births, deaths within or across the end of a period."""
    period = draw(st.integers(2, 24))
    rows = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, period - 1),
                                   st.integers(1, period)), min_size=1, max_size=25))
    sizes = [G * size for size, _, _ in rows]
    births = [birth for _, birth, _ in rows]
    return sizes, births, [birth + length for _, birth, length in rows], period


@pytest.fixture(scope="module")
def short_search():
    """The search ends soon: what is asked of plans here, a poor one has as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "_MOVES", 10)
        patch.setattr(planner, "_ROUNDS", 3)
        yield


@given(case=lives())
@settings(max_examples=80, deadline=None)
@pytest.mark.usefixtures("short_search")
def test_blocks_alive_at_the_same_time_never_overlap(case):
    sizes, births, deaths, period = case
    places, total = pack(*map(np.array, (sizes, births, deaths)), period)
    assert_sound(sizes, births, deaths, period, places.tolist(), total)
    peak = peak_of(sizes, births, deaths, period)
    assert peak <= total <= sum(sizes)
    again, _ = pack(*map(np.array, (sizes, births, deaths)), period)
    assert (again == places).all()


def test_planted_fault_a_pack_that_ignores_the_next_iteration_is_caught(monkeypatch):
    best_fit = planner._best_fit

    def forgetful(order, sizes, births, deaths, period):
        return best_fit(order, sizes, births, np.minimum(deaths, period), period)

    monkeypatch.setattr(planner, "_best_fit", forgetful)
    sizes, births, deaths = [G, G], [5, 0], [9, 3]  # the first lives into the next iteration
    places, total = pack(*map(np.array, (sizes, births, deaths)), 6)
    with pytest.raises(AssertionError, match="collide"):
        assert_sound(sizes, births, deaths, 6, places.tolist(), total)


def test_random_workloads_are_packed_close_to_their_peak():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sizes = (G * np.exp2(rng.uniform(1, 12, 100)).astype(int)).tolist()
        births = list(range(0, 200, 2))
        deaths = [min(birth + 2 * int(life) + 1, 200)
                  for birth, life in zip(births, np.exp2(rng.uniform(0, 6, 100)), strict=True)]
        plan = make_plan([Lifetime(size, size, 0, "", birth, death) for size, birth, death in zip(
            sizes, births, deaths, strict=True)], 200)
        live = max(sum(size for size, birth, death in zip(sizes, births, deaths, strict=True)
                       if birth <= now < death) for now in births)
        assert plan.peak_live == live
        assert 0.9 <= plan.efficiency <= 1


def test_streams_have_a_region_each():
    plan = make_plan([Lifetime(G, G, 3, "a", 0, 1), Lifetime(2 * G, 2 * G, 8, "b", 2, 3)], 4)
    assert plan.regions == {3: G, 8: 2 * G}
    assert (plan.reservation, plan.peak_live) == (3 * G, 2 * G)


# -- recordings ------------------------------------------------------------------------------------


def test_a_recording_knows_lifetimes_across_iterations():
    arena = Arena(SimulatedSegments(1 << 30))
    recording = Recording(arena)
    loop = Loop(recording)
    loop()
    once, period = recording.lifetimes()
    assert [(life.label, life.birth, life.death) for life in once] == [
        ("linear", 0, 2), ("relu", 1, 5), ("mean", 3, None), ("grad", 4, 6)] and period == 7
    assert recording.plan().offsets[0][2] == -1
    recording.mark()
    loop()
    twice, period = recording.lifetimes()
    # The old loss dies after the new one was made: the new one will die so in the next iteration.
    assert period == 8 and twice[2] == Lifetime(2 * MIB, 2 * MIB, 0, "mean", 3, 8 + 4)
    plan = recording.plan()
    assert len(plan.offsets) == 2 and plan.offsets[0][2] != plan.offsets[1][2]
    assert plan.peak_live == 3 * MIB + 5 * MIB + 2 * MIB and plan.efficiency == 1
    recording.mark()
    loop(extra=G)
    assert recording.plan().offsets[0][3] == -1  # iterations differ, so its end is unknown


def test_a_recording_without_allocations_has_no_plan():
    with pytest.raises(ValueError, match="without allocations"):
        Recording(Arena(SimulatedSegments(MIB))).plan()


def test_other_threads_are_not_recorded():
    recording = Recording(Arena(SimulatedSegments(1 << 30)))
    thread = threading.Thread(target=lambda: recording.allocate(G))
    thread.start()
    thread.join()
    assert recording.requests == [] and recording.events == []
