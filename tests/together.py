"""Work in several threads at once, whose errors are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def in_threads(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Run `work(argument)` for each argument in a thread of its own; raise the first error."""
    errors: list[BaseException] = []

    def run(argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
