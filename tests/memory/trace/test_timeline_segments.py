"""The segments that a recording has seen: read within a read, never partly."""

from __future__ import annotations

import pytest
from simulated import SimulatedSegments

from gtensor.memory import Arena, Timeline
from gtensor.memory.trace import timelines

MIB = 1 << 20


@pytest.fixture
def arena():
    return Arena(SimulatedSegments(1 << 40))


@pytest.fixture
def timeline(arena):
    timeline = Timeline(arena)
    yield timeline
    timeline.close()


def taken(timeline):
    """How often each segment was noted as taken, less as given back, since the start."""
    counts = {}
    for _, _, came, segment in timeline._segments.changes:
        counts[segment] = counts.get(segment, 0) + (1 if came else -1)
    return {segment: count for segment, count in counts.items() if count}


def segments(arena):
    return {layout[:3]: 1 for layout in arena.layout()}


def test_a_look_within_a_look_notes_every_segment_once(arena, timeline, monkeypatch):
    real, looks, inner = timelines.layout_and_stats, [], []

    def look(resource):
        found = real(resource)
        looks.append(found)
        if len(looks) == 1:  # as a finalizer does, between what was seen and its note
            inner.append(timeline.allocate(100 * MIB))
        return found

    monkeypatch.setattr(timelines, "layout_and_stats", look)
    outer = timeline.allocate(100 * MIB)
    assert len(segments(arena)) == 2 and taken(timeline) == segments(arena)
    assert len(looks) == 2
    del outer, inner[:]
    arena.empty_cache()
    timeline.close()
    assert not segments(arena) and not taken(timeline)
    assert len(timeline._segments.changes) == 4


def test_a_look_in_the_middle_of_a_change_takes_no_segment_away(arena, timeline):
    first = timeline.allocate(MIB)
    before = taken(timeline)
    arena._busy = True  # as for a finalizer in the middle of an allocation
    aside = timeline.allocate(MIB)
    assert taken(timeline) == before
    arena._busy = False
    later = timeline.allocate(500 * MIB)
    assert taken(timeline) == segments(arena) and len(segments(arena)) == 3
    del first, aside, later
