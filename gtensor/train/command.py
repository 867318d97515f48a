"""`gtensor train`: a recipe run in a terminal, with progress, pictures, a checkpoint and Ctrl-C."""

from __future__ import annotations

import csv
import io
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor import memory
from gtensor.memory.trace.timeline_picture import png_file
from gtensor.settings import settings
from gtensor.train import recipe_of
from gtensor.train.errors import NotFinite, UserError, require
from gtensor.train.files import alone_in, write_atomically
from gtensor.train.pictures import loss_curve
from gtensor.train.trainer import Trainer

if TYPE_CHECKING:
    from gtensor.distributed import Communicator

INTERRUPTED = 130  # the shell's exit status for Ctrl-C


def train(name: str, out: Path | None, resume: bool, quiet: bool, **options: object) -> int:
    """Run a recipe to its end or to Ctrl-C; the exit status.

    Every array comes from the arena here, however small, so that every byte is accounted for.
    NumPy's warnings of what is not finite are silent: a loss that is not finite is an error.
    """
    for module, package in (("rich", "rich"), ("matplotlib", "matplotlib")):
        require(module, package)
    kind, defaults = recipe_of(name)
    folder = out or Path("runs") / name
    given = defaults.changed(**options)
    path = folder / "checkpoint.safetensors"
    with settings.override(arena_min_bytes=0), np.errstate(all="ignore"), ExitStack() as stack:
        trainer = Trainer(kind(given), _ranks())
        quiet = quiet or not trainer.leads
        if trainer.leads and (folder.exists() or not resume):
            stack.enter_context(alone_in(folder))
        if trainer.comm is not None:
            trainer.comm.barrier()  # no rank reads a checkpoint before the folder is held
        if resume:
            trainer.resume(path)
        elif path.exists() and not quiet:
            _console().print(f"{folder} holds an earlier run, which this one replaces",
                             style="dim", soft_wrap=True)
        return _run(trainer, folder, quiet)


def _ranks() -> Communicator | None:
    """The communicator of `gtensor launch`, None for a process alone."""
    from gtensor.distributed import init, started

    return init() if started() > 1 else None


def _run(trainer: Trainer, folder: Path, quiet: bool) -> int:
    """Train, draw, account."""
    path, recipe = folder / "checkpoint.safetensors", trainer.recipe
    console = _console(quiet)
    start = time.perf_counter()
    memory.reset_peak(trainer.device)
    with _interruptible() as interrupted, _progress(trainer, console) as advance:

        def after_step(trainer: Trainer) -> bool:
            advance(trainer)
            return bool(interrupted)

        def after_epoch(trainer: Trainer) -> None:
            trainer.save(path)
            if not trainer.leads:
                return
            write_atomically(folder / "metrics.csv", metrics(trainer))
            recipe.after_epoch(trainer, folder)
            advance(trainer)

        try:
            finished = trainer.run(after_step, after_epoch)
        except NotFinite as error:
            raise UserError(f"{error}. {_last_good(trainer, path)}") from None
    if not finished:
        trainer.save(path)
        console.print(f"Interrupted in epoch {trainer.progress.epoch + 1}; saved to {path}. "
                      "Go on with the same command and --resume.", soft_wrap=True)
        return INTERRUPTED
    seconds = time.perf_counter() - start
    if not trainer.progress.losses:
        raise UserError("nothing was trained; wanted at least one epoch")
    with trainer.device:
        books = recipe.books(trainer)
    if not trainer.leads:
        return 0
    loss_curve(folder / "loss.png", trainer)
    trained = next(iter(books.values()))
    write_atomically(folder / "memory.png",
                     png_file(trained.history, "Live memory over one training step"))
    for part in recipe.finish(trainer, folder, books):
        console.print(part)
    from rich.text import Text

    console.print(Text.assemble(
        f"Held-out {recipe.score_name} ", (recipe.shown(trainer.progress.scores[-1]), "bold"),
        f" after {trainer.progress.epoch} epochs, {seconds:.1f} s on {trainer.device}.\n"
        f"Wrote {folder}/" + ", ".join(sorted(
            p.name for p in folder.iterdir() if not p.name.startswith("."))) + "."),
        soft_wrap=True)
    return 0


def _last_good(trainer: Trainer, path: Path) -> str:
    """Save the state before a step that was not taken, unless a weight is not finite there."""
    if trainer.is_finite():
        trainer.save(path)
        return f"The state before it is saved to {path}"
    return (f"The weights are not finite, so {path} was left as it is" if path.exists()
            else "The weights are not finite, so nothing was saved")


def metrics(trainer: Trainer) -> bytes:
    """A line of CSV for each epoch, and one of names.

    Of its steps, the mean loss, and with --clip the mean norm of the gradients and the share that
    was clipped; at its end the score and the norm of the weights.
    """
    progress, size = trainer.progress, trainer.batches
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    scored = trainer.recipe.score_name.replace(" ", "_")
    lines.writerow(["epoch", "step", "training_loss", f"held_out_{scored}", "weight_norm",
                    "gradient_norm", "clipped"])
    for i, (score, weights) in enumerate(zip(progress.scores, progress.weight_norms, strict=True)):
        steps = slice(i * size, (i + 1) * size)
        row = [i + 1, steps.stop, float(np.mean(progress.losses[steps])), score, weights]
        if progress.gradient_norms:
            norms = np.array(progress.gradient_norms[steps])
            row += [float(norms.mean()), float((norms > trainer.options.clip).mean())]
        lines.writerow([*map(repr, row), *[""] * (7 - len(row))])
    return text.getvalue().encode()


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

    recipe = trainer.recipe
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
            examples = (steps - done) * trainer.options.batch_size * recipe.each
            rate = examples / (time.perf_counter() - begin)
            score = recipe.shown(progress.scores[-1]) if progress.scores else "-"
            peak = memory.stats(trainer.device).peak_allocated / 2**20
            epoch = min(progress.epoch + 1, trainer.options.epochs)
            bar.update(task, completed=steps, description=f"epoch {epoch}", report=(
                f"loss {progress.losses[-1]:.4f}  {recipe.score_name} {score}  "
                f"{rate:,.0f} {recipe.counted}/s  {peak:.1f} MiB"))

        yield advance
