"""A trainer's run in a terminal and in a folder: progress, pictures, a checkpoint, Ctrl-C."""

from __future__ import annotations

import csv
import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gtensor import memory
from gtensor.memory.trace.timeline_picture import png_file
from gtensor.settings import settings
from gtensor.train.accounting import memory_table, recorded, reuse
from gtensor.train.callbacks import Callback
from gtensor.train.errors import UserError, require
from gtensor.train.files import alone_in, write_atomically
from gtensor.train.pictures import loss_curve

Trainer: TypeAlias = Any  # of train.trainer, which imports this

_FEW = 60  # columns of a terminal, below which there is no bar beside the words
_EPOCH, _BAR_AND_TIME = 10, 14  # columns beside the report
_RECORDED = 2  # the step whose memory is recorded: in the first one, what stays is made


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a run, whose state is saved if the trainer has a folder."""


def fit(trainer: Trainer, resume: bool, quiet: bool) -> bool:
    """See `Trainer.fit`.

    Every array comes from the arena here, however small, so that every byte is accounted for.
    NumPy's warnings of what is not finite are silent: a loss that is not finite is an error.
    """
    for module, package in (("rich", "rich"), ("matplotlib", "matplotlib")):
        require(module, package)
    folder, console = trainer.folder, _console(quiet or not trainer.leads)
    with settings.override(arena_min_bytes=0), np.errstate(all="ignore"), ExitStack() as stack:
        if folder is not None and trainer.leads and (folder.exists() or not resume):
            stack.enter_context(alone_in(folder))
        if trainer.comm is not None:
            trainer.comm.barrier()  # no rank reads a checkpoint before the folder is held
        if resume:
            console.print(_resumed(trainer, trainer.resume()), style="dim", soft_wrap=True)
        elif folder is not None and trainer.path.exists():
            console.print(f"{folder} holds an earlier run, which this one replaces",
                          style="dim", soft_wrap=True)
        return _run(trainer, console)


def _resumed(trainer: Trainer, epochs: int) -> str:
    """Where a run goes on, and with which learning rate."""
    progress = trainer.progress
    told = f"Resumed after {counted(len(progress.losses), 'step')}"
    if progress.epoch < trainer.epochs:
        told += f", in epoch {progress.epoch + 1} of {trainer.epochs}"
    if epochs == trainer.epochs:
        return told
    told += f". It was a run of {counted(epochs, 'epoch')}"
    return told if trainer.schedule is None else (
        f"{told}; from here on its learning rate is that of a run of {trainer.epochs}, "
        f"{max(trainer.schedule.get_last_lr()):.3g} in the next step")


def counted(number: int, what: str) -> str:
    """"1 epoch", "2 epochs"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _run(trainer: Trainer, console: Any) -> bool:
    """Train, draw, account."""
    start, before = time.perf_counter(), len(trainer.progress.losses)
    there = _files(trainer.folder)
    memory.reset_peak(trainer.device)
    with _interruptible(trainer) as interrupted, _bar(trainer, console) as bar:
        try:
            finished = trainer.run_with((_Saving(), bar), _recording(trainer))
        except UserError as error:
            raise type(error)(f"{error}. {_last_good(trainer)}") from None
    progress = trainer.progress
    if not finished and progress.batch and trainer.folder is not None:
        trainer.save()
    if not finished and trainer.on_any_rank(bool(interrupted)):
        saved = (f"saved to {trainer.path}. Go on with the same command and --resume"
                 if trainer.folder is not None else "not saved, since there is no folder")
        console.print(f"Interrupted in epoch {progress.epoch + 1}; {saved}.", soft_wrap=True)
        raise Interrupted("the run was interrupted after a whole step")
    seconds = time.perf_counter() - start
    with trainer.device:
        parts = [part for one in trainer.callbacks for part in one.after_run(trainer)]
    if not trainer.leads:
        return finished
    if trainer.folder is not None:
        loss_curve(trainer.folder / "loss.png", trainer)
    if trainer.account is not None:
        trainer.account.reuse = reuse(trainer)
        if trainer.folder is not None:
            write_atomically(trainer.folder / "memory.png", png_file(
                trainer.account.history, "Live memory over one training step"))
        parts = parts or [memory_table(trainer, {"": trainer.account})]
    for part in parts:
        console.print(part)
    if trainer.stopped and not interrupted:
        console.print(f"{trainer.stopped}.", soft_wrap=True)
    if len(progress.losses) == before:
        console.print(f"Nothing was left to train in a run of {counted(trainer.epochs, 'epoch')}; "
                      "a larger number (--epochs) trains longer.", soft_wrap=True)
    console.print(_result(trainer, seconds, there), soft_wrap=True)
    return finished


def _result(trainer: Trainer, seconds: float, there: dict[str, tuple[int, int]]) -> Any:
    """What the run reached, and the files that it wrote among those that were there."""
    from rich.text import Text

    progress, captions = trainer.progress, trainer.captions
    said = (f"Held-out {captions.score} ", captions.shown(progress.scores[-1])) if (
        progress.scores) else ("Training loss ", f"{_last_mean(trainer):.4f}")
    text = Text.assemble(
        said[0], (said[1], "bold"), f" after {counted(progress.epoch, 'epoch')}, {seconds:.1f} s "
        f"on {trainer.device}.")
    if trainer.folder is not None:
        wrote = [name for name, state in sorted(_files(trainer.folder).items())
                 if state != there.get(name)]
        text.append(f"\nWrote {trainer.folder}/" + ", ".join(wrote) + ".")
    return text


