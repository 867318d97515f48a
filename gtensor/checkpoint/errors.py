"""The errors of checkpoints; each message is one sentence that names the file."""

from __future__ import annotations

MOST_LETTERS = 10_000  # of a message: it quotes names from a file, each of which may be a megabyte


class CheckpointError(ValueError):
    """A file that is incomplete or of another format."""

    def __init__(self, text: str) -> None:
        super().__init__(text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ...")


class CheckpointMismatch(CheckpointError):
    """A complete file whose contents do not fit the objects to load them into."""
