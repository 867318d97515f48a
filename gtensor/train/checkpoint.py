"""A trainer's checkpoints: those of `gtensor.checkpoint`, with errors for the user of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gtensor import checkpoint
from gtensor.checkpoint import CheckpointError, CheckpointMismatch
from gtensor.train.described import Described, described
from gtensor.train.errors import UserError, told_to_user

Checked = TypeVar("Checked")


def save(path: Path, parts: Mapping[str, Any], progress: dict[str, Any]) -> None:
    """Model, optimizer and the like, random numbers and `progress` (JSON) in one file, atomically.

    Raises UserError if the disk is full or the folder cannot be written.
    """
    with told_to_user():
        checkpoint.save(path, **parts, **progress)


def load(path: Path, parts: Mapping[str, Any], check: Callable[[Described], Checked]) -> Checked:
    """Put a checkpoint's state into the parts and the random numbers.

    Returns what `check` made of the checkpoint's description. Raises UserError, with nothing
    changed, if the file is not there, not whole, or of another model; or what `check` raises (a
    ValueError for what the description garbles).
    """
    with refusals_of(path):
        checked = check(described(path))
        checkpoint.load(path, **parts)
    return checked


@contextmanager
def refusals_of(path: Path) -> Iterator[None]:
    """Errors of a checkpoint that is read in the block become UserErrors."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path} to resume from; train without --resume "
                        "first") from None
    except CheckpointMismatch as error:
        raise UserError(str(error)) from error
    except (CheckpointError, OSError) as error:
        raise _broken(error) from error
    except ValueError as error:
        raise _broken(f"{path} is not a whole checkpoint: {error}") from error


def _broken(why: object) -> UserError:
    return UserError(f"{why}; delete it, or give another folder with --out")
