"""Memory, profiles and modes around a computation."""

from pathlib import Path
from typing import assert_type

import gtensor as gt


def memory(folder: Path) -> str:
    """What is in use, and when."""
    before = assert_type(gt.memory.stats().allocated, int)
    with gt.memory.timeline(folder / "memory.html") as recording:
        held = gt.ones((900, 900))
    peak = max(life.size for life in recording.history().lives)
    assert peak >= held.nbytes > 0 <= before
    return gt.memory.summary() + recording._repr_html_()


def profile(folder: Path) -> float:
    """What took the time."""
    with gt.profiler.profile() as found:
        y = gt.exp(gt.ones((10, 10))) @ gt.ones(10)
    found.html(folder / "profile.html")
    slowest = max(found.spans, key=lambda span: span.seconds)
    return slowest.seconds + float(y[0]) + found.seconds


def modes(x: gt.Tensor) -> gt.Tensor:
    """Contexts and decorators."""
    with gt.no_grad(), gt.autocast(gt.bfloat16):
        product = x @ x

    @gt.no_grad()
    def constant(value: gt.Tensor) -> gt.Tensor:
        return value * 2

    with gt.random.seeded(3):
        noise = gt.random.uniform(x.shape)
    assert_type(gt.default_device(), gt.Device)
    return constant(product.astype(gt.float32)) + noise


def run(folder: Path) -> None:
    """All of it."""
    assert "memory of cpu" in memory(folder)
    assert profile(folder) > 0
    assert modes(gt.ones((2, 2))).shape == (2, 2)
