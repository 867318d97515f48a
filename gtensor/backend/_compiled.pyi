from collections.abc import Sequence

from numpy import ndarray

def run(
    kernel: int, arrays: tuple[ndarray | None, ...], sizes: Sequence[int],
    numbers: Sequence[float], items: int, /,
) -> int: ...
def names() -> list[str]: ...
def processor() -> str: ...
