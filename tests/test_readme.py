"""Documents: Python blocks of the pages read first run as they stand, and every link leads on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/guide.md")  # whose Python blocks run
LINKED = sorted(path.relative_to(ROOT).as_posix() for folder in (".", "docs", "profiling")
                for path in (*ROOT.glob(f"{folder}/*.md"), *ROOT.glob(f"{folder}/results/*.md")))

# Each block has its own names. Lines before it become empty ones, so that a traceback has the
# page's line numbers; warnings are errors.
RUN = """
import re, sys
from pathlib import Path
page = Path(sys.argv[1])
text = page.read_text(encoding="utf-8")
for block in re.finditer(r"^```python\\n(.*?)^```$", text, re.S | re.M):
    above = text.count("\\n", 0, block.start(1))
    exec(compile("\\n" * above + block[1], page.name, "exec"), {"__name__": "__main__"})
    print("ran the block after line", above)
"""


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's blocks in one fresh process on the CPU, in `folder`."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-W", "error", "-c", RUN, str(page)], cwd=folder,
                          env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs(name: str, tmp_path: Path) -> None:
    page = ROOT / name
    ran = run(page, tmp_path)
    assert ran.returncode == 0, ran.stderr
    openings = page.read_text(encoding="utf-8").count("```python")
    assert ran.stdout.count("ran the block after line") == openings > 0


def test_a_block_that_raises_is_reported_with_its_line(tmp_path: Path) -> None:
    """The planted fault: the second block uses a name of the first, and so does not stand alone."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nimport math\n```\n\ntext\n\n"
                    "```python\nx = 1\nmath.sqrt(x)\n```\n", encoding="utf-8")
    ran = run(page, tmp_path)
    assert ran.returncode != 0 and ran.stdout.count("ran the block") == 1
    assert 'File "page.md", line 11' in ran.stderr
    assert "NameError: name 'math' is not defined" in ran.stderr


def text_of(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-")
            for line in re.findall(r"^#+ (.*)$", text_of(page), re.M)}


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of it."""
    found = []
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", text_of(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name: str) -> None:
    assert not broken(ROOT / name)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# The other's page\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](#a-page) [b](other.md#the-others-page) [c](other.md)\n"
                    "[d](#b-page) [e](other.md#a-page) [f](none.md)\n", encoding="utf-8")
    assert broken(page) == ["#b-page", "other.md#a-page", "none.md"]
