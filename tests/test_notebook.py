"""What notebooks show: HTML that is small, well formed, and escapes what programs name."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

import gtensor as gt

HOSTILE = '<script>alert("&")</script>'
MOST = 20_000  # characters


class Shown(HTMLParser):
    """The text that HTML shows; every tag must be closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", set[str](), list[str]()
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(thing: Any) -> str:
    html = thing._repr_html_()
    found = Shown(html)
    assert len(html) < MOST and "script" not in found.tags
    assert "background: none" in html or "background" not in html  # the notebook's own ground
    return found.text


class Hostile(gt.nn.Module):
    def forward(self, x: gt.Tensor) -> gt.Tensor:
        """The input."""
        return x

    def extra_repr(self) -> str:
        return HOSTILE


def test_a_tensor_shows_what_it_is_over_its_values() -> None:
    x = gt.arange(6.0).reshape(2, 3)
    assert shown(x) == f"Tensor (2, 3), float32 on cpu{x!r}"
    assert shown(gt.zeros((300, 300, 300))).startswith("Tensor (300, 300, 300), float32 on cpu")
    assert shown(gt.nn.Parameter(x)).startswith("Parameter (2, 3), float32 on cpuParameter(")
    seen = []
    gt.vmap(lambda row: (seen.append(shown(row)), row)[1])(x)
    assert seen == ["Batched (3,), float32 on cpu"
                    "tensor(<in vmap() at level 1>, shape=(3,), dtype=float32)"]


def test_a_module_shows_its_tree_and_the_numbers_of_parameters() -> None:
    deep = gt.nn.Sequential(*[gt.nn.Linear(2, 2) for _ in range(1000)])
    text = shown(gt.nn.Sequential(gt.nn.Linear(2, 3), Hostile(), deep))
    assert text.startswith("Sequential() 6,009 parameters(0) Linear(2, 3, bias=True) 9 parameters")
    assert f"(1) Hostile({HOSTILE})" in text and "... 994 more" in text
    assert "(999) Linear" in text and "(500)" not in text


def test_a_profile_shows_its_ops() -> None:
    with gt.profiler.profile() as profile:
        within = shown(profile)
        gt.exp(gt.ones(3))
    assert within == "<Profile, not read yet>"
    assert "1 op took" in shown(profile) and "exp forward" in shown(profile)
    assert shown(profile.table()) == profile.table()


def test_memory_shows_what_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gt.settings, "arena_min_bytes", 0)
    with gt.memory.timeline() as recording, gt.memory.category(HOSTILE):
        assert shown(recording)
        held = [gt.ones(10_000) for _ in range(100)]
        del held[50:]
    assert "MiB at the peak" in shown(recording) and HOSTILE in shown(recording)
    assert shown(gt.memory.summary()) == gt.memory.summary()
