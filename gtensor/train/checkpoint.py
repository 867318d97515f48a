"""Checkpoints: safetensors, tensors by name and one JSON text of everything else; no pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gtensor import random
from gtensor.creation import tensor
from gtensor.nn.module import Module
from gtensor.optim import Optimizer
from gtensor.train.errors import UserError
from gtensor.train.files import write_atomically

FORMAT = 1


def save(path: Path, model: Module, optimizer: Optimizer, progress: dict[str, Any]) -> None:
    """Model, optimizer, random numbers and `progress` (JSON) in one file, written atomically."""
    from safetensors.numpy import save as to_bytes

    state = optimizer.state_dict()
    tensors = {f"model.{name}": t for name, t in model.state_dict().items()}
    steps = {}
    for number, entry in state["state"].items():
        steps[number] = entry["step"]
        tensors |= {f"optimizer.{number}.{name}": t for name, t in entry.items() if name != "step"}
    about = {"format": FORMAT, "progress": progress, "random": _plain(random.get_state()),
             "steps": steps, "groups": state["param_groups"]}
    data = to_bytes({name: t.detach().to("cpu").numpy() for name, t in tensors.items()},
                    metadata={"gtensor": json.dumps(about)})
    write_atomically(path, data)


def load(path: Path, model: Module, optimizer: Optimizer,
         check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Put a checkpoint's state into model, optimizer and random numbers; its `progress`.

    Raises UserError, with nothing changed, if the file is not there, not whole, or of another
    model; or what `check(progress)` raises.
    """
    arrays, about = _read(path)
    try:
        check(about["progress"])
        weights, state = _states(arrays, about)
        generator = about["random"]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _broken(path, f"its description lacks or garbles {error}") from error
    before = {name: t.detach().clone() for name, t in model.state_dict().items()}
    try:
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    except (KeyError, ValueError, TypeError) as error:
        model.load_state_dict(before)
        raise UserError(f"{path} is a checkpoint of another model: {error}") from error
    random.set_state(generator)
    return about["progress"]


def _states(
    arrays: dict[str, Any], about: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dicts of the model and the optimizer."""
    weights = {name.removeprefix("model."): tensor(a)
               for name, a in arrays.items() if name.startswith("model.")}
    state: dict[int, dict[str, Any]] = {
        int(number): {"step": step} for number, step in about["steps"].items()}
    for name, array in arrays.items():
        if name.startswith("optimizer."):
            _, number, field = name.split(".", 2)
            state[int(number)][field] = tensor(array)
    return weights, {"state": state, "param_groups": about["groups"]}


def _broken(path: Path, why: Any) -> UserError:
    return UserError(f"{path} is not a whole checkpoint ({why}); delete it, or give another folder "
                     "with --out")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("gtensor", "{}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(text)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path} to resume from; train without --resume "
                        "first") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(path, error) from error
    if about.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of this version of gtensor (format "
                        f"{about.get('format')}, wanted {FORMAT})")
    return arrays, about


def _plain(value: Any) -> Any:
    """NumPy's integers and arrays in a generator's state as Python's."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


