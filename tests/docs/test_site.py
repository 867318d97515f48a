"""The site is built without a complaint, has all names, and opens without a network."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest
import reference
from browser import browser, faint_texts, spoilt_texts

import gtensor as gt
from gtensor.system.foreign_names import ALIASES

ROOT = Path(__file__).parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site; without --quiet, under which MkDocs counts no warnings."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        timeout=900)


def missing(names: Iterable[str], pages: Iterable[str]) -> list[str]:
    """The names that do not have exactly one entry on the pages."""
    entries = Counter(name for page in pages for name in re.findall(r'<h\d id="([\w.]+)"', page))
    return [name for name in names if entries[name] != 1]


LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')
SEARCH = """new Promise((found) => {
    const input = document.querySelector("input.md-search__input");
    const look = () => {
        const links = [...document.querySelectorAll(".md-search-result__link")];
        if (links.length) return found(links.map((link) => link.href));
        input.focus();
        input.value = "cholesky";
        input.dispatchEvent(new Event("keyup"));
        setTimeout(look, 100);
    };
    look();
})"""
READ = ("index.html", "docs/gallery.html", "docs/reference/optim.lr_scheduler.html")
CUT = """(() => {
    const tables = [...document.querySelectorAll(".md-typeset__scrollwrap")];
    const cut = tables.filter((table) => table.scrollWidth > table.clientWidth);
    return [tables.length > 10, cut.map((table) => table.scrollWidth)];
})()"""


@pytest.mark.thorough
def test_the_site_has_every_name_loads_nothing_and_can_be_searched(tmp_path: Path) -> None:
    """One test, so that the site is built once."""
    built = build(ROOT / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    entries = [text for path, text in pages.items()
               if path.parent == tmp_path / reference.FOLDER]
    names = {home for placed in reference.entries().values() for home in placed.values()}
    names |= {f"gtensor.Tensor.{name}" for name in dir(gt.Tensor)
              if name[0] != "_" and name not in ALIASES["gtensor.Tensor"]}
    assert len(entries) == len(reference.PAGES) and len(names) > 450
    assert not missing(names, entries)
    assert not [found for text in pages.values() for found in LOADED.findall(text)]
    assert not [text for text in entries if "object at 0x" in html.unescape(text)]
    assert not [path for path, text in pages.items() if "\n| --- |" in text]  # a table as text
    profile = re.search(r'<h2 id="gtensor.profiler.Profile".*?<h3', "".join(entries), re.S)
    assert profile and "What gt.profiler.profile measured" in re.sub(r"<.*?>", "", profile[0])
    assert "<pre>" not in profile[0]  # a user does not make one
    with browser() as page:  # from the disk
        page.open(tmp_path / "docs" / "guide.html")
        links = page.run(SEARCH)
        page.open(tmp_path / "docs" / "ops.html", width=1280)
        assert page.run(CUT) == [True, []]
        for name, width, dark in product(READ, (420, 1280, 1920), (False, True)):
            page.open(tmp_path / name, width, dark=dark)
            assert page.run("getComputedStyle(document.body).colorScheme") == (
                "dark" if dark else "light")
            assert page.run("document.documentElement.scrollWidth") == width, name
            assert spoilt_texts(page) == [] == faint_texts(page), (name, width, dark)
        assert page.errors == []
    assert any("reference/linalg.html" in link for link in links)


def test_names_without_an_entry_or_with_two_are_found() -> None:
    pages = ['<h2 id="gtensor.exp"><h2 id="gtensor.log">', '<h3 id="gtensor.log" class="c">']
    assert missing(["gtensor.exp", "gtensor.log", "gtensor.sin"], pages) == [
        "gtensor.log", "gtensor.sin"]


def test_what_is_loaded_from_the_network_is_found() -> None:
    assert LOADED.findall('<script defer src="https://a.b/c.js"><link href="//a.b/d.css">'
                          '<a href="https://a.b/"><img src="e.png">') == [
        "https://a.b/c.js", "//a.b/d.css"]


@pytest.mark.thorough
def test_what_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    """The planted faults: a file, a heading and a name that are not there."""
    (tmp_path / "pages").mkdir()
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nhooks: []\nextra_css: []\n"
                      "nav: []\nplugins: [autorefs]\n", encoding="utf-8")
    page = tmp_path / "pages" / "index.md"
    page.write_text("# A page\n\n[a](index.md#a-page)\n", encoding="utf-8")
    assert build(config, tmp_path / "site").returncode == 0
    page.write_text("# A page\n\n[a](none.md) [b](#nowhere) [`c`][gtensor.nothing]\n",
                    encoding="utf-8")
    built = build(config, tmp_path / "site")
    assert built.returncode != 0
    for complaint in ("none.md", "#nowhere", "gtensor.nothing"):
        assert complaint in built.stderr
