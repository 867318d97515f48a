"""The time that a GPU is predicted to take for a launch: a table of constants, and arithmetic.

A launch takes the time of its start and the largest of four others:

    memory    its bytes at the bandwidth of a copy
    issue     its warps' instructions at the rate at which schedulers issue them
    latency   its reads by as many bytes as its threads have on the way at once
    products  its multiplications at the rate of tensor cores or of CUDA cores, in whole waves

The constants are the same for gtensor's kernels and for PyTorch's. They were chosen before the
first step was predicted. A change of one is a commit of its own that says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import NamedTuple


class Constant(NamedTuple):
    """A number of the model, by device, and where it is from.

    That of an A100 is the same share of its datasheet: NVIDIA publishes a step of PyTorch for it.
    """

    h100: float
    h200: float
    a100: float
    unit: str
    source: str


CONSTANTS = {
    "copy": Constant(
        2.55e12, 3.65e12, 1.55e12, "bytes/s",
        "76 % of the 3.35 TB/s of NVIDIA's datasheet for an H100. Published: between 2.0 "
        "(Triton) and 3.0 (QuACK). H200: 76 % of 4.8 TB/s, A100 80 GB: of 2.04, datasheets"),
    "half": Constant(
        650e12, 650e12, 206e12, "FLOP/s",
        "66 % of the 989 TFLOP/s of the datasheet. cuBLAS in bf16, published: 743 for "
        "one product, 543 to 549 for batches (pytorch/pytorch, issue 100850)"),
    "tf32": Constant(
        325e12, 325e12, 103e12, "FLOP/s", "half of `half`, as on the datasheet (495 of 989)"),
    "single": Constant(
        50e12, 50e12, 14.6e12, "FLOP/s", "75 % of the 67 TFLOP/s of the datasheet"),
    "double": Constant(
        50e12, 50e12, 14.6e12, "FLOP/s", "75 % of float64 tensor cores' 67 TFLOP/s, datasheet"),
    "unaligned": Constant(
        0.5, 0.5, 0.5, "of the rate",
        "assumed for rows that do not begin at 16 bytes, which TMA does not load (CUDA Programming "
        "Guide, \"Tensor Memory Access\")"),
    "attention": Constant(
        258e12, 258e12, 81e12, "FLOP/s",
        "assumed: 50 us for 8 x 12 heads of 1,024 x 64, causal, the class of "
        "FlashAttention-2: 12.9 GFLOP"),
    "attention backward": Constant(
        179e12, 179e12, 56e12, "FLOP/s", "the same: 180 us for 2.5 times the work"),
    "attention tf32": Constant(
        129e12, 129e12, 40e12, "FLOP/s", "half of `attention`, as `tf32` of `half`"),
    "attention tf32 backward": Constant(
        90e12, 90e12, 28e12, "FLOP/s", "half of `attention backward`"),
    "attention float32": Constant(
        33e12, 33e12, 9.7e12, "FLOP/s",
        "assumed: two thirds of `single`: a load of 16 bytes from shared memory, which takes up to "
        "4 cycles of a multiprocessor, for 11 products, which take 3"),
    "attention float32 backward": Constant(
        18e12, 18e12, 5.2e12, "FLOP/s",
        "assumed: half of `single`, as a load is for 8 products; of seven products two are made "
        "twice, which `flops` does not count"),
    "multiprocessors": Constant(
        132, 132, 108, "", "NVIDIA, H100 Tensor Core GPU Architecture: SXM5; A100: its own"),
    "clock": Constant(
        1.83e9, 1.83e9, 1.41e9, "1/s", "989 TFLOP/s / (132 multiprocessors x 4,096 FLOP a cycle)"),
    "issue": Constant(
        3.0, 3.0, 3.0, "warps' instructions a cycle and multiprocessor",
        "4 schedulers (NVIDIA, as above), used to 75 % as float32 products use CUDA cores"),
    "latency": Constant(
        262e-9, 262e-9, 331e-9, "s",
        "478.8 cycles: Luo et al., Benchmarking and Dissecting the NVIDIA Hopper GPU, "
        "arXiv 2402.13499, global memory (A100: 466.3)"),
    "start": Constant(2e-6, 2e-6, 2e-6, "s", "assumed: the time of a tiny kernel"),
    "link": Constant(
        50e9, 50e9, 25e9, "bytes/s", "78 % of PCIe 5.0 x16, 64 GB/s, datasheet; A100: PCIe 4.0"),
}
"""The model's constants. FLOP: a product and its sum are two."""

DEVICES = ("h100", "h200", "a100")

# Rows and columns of out that a block of a library's product computes, and the share of the rate
# that it is assumed to reach: a tile's loads over its multiplications grow as 1/rows + 1/columns
# (CUTLASS's documentation, "Efficient GEMM in CUDA").
TILES = (((128, 256), 1.0), ((128, 128), 0.9), ((64, 128), 0.7), ((64, 64), 0.5), ((32, 32), 0.25))
SPLITS = (1, 2, 4, 8, 16, 32)  # parts of the inner axis that blocks compute at once


