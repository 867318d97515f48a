"""A training run in one file: model, optimizer, schedule, random numbers, position in the data.

Tensors are stored by name (`model.layer.weight`, `optimizer.state.0.exp_avg`), so that any reader
of safetensors can use them; everything else is JSON in the file's metadata under "gtensor".
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from gtensor import random as random_numbers
from gtensor.backend import Device, get_device
from gtensor.checkpoint.errors import CheckpointError, CheckpointMismatch
from gtensor.checkpoint.matching import Rename, Report, fit
from gtensor.checkpoint.reading import PathLike, safe_open
from gtensor.checkpoint.state import Packer, memory_of, names_in, to_text, unpack
from gtensor.checkpoint.writing import write_tensors
from gtensor.creation.new_tensors import empty
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn.module import Module
from gtensor.system.atomic import make_folder_of
from gtensor.system.documents import told

FORMAT = 2
KEY = "gtensor"  # of the metadata
RANDOM = "random"
_GENERATOR: Any = SimpleNamespace(
    state_dict=random_numbers.get_state, load_state_dict=random_numbers.set_state)
_MALFORMED = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


class Stateful(Protocol):
    """A part of a training run: a model, an optimizer, or any object with these two methods."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state: plain values and tensors."""

    def load_state_dict(self, state: Any, /) -> object:
        """Take the state back."""


def save(
    path: PathLike, *, model: Stateful | None = None, optimizer: Stateful | None = None,
    scheduler: Stateful | None = None, ema: Stateful | None = None,
    loader: Stateful | None = None, random: bool = True,
    max_shard_size: int | str | None = None, **more: object,
) -> None:
    """Write the state of a training run, atomically; a missing folder is made.

        gt.checkpoint.save("run/last.safetensors", model=model, optimizer=optimizer, step=step)

    After a kill or a power cut too, `path` has the last complete checkpoint.

    Args:
        model, optimizer, scheduler, ema, loader: anything with `state_dict()`, or None.
        random: whether to save the state of `gtensor.random`.
        max_shard_size: as for `save_file`.
        more: further parts with `state_dict()`, and values (`step=3`): numbers, texts, tensors,
            arrays, and lists, tuples and dicts of them, which `load` returns.

    Raises TypeError for another value, OSError if the file cannot be written.
    """
    parts, progress = _sorted_out({"model": model, "optimizer": optimizer, "scheduler": scheduler,
                                   "ema": ema, "loader": loader}, more)
    packer = Packer()
    if random:
        parts[RANDOM] = _GENERATOR
    # Parts first: a tensor that is also among the values keeps its part's name.
    packed = {name: packer.pack(part.state_dict(), name) for name, part in parts.items()}
    about = {"format": FORMAT, "parts": packed, "progress": packer.pack(progress, "progress")}
    make_folder_of(path)
    write_tensors(packer.tensors, Path(path), {KEY: to_text(about)}, {}, max_shard_size)


def load(
    path: PathLike, *, model: Stateful | None = None, optimizer: Stateful | None = None,
    scheduler: Stateful | None = None, ema: Stateful | None = None,
    loader: Stateful | None = None, random: bool = True,
    strict: bool = True, **more: object,
) -> dict[str, Any]:
    """Load the state of a checkpoint into these parts; returns the values saved with them.

    Parts of the file that the call does not name are not read. All is read and checked first: after
    an error model, optimizer and random numbers are unchanged (and other parts, if their own
    `load_state_dict` checks before it changes; gtensor's do).

    Args:
        strict: whether a model's names must be exactly the file's; shapes always must.
        more: further parts, by the names they were saved under.

    Raises FileNotFoundError, CheckpointError for a broken file, CheckpointMismatch for one that
    lacks a part, or whose state does not fit.

    Raises TypeError for a part without `state_dict`.
    """
    parts, values = _sorted_out({"model": model, "optimizer": optimizer, "scheduler": scheduler,
                                 "ema": ema, "loader": loader}, more)
    if values:
        raise TypeError(f"load was given {', '.join(map(repr, values))}; wanted parts with "
                        "state_dict()")
    if random:
        parts[RANDOM] = _GENERATOR
    device = _device_of(model)
    with safe_open(path, device) as file:
        about = description(file)
        for name in parts:
            if name not in about["parts"]:
                raise _lacks(path, name, about["parts"],
                             f"; load it with {name}={False if name == RANDOM else None}")
        read = [_read_module(file, about["parts"][name], part, name, strict)
                for name, part in parts.items() if _is_plain(part)]
        states = {name: _read_state(file, about["parts"][name])
                  for name, part in parts.items() if not _is_plain(part)}
        progress = _read_state(file, about["progress"])
    _load_states(parts, states, path)
    with no_grad():
        for writes, late in read:
            for place, value in writes:
                place[...] = value
            for owner, name, buffer in late:
                owner._set_registered("_buffers", name, buffer)
    return progress


