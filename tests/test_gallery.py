"""The gallery: its page is that of its functions, quick pictures are made, bad ones are refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


def load(path: Path) -> ModuleType:
    """The gallery's program as a module."""
    spec = importlib.util.spec_from_file_location("gallery", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


gallery: Any = load(ROOT / "docs/gallery.py")
QUICK = [name for name, one in gallery.PICTURES.items() if one.quick]


def shows_something(path: Path) -> bool:
    """Whether it is a PNG of more than one colour."""
    with Image.open(path) as image:
        extrema: Any = image.convert("RGB").getextrema()
        return image.format == "PNG" and any(low < high for low, high in extrema)


def test_the_page_is_that_of_the_functions() -> None:
    assert (ROOT / "docs/gallery.md").read_text(encoding="utf-8") == gallery.page(), (
        "run python docs/gallery.py --only speed, which writes the page")


def test_the_page_shows_the_lines_of_a_changed_function(monkeypatch: pytest.MonkeyPatch,
                                                         tmp_path: Path) -> None:
    """The planted fault: one line of a function differs, and so the page that is there does."""
    text = (ROOT / "docs/gallery.py").read_text(encoding="utf-8")
    assert text.count("for _ in range(120)") == 1
    changed = tmp_path / "docs/gallery.py"
    changed.parent.mkdir()
    changed.write_text(text.replace("for _ in range(120)", "for _ in range(121)"),
                       encoding="utf-8")
    monkeypatch.setitem(sys.modules, "gallery", gallery)
    monkeypatch.setattr(sys, "path", list(sys.path))
    page = load(changed).page()
    assert page != gallery.page() and page.replace("range(121)", "range(120)") == gallery.page()


@pytest.mark.parametrize("name", gallery.PICTURES)
def test_every_picture_is_there_and_small(name: str) -> None:
    path = ROOT / f"docs/gallery/{name}.png"
    assert shows_something(path)
    assert path.stat().st_size <= gallery.MOST_BYTES


@pytest.mark.parametrize("name", [name for name in gallery.PICTURES if name != "speed"])
def test_every_picture_was_drawn_by_the_present_code(name: str) -> None:
    one = gallery.PICTURES[name]  # that of speed has a digest of its ratios (profiling/report.py)
    assert one.is_current((ROOT / f"docs/gallery/{name}.png").read_bytes()), "run make gallery"


@pytest.mark.parametrize("line", [" ", ""])
def test_a_picture_of_other_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          line: str) -> None:
    """The planted fault: a blank more in a file that draws."""
    monkeypatch.setattr(gallery, "DOCS", tmp_path / "docs")
    (tmp_path / "draws.py").write_text("drawn")
    one = gallery.Picture("Plain", (3, 2), True, drawn((3, 2)), ("draws.py",))
    one.made(tmp_path / "plain.png")
    one.made(tmp_path / "plain.png")
    png = (tmp_path / "plain.png").read_bytes()
    assert png.count(b"Code") == 1 and shows_size(tmp_path / "plain.png") == (3, 2)
    (tmp_path / "draws.py").write_text("drawn" + line)
    assert one.is_current(png) == (not line)


def shows_size(path: Path) -> tuple[int, int]:
    """The size of a picture, all of whose chunks are whole."""
    with Image.open(path) as image:
        image.verify()
        return image.size


def test_a_blank_picture_shows_nothing(tmp_path: Path) -> None:
    drawn((3, 2))(tmp_path / "blank.png")
    assert not shows_something(tmp_path / "blank.png")


def test_no_picture_is_left_over() -> None:
    there = {path.stem for path in (ROOT / "docs/gallery").iterdir()}
    assert there == set(gallery.PICTURES)


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_quick_pictures_are_made(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.png"
    gallery.PICTURES[name].made(path)  # which compares the size
    assert shows_something(path)


# -- the command -----------------------------------------------------------------------------------


def drawn(size: tuple[int, int]) -> Any:
    def plain(path: Path) -> None:
        """A grey picture."""
        Image.new("RGB", size, "grey").save(path)

    return plain


def test_only_one_picture_is_made_and_the_page_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = {name: gallery.Picture(name, (3, 2), True, drawn((3, 2))) for name in "ab"}
    monkeypatch.setattr(gallery, "PICTURES", pictures)
    (tmp_path / "gallery").mkdir()
    monkeypatch.setattr(gallery, "page", lambda: "the page\n")
    assert gallery.main(["--only", "a"], tmp_path) == 0
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["gallery.md", "plain.png"]
    assert (tmp_path / "gallery.md").read_text() == "the page\n"
    assert "1/1" in capsys.readouterr().err  # the progress bar


def test_an_unknown_picture_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gallery.main(["--only", "flam"], tmp_path) == 2
    error = capsys.readouterr().err
    assert error.startswith("gallery: there is no picture 'flam'; wanted one of memory, owners")
    assert error.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "told"), [
    ((4, 2), "has (4, 2) pixels, wanted (3, 2)"),
    ((3, 2), "bytes, wanted at most 10"),
])
def test_a_picture_of_another_size_does_not_replace_the_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    size: tuple[int, int], told: str
) -> None:
    monkeypatch.setattr(gallery, "PICTURES",
                        {"plain": gallery.Picture("Plain", (3, 2), True, drawn(size))})
    monkeypatch.setattr(gallery, "MOST_BYTES", 10)
    monkeypatch.setattr(gallery, "page", lambda: "")
    place = tmp_path / "gallery/plain.png"
    place.parent.mkdir()
    place.write_bytes(b"before")
    assert gallery.main([], tmp_path) == 1
    assert told in capsys.readouterr().err
    assert place.read_bytes() == b"before"


@pytest.mark.parametrize("there", [True, False])
def test_without_chromium_a_picture_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    there: bool
) -> None:
    import browser

    def missing() -> Path:
        raise FileNotFoundError("there is no npm")

    monkeypatch.setattr(browser, "chromium", missing)
    place = tmp_path / "gallery/memory_page.png"
    place.parent.mkdir()
    if there:
        place.write_bytes(b"before")
    assert gallery.main(["--only", "memory_page"], tmp_path) == int(not there)
    assert place.exists() == there
    told = " ".join(capsys.readouterr().err.split())
    assert ("memory_page needs Chromium, which could not be fetched or started (there is no npm); "
            + ("the picture that is there stays" if there else "there is no picture")) in told
