"""Documents: Python blocks of the pages read first run, links lead somewhere, named files exist."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gtensor
from gtensor.system.bus import METHODS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md", "profiling/**/*.md")
                   for path in ROOT.glob(pattern))
LINKED = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
# Their blocks build on those before, or on a program: they have tests of their own.
ELSEWHERE_RUN = ("docs/tutorials/", "docs/gallery.md")
ALONE = (  # pages whose blocks run in a process of their own, because they change it for the others
    "README.md", "CONTRIBUTING.md", "docs/testing.md",
)
TOGETHER = tuple(name for name in LINKED if name not in ALONE and not name.startswith(ELSEWHERE_RUN)
                 and "```python" in (ROOT / name).read_text(encoding="utf-8"))

# Each block has its own names. Lines before it become empty ones, so that a traceback has the
# page's line numbers; warnings are errors.
RUN = """
import re, sys
from pathlib import Path
for page in map(Path, sys.argv[1:]):
    text = page.read_text(encoding="utf-8")
    for block in re.finditer(r"^```python\\n(.*?)^```$", text, re.S | re.M):
        above = text.count("\\n", 0, block.start(1))
        exec(compile("\\n" * above + block[1], page.name, "exec"), {"__name__": "__main__"})
        print("ran the block after line", above)
"""


def run(folder: Path, *pages: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks of pages in one fresh process on the CPU, in `folder`."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-W", "error", "-c", RUN, *map(str, pages)], cwd=folder,
                          env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.thorough
@pytest.mark.parametrize("names", [*((name,) for name in ALONE), TOGETHER], ids=lambda n: n[0])
def test_every_block_runs(names: tuple[str, ...], tmp_path: Path) -> None:
    pages = [ROOT / name for name in names]
    ran = run(tmp_path, *pages)
    assert ran.returncode == 0, ran.stderr
    openings = [page.read_text(encoding="utf-8").count("```python") for page in pages]
    assert ran.stdout.count("ran the block after line") == sum(openings) and all(openings)


def test_every_method_of_a_listener_is_in_the_table() -> None:
    table = (ROOT / "docs/concepts/events.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [f"`{method}`" for method in METHODS if not any(f"`{method}`" in row for row in rows)
            ] == []


def test_a_block_that_raises_is_reported_with_its_line(tmp_path: Path) -> None:
    """The planted fault: the second block uses a name of the first, and so does not stand alone."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nimport math\n```\n\ntext\n\n"
                    "```python\nx = 1\nmath.sqrt(x)\n```\n", encoding="utf-8")
    ran = run(tmp_path, page)
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


# -- files, folders and modules that prose names ---------------------------------------------------

ELSEWHERE = {  # named in prose, and not in the repository
    "script.py": "the user's", "program.py": "the user's", "train.py": "the user's",
    "my_recipe.py": "the user's",
    "cuda_default.py": "the user's", "runs/digits": "made by `make run`",
    "gtensor/_cuda": "`kernels` in the wheel", "kernel.cu": "the name of a text without a file",
    "cupy_cub.cu": "CuPy's", "cupy_thrust.cu": "CuPy's",
    "cupy/type_dispatcher.cuh": "CuPy's",
    "profiling/results/h200/ops.json": "results to come",
}
PLACE = re.compile(r"(?<![\w./<~-])(?:"
                   r"(?:[\w.-]+/)*[\w-]+\.(?:py|cuh?|cpp|md|sh)\b(?!\()"  # a file
                   r"|(?:gtensor|tests|docs|profiling)/[\w./-]*\w(?![\w*])"  # below the root
                   r"|(?<=`)(?:[\w.-]+/)+(?=`))")  # a folder
DOTTED = re.compile(r"(?<![\w./@-])(?:gtensor|gt|tests)(?:\.[A-Za-z]\w*)+")
PROSE = {  # what is prose in a file of this kind; all of it in others
    ".py": r'#.*|"""(?s:.*?)"""', ".cpp": r"//.*", ".h": r"//.*", ".cu": r"//.*", ".cuh": r"//.*",
}
INVENTING = ("test_readme.py", "test_kernels_loader.py", "test_site.py")  # name made-up files
WRITTEN = [path for pattern in ("gtensor/**/*.*", "kernels/*.*", "*.md",
                                "docs/**/*.*", "profiling/**/*.*", "tests/**/*.py")
           for path in sorted(ROOT.glob(pattern)) if path.suffix in (*PROSE, ".md", ".sh")
           and path.name not in ("CHANGELOG.md", *INVENTING)]


@cache
def places() -> set[str]:
    """Every file and folder of the repository, by its path and by the ends of that path."""
    found = set()
    for top in ("gtensor", "kernels", "tests", "profiling", "docs", "README.md", "CONTRIBUTING.md",
                "CHANGELOG.md"):
        for path in (ROOT / top, *(ROOT / top).rglob("*")):
            if "__pycache__" not in path.parts:
                parts = path.relative_to(ROOT).parts
                found |= {"/".join(parts[start:]) for start in range(len(parts))}
    return found


def is_there(name: str) -> bool:
    """Whether a dotted name is a module of tests, or a module or name of gtensor."""
    first, *rest = name.split(".")
    if first == "tests":
        return name.replace(".", "/") in places() or f"{name.replace('.', '/')}.py" in places()
    value = gtensor
    for count, part in enumerate(rest, 1):
        try:
            value = getattr(value, part) if hasattr(value, part) else importlib.import_module(
                ".".join(["gtensor", *rest[:count]]))
        except ImportError:
            return False
    return True


def missing(path: Path) -> Iterator[str]:
    """The files, folders and modules that a file's prose names and that do not exist."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in PROSE:
        text = "\n".join(re.findall(PROSE[path.suffix], text))
    for name in PLACE.findall(text):
        plain = re.sub(r"^(\.\.?/)+", "", name).rstrip("/")
        if plain not in places() and plain not in ELSEWHERE:
            yield f"{path.name}: {name}"
    yield from (f"{path.name}: {name}" for name in DOTTED.findall(text) if not is_there(name))


def test_files_and_modules_that_prose_names_exist() -> None:
    assert not [fault for path in WRITTEN for fault in missing(path)]


def test_names_of_files_that_do_not_exist_are_found(tmp_path: Path) -> None:
    there = ("`engine/walk/slots.py`, slots.py, `tests/engine`, `memory/arena/`, "
             "../docs/design.md, gtensor.linalg.inv, `gt.nn.functional.gelu`, tests.hostile, "
             "files.name, a/b")
    gone = ["core/slots.py", "frames.py", "tests/tape", "memory/heaps/", "gtensor.core.op",
            "gt.memory.scenarios", "tests.hostage"]
    (tmp_path / "page.md").write_text(f"{there}\n`{'` `'.join(gone)}`\n", encoding="utf-8")
    (tmp_path / "page.py").write_text(
        f'"""A docstring.\n\n{there} `{gone[0]}`\n"""\nx = "frames.py"  # {gone[4]}\n',
        encoding="utf-8")
    assert list(missing(tmp_path / "page.md")) == [f"page.md: {name}" for name in gone]
    assert list(missing(tmp_path / "page.py")) == [f"page.py: {gone[0]}", f"page.py: {gone[4]}"]
