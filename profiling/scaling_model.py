"""Predicts the time of a data parallel step from 1 to 1,024 GPUs, by a model fitted here.

    python profiling/scaling_model.py                # fits on this machine; writes a table, a PNG
    python profiling/scaling_model.py --out DIR

The model: buckets are complete at even places of the walk, are summed over the ranks one after the
other, and the step ends when the last one is there. A sum of b bytes over R ranks takes
2 (R - 1) l + 2 (R - 1) / R b / s by a ring, 2 log2(R) l + 2 b / s by trees, whichever is less: l is
the latency of one transfer, s the bandwidth of a rank's link. Both are fitted on sums over the
ranks of this machine, and the model's step of 2 and 4 ranks is compared with the measured one. For
GPUs, published figures of links stand in their place: what follows of them is a prediction, and
nothing of it was measured.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
2009 (the ring); Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009 (the trees); NVIDIA's data sheets of H100 (NVLink 4: 450 GB/s per
direction) and of ConnectX-7 (NDR: 50 GB/s).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import median

import machine
import numpy as np
from ladder_command import RESULTS, Options
from ladder_distributed import measured

RANKS = [1 << i for i in range(11)]  # to 1,024


@dataclass(frozen=True)
class Link:
    """Latency of a transfer in seconds, bandwidth in bytes per second."""

    name: str
    latency: float
    bandwidth: float
    most: int = 1 << 20  # ranks

    def sum_time(self, nbytes: float, ranks: int) -> float:
        """By a ring or by trees."""
        ring = 2 * (ranks - 1) * (self.latency + nbytes / ranks / self.bandwidth)
        return min(ring, 2 * log2(ranks) * self.latency + 2 * nbytes / self.bandwidth)

    def gather_time(self, nbytes: float, ranks: int) -> float:
        """Of `nbytes` of each rank to all."""
        return (ranks - 1) * (self.latency + nbytes / self.bandwidth)


@dataclass(frozen=True)
class Job:
    """Seconds of forward and update, of the walk; bytes of gradients; buckets; channels of norms
    that are synchronized."""

    name: str
    forward: float
    walk: float
    gradients: float
    buckets: int
    channels: Sequence[int] = ()

    def step(self, link: Link, ranks: int) -> float:
        """The time of a step."""
        if ranks == 1:
            return self.forward + self.walk
        norms = [2 * link.gather_time((2 * c + 1) * 8, ranks) for c in self.channels]
        end, each = 0.0, self.gradients / self.buckets
        for number in range(1, self.buckets + 1):
            end = max(end, self.walk * number / self.buckets) + link.sum_time(each, ranks)
        return self.forward + max(self.walk, end) + sum(norms)


LINKS = (  # a rank's share of a machine's link; latencies of one transfer of NCCL, as published
    Link("NVLink (one host of 8)", 3e-6, 450e9, 8), Link("InfiniBand NDR", 6e-6, 50e9),
    Link("Ethernet, 100 Gbit/s", 30e-6, 12.5e9), Link("Ethernet, 10 Gbit/s", 50e-6, 1.25e9))
JOBS = (  # sizes of published networks; times of a step that such GPUs take, as an assumption
    Job("ResNet-50, 25.6 M parameters", 0.030, 0.060, 102e6, 5),
    Job("GPT, 1.3 G parameters, bfloat16", 0.120, 0.240, 2.6e9, 100))


def fitted(pairs: Sequence[Sequence[float]], ranks: int) -> Link:
    """The link that explains measured sums (bytes, seconds), by least squares of ratios."""
    nbytes, seconds = np.array(pairs).T
    steps = np.stack([np.full_like(nbytes, 2 * (ranks - 1)), 2 * (ranks - 1) / ranks * nbytes], 1)
    found, *_ = np.linalg.lstsq(steps / seconds[:, None], np.ones(len(seconds)), rcond=None)
    latency, inverse = np.maximum(found, 1e-12)
    return Link("MPI on this machine", float(latency), float(1 / inverse))


def fit(rounds: int) -> list[str]:
    """Lines: the fitted link, and measured against modelled steps."""
    lines = []
    for ranks in (2, 4):
        found = measured(Options("cpu", rounds, False, 1), "digits", ranks)
        link = fitted(found["exchanges"], ranks)
        times = {way: median(each) for way, each in found["seconds"].items()}
        alone = times["no exchange"]  # which has the contention of the machine
        job = Job("digits", alone / 3, alone * 2 / 3, 228e3, 4, (32, 64, 64))
        lines.append(f"| {ranks} | {link.latency * 1e6:.0f} us, {link.bandwidth / 1e9:.2f} GB/s | "
                     f"{times['overlapped'] * 1e3:.1f} ms | {job.step(link, ranks) * 1e3:.1f} ms |")
    return lines


def table(job: Job) -> list[str]:
    """Predicted efficiency by link and ranks."""
    shown = [ranks for ranks in RANKS if ranks in (8, 64, 256, 1024)]
    lines = [f"| {job.name} | " + " | ".join(f"{ranks} ranks" for ranks in shown) + " |",
             "|---" * (len(shown) + 1) + "|"]
    for link in LINKS:
        cells = [f"{job.step(link, 1) / job.step(link, ranks):.0%}" if ranks <= link.most else "-"
                 for ranks in shown]
        lines.append(f"| {link.name} | " + " | ".join(cells) + " |")
    return lines


def picture(path: Path) -> None:
    """Predicted efficiency against ranks, a panel for each job."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(JOBS), figsize=(11, 4.2), sharey=True)
    for panel, job in zip(panels, JOBS, strict=True):
        for link in LINKS:
            shown = [ranks for ranks in RANKS if ranks <= link.most]
            panel.plot(shown, [job.step(link, 1) / job.step(link, r) for r in shown], marker="o",
                       markersize=3, label=link.name)
        panel.set(title=job.name, xlabel="ranks", xscale="log", ylim=(0, 1.05))
        panel.set_xticks(RANKS[::2], [f"{r:,}" for r in RANKS[::2]])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("weak efficiency (predicted)")
    panels[0].legend(loc="lower right", fontsize=8)
    figure.suptitle("Predicted by a model of buckets, rings and trees; nothing of it was measured",
                    fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of the measured steps (10)")
    parser.add_argument("--out", type=Path, help="folder (profiling/results/<machine>/)")
    given = parser.parse_args()
    folder = given.out or RESULTS / machine.slug("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Data parallel steps: measured here, and predicted", "",
             "Written by `profiling/scaling_model.py`.", "",
             "| ranks | link fitted: latency, bandwidth | digits' step, measured | by the model |",
             "|---|---|---|---|", *fit(given.rounds), "",
             "Predicted weak efficiency (a step of one rank over that of all):", ""]
    for job in JOBS:
        lines += [*table(job), ""]
    (folder / "scaling_model.md").write_text("\n".join(lines))
    picture(folder / "scaling_model.png")
    print("\n".join(lines))
    print(f"wrote {folder}/scaling_model.md, scaling_model.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
