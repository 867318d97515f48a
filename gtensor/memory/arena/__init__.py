"""The arena: segments, the blocks cut from them, streams and graphs."""
