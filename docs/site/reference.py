"""Which public name stands on which page of the API reference, and the text of these pages.

A namespace is public if it is gtensor, or a public name of a public namespace; a name is public
if it is in the `__all__` of one. An object with several names has one entry, on the first page that
has it, that of gt last; the pages of its other names link to it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import gtensor as gt
import gtensor.testing
from gtensor.settings import Settings

DOCS = Path(__file__).parents[1]
FOLDER = "docs/reference"


@dataclass(frozen=True)
class Page:
    """A page: a namespace, or a few names of another one."""

    title: str
    concepts: tuple[str, ...] = ()  # the pages that explain it, below docs/
    names: tuple[str, ...] = ()  # of gtensor; none: the namespace of the title

    @property
    def uri(self) -> str:
        return f"{FOLDER}/{self.title.lower().replace(' ', '_').removeprefix('gt.')}.md"

    @property
    def module(self) -> str:
        return "gtensor" + self.title.removeprefix("gt")


PAGES = (  # in the order of the navigation
    Page("gt", ("concepts/tensors.md", "array_api.md")),
    Page("gt.Tensor", ("concepts/tensors.md", "concepts/gradients.md"), ("Tensor",)),
    Page("gt.linalg", ("concepts/linear_algebra.md",)),
    Page("gt.fft", ("concepts/linear_algebra.md",)),
    Page("gt.special"),
    Page("gt.ndimage", ("concepts/linear_algebra.md",)),
    Page("gt.autograd", ("concepts/gradients.md",)),
    Page("gt.func", ("concepts/transforms.md",)),
    Page("gt.nn", ("concepts/networks.md", "inplace_abn.md")),
    Page("gt.nn.functional", ("concepts/networks.md",)),
    Page("gt.nn.blocks", ("concepts/networks.md",)),
    Page("gt.nn.init", ("concepts/networks.md",)),
    Page("gt.nn.utils", ("concepts/recomputation.md", "concepts/optimizers.md")),
    Page("gt.models", ("concepts/networks.md",)),
    Page("gt.optim", ("concepts/optimizers.md",)),
    Page("gt.optim.lr_scheduler", ("concepts/optimizers.md",)),
    Page("gt.amp", ("concepts/mixed_precision.md",)),
    Page("gt.data", ("concepts/training.md",)),
    Page("gt.checkpoint", ("concepts/training.md",)),
    Page("gt.train", ("concepts/training.md",)),
    Page("gt.distributed", ("distributed.md",)),
    Page("gt.memory", ("concepts/arena.md", "concepts/planned_steps.md")),
    Page("gt.profiler", ("concepts/events.md",)),
    Page("gt.random", ("concepts/random_numbers.md",)),
    Page("gt.distributions", ("concepts/random_numbers.md",)),
    Page("gt.testing", ("concepts/definitions.md",)),
    Page("Streams and graphs", ("concepts/streams_and_graphs.md",), ("stream", "Event", "Graph")),
    Page("Captured steps", ("concepts/captured_steps.md",), ("capture", "CaptureError")),
    Page("gt.settings", ("concepts/settings.md",), ("settings",)),
)
SHOWN_ELSEWHERE = ("gtensor.ops",)  # all of its names are gtensor's
# The sections of the page of gt: title, and the modules or families of ops whose names it has.
SECTIONS = {
    "Making tensors": ("gtensor.creation.new_tensors",),
    "Dtypes": ("gtensor.creation.dtypes", "dtype"),
    "Elementwise": ("elementwise",),
    "Reductions": ("reduce", "scan"),
    "Shapes and indices": ("arrange",),
    "Sorting, searching, sets": ("order",),
    "Products": ("linalg",),
    "Gradients": ("gtensor.engine.handle.context", "gtensor.engine.walk.anomaly",
                  "gtensor.engine.handle.errors"),
    "Devices": ("gtensor.backend.devices",),
    "Ops of your own": ("gtensor.engine.tape.op", "gtensor.engine.tape.samples",
                        "gtensor.ops.define.pointwise"),
    "Events": ("gtensor.system.bus",),
}
OTHERS = "Constants and queries"


def names_of(module: ModuleType) -> list[str]:
    """The public names of a namespace; `dir(gt)` also has what is imported when it is used."""
    return dir(gt) if module is gt else list(module.__all__)


@cache
def namespaces() -> dict[str, ModuleType]:
    """Every public namespace by its full name."""
    found: dict[str, ModuleType] = {}
    waiting: list[ModuleType] = [gt]
    while waiting:
        module = waiting.pop(0)
        if module.__name__ not in found:
            found[module.__name__] = module
            waiting += [value for name in names_of(module)
                        if isinstance(value := getattr(module, name), ModuleType)
                        and value.__name__ == f"{module.__name__}.{name}"]
    return found


@cache
def public() -> dict[str, Any]:
    """Every public name in full, and its value."""
    return {f"{space}.{name}": value for space, module in namespaces().items()
            if space not in SHOWN_ELSEWHERE for name in names_of(module)
            if not isinstance(value := getattr(module, name), ModuleType)}


@cache
def entries() -> dict[str, dict[str, str]]:
    """Per page its names; per name, in full, the one whose entry it shares, often itself."""
    placed: dict[str, dict[str, str]] = {page.uri: {} for page in PAGES}
    first: dict[int, str] = {}
    for page in sorted(PAGES, key=lambda page: (
            not page.names, page.title in ("gt", "gt.autograd"), page.title == "gt.autograd")):
        alone = {f"gtensor.{name}" for name in page.names}
        for name, value in public().items():
            here = name in alone or not page.names and name.rpartition(".")[0] == page.module
            if here and not any(name in others for others in placed.values()):
                same = callable(value) or name == "gtensor.settings"  # else an equal constant
                placed[page.uri][name] = first.setdefault(id(value), name) if same else name
    return placed


@cache
def families() -> dict[str, str]:
    """The family of each op, as the table of all ops has them."""
    found, family = {}, ""
    for line in (DOCS / "ops.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            family = line[3:]
        elif row := re.match(r"\| `(\w+)` ", line):
            found[row[1]] = family
    return found


def section_of(name: str, value: Any) -> str:
    """The section of the page of gt that has a name."""
    place = "dtype" if isinstance(value, np.dtype) else getattr(value, "__module__", "")
    if place == "gtensor.engine.tape.op" and name != "gtensor.op":
        place = families()[value.name]
    elif place.startswith("gtensor.ops.") and place != "gtensor.ops.define.pointwise":
        place = place.split(".")[2]
    return next((title for title, places in SECTIONS.items() if place in places), OTHERS)


def order(name: str) -> tuple[bool, str]:
    """What names are sorted by: functions come before classes, `no_grad` with the functions."""
    return name.rpartition(".")[2][0].isupper(), name.lower()


def short(name: str) -> str:
    """A name as programs write it."""
    return "gt" + name.removeprefix("gtensor")


def directive(name: str, heading: str, level: int, **options: object) -> str:
    """What mkdocstrings replaces by the entry of a name."""
    given = {"heading": heading, "toc_label": heading, "heading_level": level, **options}
    return f"::: {name}\n    options:\n" + "".join(
        f"      {option}: {value}\n" for option, value in given.items())


def entry(name: str, value: Any, level: int = 2) -> str:
    """The text of one name."""
    if value is gt.settings:
        return _settings()
    more = {"inherited_members": True} if value is gt.Tensor else {}
    text = directive(name, short(name), level, **more)
    op = getattr(value, "name", None) or getattr(value, "__name__", "")
    if op in families() and not inspect.isclass(value):
        text += (f"\nDtypes, saves and derivatives: `{op}` in "
                 f"[the table of all ops](../ops.md#{families()[op]}).\n")
    return text


def _settings() -> str:
    rows = "".join(f"| `{flag.name}` | `GTENSOR_{flag.name.upper()}` | `{flag.default}` "
                   f"| {flag.metadata['doc']} |\n" for flag in fields(Settings))
    return ("## gt.settings {#gtensor.settings}\n\nThe one object of its class. Its flags:\n\n"
            f"| flag | environment variable | default | what |\n|---|---|---|---|\n{rows}\n"
            + directive("gtensor.settings.Settings", "Settings", 3))


def markdown(page: Page) -> str:
    """The text of a page."""
    placed = entries()[page.uri]
    ordered = sorted(placed, key=order)
    own = {name: public()[name] for name in ordered if placed[name] == name}
    parts = [f"# {page.title}"]
    if not page.names:
        parts.append((namespaces()[page.module].__doc__ or "").strip())  # examples stay indented
    if page.concepts:
        links = ", ".join(f"[{title_of(path)}](../{path})" for path in page.concepts)
        parts.append(f"How it works: {links}.")
    if page.title == "gt":
        for title in (*SECTIONS, OTHERS):
            parts.append(f"## {title}")
            parts += [entry(n, v, 3) for n, v in own.items() if section_of(n, v) == title]
    else:
        parts += [entry(name, value) for name, value in own.items()]
    others = [f"- [`{short(name)}`][{placed[name]}] is `{short(placed[name])}`"
              for name in ordered if placed[name] != name]
    if others:
        parts.append("## On other pages\n\n" + "\n".join(others))
    return "\n\n".join(parts) + "\n"


def title_of(path: str) -> str:
    """The title of a page below docs/."""
    return (DOCS / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def pages() -> Iterator[tuple[str, str]]:
    """The pages' paths in the site, and their texts."""
    listed = {f"gtensor{page.title.removeprefix('gt')}" for page in PAGES if not page.names}
    if missing := sorted(set(namespaces()) - listed - {*SHOWN_ELSEWHERE}):
        raise LookupError(f"no page in PAGES has the public namespaces {', '.join(missing)}")
    for page in PAGES:
        yield page.uri, markdown(page)
