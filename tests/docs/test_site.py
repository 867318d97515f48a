"""The site is built without a complaint, has all names, and opens without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import reference
from browser import browser

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.thorough


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site; without --quiet, under which MkDocs counts no warnings."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


def missing(names: Iterable[str], pages: Iterable[str]) -> list[str]:
    """The names that do not have exactly one entry on the pages."""
    entries = Counter(name for page in pages for name in re.findall(r'<h\d id="([\w.]+)"', page))
    return [name for name in names if entries[name] != 1]


def test_every_public_name_has_an_entry(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / reference.FOLDER).glob("*.html")]
    names = {home for placed in reference.entries().values() for home in placed.values()}
    names |= {f"gtensor.Tensor.{name}" for name in dir(reference.gt.Tensor) if name[0] != "_"}
    assert len(pages) == len(reference.PAGES) and len(names) > 450
    assert not missing(names, pages)
    assert missing(["gtensor.exp"], [*pages, '<h3 id="gtensor.exp"']) == ["gtensor.exp"]
    assert missing(["gtensor.hidden"], pages) == ["gtensor.hidden"]


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    loaded = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]
    assert len(pages) > 50
    assert [found for page in pages for found in loaded.findall(page)] == []
    assert loaded.findall('<script src="https://a.b/c.js">')


def test_search_finds_a_name_in_a_page_opened_from_the_disk(site: Path) -> None:
    ask = """new Promise((found) => {
        const input = document.querySelector("input.md-search__input");
        const look = () => {
            const links = [...document.querySelectorAll(".md-search-result__link")];
            if (links.length) return found(links.map((link) => link.href));
            input.focus(); input.value = "cholesky";
            input.dispatchEvent(new Event("keyup"));
            setTimeout(look, 100);
        };
        look();
    })"""
    with browser() as page:
        page.open(site / "docs" / "guide.html")
        links = page.run(ask)
        assert page.errors == []
    assert any("reference/linalg.html" in link for link in links)


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
