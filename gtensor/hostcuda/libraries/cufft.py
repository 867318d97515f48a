"""cuFFT over SciPy's transforms on raw pointers.

Sources, named beside each rule: NVIDIA's "cuFFT" documentation (CUDA 13.0), by the title of the
section or by function. Transforms are not scaled. Several GPUs, half precision and callbacks are
not here.
"""

from typing import Any

import numpy as np
import scipy.fft

from gtensor.hostcuda.libraries.calls import Context, Handles, Library, require, store, view

# cufftResult
INVALID_PLAN, INVALID_TYPE, INVALID_VALUE, INTERNAL_ERROR, EXEC_FAILED = 1, 3, 4, 5, 6
INVALID_SIZE, UNALIGNED_DATA, NO_WORKSPACE, NOT_IMPLEMENTED = 8, 9, 13, 14
VERSION = 12000

library = Library("libcufft.so.12", refusal=NOT_IMPLEMENTED, internal=INTERNAL_ERROR)
function = library.function

# cufftType: (type of the input, of the output)
TYPES = {
    0x29: ("c8", "c8"), 0x2A: ("f4", "c8"), 0x2C: ("c8", "f4"),
    0x69: ("c16", "c16"), 0x6A: ("f8", "c16"), 0x6C: ("c16", "f8"),
}  # fmt: skip
FORWARD, INVERSE = -1, 1


