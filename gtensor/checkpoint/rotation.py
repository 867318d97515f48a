"""The last checkpoints of a run, numbered by step, with a mark for the latest."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gtensor.checkpoint.reading import INDEX_SUFFIX, PathLike
from gtensor.checkpoint.session import load, save
from gtensor.checkpoint.writing import SUFFIX, remove
from gtensor.system.atomic import make_folder_of, write_file
from gtensor.system.files import MOST_POINTER_BYTES, read_all


class Rotation:
    """Checkpoints `name-000123.safetensors` of a folder, of which the last few are kept.

        checkpoints = gt.checkpoint.Rotation("run", keep=3)
        if checkpoints.latest():
            step = checkpoints.load(model=model, optimizer=optimizer)["step"]
        ...
        checkpoints.save(step, model=model, optimizer=optimizer)

    `name-latest` is a text file with the name of the one that was saved last; without it, the
    highest number is the latest. A checkpoint is removed only after a newer one is complete. The
    next save removes files that a killed save or removal left (shards without an index, temporary
    files). Several writers of one rotation wait for each other.

    Raises ValueError for `keep` below 1 or an invalid file name.
    """

    def __init__(self, folder: PathLike, keep: int = 3, name: str = "checkpoint") -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} given; wanted at least 1")
        if not name or Path(name).name != name:
            raise ValueError(f"name {name!r} given; wanted a file name without a folder")
        self.folder, self.keep, self.name = Path(folder), keep, name
        self._pattern = re.compile(rf"{re.escape(name)}-(\d{{6,}}){re.escape(SUFFIX)}")

    def path(self, step: int) -> Path:
        """The path of a step's checkpoint."""
        return self.folder / f"{self.name}-{step:06}{SUFFIX}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted({int(found[1]) for name in names if (
            found := self._pattern.fullmatch(name.removesuffix(INDEX_SUFFIX)))})

    def latest(self) -> Path | None:
        """The path of the latest checkpoint, None if there is none."""
        steps = self.steps()
        with suppress(OSError, ValueError):
            pointed = read_all(self._pointer, MOST_POINTER_BYTES).decode().strip()
            for step in steps:
                if self.path(step).name == pointed:
                    return self.path(step)
        return self.path(steps[-1]) if steps else None

    def save(self, step: int, **state: Any) -> Path:
        """`gtensor.checkpoint.save` under the step's number (with `step` among its values)."""
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"step {step!r} given; wanted a whole number of 0 or more")
        path = self.path(step)
        make_folder_of(path)
        # Listed before the save: of two at once, not both can then remove the other's new one.
        others = [other for other in self.steps() if other != step]
        save(path, step=step, **state)
        write_file(self._pointer, f"{path.name}\n".encode())
        for spent in others[:max(0, len(others) - self.keep + 1)]:
            remove(self.path(spent))
        return path

    def load(self, **parts: Any) -> dict[str, Any]:
        """`gtensor.checkpoint.load` of the latest. Raises FileNotFoundError if there is none."""
        path = self.latest()
        if path is None:
            raise FileNotFoundError(f"there is no checkpoint {self.name}-*{SUFFIX} in "
                                    f"{self.folder}")
        return load(path, **parts)

    @property
    def _pointer(self) -> Path:
        return self.folder / f"{self.name}-latest"
