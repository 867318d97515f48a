"""The note on CUDA's errors after which a process cannot use its GPU any more.

An illegal address, a timeout or an assertion in a kernel destroys the context, and every later call
answers the same error, at whatever line it is made. CUDA offers no way to make another context in
the process ("the process must be terminated and relaunched", CUDA Runtime API, "cudaError_t").

CuPy raises its errors in hundreds of places, so its classes of errors are told once (`watch`).
"""

from __future__ import annotations

from typing import Any, TypeVar

LOST = frozenset({
    700,  # illegal address
    702,  # launch timeout
    709,  # context is destroyed
    710,  # assertion
    714,  # hardware stack error
    715,  # illegal instruction
    716,  # misaligned address
    717,  # invalid address space
    718,  # invalid program counter
    719,  # launch failed
    721,  # tensor memory leak
})
"""CUDA's errors after which a context answers every call with the same error."""

NOTE = ("this process cannot use this GPU any more: such an error destroys its CUDA context; start "
        "the program again, from its last checkpoint (the op at fault may be an earlier one: "
        "CUDA_LAUNCH_BLOCKING=1 raises there, and GTENSOR_DEBUG=1 checks indices)")

E = TypeVar("E", bound=BaseException)


def noted(error: E, status: int) -> E:
    """The error, with the note if its status is one of a lost context."""
    if status in LOST:
        error.add_note(NOTE)
    return error


def watch(*kinds: Any) -> None:
    """Let CuPy's errors of these kinds have the note when they are made."""
    for kind in kinds:
        if not hasattr(kind, "watched"):
            kind.watched, kind.__init__ = True, _noting(kind.__init__)


def _noting(init: Any) -> Any:
    def initialized(self: Any, status: int) -> None:
        init(self, status)
        noted(self, status)

    return initialized
