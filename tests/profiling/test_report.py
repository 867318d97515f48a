"""Reports: tables and pictures of results, worse results are found, typed-in figures, bad input."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import report
from ladder import Spread
from report_pictures import MOST_BARS, Bar, picture
from report_tables import CHOSEN, Chosen, chosen_table, find, launches_table, markdown
from result_rows import of_folder, parsed

ROOT = Path(report.__file__).resolve().parents[1]
README = "# A project\n\n<!-- report: speed -->\nold\n<!-- end -->\n\nProse.\n"
INDEX = "# Results\n\n<!-- report: results -->\n<!-- end -->\n"


def ratio(median: float, wide: float = 0.02, *, peer: str = "pytorch", target: float | None = None,
          ) -> dict[str, Any]:
    """A ratio whose quartiles lie `wide` (a share of it) to both sides."""
    return {"rung": "gtensor", "peer": peer, "median": median, "low": median * (1 - wide),
            "high": median * (1 + wide), "target": target, "beside": 0.0,
            "met": None if target is None else median <= target}


def figure(measured: float, target: float | None = None) -> dict[str, Any]:
    return {"name": "saved bytes over PyTorch's", "measured": measured, "target": target,
            "unit": "x", "note": "", "met": None if target is None else measured <= target}


def result(*ratios: dict[str, Any], figures: tuple[dict[str, Any], ...] = (),
           notes: tuple[str, ...] = (), slug: str = "cpu-2core", processor: str = "A processor",
           **more: Any) -> dict[str, Any]:
    """What `ladder_blocks.py` could have written."""
    return {
        "schema": 1, "program": "ladder_blocks", "date": "2026-01-02T03:04:05+00:00",
        "command": "python profiling/ladder_blocks.py",
        "machine": {"slug": slug, "system": "Linux", "processor": processor, "cores": 2,
                    "memory_bytes": 8 << 30},
        "versions": {"python": "3.11.7", "torch": "2.13.0"}, "device": "cpu", "rounds": 5,
        "blas_threads": 1, "figures": list(figures),
        "ladders": [{"name": "GPT step, 6 layers", "clock": "perf_counter", "rungs": [],
                     "ratios": list(ratios), "notes": list(notes)}],
        **more}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one result of one machine, and two READMEs."""
    put(tmp_path / "profiling/results/cpu-2core", result(ratio(1.12, target=1.3)))
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "profiling/README.md").write_text(INDEX)
    (tmp_path / "docs/gallery").mkdir(parents=True)
    return tmp_path


