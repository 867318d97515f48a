"""The workspace of a block: named buffers for values that backward does not save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gtensor.backend import Device
from gtensor.engine.handle.context import grad_enabled
from gtensor.memory.workspace import BufferUsage, Workspace
from gtensor.nn.module import Module


class BlockWorkspace:
    """The buffers of one block, or of several that run one after another, on each device.

    It is no state: a copy of a block has a new one, and so has a block that was unpickled.
    """

    def __init__(self) -> None:
        self._on: dict[Device, Workspace] = {}

    def on(self, device: Device) -> Workspace:
        """The workspace of a device, made at the first call."""
        return self._on.get(device) or self._on.setdefault(device, Workspace(device))

    def release(self) -> None:
        """Drop all buffers; arrays over them stay valid."""
        for workspace in self._on.values():
            workspace.release()

    def memory_usage(self) -> dict[str, BufferUsage]:
        """Bytes by name, over all devices."""
        found: dict[str, BufferUsage] = {}
        for workspace in self._on.values():
            for name, usage in workspace.memory_usage().buffers.items():
                before = found.get(name)
                found[name] = usage if before is None else BufferUsage(
                    *map(sum, zip(before, usage, strict=True)))
        return found

    @property
    def allocations(self) -> int:
        """How many buffers were made."""
        return sum(workspace.allocations for workspace in self._on.values())

    def __deepcopy__(self, memo: object) -> BlockWorkspace:
        return BlockWorkspace()

    def __reduce__(self) -> tuple[type[BlockWorkspace], tuple[()]]:
        return BlockWorkspace, ()


class Block(Module):
    """A module whose intermediate values lie in a workspace, where backward does not save them.

    `workspace` may be shared by blocks that run one after another, as a model's do. `bytes_saved`
    counts the bytes that this one, and those that it calls, did not have to allocate. `width` is
    that of the stream, whose positions it maps to others.
    """

    workspace: BlockWorkspace

    def __init__(self, width: int, workspace: BlockWorkspace | None = None) -> None:
        super().__init__()
        self.width = width
        self.workspace = workspace or BlockWorkspace()
        self.bytes_saved = 0

    @contextmanager
    def places(self, device: Device) -> Iterator[Places]:
        """Within the block, `place(name)` puts new arrays into the workspace of the device."""
        workspace = self.workspace.on(device)
        before = workspace.bytes_saved
        with workspace.serving():
            yield Places(workspace)
        # not `self.bytes_saved +=`, which would be counted as a change of the module
        self.__dict__["bytes_saved"] += workspace.bytes_saved - before

    def widths(self) -> dict[str, int]:
        """Elements of a position in each named value: the first array that is made for it."""
        raise TypeError(f"{type(self).__name__} has no widths(); write one")

    def ensure_capacity(self, batch: int, sequence: int, width: int) -> None:
        """Make room for the values of inputs (batch, sequence, width) ahead of a call.

        That is for its own and for those of the blocks in it. What ops need within one value, such
        as attention's scores, grows with the first call. Raises ValueError for a width that is not
        the block's, and for lengths below 1.
        """
        if min(batch, sequence) < 1 or width != self.width:
            raise ValueError(
                f"capacity for batch={batch}, sequence={sequence} and width={width} was asked of a "
                f"block; wanted at least 1, and its width of {self.width}")
        for block in self.modules():
            if isinstance(block, Block):
                weight = next(block.parameters())
                workspace = block.workspace.on(weight.device)
                for name, each in block.widths().items():
                    workspace.reserve(name, batch * sequence * each * weight.dtype.itemsize)

    def memory_usage(self) -> dict[str, BufferUsage]:
        """The workspace's bytes by name."""
        return self.workspace.memory_usage()

    def release_workspace(self) -> None:
        """Drop the workspace's buffers; the next call makes them anew."""
        self.workspace.release()


class Places:
    """The names of a block's values, while it runs."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """For a value that no record saves."""
        return self._workspace.named(name)

    def saved(self, name: str) -> AbstractContextManager[None]:
        """For a value that a record saves: a buffer only where nothing is recorded."""
        return nullcontext() if grad_enabled() else self._workspace.named(name)
