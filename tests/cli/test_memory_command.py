"""`gtensor memory FILE` as a user meets it."""

from __future__ import annotations

import json
import os
import pickle

import pytest

from gtensor.cli import main
from gtensor.memory.arena.layout import FREE, LIVE, Piece, SegmentLayout
from gtensor.memory.trace.export import save
from gtensor.memory.trace.lifetimes import History, Life
from tests.memory.trace.recordings import random_history

KIB = 1 << 10
AT = 1 << 40


def history() -> History:
    """Three blocks, two of them at the peak; a segment with 1 and 2 KiB free beside 5 KiB live."""
    lives = [Life(AT, 4 * KIB, 4000, 0, "weight", "Net.first", "parameters", None, None, None),
             Life(AT + 5 * KIB, KIB, KIB, 0, "matmul", "Net.[bold]", "saved", None, 0, None),
             Life(AT + 6 * KIB, KIB, KIB, 0, "relu", "", "temporary", None, 1, 2)]
    segment = SegmentLayout(AT, 8 * KIB, 0, [
        Piece(AT, 4 * KIB, LIVE, 4000, "weight"), Piece(AT + 4 * KIB, KIB, FREE),
        Piece(AT + 5 * KIB, KIB, LIVE, KIB, "matmul"), Piece(AT + 6 * KIB, 2 * KIB, FREE)])
    return History("cuda:0", [0.25, 0.5, 0.75], lives, segments=[segment])


@pytest.fixture(params=[".json", ".pickle"])
def file(request, tmp_path):
    path = tmp_path / f"run{request.param}"
    save(path, history())
    return path


def test_it_prints_the_holders_of_memory_at_the_peak(file, capsys):
    assert main(["memory", str(file)]) == 0
    out = capsys.readouterr().out
    assert "6 KiB live on cuda:0 at the peak, in 3 blocks; 3 events in 0.75 s, the peak" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["parameters", "4", "KiB", "66.7%", "1"] in [row[:5] for row in rows]
    assert "parameters of Net" in out and "matmul in Net.[bold], saved" in out
    assert "relu, temporary" in out
    assert "At the end 5 KiB live, 8 KiB reserved in 1 segment" in out
    assert "Fragmentation: 33.3 % of the free bytes" in out and "reserved / live is 1.60" in out


@pytest.mark.parametrize("group,name", [("op", "matmul"), ("module", "Net.first"),
                                        ("source", "(not recorded)"), ("holder", "relu,")])
def test_one_table_can_be_asked_for(file, group, name, capsys):
    assert main(["memory", str(file), "--by", group, "--most", "1"]) == 0
    out = capsys.readouterr().out
    shown = out.index(name) if group in ("module", "source") else out.index("others")
    assert shown > 0 and "made in a forward pass" not in out


def test_the_peak_lies_within_the_recorded_time(file, capsys):
    assert main(["memory", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["peak"]["seconds"], found["seconds"]) == (0.5, 0.75)  # both from the start


def test_a_single_row_that_is_left_keeps_its_name(file, capsys):
    assert main(["memory", str(file), "--by", "op", "--most", "2"]) == 0
    out = capsys.readouterr().out
    assert "others" not in out and "weight" in out and "matmul" in out and "relu" in out
    assert main(["memory", str(file), "--by", "op", "--most", "1"]) == 0
    assert "2 others" in capsys.readouterr().out


@pytest.mark.parametrize("rows", ["0", "-1", "some"])
def test_rows_are_a_number_from_1_on(file, rows, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["memory", str(file), f"--most={rows}"])
    assert stop.value.code == 2
    assert f"{rows!r} given; wanted a number of rows, 1 or more" in capsys.readouterr().err


def test_a_snapshot_of_nothing_has_no_tables(tmp_path, capsys):
    save(tmp_path / "now.json", History("cpu", [], []))
    assert main(["memory", str(tmp_path / "now.json")]) == 0
    assert capsys.readouterr().out == "0 B live on cpu when this was written, in 0 blocks\n"


@pytest.mark.parametrize(("change", "sentence"), [
    ({"times": [0.25, 0.5, float("nan")]}, "a time is nan, wanted seconds from the start"),
    ({"size": -5}, "'size' of a block is -5, wanted a whole number from 0"),
    ({"nbytes": -1}, "'nbytes' of a block is -1, wanted")])
def test_numbers_that_cannot_be_are_refused(change, sentence, tmp_path, capsys):
    save(tmp_path / "run.json", history())
    document = json.loads((tmp_path / "run.json").read_bytes())
    (document if "times" in change else document["blocks"][1]).update(change)
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert main(["memory", str(tmp_path / "run.json")]) == 1
    errors = capsys.readouterr().err
    assert "is no memory snapshot" in errors and sentence in errors


def test_json_for_machines(file, capsys):
    assert main(["memory", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak"]["bytes"] == 6 * KIB and found["peak"]["event"] == 1
    assert found["peak"]["by_op"][0] == {"name": "weight", "size": 4 * KIB, "blocks": 1}
    assert found["end"]["reserved_per_live"] == 1.6
    assert found["end"]["fragmentation_percent"] == pytest.approx(100 / 3)


def test_a_large_snapshot_adds_up(tmp_path, capsys):
    found = random_history(3)
    save(tmp_path / "run.pickle", found)
    assert main(["memory", str(tmp_path / "run.pickle"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for group in ("category", "holder", "op", "module", "source"):
        assert sum(held["size"] for held in told["peak"][f"by_{group}"]) == told["peak"]["bytes"]
    assert told["peak"]["bytes"] == max(found.totals())
    assert told["out_of_memory"][0]["bytes"] == 1 << 40
    assert main(["memory", str(tmp_path / "run.pickle")]) == 0
    assert "Out of memory" in capsys.readouterr().out


class Attack:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize("name,data,sentence", [
    ("none.json", None, "there is no file"),
    ("run.txt", b"", "wanted a snapshot whose name ends in .pickle or .json"),
    ("run.json", b"[1, 2]", "is no memory snapshot: its 'format' is not"),
    ("run.json", b"\xff\xfe", "is no memory snapshot: 'utf-8' codec"),
    ("run.pickle", b"", "is no memory snapshot: it ends early"),
    ("run.pickle", pickle.dumps({}, protocol=0), "wanted a pickle of protocol 2 to 5"),
    ("run.pickle", pickle.dumps(3), "it lacks 'segments' and 'device_traces'"),
    ("run.pickle", pickle.dumps({"segments": Attack()}), "which a snapshot never does"),
])
def test_a_bad_file_gets_one_sentence(name, data, sentence, tmp_path, capsys):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert main(["memory", str(tmp_path / name)]) == 1
    errors = capsys.readouterr().err
    assert sentence in errors and errors.count("\n") == 1 and name in errors


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["memory", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "gt.memory.timeline(" in out and "--by module" in out and "Nothing in the file" in out
