"""`gtensor sample`: text or images from the checkpoint of a training run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import cast

import numpy as np

from gtensor import checkpoint as files
from gtensor.backend import get_device
from gtensor.checkpoint import CheckpointError
from gtensor.models.language import LanguageModel, generate
from gtensor.system.files import printable
from gtensor.train.described import Described, described
from gtensor.train.errors import UserError

_BYTES, _IMAGES, _TEMPERATURE = 400, 64, 0.8  # by default
_SPACES = "\n\t\u00a0\u3000"  # of a text, although not printable


def sample(
    checkpoint: Path, prompt: str | None, count: int | None, temperature: float | None,
    top_k: int | None, seed: int, device: str | None, out: Path | None,
) -> int:
    """Write what the model of a checkpoint makes, to the terminal or as a picture; exit status."""
    of_text = {"--prompt": prompt, "--temperature": temperature, "--top-k": top_k}
    given = [name for name, value in of_text.items() if value is not None]
    with told_as_user_error(checkpoint):
        run = described(checkpoint)
        if run.recipe == "Text":
            if out is not None:
                raise UserError("--out given for a text, which is written to the terminal")
            _write_text(run, prompt or "\n", count or _BYTES,
                        _TEMPERATURE if temperature is None else temperature, top_k, seed, device)
        elif run.recipe != "Diffusion":
            what = (f"of the recipe {run.recipe.lower()}" if run.recipe else
                    "of a network of one's own")
            raise UserError(f"{checkpoint} is {what}; wanted one of text or diffusion")
        elif given:
            raise UserError(f"{', '.join(given)} given for images; wanted --count, --seed or --out")
        else:
            from gtensor.train.diffusion import write_samples

            out = out or Path("samples.png")
            count = count or _IMAGES
            write_samples(run, count, seed, device, out)
            print(f"Wrote {count:,} image{'' if count == 1 else 's'}, seed {seed}, to {out}.")
    return 0


@contextmanager
def told_as_user_error(path: Path) -> Iterator[None]:
    """Errors of a checkpoint, of its model or of the call become UserErrors.

    Numbers of strangers may overflow; what is not finite then is an error where it is used.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except BrokenPipeError:  # of the text's reader
        raise
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}") from None
    except (CheckpointError, OSError) as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        raise UserError(f"{path} cannot be sampled from: {error}") from error


def _write_text(
    run: Described, prompt: str, count: int, temperature: float, top_k: int | None, seed: int,
    device: str | None,
) -> None:
    """The prompt and what follows it, byte by byte as they are made."""
    from gtensor.train.text import Text, TextOptions, make_model

    tokens = list(prompt.encode(errors="surrogateescape"))
    options = run.options(Text, TextOptions())
    # No tensor has this length: the memory of the positions follows the call, not the file.
    options = replace(options, length=min(options.length, len(tokens) + count))
    with get_device(device):
        model = run.model(make_model, options)
        files.load(run.path, model=model, random=False)
        made = generate(cast(LanguageModel, model.eval()), tokens, count, temperature, top_k, seed)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
        sys.stdout.write(prompt)
        pending = b""
        for byte in made:
            text, pending = _decoded(pending + bytes([byte]))
            sys.stdout.write(_shown(text))
            sys.stdout.flush()
    sys.stdout.write(_shown(pending.decode(errors="replace")) + "\n")


def _shown(text: str) -> str:
    """Text for a terminal: a model may have learned, or been made, to write what moves it."""
    return "".join(c if c in _SPACES else printable(c) for c in text)


def _decoded(pending: bytes) -> tuple[str, bytes]:
    """The text of whole characters, and the bytes of one that is not whole yet."""
    try:
        return pending.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return pending[:error.start].decode(), pending[error.start:]
        return pending.decode(errors="replace"), b""
