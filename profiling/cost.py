"""What a training step costs on a GPU, counted and predicted without one.

    python profiling/cost.py gpt2                # GPT-2 small, 8 x 1,024 tokens, on an H100
    python profiling/cost.py gpt2-layer          # one layer, in float32 and bfloat16
    python profiling/cost.py mlp --device h200
    python profiling/cost.py torch-gpt2          # PyTorch's kernels of the same step

A step runs on the host device (docs/testing.md) in dry mode, at its real sizes: every launch is
counted, and its bytes, FLOPs and instructions are known. `cost_model.py` turns them into time by a
table of constants, each with its source (--constants). Columns: launches; bytes of the arrays that
the launches can touch; FLOPs of products; predicted time and its share; what bounds it; for an op
also the bytes that it must move. If the model is wrong by 2 for a kernel with a share of 10 %, the
step is wrong by 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_model import CONSTANTS, DEVICES, TILES, Device, Work, lines

PHASES = ("forward", "backward", "update")
TORCH = {"torch-gpt2": "gpt2", "torch-gpt2-plain": "gpt2-plain", "torch-resnet50": "resnet50"}
FLOORS = {  # of ladder.py -> the constant that it measures
    "copy": "copy", "product float16": "half", "product tf32": "tf32", "product float32": "single",
    "product float64": "double", "start": "start", "link": "link"}
RESULTS = Path(__file__).resolve().parent / "results"
ROWS = 25  # of the table of kernels, by default
_RUNS = 3  # of which the median is the host's time


def main(given: Sequence[str] | None = None) -> int:
    from cost_workloads import WORKLOADS

    known = (*WORKLOADS, *TORCH)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", metavar="WORKLOAD", nargs="?",
                        help=f"one of {', '.join(known)}")
    parser.add_argument("--constants", action="store_true", help="print the model's constants")
    parser.add_argument("--device", choices=DEVICES, default="h100", help="default: h100")
    parser.add_argument("--measured", type=Path, metavar="JSON", help=(
        "what `ladder.py --device cuda` wrote on a GPU: both predictions are printed (default: "
        "that of the device in profiling/results, if there is one)"))
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the program")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of kernels, default: {ROWS}")
    parser.add_argument("--out", type=Path, help="folder for JSON and PNG; without it none")
    options = parser.parse_args(given)
    if options.constants:
        print(constants(Device(options.device)))
        return 0
    if options.workload not in known:
        given_ = "no workload given" if options.workload is None else (
            f"{options.workload!r} is no workload")
        parser.error(f"{given_}; wanted one of {', '.join(known)}")
    committed = RESULTS / options.device / "ladder.json"
    chosen = options.measured or (committed if committed.exists() else None)
    measured = measured_constants(chosen) if chosen else {}
    if options.measured and not measured:
        parser.error(f"{options.measured} has no floor of {', '.join(FLOORS)}; wanted what "
                     "profiling/ladder.py --device cuda writes")
    device = Device(options.device)
    sheets = []
    for name, about, works, facts in recorded(options):
        sheet = summary(name, about, works, device, facts)
        sheet["measured_ms"] = None if options.quick else measured_ms(name, options.device)
        if measured:
            better = Device(options.device, measured)
            sheet["measured"] = {"constants": measured,
                                 "gpu_ms": 1e3 * sum(map(better.seconds, works))}
        print(text(sheet, options.rows), flush=True)
        sheets.append(sheet)
        if options.out:
            write(sheet, works, device, options.out)
    return 0


def recorded(options: Any) -> Any:
    """Each step of a workload: name, description, launches, and what else was counted."""
    if options.workload in TORCH:
        from cost_torch import steps as torch_steps

        yield from torch_steps(TORCH[options.workload], options.quick)
        return
    from gtensor import hostcuda
    from gtensor.hostcuda.build import cache

    # Modules stay in a folder of their own: their names do not depend on the workload.
    os.environ.setdefault("CUPY_CACHE_DIR", str(cache() / "cubins"))
    hostcuda.install(dry=True, compiler="nvrtc")
    from cost_record import Recorder
    from cost_workloads import WORKLOADS

    recorder = Recorder()
    progress(f"{options.workload}: its kernels are compiled, for a minute the first time")
    for step in WORKLOADS[options.workload](options.quick):
        yield record(step, recorder)


def record(step: Any, recorder: Any) -> tuple[str, str, list[Work], dict[str, Any]]:
    """A step's launches, after one that warms up, and the host's time of further ones."""
    import gtensor as gt

    run(step)
    progress(f"{step.name}: compiled; the step is counted")
    gt.memory.reset_peak("cuda")
    recorder.works.clear()
    recorder.events.clear()
    with recorder.recording():
        with recorder.phase("forward"):
            step.clear()
            loss = step.forward()
        with recorder.phase("backward"):
            step.backward(loss)
        del loss
        with recorder.phase("update"):
            step.update()
    peak = gt.memory.stats("cuda").peak_allocated
    times = []
    for _ in range(_RUNS):
        begin = time.process_time()
        run(step)
        times.append(time.process_time() - begin)
    events = {f"{phase} {name}": count for (phase, name), count in recorder.events.items()}
    facts = {"host_ms": 1e3 * sorted(times)[_RUNS // 2], "peak_bytes": peak, "events": events}
    return step.name, step.about, list(recorder.works), facts


def run(step: Any) -> None:
    step.clear()
    step.backward(step.forward())
    step.update()


def progress(sentence: str) -> None:
    print(f"cost: {sentence}", file=sys.stderr, flush=True)


def measured_constants(file: Path) -> dict[str, float]:
    """The constants that the floors of `ladder.py` give."""
    found = {}
    for ladder in json.loads(file.read_text())["ladders"]:
        for rung in ladder["rungs"]:
            if rung["name"] in FLOORS:
                seconds, work = rung["seconds"]["median"], rung["moved"] or rung["flops"]
                found[FLOORS[rung["name"]]] = work / seconds if work else seconds
    return found


def measured_ms(workload: str, device: str) -> float | None:
    """The time of a step that `ladder_steps.py` has measured on such a device; None without one."""
    file = RESULTS / device / "ladder_steps.json"
    for ladder in json.loads(file.read_text())["ladders"] if file.exists() else ():
        for rung in ladder["rungs"]:
            library = "torch-" if rung["name"] == "pytorch" else ""
            if f"{workload} step" == f"{library}{ladder['name']}":
                return 1e3 * float(rung["seconds"]["median"])
    return None


def constants(device: Device) -> str:
    """The table of the model's constants, with their sources."""
    rows = [f"{name:20}{device[name]:>12.4g} {each.unit}\n    {each.source}"
            for name, each in CONSTANTS.items()]
    tiles = ", ".join(f"{rows} x {columns}: {share}" for (rows, columns), share in TILES)
    return "\n".join([*rows, f"{'tiles of a product':20}{tiles} of the rate\n    assumed: a tile's "
                      "loads over its multiplications grow as 1/rows + 1/columns (CUTLASS)"])


