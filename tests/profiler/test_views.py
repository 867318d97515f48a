"""The views of a profile, on spans that the tests make, and read back."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from matplotlib.text import Text

from gtensor.profiler import Profile, ProfileError, Span, compare, pictures
from gtensor.profiler.comparison import changes
from gtensor.profiler.pictures import _boxes
from gtensor.profiler.spans import Recorded
from gtensor.profiler.table import own_times, rows, times_by_step

MACHINE = {"device": "cuda:0", "name": "a <b>GPU</b>", "ceilings": {
    "bytes_per_second": 1e9, "flops_per_second": 1e10}}


def span(name, start, seconds, **more):
    given = dict(zip(Span._fields, ("", "op", "forward", "", "", 0, 0.0, 0.0, None, None, None,
                                    0, 0, 0, 0, 0, 0, 0, None, None), strict=True))
    return Span(**{**given, "name": name, "start": start, "seconds": seconds, **more})


def profile(*spans, machine=MACHINE, live=()):
    return Profile(lambda: Recorded([*spans], [*live], 1.0, machine))


def some(count=200):
    """Random ops, paths first; each rule lies in a phase and has its path's link; a stream."""
    draw = random.Random()
    spans, at = [], 0.0
    for k in range(count):
        seconds = draw.uniform(1e-6, 1e-4)
        spans.append(span(f"op{k % 7}", at, seconds, module=f"Net.part{k % 3}",
                          source=f"file.py:{k % 5}: </script><b>", stream=7, device_start=at,
                          device_seconds=seconds / 2, launches=2, read=draw.randrange(10**6),
                          written=100, flops=draw.randrange(10**6), allocations=k % 2,
                          allocated=512 * (k % 2), reused=k % 2))
        at += seconds * 1.1
    spans.append(span("backward", at, 1.0, kind="phase", phase=""))
    phase = len(spans) - 1
    for k in range(count):
        spans.append(span(f"op{k % 7}", at + 1e-6, 1e-5, phase="backward", link=k, parent=phase))
        at += 2e-5
    return profile(*spans, live=[(k * 1e-4, "cuda:0", 1000 * k) for k in range(50)])


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "130")


@pytest.fixture
def given():
    return some()


# -- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["op", "module", "phase", "line"])
def test_a_table_accounts_for_everything(given, group):
    found = rows(given.spans, group)
    ops = [s for s in given.spans if s.kind == "op"]
    assert sum(row.calls for row in found) == len(ops)
    assert sum(row.host for row in found) == pytest.approx(sum(s.seconds for s in ops))
    assert sum(row.moved for row in found) == sum(s.read + s.written for s in ops)
    assert sum(row.launches for row in found) == sum(s.launches for s in ops)
    assert [row.time for row in found] == sorted((row.time for row in found), reverse=True)
    text = given.table(group_by=group, most=2)
    assert f"{len(found) - 2} more" in text or len(found) <= 2
    assert found[0].name.split(":")[0] in text


