"""How many threads a call computes with on the CPU: compiled paths, and products by BLAS.

Compiled paths (`_compiled`) hand ranges of a large call to a pool of threads (`_threads.c`); paths
of NumPy use one thread: to hand its tiles to threads of Python takes longer than it saves where
other programs are on the cores, and add takes several times as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gtensor.backend import compiled
from gtensor.backend.compiled import MOST_THREADS, extension
from gtensor.system.interrupts import Undone

_count = compiled.first_threads()


def get_num_threads() -> int:
    """How many threads a call computes with on the CPU, at most."""
    return _count


def set_num_threads(count: int) -> None:
    """Compute with up to `count` threads on the CPU from now on, in this process.

    It is for compiled elementwise ops, reductions and convolutions, which give the same bits with
    any number, and for BLAS, which may round otherwise. At first it is OMP_NUM_THREADS; without it,
    the cores that the process may use, divided among the ranks of this machine. Workers of a
    DataLoader use one thread each.

    Raises TypeError for no integer, ValueError for one below 1 or above 256.
    """
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"count={count!r} given to set_num_threads; wanted an integer")
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(f"count={count} given to set_num_threads; wanted 1 to {MOST_THREADS} "
                         "threads")
    from gtensor.backend import blas

    blas.set_threads(count)
    _set(count)


def _set(count: int) -> None:
    """The pool's number alone."""
    global _count
    _count = count
    if extension is not None:
        extension.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block the process computes with one thread on the CPU.

    Further threads of BLAS wait busily for the next product. Where products are small they take
    more time of the processors than they save, and take it from other programs.
    """
    from gtensor.backend import blas

    before, products = _count, blas.threads()

    def restore() -> None:
        _set(before)
        if products:
            blas.set_threads(products)

    with Undone(restore):
        _set(1)
        blas.set_threads(1)
        yield


def one_thread_here() -> None:
    """Calls from this thread use no other one of the pool from now on."""
    if extension is not None:
        extension.one_thread_here()


def others_keep_cores_busy() -> bool:
    """Whether other programs have used more than half of the cores in the last minute.

    It is a guess by the machine's load, which counts this process, too.
    """
    try:
        return os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    except OSError:
        return False
