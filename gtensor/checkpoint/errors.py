"""What is wrong with a checkpoint, in one sentence that names the file."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A file that is not whole, or not of the format that was wanted."""


class CheckpointMismatch(CheckpointError):
    """A whole file whose contents do not fit what they were to be loaded into."""
