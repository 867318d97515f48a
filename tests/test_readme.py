"""The pages that a user reads first: every Python block runs as it stands, every link leads on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/guide.md")

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


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert links and not [link for link in links if not (page.parent / link).exists()]
