"""`gtensor train`: a recipe run in a terminal, with progress, pictures, a checkpoint and Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gtensor import memory
from gtensor.settings import settings
from gtensor.train import recipe
from gtensor.train.accounting import CATEGORIES, Account, account
from gtensor.train.errors import UserError, require
from gtensor.train.pictures import loss_curve, memory_timeline
from gtensor.train.trainer import Trainer

INTERRUPTED = 130  # the shell's exit status for Ctrl-C


def train(name: str, out: Path | None, resume: bool, quiet: bool, **options: Any) -> int:
    """Run a recipe to its end or to Ctrl-C; the exit status.

    Every array comes from the arena here, however small, so that every byte is accounted for.
    """
    for module, package in (("rich", "rich"), ("matplotlib", "matplotlib")):
        require(module, package)
    chosen = recipe(name)
    folder = out or Path("runs") / name
    with settings.override(arena_min_bytes=0):
        trainer = Trainer(chosen.model, chosen.data(), chosen.DEFAULTS.changed(**options))
        if resume:
            trainer.resume(folder / "checkpoint.safetensors")
        elif (folder / "checkpoint.safetensors").exists() and not quiet:
            _console().print(f"[dim]{folder} holds an earlier run, which this one replaces[/]")
        return _run(trainer, folder, chosen.TITLE, quiet)


def _run(trainer: Trainer, folder: Path, title: str, quiet: bool) -> int:
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
    memory_timeline(folder / "memory.png", books, "Live memory over one training step")
    console.print(_memory_table(books))
    console.print(
        f"Held-out accuracy [bold]{trainer.progress.accuracies[-1]:.2%}[/] after "
        f"{trainer.progress.epoch} epochs, {seconds:.1f} s on {trainer.device}.\n"
        f"Wrote {folder}/loss.png, memory.png and checkpoint.safetensors.", soft_wrap=True)
    return 0


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Ctrl-C within the block is noted, and acted on between two steps; a second one is at once."""
    noted: list[int] = []

    def note(number: int, frame: Any) -> None:
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

    return Console(quiet=quiet, highlight=False)


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


def _memory_table(books: Account) -> Any:
    """Where the memory of a step went."""
    from rich.table import Table

    table = Table(title="Where the memory of a training step went", title_justify="left")
    for heading in ("", "at the peak", "at most"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in CATEGORIES:
        table.add_row(name, _size(books.at_peak(name)), _size(books.most(name)))
    table.add_section()
    table.add_row("peak of the step", _size(books.peak), _size(books.peak))
    table.add_row("served from cache", "", f"{books.reuse:.2%}")
    return table


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
