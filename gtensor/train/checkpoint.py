"""A trainer's checkpoints: those of `gtensor.checkpoint`, with errors for the user of a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gtensor import checkpoint
from gtensor.checkpoint import CheckpointError, CheckpointMismatch
from gtensor.nn.module import Module
from gtensor.optim import EMA, Optimizer
from gtensor.train.described import Described, described
from gtensor.train.errors import UserError, told_to_user

Checked = TypeVar("Checked")


def save(path: Path, model: Module, optimizer: Optimizer, ema: EMA | None,
         progress: dict[str, Any]) -> None:
    """Model, optimizer, averages, random numbers and `progress` (JSON) in one file, atomically.

    Raises UserError if the disk is full or the folder cannot be written.
    """
    with told_to_user():
        checkpoint.save(path, model=model, optimizer=optimizer, ema=ema, **progress)


def load(path: Path, model: Module, optimizer: Optimizer, ema: EMA | None,
         check: Callable[[Described], Checked]) -> Checked:
    """Put a checkpoint's state into model, optimizer, averages, random numbers.

    Returns what `check` made of the checkpoint's description. Raises UserError, with nothing
    changed, if the file is not there, not whole, or of another model; or what `check` raises (a
    ValueError for what the description garbles).
    """
    try:
        checked = check(described(path))
        checkpoint.load(path, model=model, optimizer=optimizer, ema=ema)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path} to resume from; train without --resume "
                        "first") from None
    except CheckpointMismatch as error:
        raise UserError(str(error)) from error
    except (CheckpointError, OSError) as error:
        raise _broken(error) from error
    except ValueError as error:
        raise _broken(f"{path} is not a whole checkpoint: {error}") from error
    return checked


def _broken(why: object) -> UserError:
    return UserError(f"{why}; delete it, or give another folder with --out")