@dataclass
class Work:
    """A launch: what it moves and computes. Bytes are distinct ones of its arrays.

    `needed`: bytes that the op that it belongs to must move, on one of the op's launches; None
    where they are its own. `product`: m, n, k and how many; `inputs` the dtype of its factors.
    `rate`: the name of the constant for other `flops`, "" if they are in its instructions.
    `instructions`: those of all its warps. `in_flight`: bytes that its threads can have on the way.
    """

    name: str
    kind: str = "kernels"
    phase: str = "forward"
    op: str = ""
    reads: int = 0
    writes: int = 0
    needed: float | None = None
    product: tuple[int, int, int, int] | None = None
    inputs: str = ""
    aligned: bool = True
    flops: float = 0
    rate: str = ""
    instructions: float = 0
    in_flight: float = inf
    known: bool = True

    @property
    def nbytes(self) -> int:
        return self.reads + self.writes

    def __post_init__(self) -> None:
        if self.product:
            m, n, k, count = self.product
            self.flops = 2.0 * m * n * k * count


@dataclass(frozen=True)
class Device:
    """The constants of one device; `measured` are those that a GPU has given."""

    name: str = "h100"
    measured: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, constant: str) -> float:
        if constant in self.measured:
            return self.measured[constant]
        return float(getattr(CONSTANTS[constant], self.name))

    def times(self, work: Work) -> dict[str, float]:
        """Seconds of each part of a launch, `start` among them."""
        if work.kind == "copies" and work.name != "device to device":
            return {"start": self["start"], "link": work.nbytes / self["link"]}
        found = {"start": self["start"], "memory": work.nbytes / self["copy"]}
        if work.instructions:
            cycles = work.instructions / (self["issue"] * self["multiprocessors"])
            found["issue"] = cycles / self["clock"]
        if work.in_flight < inf:
            found["latency"] = work.reads / work.in_flight * self["latency"]
        if work.product:
            found["products"] = self._product(work)
        elif work.rate:
            found["products"] = work.flops / self[work.rate]
        return found

    def seconds(self, work: Work) -> float:
        """The time of a launch: its start, and the part that takes longest."""
        times = self.times(work)
        start = times.pop("start")
        return start + max(times.values(), default=0.0)

    def bound(self, work: Work) -> str:
        """The part that takes longest."""
        times = self.times(work)
        return max(times, key=lambda part: times[part])

    def _product(self, work: Work) -> float:
        assert work.product is not None
        m, n, k, count = work.product
        rate = self[rate_of(work.inputs)] * (1 if work.aligned else self["unaligned"])
        return min(self._tiled(m, n, k, count, rate * share, tile, split)
                   for tile, share in TILES for split in SPLITS if split == 1 or k >= 256 * split)

    def _tiled(self, m: int, n: int, k: int, count: int, rate: float, tile: tuple[int, int],
               split: int) -> float:
        """Waves of tiles; each begins with two trips to memory. A split writes float32 sums."""
        rows, columns = tile
        blocks = ceil(m / rows) * ceil(n / columns) * count * split
        waves = ceil(blocks / self["multiprocessors"])
        each = 2.0 * rows * columns * ceil(k / split) / (rate / self["multiprocessors"])
        sums = 8 * m * n * count * split / self["copy"] if split > 1 else 0.0
        return waves * (each + 2 * self["latency"]) + sums


def rate_of(inputs: str) -> str:
    """The constant for products of a dtype."""
    if inputs in ("float16", "bfloat16"):
        return "half"
    if inputs == "tf32":
        return "tf32"
    return "double" if inputs in ("float64", "complex128") else "single"


@dataclass
class Line:
    """All launches of one name."""

    name: str
    launches: int = 0
    nbytes: int = 0
    flops: float = 0
    seconds: float = 0
    bound: str = ""

    def share(self, whole: float) -> float:
        return self.seconds / whole if whole else 0.0


def lines(works: Iterable[Work], device: Device) -> list[Line]:
    """Launches by name, most time first; `bound` is what bounds most of a name's time."""
    found: dict[str, Line] = {}
    bounds: dict[str, dict[str, float]] = {}
    for work in works:
        line = found.setdefault(work.name, Line(work.name))
        seconds = device.seconds(work)
        line.launches += 1
        line.nbytes += work.nbytes
        line.flops += work.flops
        line.seconds += seconds
        part = bounds.setdefault(work.name, {})
        part[device.bound(work)] = part.get(device.bound(work), 0.0) + seconds
    for line in found.values():
        parts = bounds[line.name]
        line.bound = max(parts, key=lambda name: parts[name])
    return sorted(found.values(), key=lambda line: -line.seconds)