def test_a_narrow_terminal_gets_fewer_columns_and_whole_names(given, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = given.table(group_by="module").splitlines()
    assert any(line.startswith(" (outside modules) ") for line in lines)
    assert max(map(len, lines[1:])) <= 80 and "% copy" in lines[2]
    for columns in (40, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = profile(span("an_operation_of_a_long_name", 0, 1.0)).table().splitlines()
        assert max(map(len, lines[1:])) <= columns
        assert lines[4].split()[-2:] == ["s", "100.0"] and ("calls" in lines[2]) == (columns > 40)


def test_time_within_an_op_is_not_counted_twice():
    p = profile(span("outer", 0, 3.0), span("inner", 1.0, 2.0, parent=0))
    assert own_times(p.spans) == [(1.0, 0.0), (2.0, 0.0)]
    assert {row.name: row.time for row in rows(p.spans)} == {
        "outer forward": 1.0, "inner forward": 2.0}


def test_a_range_in_an_op_is_a_part_of_it():
    p = profile(span("outer", 0, 3.0), span("mine", 0.5, 2.0, kind="range", parent=0),
                span("inner", 1.0, 1.0, parent=1))
    assert own_times(p.spans) == [(2.0, 0.0), (2.0, 0.0), (1.0, 0.0)]


def test_names_are_printable():
    p = profile(span("a\x1b[31m", 0, 1.0, source="x.py:1: \ud800"),
                machine={**MACHINE, "name": "\x1b]0;"})
    for group in ("op", "line"):
        assert p.table(group_by=group).replace("\n", "").isprintable()


def test_rates_are_compared_with_the_ceilings():
    p = profile(span("add", 0, 1.0, read=4 * 10**8, written=10**8, flops=10**9))
    assert p.table().split()[-6:] == ["500", "M", "50", "1", "G", "10"]


@pytest.mark.parametrize(("options", "said"), [
    ({"sort_by": "size"}, "sort_by='size' was given; wanted one of time, calls"),
    ({"group_by": "thread"}, "group_by='thread' was given; wanted one of op, module, phase, line")])
def test_another_order_or_group_is_refused(given, options, said):
    with pytest.raises(ValueError, match=said):
        given.table(**options)


def test_what_changed():
    before = profile(span("add", 0, 1.0), span("mul", 1, 2.0), span("gone", 3, 0.5))
    after = profile(span("add", 0, 1.1), span("mul", 1, 5.0), span("exp", 6, 0.25))
    assert [other.name or one.name for one, other in changes(before, after)] == [
        "mul forward", "gone forward", "exp forward", "add forward"]
    text = compare(before, after)
    assert "2.50x" in text and "gone" in text and "new" in text and "1.81x" in text
    with pytest.raises(ValueError, match="group_by"):
        compare(before, after, group_by="size")


def stepping(*steps):
    """A profile with an op of each of these times in a step, and an op that always takes 1 s."""
    spans, at = [], 0.0
    for seconds in steps:
        spans += [span("changing", at, seconds), span("steady", at + seconds, 1.0),
                  span("update", at + seconds + 1, 0.5, kind="phase", phase="")]
        spans.append(span("adam", at + seconds + 1.1, 0.1, phase="update",
                          parent=len(spans) - 1))
        at += seconds + 2
    return profile(*spans, span("after", at, 9.0))


@pytest.mark.parametrize("columns", range(40, 121, 5))
def test_noise_is_the_ratio_of_a_step_and_first_calls_are_marked(columns):
    before, after = stepping(1, 2, 3, 4, 5), stepping(100, 2, 3, 4, 5)
    assert times_by_step(before.spans)["changing forward"] == [1, 2, 3, 4, 5]
    assert "after forward" not in times_by_step(before.spans)  # no step ends it
    lines = compare(before, after, width=columns).splitlines()
    assert max(map(len, lines[1:-1])) <= columns
    heads = lines[2].split()
    assert heads[-1] in ("ratio", "step") and "after" in heads  # the last one is not cut
    changing = next(line for line in lines if "changing" in line)
    steady = next(line for line in lines if "steady" in line)
    assert "114 s *" in changing and "15 s *" not in changing
    assert ("15 s " in changing) == ("before" in heads) >= (columns >= 60)
    assert ("0.75x-2.50x" in changing) == ("1.00x-1.00x" in steady) == ("step" in heads)
    assert "7.60x" in changing and ("step" in heads) >= (columns >= 80)
    assert "*" not in steady and lines[-1].startswith("* the first step took more than three times")


def test_few_steps_have_no_quartiles():
    assert "a step" not in compare(stepping(9, 1, 1), stepping(1, 1, 1), width=120)


# -- traces ----------------------------------------------------------------------------------------


def check_trace(events):
    """Raise AssertionError unless tracks nest and every arrow leads from an op to another."""
    tracks, arrows = {}, {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    for found in tracks.values():
        stack = []
        for start, end in sorted(found, key=lambda one: (one[0], -one[1])):
            while stack and stack[-1] <= start + 1e-3:
                stack.pop()
            assert not stack or end <= stack[-1] + 2e-3, "spans overlap"
            stack.append(end)
    for ends in arrows.values():
        assert ends.keys() == {"s", "f"}, "an arrow lacks an end"
        for end in ends.values():
            assert any(a <= end["ts"] <= b for a, b in tracks[end["pid"], end["tid"]]), "no op"


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_has_every_op_counter_and_arrow(given, tmp_path, name):
    given.chrome_trace(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    found = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    events = found["traceEvents"]
    check_trace(events)
    kinds = [event["ph"] for event in events]
    assert kinds.count("X") == len(given.spans) + 200  # those on the stream, too
    assert kinds.count("C") == 50 and kinds.count("s") == kinds.count("f") == 200
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {
        "host", "profiled thread", "cuda:0", "stream 7"}
    op = next(event for event in events if event.get("name") == "op0 forward")
    first = given.spans[0]
    assert op["args"] == {
        "module": first.module, "line": first.source, "read": first.read, "flops": first.flops,
        "written": first.written, "launches": 2, "blocks": first.allocations}


def overlap(events):
    first, second = [event for event in events if event["ph"] == "X" and event["tid"] == 0][:2]
    first["dur"] = second["ts"] + second["dur"] / 2 - first["ts"]


@pytest.mark.parametrize("plant", [
    lambda events: events.remove(next(e for e in events if e["ph"] == "f")),
    lambda events: next(e for e in events if e["ph"] == "s").update(ts=-5.0),
    overlap])
def test_the_check_of_traces_finds_a_planted_fault(given, tmp_path, plant):
    given.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    plant(events)
    with pytest.raises(AssertionError):
        check_trace(events)


# -- pictures --------------------------------------------------------------------------------------


def test_the_icicle_has_all_time_at_every_level(given):
    root = _boxes(given.recorded)

    def check(box):
        if box.inner:
            assert sum(b.seconds for b in box.inner.values()) == pytest.approx(box.seconds)
            for inner in box.inner.values():
                check(inner)

    check(root)
    assert root.seconds == pytest.approx(sum(
        s.seconds if s.device_seconds is None else s.device_seconds
        for s in given.spans if s.kind == "op"))
    assert {*root.inner["forward."].inner["Net."].inner} == {"part0.", "part1.", "part2."}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, laid out."""
    figures = []

    def png(figure):
        figure.canvas.draw()
        figures.append(figure)
        return b""

    monkeypatch.setattr(pictures, "_png", png)
    return figures


def written(figure):
    """What a figure says but at its ticks, and the boxes of it in pixels."""
    ticks = [text for axes in figure.axes
             for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return [(text.get_text(), Text.get_window_extent(text)) for text in figure.findobj(Text)
            if text.get_text() and text.get_visible() and text not in ticks]


def check_texts(figure):
    """Raise AssertionError where a text lies over another one or leaves the figure."""
    found = written(figure)
    for place, (text, box) in enumerate(found):
        assert figure.bbox.padded(1).contains(box.x0, box.y0), f"{text!r} is cut"
        assert figure.bbox.padded(1).contains(box.x1, box.y1), f"{text!r} is cut"
        for other, second in found[:place]:
            assert not box.overlaps(second), f"{text!r} lies over {other!r}"


def crowded(count=20):
    """Ops that lie close together, one far away, and one in a wide name's narrow box."""
    draw = random.Random(1)
    spans = [span(f"operation{k}", k, draw.uniform(0.5, 1), read=10**6, module=f"Net.part{k}",
                  written=1, flops=int(10**6 * draw.uniform(0.9, 1.1))) for k in range(count)]
    return profile(*spans, span("WWWWWWWW", 50, 0.7, read=10**9, written=1, flops=1))


def test_every_dot_of_a_roofline_is_named_and_no_name_lies_over_another(drawn):
    pictures.roofline(crowded().recorded)
    (figure,) = drawn
    check_texts(figure)
    assert {f"operation{k} forward" for k in range(20)} | {"WWWWWWWW forward"} <= {
        text for text, _ in written(figure)}
    slope = figure.axes[0].lines[0]
    line = slope.get_path().transformed(slope.get_transform())
    assert not any(line.intersects_bbox(box, filled=False) for text, box in written(figure)
                   if text.endswith("forward") and " " in text)
    far = [mark for mark in figure.axes[0].collections if len(mark.get_paths()[0].vertices) == 4]
    assert len(far) == 2  # a triangle for the op that is far off, one in the legend


def test_no_name_of_an_icicle_lies_over_the_next_box(drawn):
    pictures.flame(crowded().recorded)
    (figure,) = drawn
    check_texts(figure)
    (axes,) = figure.axes
    boxes = [patch.get_window_extent() for patch in axes.patches]
    for text in axes.texts:
        inside = text.get_window_extent()
        around = [box for box in boxes if box.contains(inside.x0, (inside.y0 + inside.y1) / 2)]
        assert around and all(inside.x1 <= box.x1 for box in around), text.get_text()


@pytest.mark.parametrize("view", ["flame", "roofline"])
def test_the_check_of_texts_finds_a_planted_name(drawn, view):
    getattr(pictures, view)(crowded().recorded)
    (figure,) = drawn
    axes = figure.axes[0]
    first = axes.texts[0]
    axes.text(*first.get_position(), "planted", transform=first.get_transform())
    with pytest.raises(AssertionError, match="'planted' lies over"):
        check_texts(figure)



# -- files -----------------------------------------------------------------------------------------

FILES = {"chrome_trace": "p.json", "html": "p.html", "flame": "p.png", "roofline": "p.png",
         "save": "p.json"}
EMPTY = profile(machine={})


@pytest.mark.parametrize("view", FILES)
def test_every_view_of_a_profile_and_of_an_empty_one(given, view, tmp_path):
    for p in (given, EMPTY):
        getattr(p, view)(tmp_path / FILES[view])
        assert (tmp_path / FILES[view]).stat().st_size > 100
    assert "0 ops" in str(EMPTY)


@pytest.mark.parametrize("view", FILES)
def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_nothing(given, view, tmp_path):
    write = getattr(given, view)
    with pytest.raises(ValueError, match=r"given; wanted a name ending in \."):
        write(tmp_path / "p.txt")
    with pytest.raises(OSError, match="could not be written: there is no folder"):
        write(tmp_path / "none" / FILES[view])
    (tmp_path / FILES[view]).mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        write(tmp_path / FILES[view])
    assert [path.name for path in tmp_path.iterdir()] == [FILES[view]]


def test_a_saved_profile_is_read_back_whole(given, tmp_path):
    given.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json").recorded == given.recorded


@pytest.mark.parametrize(("change", "said"), [
    (lambda text: text[:-40], "no profile, or a truncated one"),
    (lambda text: "[]", "no profile of this version"),
    (lambda text: text.replace("profile 1", "profile 9"), "no profile of this version"),
    (lambda text: text.replace('"link":[null', '"link":[500'), "refers to one that does not"),
    (lambda text: text.replace('"thread":[0', '"thread":["x"'), "damaged .*'x' given for thread"),
    (lambda text: text.replace('"name":[0', '"name":[-1'), "damaged"),
    (lambda text: text.replace('"launches"', '"lunches"'), "damaged"),
    (lambda text: text.replace('"seconds":1.0', '"seconds":NaN'), "it has the number NaN"),
    (lambda text: text.replace('"seconds":1.0', '"seconds":1e400'), "beyond 2.53 given for sec"),
    (lambda text: text.replace('"written":[100', '"written":[1' + "0" * 400), "beyond 2.53 given"),
    (lambda text: text.replace('"op"', '"o"'), "is of kind 'o' in thread 0"),
    (lambda text: text.replace('"thread":[0', '"thread":[9999999999'), "in thread 9999999999"),
    (lambda text: text.replace('1000000000.0', '"fast"'), "damaged .*'fast'"),
    (lambda text: "[" * 10**6, "no profile")])
def test_a_damaged_or_foreign_file_is_one_sentence(given, tmp_path, change, said):
    given.save(tmp_path / "p.json")
    text = (tmp_path / "p.json").read_text()
    (tmp_path / "p.json").write_text(change(text))
    assert change(text) != text
    with pytest.raises(ProfileError, match=said) as caught:
        Profile.load(tmp_path / "p.json")
    assert "\n" not in str(caught.value)
