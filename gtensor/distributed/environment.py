"""What a launcher says in its processes' environment: how many there are, and which this one is."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gtensor.distributed.errors import DistributedError

# Variables of mpich, Open MPI, Slurm: how many processes were started; which on this machine.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
SECRET = "GTENSOR_SECRET"  # a text that only the processes of one program know
_MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of torchrun, and others like it


def mpi_processes() -> int:
    """How many processes a launcher of MPI has started, this one among them."""
    return max((int(os.environ.get(name) or 1) for name in _SIZES), default=1)


def local_rank() -> int | None:
    """The number of this process among those on its machine, None if nothing says so."""
    found = [os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()]
    return int(found[0]) if found else None


@dataclass(frozen=True)
class Meeting:
    """Where processes meet that are connected by nothing else: at a port of rank 0's machine."""

    rank: int
    size: int
    host: str
    port: int


def meeting() -> Meeting | None:
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; None without RANK and WORLD_SIZE.

    The launcher torchrun listens at MASTER_PORT itself, which it says in another variable; rank 0
    then listens at the next one. Raises DistributedError if one of them is missing or no number.
    """
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return None
    rank, size, host, port = (os.environ.get(name, "") for name in _MEETING)
    if not (host and rank.isdecimal() and size.isdecimal() and port.isdecimal()
            and int(rank) < int(size) and 0 < int(port) < 65535):
        raise DistributedError(f"RANK={rank!r}, WORLD_SIZE={size!r}, MASTER_ADDR={host!r} and "
                               f"MASTER_PORT={port!r} given; wanted a rank below the size, a host "
                               "and a port")
    taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Meeting(int(rank), int(size), host, int(port) + taken)
