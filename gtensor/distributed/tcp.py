"""Small texts between processes over TCP, where there is no MPI: rank 0 is connected to all.

It carries what NCCL does not: the names of its communicators, checks, `all_gather_object`. Nothing
is encrypted, and whoever reaches the port may join, as with torchrun and NCCL itself.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from contextlib import ExitStack
from typing import NoReturn

from gtensor.distributed.environment import Meeting
from gtensor.distributed.errors import CollectiveTimeout, DistributedError

_HELLO = b"gtensor1"  # then rank and size
_HELLO_SECONDS = 5.0  # in which whoever connects says so
_MOST = 1 << 28  # bytes of a text
_PAUSE = 0.05  # seconds between attempts to connect


class Star:
    """An end of the connections: `links` are all other ranks' on rank 0, else that to rank 0."""

    def __init__(self, rank: int, size: int, links: list[socket.socket], seconds: float) -> None:
        self.rank, self.size = rank, size
        self._links = links
        self._seconds = seconds

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        """The texts of all ranks; None if they are not there in time.

        Raises DistributedError if a connection ends, as it does with its process.
        """
        end = time.monotonic() + seconds
        try:
            if self.rank:
                _send(self._links[0], text, end)
                return [_receive(self._links[0], end) for _ in range(self.size)]
            texts = [text, *(_receive(link, end) for link in self._links)]
            for link in self._links:
                for each in texts:
                    _send(link, each, end)
            return texts
        except TimeoutError:
            return None
        except OSError as error:
            raise DistributedError(f"rank {self.rank} of {self.size}: a connection to another rank "
                                   f"has ended ({error})") from error

    def split(self, color: int, key: int) -> Star:
        """The connections of the ranks with the same color, ordered by key, then rank."""
        with _listening(self._address(), 0) as server:
            host, port = server.getsockname()[:2]
            told = json.dumps([color, key, host, port]).encode()
            found = self.exchange(told, self._seconds)
            if found is None:
                raise _late(self.rank, self.size, self._seconds)
            every = [json.loads(text) for text in found]
            mine = sorted((k, rank) for rank, (c, k, _, _) in enumerate(every) if c == color)
            first = every[mine[0][1]]
            place = mine.index((key, self.rank))
            return _met(Meeting(place, len(mine), first[2], first[3]), server, self._seconds)

    def abort(self, status: int) -> NoReturn:
        """End this process; its launcher ends the others."""
        os._exit(status)

    def _address(self) -> str:
        """That of this machine, by which the others reach it."""
        return str(self._links[0].getsockname()[0]) if self._links else "127.0.0.1"


def world(meeting: Meeting, seconds: float) -> Star:
    """The connections of all ranks. Raises CollectiveTimeout if they are not there in time."""
    if meeting.rank:
        return _met(meeting, None, seconds)
    try:
        with _listening(meeting.host, meeting.port) as server:
            return _met(meeting, server, seconds)
    except OSError as error:
        raise DistributedError(f"rank 0 of {meeting.size} cannot listen at {meeting.host}:"
                               f"{meeting.port} ({error}); wanted a free port of its machine in "
                               "MASTER_ADDR and MASTER_PORT") from error


def _met(meeting: Meeting, server: socket.socket | None, seconds: float) -> Star:
    end = time.monotonic() + seconds
    try:
        links = [_connected(meeting, end)] if meeting.rank or server is None else (
            _accepted(server, meeting.size, end))
    except TimeoutError as error:
        raise _late(meeting.rank, meeting.size, seconds) from error
    return Star(meeting.rank, meeting.size, links, seconds)


def _accepted(server: socket.socket, size: int, end: float) -> list[socket.socket]:
    """Connections of all other ranks, by rank. What is no rank is ignored."""
    found: dict[int, socket.socket] = {}
    with ExitStack() as closing:
        while len(found) < size - 1:
            server.settimeout(_left(end))
            link, _ = server.accept()
            closing.callback(link.close)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                hello = _receive(link, min(end, time.monotonic() + _HELLO_SECONDS))
                name, rank, theirs = struct.unpack("!8sII", hello)
            except (OSError, struct.error):
                name = b""
            if name != _HELLO:
                link.close()
                continue
            problem = (f"rank {rank} was told of {theirs} ranks and rank 0 of {size}"
                       if theirs != size else
                       f"two processes are rank {rank}" if rank in found or not rank else "")
            for each in [link, *found.values()] if problem else [link]:
                _send(each, problem.encode(), end)
            if problem:
                raise DistributedError(problem)
            found[rank] = link
        for link in found.values():
            _send(link, b"", end)
        closing.pop_all()
    return [found[rank] for rank in range(1, size)]


def _connected(meeting: Meeting, end: float) -> socket.socket:
    """A connection to rank 0, which may not listen yet, and which answers twice: when it knows this
    rank and when it knows all."""
    while True:
        try:
            link = socket.create_connection((meeting.host, meeting.port), _left(end))
            break
        except TimeoutError:
            raise
        except OSError:
            time.sleep(min(_PAUSE, _left(end)))
    with ExitStack() as closing:
        closing.callback(link.close)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(link, struct.pack("!8sII", _HELLO, meeting.rank, meeting.size), end)
        try:
            problem = _receive(link, end) or _receive(link, end)
        except ConnectionError as error:
            raise DistributedError(f"rank {meeting.rank} of {meeting.size}: rank 0 at "
                                   f"{meeting.host}:{meeting.port} has ended") from error
        if problem:
            raise DistributedError(problem.decode())
        closing.pop_all()
    return link


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=1024)


def _left(end: float) -> float:
    """Seconds until a time of `time.monotonic`; raises TimeoutError behind it."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _send(link: socket.socket, text: bytes, end: float) -> None:
    link.settimeout(_left(end))
    link.sendall(struct.pack("!I", len(text)) + text)


def _receive(link: socket.socket, end: float) -> bytes:
    size, = struct.unpack("!I", _exactly(link, 4, end))
    if size > _MOST:
        raise ConnectionError(f"a text of {size} bytes came; wanted at most {_MOST}")
    return _exactly(link, size, end)


def _exactly(link: socket.socket, size: int, end: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        link.settimeout(_left(end))
        part = link.recv(min(size - len(found), 1 << 20))
        if not part:
            raise ConnectionError("it was closed")
        found += part
    return bytes(found)


def _late(rank: int, size: int, seconds: float) -> CollectiveTimeout:
    return CollectiveTimeout(f"rank {rank} of {size}: not all ranks were connected within "
                             f"{seconds:g} s")