def progress(path: PathLike) -> dict[str, Any]:
    """The values that `save` was given beside the parts, tensors on the CPU; nothing else is read.

    Raises as `load`.
    """
    with safe_open(path, "cpu") as file:
        return progress_in(file)


def progress_in(file: safe_open) -> Any:
    """`progress` of an opened checkpoint: from an untrusted one, any plain value."""
    return _read_state(file, description(file)["progress"])


def load_into(
    model: Stateful, path: PathLike, rename: Rename = None, *, strict: bool = False,
    part: str = "model",
) -> Report:
    """Load tensors into a model's of the same names, from PyTorch's or any safetensors file.

        report = gt.checkpoint.load_into(model, "pytorch.safetensors", {"module.": ""})
        print(report)

    Values are cast to the model's dtypes (floats to floats, integers to integers) and put on its
    devices one by one, so that one tensor more than the model's own memory is needed. A name that
    is missing because it shares the memory of another (tied weights) is none.

    Args:
        rename: the model's names of the file's: a function, or a dict of names and of prefixes that
            end with a dot, each in the file. None instead of a name leaves the tensor out.
        strict: whether anything that is missing, unexpected or does not fit is an error.
        part: which part to take, if `save` wrote the file.

    Raises CheckpointMismatch with the report, if strict or if nothing at all fits,
    CheckpointError if the file is broken, and ValueError for a `rename` whose names are not in the
    file or become one: before anything is changed.
    """
    places = _places(model)
    with safe_open(path, "cpu") as file:
        names = names_of(file, part)
        plan, report = fit(places, {new: file.entry(old) for new, old in names.items()}, rename,
                           path)
        if not report.complete and (strict or not plan):
            raise CheckpointMismatch(f"{report}\n  nothing was loaded")
        with no_grad():
            for name, source in plan.items():
                place = places[name]
                place[...] = file.get_tensor(names[source], place.device).to(place.dtype)
    return report


# -- what a file says ------------------------------------------------------------------------------


def description(file: safe_open) -> dict[str, Any]:
    """The JSON that `save` wrote. Raises CheckpointError if `save` did not write the file."""
    try:
        about = json.loads(file.metadata()[KEY])
        if about["format"] == FORMAT:
            if not isinstance(about["parts"], dict):
                raise TypeError("parts, which is no dict")
            about["progress"]
    except KeyError as error:
        if error.args[0] == KEY:
            raise CheckpointError(f"{file.path} is a file of tensors, not a checkpoint; read it "
                                  "with load_file or load_into") from None
        raise _garbled(file.path, error) from error
    except _MALFORMED as error:
        raise _garbled(file.path, error) from error
    if about["format"] != FORMAT:
        raise CheckpointError(f"{file.path} is not a checkpoint of this version of gtensor (format "
                              f"{told(about['format'])}, wanted {FORMAT})")
    return about


def names_of(file: safe_open, part: str) -> dict[str, str]:
    """The file's names by those of a model's state: the same, unless `save` wrote the file.

    Raises CheckpointError for a broken description, CheckpointMismatch if it has no such part.
    """
    if KEY not in file.metadata():
        return {name: name for name in file}
    parts = description(file)["parts"]
    if part not in parts:
        raise _lacks(file.path, part, parts)
    try:
        return {name: source for name, item in parts[part].items()
                for source in islice(names_in(item), 1) if source in file}
    except _MALFORMED as error:
        raise _garbled(file.path, error) from error


def _lacks(path: object, part: str, parts: Iterable[str], advice: str = "") -> CheckpointMismatch:
    return CheckpointMismatch(f"{path} holds no state of {part!r}, it has "
                              f"{', '.join(map(repr, parts)) or 'none'}{advice}")


