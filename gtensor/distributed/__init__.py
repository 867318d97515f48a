"""Several processes, one program: collectives, data parallel training, sharded optimizers.

    comm = gt.distributed.init()                 # in each process, of `gtensor launch -n 4 -- ...`
    comm.all_reduce(array)

MPI (mpi4py) and NCCL (CuPy) carry the bytes; neither is imported before `init`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from gtensor.backend import default_device
from gtensor.distributed import environment
from gtensor.distributed.alone import Alone
from gtensor.distributed.collectives import all_gather, all_reduce, reduce_scatter
from gtensor.distributed.communicator import Communicator, Engine, check_timeout
from gtensor.distributed.data_parallel import DataParallel
from gtensor.distributed.errors import CollectiveTimeout, DistributedError
from gtensor.distributed.failing import Log, end_all, install, joining
from gtensor.distributed.sync import convert_sync
from gtensor.distributed.work import Work
from gtensor.distributed.zero import ZeroOptimizer
from gtensor.settings import settings
from gtensor.system.installation import installation_of
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "CollectiveTimeout", "Communicator", "DataParallel", "DistributedError", "Work",
    "ZeroOptimizer", "all_gather", "all_reduce", "convert_sync", "end_all", "init",
    "reduce_scatter", "started",
]

BACKENDS = ("nccl", "mpi", "alone")

_world: Communicator | None = None


def started() -> int:
    """How many processes a launcher (mpiexec, srun, torchrun) has started with this one."""
    meeting = environment.meeting()
    return max(environment.mpi_processes(), 1 if meeting is None else meeting.size)


def init(backend: str | None = None, timeout: float | None = None) -> Communicator:
    """The communicator of all processes that were started together; the same at each call.

    Args:
        backend: "nccl", "mpi" or "alone". None: "nccl" where the default device is a GPU and NCCL
            is installed, else "mpi" where mpi4py is installed, else "alone", a world of one.
        timeout: seconds of each wait, after which CollectiveTimeout is raised; None for
            `settings.collective_timeout`.

    An error that nothing catches then ends all ranks, and is shown once.

    Raises ValueError for another name, or a timeout that `Communicator` refuses, DistributedError
    if the backend is not installed, or was another one at the first call, or if several processes
    were started and nothing connects them.
    """
    global _world
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} given; wanted one of {', '.join(BACKENDS)}, or None")
    if _world is not None:
        if backend not in (None, _world.backend):
            raise DistributedError(f"init was given backend={backend!r} after one with "
                                   f"{_world.backend!r}; wanted the same")
        return _world
    seconds = settings.collective_timeout if timeout is None else timeout
    check_timeout(seconds)  # before the ranks meet
    with joining():
        engine = _engine(backend or _chosen(), seconds)
    _world = Communicator(engine, seconds, Log(engine.rank))
    install(_world)
    return _world


def _chosen() -> str:
    if default_device().type == "cuda":
        from gtensor.backend import nccl  # here: it needs CuPy

        if nccl.available():
            return "nccl"
    if find_spec("mpi4py") is not None:
        return "mpi"
    if environment.mpi_processes() > 1:
        raise DistributedError(f"{environment.mpi_processes()} processes were started, and mpi4py, "
                               f"which connects them, is not installed; {installation_of('mpi')}")
    return "alone"


def _engine(backend: str, timeout: float) -> Engine:
    if backend == "nccl":
        from gtensor.distributed import nccl

        return nccl.world(timeout)
    meeting = environment.meeting()
    if meeting is not None and meeting.size > environment.mpi_processes():
        raise DistributedError(f"WORLD_SIZE is {meeting.size}, and RANK and WORLD_SIZE connect the "
                               f"processes of NCCL, not of {backend!r}; wanted mpiexec or srun")
    if backend == "alone":
        return Alone()
    if find_spec("mpi4py") is None:
        raise DistributedError(f"backend={backend!r} needs mpi4py, which is not installed; "
                               f"{installation_of('mpi')}")
    from gtensor.distributed import mpi

    return mpi.world()


_enter(globals(), check=True)