class Layout:
    """The layout of a batch ("Advanced Data Layout"); without `embed` the basic one."""

    def __init__(
        self, lengths: tuple[int, ...], embed: tuple[int, ...] | None, step: int, distance: int
    ) -> None:
        self.lengths, self.embed, self.step, self.distance = lengths, embed, step, distance

    def view(self, address: int, batch: int, dtype: np.dtype, padded: bool) -> np.ndarray:
        rows = self.embed or self.lengths
        step, distance = (self.step, self.distance) if self.embed else (1, 0)
        last = rows[-1]
        if self.embed is None and padded:  # "Data Layout": real rows are as long as complex
            last = 2 * (last // 2 + 1)
        strides = [step]
        for length in (last, *rows[:0:-1][1:]):
            strides.append(strides[-1] * length)
        strides = strides[: len(self.lengths)]
        if not self.embed:
            distance = last * int(np.prod(rows[:-1], dtype="i8"))
        return view(address, (batch, *self.lengths), dtype, (distance, *reversed(strides)))


class Plan(Context):
    def __init__(self) -> None:
        super().__init__(EXEC_FAILED)
        self.work = self.size = 0
        self.automatic = True
        self.kind = 0
        self.lengths: tuple[int, ...] = ()
        self.batch = 0

    def make(
        self, lengths: tuple[int, ...], kind: int, batch: int, source: tuple, target: tuple
    ) -> int:
        """Sets the plan up and returns the size of its work area."""
        require(not self.kind, INVALID_PLAN)  # cufftMakePlan: a plan is made once
        require(kind in TYPES, INVALID_TYPE)
        require(bool(lengths) and min(lengths) > 0 < batch, INVALID_SIZE)
        self.kind, self.lengths, self.batch = kind, lengths, batch
        first, second = (np.dtype(t) for t in TYPES[kind])
        half = (*lengths[:-1], lengths[-1] // 2 + 1)
        self.source = Layout(half if second.kind == "f" else lengths, *source)
        self.target = Layout(half if first.kind == "f" else lengths, *target)
        self.size = batch * int(np.prod(lengths, dtype="i8")) * max(first.itemsize, second.itemsize)
        return self.size

    def run(self, source: int, target: int, direction: int) -> None:
        first, second = (np.dtype(t) for t in TYPES[self.kind])
        in_place = source == target
        if self.work:
            view(self.work, (self.size,), "u1")[...] = 0xFF
        x = self.source.view(source, self.batch, first, in_place and first.kind == "f")
        y = self.target.view(target, self.batch, second, in_place and second.kind == "f")
        axes = tuple(range(1, len(self.lengths) + 1))
        if first.kind == "f":
            y[...] = scipy.fft.rfftn(x, axes=axes)
        elif second.kind == "f":
            values = scipy.fft.irfftn(x, self.lengths, axes, norm="forward")
            if len(self.lengths) > 1 and not in_place:  # its input is overwritten
                x[...] = np.nan
            y[...] = values
        elif direction == FORWARD:
            y[...] = scipy.fft.fftn(x, axes=axes)
        else:
            y[...] = scipy.fft.ifftn(x, axes=axes, norm="forward")


plans = Handles(INVALID_PLAN)


@function("cufftCreate", "p")
def create(result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, plans.add(Plan()), "i4")


@function("cufftDestroy", "i")
def destroy(plan: int) -> None:
    plans.remove(plan)


@function("cufftGetVersion", "p")
def get_version(result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, VERSION, "i4")


@function("cufftSetStream", "ip")
def set_stream(plan: int, stream: int) -> None:
    plans[plan].stream = stream


@function("cufftSetAutoAllocation", "ii")
def set_auto_allocation(plan: int, automatic: int) -> None:
    """Before the plan is made."""
    require(not plans[plan].kind, INVALID_PLAN)
    plans[plan].automatic = bool(automatic)


@function("cufftSetWorkArea", "ip")
def set_work_area(plan: int, work: int) -> None:
    """It replaces an area that the plan has allocated itself."""
    plans[plan].work, plans[plan].automatic = work, False


@function("cufftMakePlan1d", "iiiip")
def make_plan_1d(plan: int, n: int, kind: int, batch: int, size: int) -> None:
    basic = (None, 1, 0)
    store(size, plans[plan].make((n,), kind, batch, basic, basic), "u8")


@function("cufftMakePlanMany", "i i p pii pii i i p")
def make_plan_many(
    plan: int, rank: int, n: int, inembed: int, istride: int, idist: int,
    onembed: int, ostride: int, odist: int, kind: int, batch: int, size: int,
) -> None:  # fmt: skip
    """Rank 1, 2 or 3; without inembed or onembed the strides are ignored."""
    state = plans[plan]
    require(rank in (1, 2, 3) and bool(n), INVALID_VALUE)

    def numbers(address: int) -> tuple[int, ...]:
        return tuple(int(value) for value in view(address, (rank,), "i4"))

    def layout(embed: int, step: int, distance: int) -> tuple[Any, int, int]:
        if not (inembed and onembed):
            return None, 1, 0
        require(step > 0 and (batch == 1 or distance != 0), INVALID_VALUE)
        return numbers(embed), step, distance

    source, target = layout(inembed, istride, idist), layout(onembed, ostride, odist)
    store(size, state.make(numbers(n), kind, batch, source, target), "u8")


def execution(letter: str, kind: int, directed: bool) -> None:
    @function(f"cufftExec{letter}", "ipp" + "i" * directed)
    def execute(plan: int, source: int, target: int, direction: int = FORWARD) -> None:
        """The plan's type must be the function's; pointers are aligned to whole elements."""
        state = plans[plan]
        require(state.kind == kind, INVALID_PLAN)
        require(bool(source and target) and direction in (FORWARD, INVERSE), INVALID_VALUE)
        for address, dtype in zip((source, target), TYPES[kind], strict=True):
            require(address % np.dtype(dtype).itemsize == 0, UNALIGNED_DATA)
        require(state.automatic or bool(state.work) or not state.size, NO_WORKSPACE)
        state.enqueue(f"cufftExec{letter}", lambda: state.run(source, target, direction))


for letter, kind, directed in (
    ("C2C", 0x29, True), ("R2C", 0x2A, False), ("C2R", 0x2C, False),
    ("Z2Z", 0x69, True), ("D2Z", 0x6A, False), ("Z2D", 0x6C, False),
):  # fmt: skip
    execution(letter, kind, directed)
