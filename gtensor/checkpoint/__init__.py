"""Checkpoints: safetensors files of tensors and of whole training runs; no pickle anywhere.

    gt.checkpoint.save_file({"w": w}, "w.safetensors")
    gt.checkpoint.load_file("w.safetensors")["w"]
    gt.checkpoint.save("run/last.safetensors", model=model, optimizer=optimizer, step=step)
    step = gt.checkpoint.load("run/last.safetensors", model=model, optimizer=optimizer)["step"]
    print(gt.checkpoint.load_into(model, "pytorch.safetensors"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.checkpoint.errors import CheckpointError, CheckpointMismatch
from gtensor.checkpoint.matching import Report
from gtensor.checkpoint.reading import load_file, safe_open
from gtensor.checkpoint.rotation import Rotation
from gtensor.checkpoint.session import load, load_into, progress, save
from gtensor.checkpoint.writing import save_file
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "CheckpointError", "CheckpointMismatch", "Report", "Rotation", "load", "load_file",
    "load_into", "progress", "safe_open", "save", "save_file",
]

_enter(globals(), check=True)