# -- the sheet -------------------------------------------------------------------------------------


def launches(works: Sequence[Work]) -> list[Work]:
    """As `Counters.launches` counts: kernels, library calls, copies within the device."""
    return [work for work in works if work.kind in ("kernels", "library")
            or work.name == "device to device"]


def summary(name: str, about: str, works: Sequence[Work], device: Device, facts: dict[str, Any]
            ) -> dict[str, Any]:
    """All figures of a step, as they stand in the JSON."""
    seconds = sum(map(device.seconds, works))
    events = facts.get("events", {})
    phases = {}
    for phase in PHASES:
        mine = [work for work in works if work.phase == phase]
        phases[phase] = {
            "launches": len(launches(mine)), "memsets": sum(w.kind == "memsets" for w in mine),
            "bytes": sum(w.nbytes for w in mine), "flops": sum(w.flops for w in mine),
            "gpu_ms": 1e3 * sum(map(device.seconds, mine)),
            "allocations": _events(events, phase, "allocate"),
            "synchronizations": _events(events, phase, "synchronize")}
    moved = sum(work.nbytes for work in works)
    needed = sum(work.nbytes if work.needed is None else work.needed for work in works)
    return {
        "workload": name, "about": about, "device": device.name,
        "constants": {key: device[key] for key in CONSTANTS},
        "launches": sum(each["launches"] for each in phases.values()), "phases": phases,
        "bytes": moved, "needed_bytes": needed, "bytes_ratio": moved / needed if needed else None,
        "flops": sum(work.flops for work in works), "gpu_ms": 1e3 * seconds,
        "unknown": sorted({work.name for work in works if not work.known}),
        "published_ms": facts.get("published_ms", {}).get(device.name),
        "host_ms": facts.get("host_ms"), "peak_bytes": facts.get("peak_bytes"),
        "kernels": [kernel(line, works, seconds) for line in lines(works, device)],
        "ops": ops(works, device),
    }


def _events(events: dict[str, int], phase: str, verb: str) -> int:
    return sum(n for name, n in events.items() if name.split()[:2] == [phase, verb])


def kernel(line: Any, works: Sequence[Work], seconds: float) -> dict[str, Any]:
    mine = [work for work in works if work.name == line.name]
    return {
        "name": line.name, "launches": line.launches, "bytes": line.nbytes, "flops": line.flops,
        "ms": 1e3 * line.seconds, "share": line.share(seconds), "bound": line.bound,
        "by_phase": {phase: sum(work.phase == phase for work in mine) for phase in PHASES}}


