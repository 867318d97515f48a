"""Training steps at their real sizes on a GPU: against PyTorch, and against the cost sheet.

    python profiling/ladder_steps.py --device cuda                  # gpt2 and resnet50
    python profiling/ladder_steps.py --device cuda --only gpt2

The steps are those of `cost.py`: forward, backward and update from the same weights, bfloat16 by
autocast. PyTorch runs eagerly, with flash attention, channels last, and fused updates. Losses of
the first step are compared. The time is that of a step on the device, or of the host where that is
longer. Needs a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cost_workloads
from ladder import Ladder
from ladder_command import Options, Part, left_out, main

TOLERANCE = 2e-2  # of losses in bfloat16
NAMES = ("gpt2", "resnet50")


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterable[Part]]]]:
    """A part per step; none on the CPU."""
    if options.device == "cuda":
        for name in NAMES:
            yield name, lambda name=name: climb(name, options.quick)


def climb(name: str, quick: bool) -> Iterator[Part]:
    step, = cost_workloads.WORKLOADS[name](quick)
    note = left_out("torch", "cuda")
    runs = {"gtensor": lambda: own(step)}
    if not note:
        from cost_torch import on_gpu

        runs["pytorch"] = on_gpu(name, step.parameters, step.inputs, step.rate)
    first = {rung: run().item() for rung, run in runs.items()}
    ladder = Ladder(f"{name} step", lambda: first["gtensor"], tolerance=TOLERANCE, device="cuda")
    for rung, run in runs.items():
        ladder.rung(rung, run, result=lambda loss, rung=rung: first[rung])
    if "pytorch" in runs:
        ladder.compare("gtensor", "pytorch")
    if note:
        ladder.notes.append(note)
    yield ladder


def own(step: cost_workloads.Step) -> Any:
    """Forward, backward, update; the loss, without a synchronization."""
    step.clear()
    loss = step.forward()
    step.backward(loss)
    step.update()
    return loss.detach()


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_steps"))