def _garbled(path: object, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is not a whole checkpoint (its description lacks or garbles "
                           f"{error})")


# -- parts -----------------------------------------------------------------------------------------


def _sorted_out(
    named: dict[str, Any], more: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts with a state, and the values beside them."""
    parts, values = {}, {}
    for name, part in {**named, **more}.items():
        if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            parts[name] = part
        elif name in more:
            values[name] = part
        elif part is not None:
            raise TypeError(f"{name} was given {type(part).__name__}; wanted an object with "
                            "state_dict() and load_state_dict()")
    return parts, values


def _is_plain(part: object) -> bool:
    """Whether a part's state is tensors only, so that it can be checked here."""
    return isinstance(part, Module) and type(part).load_state_dict is Module.load_state_dict


def _device_of(model: object) -> Device:
    """The device to read states to: the model's."""
    if isinstance(model, Module):
        for parameter in model.parameters():
            return parameter.device
    return get_device("cpu")


def _places(model: Any) -> dict[str, Tensor]:
    places = model.state_dict()
    wrong = [name for name, value in places.items() if not isinstance(value, Tensor)]
    if wrong:
        raise TypeError(f"{wrong[0]!r} in the state of {type(model).__name__} is no Tensor; wanted "
                        "tensors by name")
    return places


def _read_module(
    file: safe_open, packed: Any, module: Module, part: str, strict: bool
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Module, str, Tensor | None]]]:
    """The module's tensors and what is to be written into each, all checked.

    Then the buffers that a module makes only while it runs, made or None as the file has them.
    """
    names = names_of(file, part)
    places = dict(_places(module))
    late = module.late_buffers() if isinstance(module, Module) else {}
    home = _device_of(module)
    made = {name: empty(shape, file.entry(names[name]).dtype, home)
            for name, (_, _, shape) in late.items() if name in names and name not in places}
    gone = [name for name in late if name in places and name not in names]
    places = {name: place for name, place in (places | made).items() if name not in gone}
    if len(names) != len(packed):
        raise _garbled(file.path, ValueError(f"a tensor of {part!r}, which is not in the file"))
    plan, report = fit(places, {new: file.entry(old) for new, old in names.items()}, None,
                       file.path)
    if report.mismatched or strict and not report.complete:
        raise CheckpointMismatch(f"{file.path} is a checkpoint of another {part}: "
                                 f"{_briefly(report)}; nothing was loaded")
    read = file.get_tensors([names[source] for source in plan.values()])
    writes: dict[object, tuple[Tensor, Tensor]] = {}
    for name, source in plan.items():
        place = places[name]
        if memory_of(place) not in writes:  # of tied weights, the first
            writes[memory_of(place)] = place, read[names[source]].to(place.device).to(place.dtype)
    changes = [(*late[name][:2], made.get(name)) for name in (*made, *gone)]
    return list(writes.values()), changes


def _briefly(report: Report) -> str:
    """What does not fit, in one line."""
    told = [f"missing {', '.join(map(repr, report.missing))}"] * bool(report.missing)
    told += [f"unexpected {', '.join(map(repr, report.unexpected))}"] * bool(report.unexpected)
    told += [f"{name!r} is {given}, wanted {wanted}" for name, given, wanted in report.mismatched]
    return "; ".join(told)


def _read_state(file: safe_open, packed: object) -> Any:
    """The state of a part, or the values beside the parts, with the tensors read."""
    try:
        names = dict.fromkeys(names_in(packed))
        for lacking in (name for name in names if name not in file):
            raise KeyError(lacking)
        return unpack(packed, file.get_tensors(names).__getitem__)
    except CheckpointError:
        raise
    except _MALFORMED as error:
        raise _garbled(file.path, error) from error


def _load_states(parts: Mapping[str, Any], states: Mapping[str, Any], path: object) -> None:
    """Load every part's state; if one raises, the others get their old states back.

    A note on the error names parts that could not be restored.

    Small parts first: the old state of the last one, with most tensors, is not copied, so it must
    check before it changes, as optimizers do.
    """
    order = sorted(states, key=lambda name: _bytes_in(states[name]))
    before: dict[str, Any] = {}
    try:
        for name in order:
            if name != order[-1] or not _bytes_in(states[name]):
                before[name] = copy.deepcopy(parts[name].state_dict())
            parts[name].load_state_dict(states[name])
    except BaseException as error:  # undone
        for done, old in before.items():
            try:
                parts[done].load_state_dict(old)
            except Exception as refusal:
                error.add_note(f"{done!r} refused its old state, too: {refusal}")
        if isinstance(error, (*_MALFORMED, IndexError)):
            mismatch = CheckpointMismatch(f"the state of {name!r} in {path} does not fit: {error}")
            for note in getattr(error, "__notes__", ()):
                mismatch.add_note(note)
            raise mismatch from error
        raise


def _bytes_in(state: object) -> int:
    """Bytes of the tensors in a state."""
    if isinstance(state, Mapping):
        return sum(_bytes_in(item) for item in state.values())
    if isinstance(state, (list, tuple)):
        return sum(_bytes_in(item) for item in state)
    return getattr(state, "nbytes", 0)
