"""Recordings: the use and the origin of each block, as a picture and as a page."""

from __future__ import annotations

import gc
import inspect
import json
import re

import numpy as np
import pytest
from simulated import SimulatedSegments
from together import in_threads

import gtensor as gt
from gtensor import memory
from gtensor.memory import Arena, Timeline
from gtensor.memory.trace.curves import Curves, curves, envelope
from gtensor.memory.trace.lifetimes import OUT_OF_MEMORY, History, Life, Mark, Source, held_by
from gtensor.memory.trace.timeline_page import html_file
from gtensor.memory.trace.timeline_picture import named, png_file
from gtensor.system.bus import bus, here, phase
from tests.memory.trace.recordings import Net, random_history, random_work, training

MIB = 1 << 20


@pytest.fixture
def step():
    """A step of training, everything in the arena; nothing is recorded before and after."""
    gc.collect()
    with gt.settings.override(arena_min_bytes=0):
        yield training()
    assert not bus.listeners


def page_data(page: bytes) -> dict:
    found = re.search(rb'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


# -- what is recorded ------------------------------------------------------------------------------


def test_a_training_step_is_shown_by_category_op_and_module(step):
    step()
    with memory.timeline(device="cpu") as before:  # other tests' memory, of unknown use
        pass
    with memory.timeline(device="cpu") as recording:
        step()
    history = recording.history()
    history.check()
    weights = 32 * 64 * 4, 64 * 4, 64 * 8 * 4, 8 * 4
    lasting = {held.name: held for held in held_by(
        (life for life in history.lives if life.freed is None), lambda life: life.category)}
    assert {name: lasting[name].blocks for name in ("parameters", "gradients", "optimizer")} == {
        "parameters": 4, "gradients": 4, "optimizer": 8}
    assert lasting["parameters"].size == sum(-(-n // 64) * 64 for n in weights)
    saved = [life for life in history.lives if life.category == "saved"]
    assert ("relu", "Net") in {(life.op, life.module) for life in saved}
    made = {(life.op, life.module, life.category) for life in history.lives}
    assert ("weight", "Net.first", "parameters") in made
    assert ("weight", "Net.rest.0", "optimizer") in made
    gradients = {life.module for life in history.lives if life.category == "gradients"}
    assert gradients >= {"Net.first", "Net.rest.0"}, "a gradient is its forward op's module's"
    assert any(life.category == "temporary" for life in history.lives)
    assert [mark.name for mark in history.marks] == ["backward", "backward", "update", "update"]
    assert recording.unknown == before.unknown and here.module == "" and here.phase == ""


def test_with_stacks_the_users_line_is_known(step):
    with memory.timeline(device="cpu", stacks=True) as recording:
        step()
    forward, first = inspect.getsourcelines(Net.forward)
    found = {(life.source.file, life.source.line, life.category)
             for life in recording.history().lives if life.source}
    line = first + next(n for n, text in enumerate(forward) if "self.rest" in text)
    assert {(__file__.replace("test_timeline_page", "recordings"), line, category)
            for category in ("saved", "gradients")} <= found
    assert recording.events[0].source is not None


def test_modules_called_by_others_or_alone_have_paths(step):
    class Outer(gt.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def forward(self, x):
            return gt.nn.Linear(8, 8)(self.inner(x))  # the last one is not registered

    outer = Outer()
    outer.inner.register_forward_hook(lambda module, args, output: output + 1)
    with memory.timeline(device="cpu") as recording:
        outer(gt.zeros((2, 32)))
        gt.nn.ReLU()(gt.zeros((2, 32)))
        with pytest.raises(ValueError):
            outer(gt.zeros((2, 5)))
    modules = {event.module for event in recording.events}
    assert modules >= {"Outer.inner.first", "Outer.inner.rest.0", "Outer.inner", "Outer.Linear",
                       "ReLU", ""}
    assert here.module == ""


def test_frees_of_older_blocks_count_but_are_no_events(step):
    device = gt.device("cpu")
    old = [device.empty((MIB,), np.uint8, "old") for _ in range(3)]
    with memory.timeline(device="cpu") as recording:
        before = memory.stats("cpu").allocated
        old.pop()
        new = device.empty((100,), np.uint8, "new")
        with memory.timeline(device="cpu") as inner:  # nested
            old.pop()
            del new
    assert [(event.label, event.delta > 0) for event in recording.events] == [
        ("new", True), ("new", False)]
    assert inner.events == []
    history = recording.history()
    assert history.totals() == [before, before - MIB, before - MIB + 128, before - 2 * MIB + 128,
                                before - 2 * MIB]
    assert inner.history().totals()[-1] == memory.stats("cpu").allocated == before - 2 * MIB


def test_blocks_do_not_keep_a_recording_alive(step):
    with memory.timeline(device="cpu") as recording:
        kept = gt.zeros((MIB,))
    timeline = recording
    events = len(recording.events)
    del recording
    assert not [owner for owner in gc.get_referrers(timeline)
                if type(owner).__name__ in ("FreeAndNotify", "MethodType")]
    del kept
    assert len(timeline.events) == events, "nothing is recorded after the end"


def test_threads_and_the_collector_lose_no_event():
    arena = Arena(SimulatedSegments(1 << 40))
    recording = Timeline(arena)

    def work(seed):
        rng = np.random.default_rng(seed)
        live = []
        for n in rng.integers(1, MIB, 400):
            with phase("backward" if n % 7 == 0 else "update"):
                ring = [recording.allocate(int(n), 0, f"op{seed}")]
                ring.append(ring)  # freed by the collector, in the middle of anything
                live.append(recording.allocate(int(n), 0, "kept"))
            if n % 3:
                live.pop(int(n) % len(live))
            if n % 50 == 0:
                gc.collect()
        assert here.phase == ""

    in_threads(work, range(4))
    gc.collect()
    recording.close()
    history = recording.history()
    history.check()
    assert len(history.times) == recording.recorded == 6400
    assert history.totals()[-1] == arena.allocated == 0
    assert [event.allocated for event in recording.events] == history.totals()[1:]


def test_a_lost_event_is_found():
    history = random_history(0)
    life = next(life for life in history.lives if life.made is not None)
    event, life.made = life.made, None
    try:
        with pytest.raises(ValueError, match=f"event {event} is lost"):
            history.check()
    finally:
        life.made = event


# -- where it is written ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix,start", [
    (".html", b"<!DOCTYPE html>"), (".png", b"\x89PNG"), (".json", b'{"format": "gtensor'),
    (".pickle", b"\x80\x04")])
def test_a_timeline_is_written_when_its_block_ends(step, tmp_path, suffix, start):
    path = tmp_path / f"run{suffix}"
    with memory.timeline(path, device="cpu"):
        step()
        assert not path.exists()
    assert path.read_bytes().startswith(start)


def test_a_timeline_is_written_when_memory_runs_out(step, tmp_path):
    memory.set_limit(memory.stats("cpu").reserved + MIB, "cpu")
    try:
        with (pytest.raises(memory.OutOfMemoryError),
              memory.timeline(tmp_path / "run.html", device="cpu")):
            gt.zeros((64, MIB))
    finally:
        memory.set_limit(None, "cpu")
    data = page_data((tmp_path / "run.html").read_bytes())
    assert [(mark["name"], mark["nbytes"]) for mark in data["marks"]] == [
        ("out of memory", 256 * MIB)]
    assert png_file(random_history(1)).startswith(b"\x89PNG")  # it has such a mark, too


def test_an_error_is_not_hidden_by_a_folder_that_is_not_there(step, tmp_path):
    (tmp_path / "no").mkdir()
    with (pytest.raises(KeyError, match="mine") as error,
          memory.timeline(tmp_path / "no" / "run.json", device="cpu")):
        (tmp_path / "no").rmdir()
        raise KeyError("mine")
    assert "could not be written" in error.value.__notes__[0] or "No such" in str(
        error.value.__notes__)
    with pytest.raises(ValueError, match=r"'run\.gif' given; wanted a name ending in \.html"), \
            memory.timeline("run.gif"):
        pytest.fail("refused before anything is recorded")


# -- the page and the picture ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_page_has_the_bytes_of_every_event(seed):
    history = random_history(seed)
    data = page_data(html_file(history))
    deltas = np.zeros((len(data["categories"]), len(data["times"]) + 1), np.int64)
    for maker, size, made, freed in zip(data["maker"], data["size"], data["made"], data["freed"],
                                        strict=True):
        row = deltas[data["who"][maker][2]]
        row[made + 1] += size
        if freed >= 0:
            row[freed + 1] -= size
    rows = deltas.cumsum(axis=1)
    assert rows.min() >= 0 and rows.sum(axis=0).tolist() == history.totals()
    assert np.array_equal(rows, curves(history).rows)
    assert data["reserved"][-1][1] == sum(segment.size for segment in history.segments)


def test_the_page_needs_nothing_from_elsewhere():
    page = html_file(random_history(0)).decode()
    assert not re.search(r"https?:|//cdn|<link|src=|@import|url\(|fetch\(|XMLHttp|import\s", page)
    assert page.count("<script") == 2 == page.count("</script>")
    assert "@DATA@" not in page and "@SCRIPT@" not in page


def test_names_cannot_break_out_of_the_page():
    evil = "</script><script>alert(1)</script><!--"
    life = Life(4096, 512, 500, 0, evil, evil, evil, None, 0, None)
    page = html_file(History("cpu", [0.0], [life]))
    assert evil.encode() not in page and page.count(b"<script") == 2
    assert page_data(page)["who"][0][0] == evil


def test_fewer_points_keep_the_peak_and_make_up_nothing():
    rng = np.random.default_rng(0)
    whole = Curves(["a", "b"], np.sort(rng.random(20_000)), rng.integers(0, 1000, (2, 20_000)))
    fewer = envelope(whole, 300)
    assert len(fewer.times) <= 600 and fewer.totals.max() == whole.totals.max()
    places = np.searchsorted(whole.times, fewer.times)
    assert np.array_equal(whole.times[places], fewer.times)
    assert np.array_equal(whole.rows[:, places], fewer.rows)
    edges = np.linspace(whole.times[0], whole.times[-1], 301)[1:-1]
    held = np.searchsorted(fewer.times, edges) - 1, np.searchsorted(whole.times, edges) - 1
    assert np.array_equal(fewer.rows[:, held[0]], whole.rows[:, held[1]]), "steps end as they did"
    assert envelope(whole, 10_000) is whole


@pytest.mark.parametrize("history", [
    History("cpu", [], []), random_work(0, events=1).history(),
    History("cpu", [0.5], [Life(64, 64, 64, 0, "add", "", "temporary", None, 0, None)])])
def test_little_or_nothing_can_be_drawn_too(history):
    assert png_file(history).startswith(b"\x89PNG")
    assert page_data(html_file(history))["device"] == history.device


def test_bands_are_named_where_there_is_room():
    wide, narrow = (0.0, 0.3, "backward"), (0.301, 0.32, "update")
    assert named([wide, narrow], 1.0) == [(0.0, 0.32, "backward, update")]
    assert named([wide, (0.4, 0.5, "update")], 1.0) == [wide, (0.4, 0.5, "update")]
    assert named([wide, (0.4, 0.41, "update")], 1.0) == [wide]  # not at once
    tight = (0.0, 0.07, "backward")
    assert named([tight, (0.07, 0.08, "update")], 1.0) == [tight]  # no room for both
    assert named([narrow, (0.33, 0.34, "update")], 1.0) == []


def test_a_holders_label_does_not_repeat_its_use():
    life = Life(0, 64, 64, 0, "workspace", "Net.conv", "workspace", None, 0, 1)
    assert life.holder == "workspace in Net.conv"
    life.category = "saved"
    assert life.holder == "workspace in Net.conv, saved"


def test_the_picture_has_the_lines_that_made_what_held_the_peak(monkeypatch):
    source = Source("/a/folder/train.py", 12, "step")
    lives = [Life(64, 64, 64, 0, "conv2d_grad_input", "Net.a_module_of_a_long_name.with.parts",
                  "temporary", line, 0, None) for line in (source, source, None)]
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__:
                        (figure.draw_without_rendering(), figures.append(figure)))
    png_file(History("cpu", [0.5], lives, []))
    texts = figures[0].axes[1].texts
    assert [text.get_text() for text in texts if "train.py" in text.get_text()] == ["train.py:12"]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[:place])


def test_memory_that_runs_out_after_the_last_event_is_marked_within_the_picture(monkeypatch):
    lives = [Life(64, 64, 64, 0, "add", "", "temporary", None, 0, None)]
    history = History("cpu", [0.5], lives, [Mark(1, 0.75, OUT_OF_MEMORY, True, 4096)])
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__:
                        figures.append(figure))
    png_file(history)
    axes = figures[0].axes[0]
    assert axes.get_xlim() == (0, 750)
    assert "out of memory: 4 KiB wanted" in [text.get_text() for text in axes.texts]
    (mark,) = page_data(html_file(history))["marks"]
    assert mark["time"] == 500_000  # the page's time ends with the last event
