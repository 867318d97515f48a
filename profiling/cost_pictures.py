"""The roofline of a step: each kernel by its FLOPs for a byte and the rate that is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_model import Device, Work, lines

_NAMED = 6  # kernels with most time, by name
_COLOURS = {"memory": "#1f77b4", "issue": "#d62728", "latency": "#9467bd", "products": "#2ca02c",
            "start": "#7f7f7f", "link": "#8c564b"}
_BARS = 12


def roofline(sheet: dict[str, Any], works: Sequence[Work], device: Device, path: Path) -> None:
    """Left: where the time goes. Right: products under the limits of memory and tensor cores."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 5), layout="constrained", width_ratios=(1.2, 1))
    _shares(left, sheet)
    _roof(right, works, device)
    figure.suptitle(f"{sheet['workload']}, {device.name.upper()}: {sheet['gpu_ms']:.2f} ms "
                    f"predicted, {sheet['launches']:,} launches")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _shares(axes: Any, sheet: dict[str, Any]) -> None:
    rows = sheet["kernels"][:_BARS]
    names = [f"{row['name'][:34]} ({row['launches']:,})" for row in rows]
    times = [row["ms"] for row in rows]
    colours = [_COLOURS[row["bound"]] for row in rows]
    rest = sheet["kernels"][_BARS:]
    if rest:
        names.append(f"{len(rest)} more ({sum(row['launches'] for row in rest):,})")
        times.append(sum(row["ms"] for row in rest))
        colours.append("#dddddd")
    places = range(len(names))
    axes.barh(places, times, color=colours)
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("predicted ms of a step (launches)")
    used = {row["bound"] for row in rows}
    for bound, colour in _COLOURS.items():
        if bound in used:
            axes.barh(0, 0, color=colour, label=f"bound by {bound}")
    axes.legend(fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


def _roof(axes: Any, works: Sequence[Work], device: Device) -> None:
    """Kernels with FLOPs; the roofs are those of a copy and of products."""
    import numpy as np

    found = [line for line in lines(works, device) if line.flops and line.nbytes]
    intensity = np.logspace(-1, 4, 200)
    for name, style in (("half", "-"), ("single", "--")):
        axes.plot(intensity, np.minimum(device[name], intensity * device["copy"]) / 1e12, style,
                  color="black", lw=1, label=f"copy, and products in {name} precision")
    for number, line in enumerate(found):
        x, y = line.flops / line.nbytes, line.flops / line.seconds / 1e12
        axes.scatter(x, y, s=30 + 400 * line.seconds / sum(each.seconds for each in found),
                     color=_COLOURS[line.bound], alpha=0.6)
        if number < _NAMED:
            # Points may lie close to each other: they have numbers, and their names are a list.
            axes.text(x, y, str(number + 1), fontsize=8, ha="center", va="center")
            axes.text(0.56, 0.55 - 0.06 * number, f"{number + 1}  {line.name[:28]}", fontsize=8,
                      transform=axes.transAxes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP / byte")
    axes.set_ylabel("predicted TFLOP/s")
    axes.legend(fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
