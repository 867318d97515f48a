"""What a record saved for its rule, and what detects that it was written since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array

Saved: TypeAlias = tuple[Any, ...]  # the arrays and scalars that a record saved, in order


class Counted(Protocol):
    """Counts the writes of a buffer: those through its storage, or by replays of graphs."""

    version: int


# What counts the writes of a saved array, its version, its place in `saved` (-1: an input of a
# recipe there, or the count is that of replays).
Guard = tuple[Counted, int, int]
Guards = tuple[Guard, ...]


def replayed(array: Array, device: Device) -> Guards:
    """The guard that detects a later replay of a CUDA graph that writes a saved array.

    Asked only of devices that have graphs.
    """
    stamp = device.stamp(array)
    return () if stamp is None else ((stamp, stamp.version, -1),)


def overwritten(guards: Guards) -> bool:
    """Whether an array was written since it was saved."""
    for count, version, _ in guards:  # noqa: SIM110  a generator costs as much as a small op
        if count.version != version:
            return True
    return False
