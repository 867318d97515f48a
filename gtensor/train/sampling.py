"""`gtensor sample`: text or images from the checkpoint of a training run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from gtensor import checkpoint as files
from gtensor.backend import get_device
from gtensor.checkpoint import CheckpointError
from gtensor.models.language import generate
from gtensor.nn.module import Module
from gtensor.train.errors import UserError

_BYTES, _IMAGES, _TEMPERATURE = 400, 64, 0.8  # by default


def sample(
    checkpoint: Path, prompt: str | None, count: int | None, temperature: float | None,
    top_k: int | None, seed: int, device: str | None, out: Path | None,
) -> int:
    """Write what the model of a checkpoint makes, to the terminal or as a picture; exit status."""
    about = described(checkpoint)
    if about["recipe"] == "Text":
        if out is not None:
            raise UserError("--out given for a text, which is written to the terminal")
        _write_text(checkpoint, about, prompt or "\n", count or _BYTES,
                    _TEMPERATURE if temperature is None else temperature, top_k, seed, device)
        return 0
    if about["recipe"] != "Diffusion":
        raise UserError(f"{checkpoint} is of the recipe {about['recipe'].lower()}; wanted one of "
                        "text or diffusion")
    of_text = {"--prompt": prompt, "--temperature": temperature, "--top-k": top_k}
    if given := [name for name, value in of_text.items() if value is not None]:
        raise UserError(f"{', '.join(given)} given for images; wanted --count, --seed or --out")
    from gtensor.train.diffusion import write_samples

    write_samples(checkpoint, about, count or _IMAGES, seed, device, out or Path("samples.png"))
    return 0


def described(path: Path) -> dict[str, Any]:
    """What a checkpoint says about its run. UserError if it is none of `gtensor train`."""
    try:
        about = files.progress(path)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}") from None
    except (CheckpointError, OSError) as error:
        raise UserError(str(error)) from error
    if not {"recipe", "model_options"} <= about.keys():
        raise UserError(f"{path} is not a checkpoint of gtensor train")
    return about


def loaded(model: Module, path: Path) -> Module:
    """The model with a checkpoint's weights, in evaluation mode. UserError if they do not fit."""
    try:
        files.load(path, model=model, random=False)
    except (CheckpointError, OSError) as error:
        raise UserError(str(error)) from error
    return model.eval()


def _write_text(
    path: Path, about: dict[str, Any], prompt: str, count: int, temperature: float,
    top_k: int | None, seed: int, device: str | None,
) -> None:
    """The prompt and what follows it, byte by byte as they are made."""
    from gtensor.train.text import make_model

    with get_device(device), told_as_user_error(path):
        model: Any = loaded(make_model(about["model_options"]), path)
        made = generate(model, list(prompt.encode(errors="surrogateescape")), count, temperature,
                        top_k, seed)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    sys.stdout.write(prompt)
    pending = b""
    with get_device(device):
        for byte in made:
            text, pending = _decoded(pending + bytes([byte]))
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write(pending.decode(errors="replace") + "\n")


@contextmanager
def told_as_user_error(path: Path) -> Iterator[None]:
    """Errors of a model made from what a checkpoint says, or of the call, become UserErrors."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be sampled from: {error}") from error


def _decoded(pending: bytes) -> tuple[str, bytes]:
    """The text of whole characters, and the bytes of one that is not whole yet."""
    try:
        return pending.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return pending[:error.start].decode(), pending[error.start:]
        return pending.decode(errors="replace"), b""
