"""`gtensor train`: a recipe run in a terminal, with progress, pictures, a checkpoint and Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gtensor import memory
from gtensor.memory.trace.lifetimes import CATEGORIES
from gtensor.memory.trace.timeline_picture import png_file
from gtensor.settings import settings
from gtensor.train import recipe
from gtensor.train.accounting import Account, account
from gtensor.train.errors import UserError, require
from gtensor.train.files import write_atomically
from gtensor.train.pictures import loss_curve
from gtensor.train.trainer import NORMS, Trainer

INTERRUPTED = 130  # the shell's exit status for Ctrl-C


def train(name: str, out: Path | None, resume: bool, quiet: bool, **options: object) -> int:
    """Run a recipe to its end or to Ctrl-C; the exit status.

    Every array comes from the arena here, however small, so that every byte is accounted for.
    """
    for module, package in (("rich", "rich"), ("matplotlib", "matplotlib")):
        require(module, package)
    chosen = recipe(name)
    folder = out or Path("runs") / name
    given = chosen.DEFAULTS.changed(**options)
    data = chosen.data()

    def made(norm: str) -> Trainer:
        return Trainer(partial(chosen.model, norm), data, replace(given, norm=norm))

    with settings.override(arena_min_bytes=0):
        trainer = made(given.norm)
        if resume:
            trainer.resume(folder / "checkpoint.safetensors")
        elif (folder / "checkpoint.safetensors").exists() and not quiet:
            _console().print(f"{folder} holds an earlier run, which this one replaces", style="dim")
        return _run(trainer, made, folder, chosen.TITLE, quiet)


def _run(trainer: Trainer, made: Callable[[str], Trainer], folder: Path, title: str,
         quiet: bool) -> int:
    """Train, draw, account; `made(norm)` is a trainer of the same model with that norm."""
    path = folder / "checkpoint.safetensors"
    console = _console(quiet)
    start = time.perf_counter()
    memory.reset_peak(trainer.device)
    with _interruptible() as interrupted, _progress(trainer, console) as advance:

        def after_step(trainer: Trainer) -> bool:
            advance(trainer)
            return bool(interrupted)

        def after_epoch(trainer: Trainer) -> None:
            trainer.save(path)
            advance(trainer)

        finished = trainer.run(after_step, after_epoch)
    if not finished:
        trainer.save(path)
        console.print(f"Interrupted in epoch {trainer.progress.epoch + 1}; saved to {path}. "
                      "Go on with the same command and --resume.", soft_wrap=True)
        return INTERRUPTED
    seconds = time.perf_counter() - start
    if not trainer.progress.losses:
        raise UserError("nothing was trained; wanted at least one epoch")
    loss_curve(folder / "loss.png", trainer.progress, title)
    with trainer.device:
        books = account(trainer)
    write_atomically(folder / "memory.png",
                     png_file(books.history, "Live memory over one training step"))
    if not quiet:
        console.print(_memory_table(_with_each_norm(trainer, books, made)))
    from rich.text import Text

    console.print(Text.assemble(
        "Held-out accuracy ", (f"{trainer.progress.accuracies[-1]:.2%}", "bold"), " after "
        f"{trainer.progress.epoch} epochs, {seconds:.1f} s on {trainer.device}.\n"
        f"Wrote {folder}/loss.png, memory.png and checkpoint.safetensors."), soft_wrap=True)
    return 0


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Delay Ctrl-C within the block to the end of the step; a second one interrupts at once."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _console(quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(quiet=quiet, highlight=False, markup=False, emoji=False)


@contextmanager
def _progress(trainer: Trainer, console: Any) -> Iterator[Any]:
    """A progress bar; yields what to call after every step."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    total = trainer.batches * trainer.options.epochs
    done = len(trainer.progress.losses)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None),
               TextColumn("{task.fields[report]}"), TimeRemainingColumn(compact=True))
    begin = time.perf_counter()
    with Progress(*columns, console=console, refresh_per_second=4, expand=True) as bar:
        task = bar.add_task("epoch 1", total=total, completed=done, report="")

        def advance(trainer: Trainer) -> None:
            progress = trainer.progress
            steps = len(progress.losses)
            rate = (steps - done) * trainer.options.batch_size / (time.perf_counter() - begin)
            accuracy = f"{progress.accuracies[-1]:.1%}" if progress.accuracies else "-"
            peak = memory.stats(trainer.device).peak_allocated / 2**20
            epoch = min(progress.epoch + 1, trainer.options.epochs)
            bar.update(task, completed=steps, description=f"epoch {epoch}", report=(
                f"loss {progress.losses[-1]:.4f}  acc {accuracy}  {rate:,.0f} img/s  "
                f"{peak:.1f} MiB"))

        yield advance


def _with_each_norm(
    trainer: Trainer, books: Account, made: Callable[[str], Trainer]
) -> dict[str, Account]:
    """The account of a step with the trained norm, and of one of the same model with each other."""
    found = {trainer.options.norm: books}
    for norm in NORMS:
        if norm not in found:
            twin = made(norm)
            twin.model.load_state_dict(trainer.model.state_dict())
            with twin.device:
                twin.step(*twin.first_batch())  # from now on the optimizer has its state
                found[norm] = account(twin)
    return found


def _memory_table(books: dict[str, Account]) -> Any:
    """The memory of a step by norm; the trained one first."""
    from rich.table import Table

    trained = next(iter(books))
    table = Table(title=f"Where the memory of a training step went (--norm {trained} was trained)",
                  title_justify="left", caption=_saving(books), caption_justify="left")
    table.add_column("")
    for norm in books:
        for heading in ("at the peak", "at most"):
            table.add_column(f"{norm}\n{heading}", justify="right")
    for name in CATEGORIES:
        if any(account.most(name) for account in books.values()):
            table.add_row(name, *(_size(size) for account in books.values()
                                  for size in (account.at_peak(name), account.most(name))))
    table.add_section()
    table.add_row("peak of the step", *(_size(account.peak) for account in books.values()
                                        for _ in range(2)))
    table.add_row("served from cache", "", f"{books[trained].reuse:.2%}")
    return table


def _saving(books: dict[str, Account]) -> str:
    """What the norm in place saves, in a sentence."""
    inside, outside = (books[norm].most("saved") for norm in ("inplace", "abn"))
    return (f"Kept for backward: {_size(inside)} with norms in place, {_size(outside)} without "
            f"({inside / outside:.2f}x)")


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