def _files(folder: Path | None) -> dict[str, tuple[int, int]]:
    """What is in the folder of a run, each with what changes when it is written."""
    if folder is None or not folder.exists():
        return {}
    found = {path.name + "/" * path.is_dir(): path.stat() for path in folder.iterdir()
             if not path.name.startswith(".")}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in found.items()}


def _last_mean(trainer: Trainer) -> float:
    """The mean training loss of the last whole epoch, or of what there is."""
    progress = trainer.progress
    steps = progress.steps_of(progress.epoch - 1) if progress.epoch else slice(None)
    return float(np.mean(progress.losses[steps]))


def _last_good(trainer: Trainer) -> str:
    """Save the state before a step that was not taken, unless a weight is not finite there."""
    if trainer.folder is None:
        return "The trainer has no folder, so nothing was saved"
    if not trainer.progress.losses:
        return "No step was taken, so nothing was saved"
    if trainer.is_finite():
        trainer.save()
        return f"The state before it is saved to {trainer.path}"
    return (f"The weights are not finite, so {trainer.path} was left as it is"
            if trainer.path.exists() else "The weights are not finite, so nothing was saved")


def _recording(trainer: Trainer) -> Callable[[Any], AbstractContextManager[object]]:
    """A context around every step of a run; around one of them it is a recording of memory."""
    left = None if trainer.batches is None else (
        trainer.batches * trainer.epochs - len(trainer.progress.losses))
    place = _RECORDED if left is None else min(_RECORDED, left)
    done = 0

    def around(batch: Any) -> AbstractContextManager[object]:
        nonlocal done
        done += 1
        return recorded(trainer, batch) if done == place else nullcontext()

    return around


class _Saving(Callback):
    """The files of every epoch."""

    def after_epoch(self, trainer: Trainer) -> None:
        if trainer.folder is None:
            return
        trainer.save()
        if trainer.leads:
            write_atomically(trainer.folder / "metrics.csv", metrics(trainer))


def metrics(trainer: Trainer) -> bytes:
    """A line of CSV for each epoch, and one of names.

    Of its steps, the mean loss, and with clipping the mean norm of the gradients and the share that
    was clipped; at its end the score and the loss of held-out data, where they are known, and the
    norm of the weights.
    """
    progress = trainer.progress
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    scored = [f"held_out_{trainer.captions.score.replace(' ', '_')}"] if progress.scores else []
    scored += ["held_out_loss"] if progress.held_out_losses else []
    lines.writerow(["epoch", "step", "training_loss", *scored, "weight_norm", "gradient_norm",
                    "clipped"])
    for i, weights in enumerate(progress.weight_norms):
        steps = progress.steps_of(i)
        row = [i + 1, steps.stop, float(np.mean(progress.losses[steps])), *progress.scores[i:i + 1],
               *progress.held_out_losses[i:i + 1], weights]
        norms = np.array(progress.gradient_norms[steps])
        more = [float(norms.mean()), float((norms > trainer.clip).mean())] if len(norms) else []
        lines.writerow([*map(repr, row + more), *[""] * (2 - len(more))])
    return text.getvalue().encode()


@contextmanager
def _interruptible(trainer: Trainer) -> Iterator[list[int]]:
    """Delay Ctrl-C within the block to the end of the step; a second one interrupts at once.

    Only the main thread hears it.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)
        trainer.stop("Interrupted")

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _console(quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(quiet=quiet, highlight=False, markup=False, emoji=False)


@contextmanager
def _bar(trainer: Trainer, console: Any) -> Iterator[Callback]:
    """A progress bar; yields the callback that moves it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    total = None if trainer.batches is None else trainer.batches * trainer.epochs
    done = len(trainer.progress.losses)
    text = TextColumn("{task.description}"), TextColumn("{task.fields[report]}")
    columns = (text if console.width < _FEW else
               (text[0], BarColumn(bar_width=None), text[1], TimeRemainingColumn(compact=True)))
    with Progress(*columns, console=console, refresh_per_second=4, expand=True,
                  disable=trainer.progress.epoch >= trainer.epochs) as bar:
        task = bar.add_task(f"epoch {trainer.progress.epoch + 1}", total=total, completed=done,
                            report="")
        yield _Bar(bar, task, done, console.width - _EPOCH - (
            _BAR_AND_TIME if console.width >= _FEW else 0))


class _Bar(Callback):
    """Moves a progress bar, and writes beside it what has room."""

    def __init__(self, bar: Any, task: Any, done: int, room: int) -> None:
        self._bar, self._task, self._done, self._room = bar, task, done, room
        self._begin = time.perf_counter()

    def after_step(self, trainer: Trainer) -> None:
        progress, captions = trainer.progress, trainer.captions
        steps = len(progress.losses)
        parts = [f"loss {progress.losses[-1]:.4f}"]
        if trainer.is_scored:
            parts.append(f"{'held-out ' * (captions.score == 'loss')}{captions.score} "
                         f"{captions.shown(progress.scores[-1]) if progress.scores else '-'}")
        each, counted = ((1, "batches") if trainer.batch_size is None
                         else (trainer.batch_size * captions.each, captions.counted))
        rate = (steps - self._done) * each / (time.perf_counter() - self._begin)
        parts += [f"{rate:,.0f} {counted}/s",
                  f"{memory.stats(trainer.device).peak_allocated / 2**20:.1f} MiB"]
        while len(parts) > 1 and len("  ".join(parts)) > self._room:
            del parts[-1]
        self._bar.update(
            self._task, completed=steps, report="  ".join(parts),
            description=f"epoch {min(progress.epoch + 1, trainer.epochs)}")

    after_epoch = after_step
