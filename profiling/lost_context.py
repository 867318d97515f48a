"""Whether this process has lost its CUDA context: then every further CUDA call in it fails.

See `gtensor.backend.cuda_losses`.

    from lost_context import lost

    if code := lost():
        print(f"context lost, CUDA error {code}")
"""

from __future__ import annotations

import ctypes
import sys


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
    from gtensor.backend.cuda_losses import LOST  # late: few processes ask

    return code if code in LOST else 0