def ops(works: Sequence[Work], device: Device) -> list[dict[str, Any]]:
    """Bytes of each op's launches against those that it must move, most time first."""
    found: dict[str, dict[str, Any]] = {}
    for work in works:
        row = found.setdefault(work.op or "outside of ops", {
            "name": work.op or "outside of ops", "launches": 0, "bytes": 0, "needed_bytes": 0.0,
            "ms": 0.0})
        row["launches"] += 1
        row["bytes"] += work.nbytes
        row["needed_bytes"] += work.nbytes if work.needed is None else work.needed
        row["ms"] += 1e3 * device.seconds(work)
    return sorted(found.values(), key=lambda row: -row["ms"])


def text(sheet: dict[str, Any], rows: int) -> str:
    """The sheet as it is printed."""
    out = [f"\n{sheet['workload']}: {sheet['about']}; predicted for {sheet['device'].upper()}"]
    out.append(f"{'':12}{'launches':>9}{'memsets':>9}{'GB':>9}{'TFLOP':>8}{'ms':>9}"
               f"{'allocations':>13}{'synchronizations':>18}")
    for phase, row in sheet["phases"].items():
        out.append(f"{phase:12}{row['launches']:9,}{row['memsets']:9,}{row['bytes'] / 1e9:9.3f}"
                   f"{row['flops'] / 1e12:8.3f}{row['gpu_ms']:9.3f}{row['allocations']:13,}"
                   f"{row['synchronizations']:18,}")
    out.append(f"{'sum':12}{sheet['launches']:9,}{'':9}{sheet['bytes'] / 1e9:9.3f}"
               f"{sheet['flops'] / 1e12:8.3f}{sheet['gpu_ms']:9.3f}")
    if sheet["needed_bytes"]:
        out.append(f"bytes: {sheet['bytes_ratio']:.2f} of the "
                   f"{sheet['needed_bytes'] / 1e9:.3f} GB that the ops must move")
    if sheet["host_ms"] is not None:
        out.append(f"host: {sheet['host_ms']:.1f} ms on this machine's CPU, without a driver; peak "
                   f"of the arena {sheet['peak_bytes'] / 1e9:.3f} GB")
    if sheet["published_ms"]:
        out.append(f"published: about {sheet['published_ms']} ms; predicted / published "
                   f"{sheet['gpu_ms'] / sheet['published_ms']:.2f}")
    if sheet.get("measured_ms"):
        out.append(f"measured: {sheet['measured_ms']:.1f} ms with the host; predicted / measured "
                   f"{sheet['gpu_ms'] / sheet['measured_ms']:.2f}")
    if "measured" in sheet:
        out.append(f"with the measured constants: {sheet['measured']['gpu_ms']:.3f} ms")
    if sheet["unknown"]:
        out.append(f"bytes unknown, counted as 0: {', '.join(sheet['unknown'])}")
    out.append(f"\n{'kernel, library call or copy':50}{'launches':>9}{'GB':>10}{'TFLOP':>9}"
               f"{'ms':>10}{'share':>7}  bound")
    for row in sheet["kernels"][:rows]:
        out.append(f"{row['name'][:49]:50}{row['launches']:9,}{row['bytes'] / 1e9:10.3f}"
                   f"{row['flops'] / 1e12:9.3f}{row['ms']:10.3f}{row['share']:7.1%}"
                   f"  {row['bound']}")
    out += _rest(sheet["kernels"], rows)
    out.append(f"\n{'op':50}{'launches':>9}{'GB':>10}{'must':>9}{'ratio':>10}{'ms':>10}")
    for row in sheet["ops"][:rows]:
        ratio = f"{row['bytes'] / row['needed_bytes']:.2f}" if row["needed_bytes"] else "-"
        out.append(f"{row['name'][:49]:50}{row['launches']:9,}{row['bytes'] / 1e9:10.3f}"
                   f"{row['needed_bytes'] / 1e9:9.3f}{ratio:>10}{row['ms']:10.3f}")
    return "\n".join(out)


def _rest(kernels: Sequence[dict[str, Any]], rows: int) -> list[str]:
    rest = kernels[rows:]
    if not rest:
        return []
    return [f"{f'{len(rest)} more':50}{sum(row['launches'] for row in rest):9,}"
            f"{sum(row['bytes'] for row in rest) / 1e9:10.3f}"
            f"{sum(row['flops'] for row in rest) / 1e12:9.3f}"
            f"{sum(row['ms'] for row in rest):10.3f}{sum(row['share'] for row in rest):7.1%}"]


def write(sheet: dict[str, Any], works: Sequence[Work], device: Device, folder: Path) -> None:
    """JSON and PNG."""
    import machine
    from cost_pictures import roofline

    folder.mkdir(parents=True, exist_ok=True)
    name = f"{sheet['workload'].replace(' ', '-')}-{device.name}"
    found = {"command": machine.command(), "versions": machine.versions(), **sheet}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    roofline(sheet, works, device, folder / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
