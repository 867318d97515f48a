"""Blocks joined over real memory: what is written stays there, and planted faults are caught."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

import gtensor as gt
from gtensor.memory import Arena, OutOfMemoryError, VirtualSegments
from gtensor.memory.arena.stitched import Stitched, _Free, _Hole
from gtensor.train import digits

from ..invariants import check
from ..upstreams import HostPages

KIB, MIB = 1 << 10, 1 << 20
PAGE = 64 * KIB


def as_array(block) -> np.ndarray:
    return np.frombuffer((ctypes.c_ubyte * block.nbytes).from_address(block.ptr), np.uint8)


def churn(pages, arena: Arena, rng: random.Random, steps: int = 400) -> int:
    """Blocks filled with a value each, which must still be there at their end; how many joined."""
    live: list[tuple] = []
    joined = 0
    for step in range(steps):
        if live and (rng.random() < 0.5 or len(live) > 40):
            block, value = live.pop(rng.randrange(len(live)))
            assert (as_array(block) == value).all(), "somebody else wrote into this block"
        else:
            size = int(2 ** rng.uniform(9, 19))
            try:
                block = arena.allocate(size)
            except OutOfMemoryError:
                live.pop()
                continue
            joined += isinstance(block.node, Stitched)
            live.append((block, step % 251))
            as_array(block)[:] = step % 251
        if step % 50 == 0:
            arena.empty_cache()
        if step % 10 == 0:
            block = None
            check(arena, [block for block, _ in live])
    for block, value in live:
        assert (as_array(block) == value).all(), "somebody else wrote into this block"
    return joined


@pytest.fixture
def real_pages():
    return HostPages(8 * MIB)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_keep_what_is_written_to_them(real_pages, seed):
    arena = Arena(VirtualSegments(real_pages), min_remainder=512)
    assert churn(real_pages, arena, random.Random(seed)) > 10
    arena.empty_cache()
    assert (real_pages.used, real_pages.reserved) == (0, 0)


def trained(arena: Arena | None, steps: int = 3) -> list[float]:
    """Losses of the digits network, with all its arrays in an arena."""
    device = gt.memory.arena_of("cpu").name and gt.backend.get_device("cpu")
    before = device.resource
    with gt.settings.override(arena_min_bytes=0):
        try:
            device.resource = arena or before
            gt.manual_seed(0)
            model = digits.model()
            optimizer = gt.optim.AdamW(model.parameters())
            rng = np.random.default_rng(0)
            losses = []
            for _ in range(steps):
                x = gt.tensor(rng.random((64, 1, 8, 8), np.float32))
                loss = gt.nn.functional.cross_entropy(
                    model(x), gt.tensor(rng.integers(0, 10, 64)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                del x, loss
        finally:
            device.resource = before
    return losses


def test_training_on_joined_memory_computes_the_same(monkeypatch):
    pages = HostPages(64 * MIB, 1 << 14)
    source = VirtualSegments(pages)
    joins = []
    real = source.join
    monkeypatch.setattr(source, "join", lambda parts: joins.append(len(parts)) or real(parts))
    arena = Arena(source)
    assert trained(arena) == trained(None)
    assert len(joins) > 20 and max(joins) > 1
    stats = arena.stats()
    assert stats.peak_reserved <= 1.05 * stats.peak_allocated


# -- planted faults --------------------------------------------------------------------------------


def wrong_end_of_a_hole(monkeypatch):
    monkeypatch.setattr(_Hole, "last", _Hole.first)


def parts_in_another_order(monkeypatch):
    real = VirtualSegments.join
    monkeypatch.setattr(VirtualSegments, "join", lambda source, parts: real(source, [
        parts[0], *parts[:0:-1]]))


def a_page_taken_twice(monkeypatch):
    real = _Free.take

    def take(free, nbytes):
        runs = list(real(free, nbytes))
        if len(runs) > 1:
            runs[-1] = runs[-1]._replace(start=runs[-1].start - PAGE)
        return iter(runs)
    monkeypatch.setattr(_Free, "take", take)


def a_part_never_given_back(monkeypatch):
    real = Stitched.__init__

    def init(span, ptr, chunks, stitched):
        real(span, ptr, chunks, stitched)
        span.pool.chunks = chunks[:-1]
    monkeypatch.setattr(Stitched, "__init__", init)


def joined_addresses_outlive_their_pages(monkeypatch):
    real = VirtualSegments._part

    def part(source, runs):
        kept = source._joined[runs]
        real(source, runs)
        source._joined[runs] = kept
    monkeypatch.setattr(VirtualSegments, "_part", part)


@pytest.mark.parametrize("fault", [
    wrong_end_of_a_hole, parts_in_another_order, a_page_taken_twice, a_part_never_given_back,
    joined_addresses_outlive_their_pages])
def test_a_planted_fault_is_caught(monkeypatch, fault, real_pages):
    fault(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        for seed in range(4):
            churn(real_pages, Arena(VirtualSegments(real_pages), min_remainder=512),
                  random.Random(seed))
