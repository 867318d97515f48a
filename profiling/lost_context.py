"""Whether this process has lost its CUDA context: then every further CUDA call in it fails.

An illegal address, a timeout or an assertion in a kernel destroys the context. CUDA offers no way
to make another one in the same process ("the process must be terminated and relaunched").

    from lost_context import lost

    if code := lost():
        print(f"context lost, CUDA error {code}")
"""

from __future__ import annotations

import ctypes
import sys

CODES = frozenset({
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


def lost() -> int:
    """The CUDA error that destroyed the context of this thread, 0 if none did.

    It waits for the device's work. Where CuPy was not imported it asks nothing and returns 0.
    """
    if "cupy" not in sys.modules:
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    context = ctypes.c_void_p()
    code = int(driver.cuCtxGetCurrent(ctypes.byref(context)))  # may answer the error, too
    if code == 0 and context:
        code = int(driver.cuCtxSynchronize())
    return code if code in CODES else 0