def put(folder: Path, document: object, name: str = "ladder_blocks.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    return folder


# -- what is committed -----------------------------------------------------------------------------


def test_the_committed_tables_are_those_of_the_committed_results(
    capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(["--check"]) == 0, capsys.readouterr().out


def test_every_chosen_row_is_measured_or_says_what_it_lacks() -> None:
    every = [found for folder in (ROOT / "profiling/results").glob("*/")
             for found in of_folder(folder)]
    unmeasured = [chosen.what for rows in CHOSEN.values() for chosen in rows
                  if find(chosen, every)[2] == "not measured"]
    assert unmeasured == []  # which a misspelt name of a ladder would be


# -- tables ----------------------------------------------------------------------------------------


def test_tables_are_written_between_their_markers(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([], root) == 0
    text = (root / "README.md").read_text()
    assert ("| training step of a GPT with 6 layers | PyTorch | 1.120 (1.098 .. 1.142) | 1.3: met "
            "| A processor | 2026-01-02 "
            "| [`ladder_blocks.json`](profiling/results/cpu-2core/ladder_blocks.json) |") in text
    assert "old" not in text and text.endswith("<!-- end -->\n\nProse.\n")
    assert "| cpu-2core | 2026-01-02 | A processor | 1 of 1 |" in (
        root / "profiling/README.md").read_text()
    whole = (root / "profiling/results/cpu-2core/report.md").read_text()
    for part in ("## ladder_blocks.json", "`python profiling/ladder_blocks.py`", "torch 2.13.0",
                 "5 rounds, 1 thread, clock perf_counter", "A processor, 2 cores, 8 GiB, Linux",
                 "| GPT step, 6 layers | gtensor / pytorch | 1.120 (1.098 .. 1.142) | 1.3: met |"):
        assert part in whole
    assert report.main(["--check"], root) == 0
    again = text, whole
    assert report.main([], root) == 0
    assert again == ((root / "README.md").read_text(),
                     (root / "profiling/results/cpu-2core/report.md").read_text())


def test_launches_are_those_of_the_cost_sheets(tmp_path: Path) -> None:
    for name, launches in (("gpt2", 295), ("torch-gpt2", 700), ("resnet50", 3), ("torch-resnet50",
                                                                                2)):
        (tmp_path / f"{name}-h100.json").write_text(json.dumps(
            {"launches": launches, "bytes": 1000 * launches}))
    lines = launches_table(tmp_path, "sheets/").splitlines()
    assert lines[2].startswith("| GPT-2 small, bfloat16, 8 x 1,024 tokens: launches | 295 | 700 | "
                               "0.421 | [`gpt2-h100.json`](sheets/gpt2-h100.json), ")
    assert "bytes moved | 3,000 | 2,000 | 1.500 |" in lines[5]  # a row that is lost stays


def test_absent_peers_and_machines_are_rows_that_say_so() -> None:
    left_out = parsed("ladder_blocks.json", json.dumps(result(
        notes=("gtensor uses 2 threads", "left out: torch is not installed"))).encode())
    table = chosen_table("speed", [left_out], "results/")
    first, gpu, _, _, token = table.splitlines()[2:7]
    assert ("| not measured: torch is not installed |  | A processor | 2026-01-02 "
            "| [`ladder_blocks.json`]") in first
    assert gpu.endswith("| not measured: needs a GPU |  | - | - | - |")
    assert token.endswith("| not measured |  | - | - | - |")


def test_the_newest_result_with_the_row_is_shown() -> None:
    chosen = Chosen("step", "PyTorch", "ladder_blocks", "GPT step, 6 layers", "gtensor", "pytorch")
    results = [parsed("a.json", json.dumps(result(one, date=date)).encode()) for date, one in (
        ("2026-01-01", ratio(2.0)), ("2026-01-03", ratio(1.5)),
        ("2026-01-04", ratio(1.0, peer="numpy")))]
    found, row, _ = find(chosen, results)
    assert found is results[1] and row is not None and row.spread.median == 1.5


def test_a_row_that_a_newer_file_has_is_left_out_of_the_older_one(root: Path) -> None:
    folder = root / "profiling/results/cpu-2core"
    six = [ratio(3.0, peer=f"peer {i}") for i in range(6)]
    put(folder, result(ratio(2.0, target=1.5), *six, date="2026-01-01"), "ladder_blocks.json")
    put(folder, result(ratio(1.4, target=1.5), date="2026-01-03"), "ladder_blocks-step.json")
    put(folder, result(ratio(9.0), date="2026-01-04", program="ladder_abn"), "ladder_abn.json")
    report.main([], root)
    newer, older = (folder / "report.md").read_text().split("## ladder_blocks.json")
    assert "gtensor / peer 5 | 3.000" in older and "gtensor / pytorch" not in older
    assert ("Rows left out, which newer files have: 1 (1 in "
            "[ladder_blocks-step.json](#ladder_blocks-stepjson)).") in older
    assert "gtensor / pytorch | 1.400" in newer and "gtensor / pytorch | 9.000" in newer
    index = (root / "profiling/README.md").read_text()
    assert index.count("| 0 of 0 |") == 2 and "| 1 of 1 |" in index  # nor is it counted


def test_missed_targets_and_bars_in_names() -> None:
    rows = parsed("a.json", json.dumps(result(
        ratio(1.4, target=1.3), figures=(figure(0.7, 0.6),))).encode()).rows
    assert [row.judged for row in rows] == ["1.3: **missed**", "0.6 x: **missed**"]
    assert markdown(["a"], [["p | q"]]).splitlines()[-1] == "| p / q |"


# -- pictures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, MOST_BARS + 1])
def test_pictures_have_their_parts(count: int) -> None:
    from PIL import Image

    bars = [Bar(f"$gtensor_{i} / a^peer$", Spread(0.5 + i, 0.4 + i, 0.7 + i), 1.2, "a ladder")
            for i in range(count)]
    image = Image.open(io.BytesIO(picture("A title", bars)))
    colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or []}
    quick, slow = (0x2F, 0x66, 0x90), (0xD9, 0xA0, 0x5B)
    assert image.size[0] >= 900
    assert quick in colours and (slow in colours) == (count <= MOST_BARS)


# -- checks ----------------------------------------------------------------------------------------


@pytest.fixture
def written(root: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    report.main([], root)
    capsys.readouterr()
    return root


@pytest.mark.parametrize(("name", "old", "new", "told"), [
    ("README.md", "1.120", "1.020", "README.md, line 6: not what the results say"),
    ("README.md", "Prose.", "It is 1.3 x PyTorch.",
     "README.md, line 27: '1.3 x PyTorch' is typed by hand"),
    ("README.md", "Prose.", "An op takes 2.5 us.", "'2.5 us' is typed by hand"),
    ("README.md", "Prose.", "A target is 1.5 + 1 us, or 2 us.", "'2 us' is typed by hand"),
    ("profiling/results/cpu-2core/report.md", "5 rounds", "50 rounds",
     "report.md, line 7: not what the results say"),
])
def test_a_planted_figure_is_found(
    written: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, told: str
) -> None:
    text = (written / name).read_text()
    assert text.count(old) == 1
    (written / name).write_text(text.replace(old, new))
    assert report.main(["--check"], written) == 1
    assert told in capsys.readouterr().out
    assert new in (written / name).read_text()  # a check writes nothing


def test_code_and_plain_numbers_are_no_figures() -> None:
    text = "`a` took\n\n    2 ms\n\n```\n2 ms\n```\n90 seconds, 16 runs, 5 %, version 1.3\n3 ms\n"
    assert list(report.typed(text)) == [(9, "3 ms")]


def test_a_missing_picture_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root / "profiling/results/cpu-2core", result(*(ratio(1.1, peer=str(i)) for i in range(6))))
    report.main([], root)
    drawn = root / "profiling/results/cpu-2core/ladder_blocks.png"
    assert f"]({drawn.name})" in drawn.with_name("report.md").read_text()
    drawn.unlink()
    capsys.readouterr()
    assert report.main(["--check"], root) == 1
    assert capsys.readouterr().out.startswith("profiling/results/cpu-2core/ladder_blocks.png is ")


@pytest.mark.parametrize("stale", [
    "docs/gallery/speed.png", "profiling/results/cpu-2core/ladder_blocks.png"])
def test_a_picture_of_other_ratios_is_found(
    root: Path, capsys: pytest.CaptureFixture[str], stale: str
) -> None:
    """The planted fault: the picture, and nothing else, is that of another measurement."""
    folder = root / "profiling/results/cpu-2core"
    others = [ratio(1.1, peer=str(i)) for i in range(6)]
    put(folder, result(ratio(1.34), *others))
    report.main([], root)
    old = (root / stale).read_bytes()
    put(folder, result(ratio(1.36), *others))
    report.main([], root)
    assert report.main(["--check"], root) == 0
    (root / stale).write_bytes(old)
    capsys.readouterr()
    assert report.main(["--check"], root) == 1
    assert capsys.readouterr().out == (
        f"{stale} shows other ratios than the results have; run python profiling/report.py\n")


# -- comparisons -----------------------------------------------------------------------------------


def samples(centre: float, seed: int) -> dict[str, Any]:
    """A ratio of 25 noisy rounds around a centre."""
    draw = random.Random(seed)
    spread = Spread.of([centre * draw.gauss(1, 0.05) for _ in range(25)])
    return {**ratio(centre), **spread.json()}


def test_noise_is_no_change(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root / "profiling/results/cpu-2core", result(
        *({**samples(1.2, i), "peer": f"peer {i}"} for i in range(40))))
    new = put(tmp_path / "new", result(
        *({**samples(1.2, 100 + i), "peer": f"peer {i}"} for i in range(40))))
    assert report.main(["--new", str(new)], root) == 0
    assert capsys.readouterr().out == "0 worse, 0 better, of 40 compared\n"


@pytest.mark.parametrize(("old", "new", "told"), [
    ([ratio(1.12)], [ratio(1.3)], "1 worse, 0 better"),
    ([ratio(1.12)], [ratio(1.0)], "0 worse, 1 better"),
    ([ratio(1.12, 0.10)], [ratio(1.3, 0.10)], "0 worse"),  # the quartiles overlap
    ([ratio(1.12, 0.01)], [ratio(1.16, 0.01)], "0 worse"),  # by less than 5 %
    ([ratio(1.12, peer="numpy")], [ratio(1.3, peer="numpy"), ratio(9.0)], "1 worse"),  # 9 is new
])
def test_worse_ratios_are_marked(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: list[Any],
    new: list[Any], told: str
) -> None:
    put(root / "profiling/results/cpu-2core", result(*old))
    folder = put(tmp_path / "new", result(*new))
    assert report.main(["--new", str(folder)], root) == ("1 worse" in told)
    out = capsys.readouterr().out
    assert told in out and "of 1 compared" in out
    assert ("worse\n" in out) == ("1 worse" in told)


@pytest.mark.parametrize(("now", "target", "status"), [
    (0.9, 0.8, 1), (0.9, 1.0, 0), (0.9, None, 0)])
def test_a_figure_is_worse_only_beyond_its_target(
    root: Path, tmp_path: Path, now: float, target: float | None, status: int
) -> None:
    put(root / "profiling/results/cpu-2core", result(figures=(figure(0.7, target),)))
    new = put(tmp_path / "new", result(figures=(figure(now, target),)))
    assert report.main(["--new", str(new)], root) == status


def test_rows_that_only_the_committed_results_have_are_named(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root / "profiling/results/cpu-2core"
    put(folder, result(ratio(1.1), *(ratio(1.1, peer=f"peer {i}") for i in range(4))))
    put(folder, result(figures=(figure(0.7),)), "ladder_other.json")
    new = put(tmp_path / "new", result(ratio(1.1)))
    assert report.main(["--new", str(new)], root) == 0
    step = "GPT step, 6 layers / gtensor / peer"
    assert capsys.readouterr().out == (
        f"rows of the committed results that are not in {new}: 5\n"
        f"  ladder_blocks.json: {step} 0; {step} 1; {step} 2; and 1 more\n"
        "  ladder_other.json: all 1\n"
        "0 worse, 0 better, of 1 compared\n")


def test_results_are_compared_with_a_revision(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b", *words],
                       check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "results")
    put(root / "profiling/results/cpu-2core", result(ratio(1.5)))
    assert report.main(["--against", "HEAD"], root) == 1
    out = capsys.readouterr().out
    assert "1.120 (1.098 .. 1.142)  1.500 (1.470 .. 1.530)  worse" in out
    assert report.main(["--against", "no-such"], root) == 2
    assert "'no-such' is neither a folder nor a git revision" in capsys.readouterr().err


def test_another_processor_is_named_and_not_compared(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = put(tmp_path / "new", result(ratio(9.0), processor="Another"))
    assert report.main(["--new", str(new)], root) == 2
    told = capsys.readouterr()
    assert told.out == ("ladder_blocks.json is not compared: measured on Another, before on "
                        "A processor\n")
    assert told.err == "report: the new and the old results have no measurement in common\n"


# -- bad input -------------------------------------------------------------------------------------


WHOLE = json.dumps(result(ratio(1.0)))


def sampled(*own: float) -> str:
    """A result whose ratio is 1.0, with these samples of gtensor and 1.0 of its peer."""
    document = result(ratio(1.0, 0))
    document["ladders"][0]["rungs"] = [
        {"name": "gtensor", "samples": own}, {"name": "pytorch", "samples": [1.0] * 3}]
    return json.dumps(document)


def test_samples_that_say_the_ratio_are_taken() -> None:
    assert parsed("a.json", sampled(1.0, 1.0, 1.0).encode()).rows[0].spread.median == 1.0


@pytest.mark.parametrize(("text", "told"), [
    (sampled(2.0, 2.0, 2.0), "GPT step, 6 layers / gtensor / pytorch is 1.000 (1.000 .. 1.000), "
                             "but its samples say 2.000"),
    (sampled(1.0, 1.0), "wanted as many positive numbers of both"),
    (WHOLE[:-40], "is no result of a ladder program: Unterminated string"),
    ("", "is no result of a ladder program"),
    ("[" * 9999, "is no result of a ladder program"),
    (f"{WHOLE}\0", "null character"),
    ("[]", "is a list, wanted a dict"),
    ('{"name": "package"}', "lacks 'schema'"),
    (WHOLE.replace('"schema": 1', '"schema": 2'), "its schema is 2, wanted 1"),
    (WHOLE.replace('"median": 1.0', '"median": NaN'), "is nan, wanted a finite number"),
    (WHOLE.replace('"median": 1.0', '"median": "1"'), "wanted a number"),
    (WHOLE.replace('"low": 0.98', '"low": 2'), "wanted positive ones in order"),
])
def test_a_bad_result_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (root / "profiling/results/cpu-2core/ladder_bad.json").write_text(text)
    assert report.main([], root) == 2
    error = capsys.readouterr().err
    assert told in error and "ladder_bad.json" in error and error.count("\n") == 1
    assert (root / "README.md").read_text() == README


def test_results_of_different_machines_are_not_mixed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = put(tmp_path / "new", result(ratio(1.0), slug="h100"))
    assert report.main(["--new", str(new), "--against",
                        str(root / "profiling/results/cpu-2core")], root) == 2
    assert "the new results are of h100, the old ones of cpu-2core" in capsys.readouterr().err
    assert report.main(["--new", str(new)], root) == 2
    assert "there is no folder" in capsys.readouterr().err
    put(root / "profiling/results/cpu-2core", result(slug="h100"), "other.json")
    assert report.main([], root) == 2
    assert ("mixes results of different machines: ladder_blocks.json is of cpu-2core, other.json "
            "of h100") in capsys.readouterr().err


@pytest.mark.parametrize(("text", "told"), [
    ("# No tables\n", "README.md has no table; wanted <!-- report: NAME -->"),
    ("<!-- report: speed -->\n", "the table 'speed' lacks its <!-- end -->"),
    ("\n<!-- end -->\n", "line 2: <!-- end --> ends no table"),
    ("<!-- report: sped -->\n<!-- end -->\n", "there is no table 'sped'; wanted one of speed"),
    ("<!-- report: speed -->\n<!-- report: memory -->\n<!-- end -->\n",
     "line 2: <!-- report: memory --> stands within the table 'speed'"),
])
def test_unbalanced_markers_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (root / "README.md").write_text(text)
    assert report.main([], root) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert (root / "README.md").read_text() == text
    assert (root / "profiling/README.md").read_text() == INDEX  # nothing is written


@pytest.mark.parametrize(("arguments", "told"), [
    (["--new", "nowhere"], "there is no folder nowhere"),
    (["--new", "."], "has no results (*.json) of ladders"),
])
def test_folders_without_results_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(root)
    assert report.main(arguments, root) == 2
    assert told in capsys.readouterr().err


def test_without_matplotlib_nothing_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(root / "profiling/results/cpu-2core", result(*(ratio(1.1, peer=str(i)) for i in range(6))))
    monkeypatch.delitem(sys.modules, "matplotlib.lines", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.main([], root) == 2
    assert capsys.readouterr().err == (
        "report: pictures need matplotlib, which is not installed; pip install matplotlib\n")
    assert (root / "README.md").read_text() == README


def test_help_teaches_and_options_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        report.main(["--check", "--new", "a"])
    assert end.value.code == 2
    assert "wanted one of them" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        report.main(["--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("<!-- report: speed -->", "--against v0.1", "Exit status"))
