"""The memory of a training step by category, from a recording of the step."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any, TypeAlias

from gtensor import memory
from gtensor.backend.layouts import address
from gtensor.engine.handle.tensor import Tensor
from gtensor.memory.trace.curves import curves
from gtensor.memory.trace.lifetimes import CATEGORIES, History
from gtensor.memory.trace.owners import found_by
from gtensor.nn.blocks.workspaces import Block

Trainer: TypeAlias = Any  # of train.trainer, which imports this
_NAMES, _NUMBERS = 22, 14  # columns of a terminal that the table's columns take


@dataclass
class Account:
    """Live bytes over one step, as the arena holds them: rounded up to its granularity."""

    history: History
    reuse: float  # the share of requests served from cached memory
    outside: int = 0  # bytes of weights that are not the arena's

    def __post_init__(self) -> None:
        found = curves(self.history)
        self.bytes = dict(zip(found.categories, found.rows.tolist(), strict=True))
        self.totals = found.totals.tolist()  # of all categories together

    @property
    def peak(self) -> int:
        """The most bytes that were live at once."""
        return max(self.totals)

    def most(self, category: str) -> int:
        """The most bytes of a category that were live at once."""
        return max(self.bytes.get(category, [0]))

    def at_peak(self, category: str) -> int:
        """The bytes of a category when most bytes were live."""
        return self.bytes[category][self.totals.index(self.peak)] if category in self.bytes else 0


def account(trainer: Trainer) -> Account:
    """Take one more step and account for it; it updates the model and its optimizer.

    Of several ranks all call it, and each accounts for its own part of the batch. Every array must
    come from the arena: run under `settings.override(arena_min_bytes=0)`.
    """
    with recorded(trainer):
        trainer.step(*trainer.first_batch())
        trainer.optimizer.zero_grad()
    return trainer.account


@contextmanager
def recorded(trainer: Trainer, batch: Sequence[Any] = ()) -> Iterator[None]:
    """Within the block, a step with this batch is recorded; then `trainer.account` is its account.
    """
    gc.collect()  # what another model left as garbage must not be freed within this step
    trainer.optimizer.zero_grad()
    lasting = _lasting(trainer, batch)
    as_it_is = nullcontext() if trainer.captured is None else trainer.captured.eager()
    with as_it_is, memory.timeline(device=trainer.device) as recording:
        yield
    history = recording.history()
    for life in history.lives:
        if life.made is None and lasting.get(life.address) == "data":
            life.category = "data"
    history.lives = [life for life in history.lives
                     if life.made is not None or life.address in lasting]
    inside = {life.address for life in history.lives}
    trainer.account = Account(history, reuse(trainer), sum(
        value.nbytes for value in trainer.model.state_dict().values()
        if address(value.array) not in inside))


def reuse(trainer: Trainer) -> float:
    """The share of requests so far that were served from cached memory."""
    stats = memory.stats(trainer.device)
    return stats.hits / max(1, stats.hits + stats.misses)


def _lasting(trainer: Trainer, batch: Sequence[Any]) -> dict[int, str]:
    """The addresses of what the trainer holds between two steps, and of a batch; and their uses."""
    modules = [*trainer.model.modules()]
    workspaces = {module.workspace.on(trainer.device) for module in modules
                  if isinstance(module, Block)}
    buckets = () if trainer.network is None else trainer.network.buckets
    own = found_by([*modules, *trainer.model.parameters(), trainer.optimizer, trainer.ema,
                    *workspaces, *buckets])
    return ({found.address: found.category for found in own}
            | {address(tensor.array): "data" for tensor in (*trainer.held_out, *batch)
               if isinstance(tensor, Tensor)})


def memory_table(
    trainer: Trainer, books: dict[str, Account], more: str = "", caption: str = ""
) -> Any:
    """The memory of a step, by what each account is of; the trained one first."""
    from rich.table import Table

    trained = next(iter(books.values()))
    if trained.outside:
        caption += (f"\nLeft out: small arrays made before the trainer, {size(trained.outside)} of "
                    "weights among them (to count them, put gt.settings.arena_min_bytes = 0 first)")
    who = "" if trainer.comm is None else f" of rank {trainer.comm.rank} of {trainer.comm.size}"
    table = Table(title=f"Where the memory of a training step{who} went{more}",
                  title_justify="left", caption=caption.strip(), caption_justify="left")
    table.add_column("", no_wrap=True)
    shown = {"at the peak": Account.at_peak, "at most": Account.most}
    if get_terminal_size().columns < _NAMES + _NUMBERS * len(shown) * len(books):
        del shown["at the peak"]
    for name in books:
        for heading in shown:
            table.add_column(f"{name}\n{heading}" if name else heading, justify="right")
    for category in dict.fromkeys([*CATEGORIES, *(
            name for account in books.values() for name in account.bytes)]):
        if any(account.most(category) for account in books.values()):
            table.add_row(category, *(size(found(account, category))
                                      for account in books.values() for found in shown.values()))
    table.add_section()
    table.add_row("peak of the step", *(size(account.peak) for account in books.values()
                                        for _ in shown))
    table.add_row("served from cache", *[""] * (len(shown) - 1), f"{trained.reuse:.2%}")
    return table


def size(nbytes: int) -> str:
    """Bytes in KiB or MiB."""
    return f"{nbytes / 2**20:,.2f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
