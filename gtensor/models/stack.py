"""What the models share: the stream between their blocks lies in a workspace."""

from __future__ import annotations

from typing import Any

from gtensor.nn.blocks.workspaces import Block


class Stack(Block):
    """A model of blocks that share its workspace; the stream lies in two buffers in turn.

    No variable holds a stream beyond the next one: its buffer would not be used again.
    """

    blocks: Any  # a ModuleList

    def widths(self) -> dict[str, int]:
        return dict.fromkeys(("stream 0", "stream 1", "norm output"), self.width)
