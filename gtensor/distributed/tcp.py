"""Small texts between processes over TCP, where there is no MPI: rank 0 is connected to all.

It carries what NCCL does not: the names of its communicators, checks, `all_gather_object`.

Who connects must prove that it knows the secret of the program, a text in GTENSOR_SECRET, and rank
0 must, too: each signs a number that the other has drawn. Until then rank 0 reads no more than a
hello, of fixed size. What comes later is neither signed nor encrypted, as with NCCL itself.
"""

from __future__ import annotations

import hmac
import json
import os
import queue
import selectors
import socket
import struct
import threading
import time
from contextlib import ExitStack
from ipaddress import ip_address
from math import inf
from typing import NoReturn
from weakref import finalize

from gtensor.distributed.environment import SECRET, Meeting
from gtensor.distributed.errors import CollectiveTimeout, DistributedError

_NAME = b"gtensor2"
_CHALLENGE = struct.Struct("!8s16s")  # of rank 0: the name, and a number
_HELLO = struct.Struct("!II16s32s")  # the answer: rank, size, a number, a signature
_SIGNATURE = 32  # bytes: rank 0's, of that number
_GUESTS = 256  # connections that have not said so yet, at most, beside two for each rank
_AGE = 30.0  # seconds after which one of them is dropped, if there are so many
_GATHERED, _EXCHANGED = b"g", b"e"  # kinds of texts
_MOST = 1 << 28  # bytes of a text
_PAUSE = 0.05  # seconds between attempts to connect, and looks whether more can be accepted


class Turn:
    """Texts of all ranks, on their way. Each is sent with its kind, which is its first letter."""

    def __init__(self, kind: bytes, text: bytes) -> None:
        self.sent = kind + text
        self.alike = False  # whether all are of this kind, once they are there
        self._ended = threading.Event()
        self._found: list[bytes] | DistributedError

    def end(self, found: list[bytes] | DistributedError) -> None:
        if isinstance(found, DistributedError):
            self._found = found
        else:
            self.alike = all(each[:1] == self.sent[:1] for each in found)
            self._found = [each[1:] for each in found]
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> list[bytes] | None:
        """None if they are not there in time. Raises DistributedError if a connection has ended, as
        it does with its process."""
        if not self._ended.wait(seconds):
            return None
        if isinstance(self._found, DistributedError):
            raise self._found
        return self._found


class Star:
    """An end of the connections: `links` are all other ranks' on rank 0, else that to rank 0.

    A thread exchanges texts in the order of the calls, so that no call waits for another rank. Each
    says whether it is gathered or exchanged: where signatures differ, the ranks exchange their
    texts after different numbers of signatures, as asynchronous calls have sent theirs.
    """

    def __init__(self, rank: int, size: int, links: list[socket.socket], seconds: float) -> None:
        self.rank, self.size = rank, size
        self._links = links
        self._seconds = seconds
        self._turns: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        threading.Thread(target=_exchange, args=(rank, size, links, self._turns),
                         name="gtensor texts", daemon=True).start()
        finalize(self, self._turns.put, None)

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        """Sent again for each signature with which another rank takes its turn: all ranks see the
        same turns, so it ends for all of them at the first one without a signature."""
        end = time.monotonic() + seconds
        while True:
            turn = self._next(_EXCHANGED, text)
            found = turn.wait(max(0.0, end - time.monotonic()))
            if found is None or turn.alike:
                return found

    def gather(self, text: bytes) -> Turn:
        return self._next(_GATHERED, text)

    def _next(self, kind: bytes, text: bytes) -> Turn:
        turn = Turn(kind, text)
        self._turns.put(turn)
        return turn

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


def _exchange(rank: int, size: int, links: list[socket.socket],
              turns: queue.SimpleQueue[Turn | None]) -> None:
    """Turn after turn, until None."""
    while (turn := turns.get()) is not None:
        try:
            if rank:
                _send(links[0], turn.sent)
                turn.end([_receive(links[0]) for _ in range(size)])
                continue
            texts = [turn.sent, *map(_receive, links)]
            for link in links:
                for text in texts:
                    _send(link, text)
            turn.end(texts)
        except OSError as error:
            turn.end(DistributedError(f"rank {rank} of {size}: a connection to another rank has "
                                      f"ended ({error})"))


def world(meeting: Meeting, seconds: float) -> Star:
    """The connections of all ranks.

    Raises CollectiveTimeout if they are not there in time, DistributedError without a secret if
    other machines reach rank 0.
    """
    if not os.environ.get(SECRET) and not _within_machine(meeting):
        raise DistributedError(f"{SECRET} is not set, and other machines reach rank 0 at "
                               f"{meeting.host}; wanted one long random text on all ranks, such as "
                               "`openssl rand -hex 32` prints")
    if meeting.rank:
        return _met(meeting, None, seconds)
    try:
        server = _listening(meeting.host, meeting.port)
    except OSError as error:
        raise DistributedError(f"rank 0 of {meeting.size} cannot listen at {meeting.host}:"
                               f"{meeting.port} ({error}); wanted a free port of its machine in "
                               "MASTER_ADDR and MASTER_PORT") from error
    with server:
        return _met(meeting, server, seconds)


def _within_machine(meeting: Meeting) -> bool:
    try:
        found = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ip_address(address[0]).is_loopback for *_, address in found)


def _met(meeting: Meeting, server: socket.socket | None, seconds: float) -> Star:
    end = time.monotonic() + seconds
    try:
        links = [_connected(meeting, end)] if meeting.rank or server is None else (
            _accepted(server, meeting.size, end))
    except TimeoutError as error:
        raise _late(meeting.rank, meeting.size, seconds) from error
    except OSError as error:
        raise DistributedError(f"rank {meeting.rank} of {meeting.size}: another rank has ended "
                               f"before all were connected ({error})") from error
    return Star(meeting.rank, meeting.size, links, seconds)


class _Guest:
    """A connection of which it is not known yet whether it is a rank's."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.number, self.said = link, os.urandom(16), b""
        self.since = time.monotonic()
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.send(_CHALLENGE.pack(_NAME, self.number))

    def hello(self) -> tuple[int, int] | None:
        """Rank and size, once all of the hello is there; rank 0's signature is sent then.

        Raises OSError for what is no hello of this program.
        """
        part = self.link.recv(_HELLO.size - len(self.said))
        if not part:
            raise ConnectionError("it was closed")
        self.said += part
        if len(self.said) < _HELLO.size:
            return None
        rank, size, number, signature = _HELLO.unpack(self.said)
        if not hmac.compare_digest(signature, _signed(b"rank", self.number, self.said[:-32])):
            raise ConnectionError("it does not know the secret")
        self.link.send(_signed(b"root", self.number, number))
        return rank, size


def _signed(*parts: bytes) -> bytes:
    return hmac.digest(os.environ.get(SECRET, "").encode(), b"".join(parts), "sha256")


def _accepted(server: socket.socket, size: int, end: float) -> list[socket.socket]:
    """Connections of all other ranks, by rank. What is no rank is dropped, and holds up none.

    While there are too many connections of which nothing is known, or too many open files, no more
    are accepted: a rank whose answer takes its time is not pushed out by those that come after it.
    """
    found: dict[int, socket.socket] = {}
    guests: dict[object, _Guest] = {}  # by connection, the oldest first
    accepts, rests = True, 0.0  # until this time
    with selectors.DefaultSelector() as selector:
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)

        def leave(guest: _Guest) -> None:
            selector.unregister(guest.link)
            del guests[guest.link]

        try:
            while len(found) < size - 1:
                full = len(guests) >= 2 * size + _GUESTS or time.monotonic() < rests
                if full:
                    for old in [*guests.values()]:
                        if time.monotonic() >= old.since + _AGE:
                            leave(old)
                            old.link.close()
                if full == accepts:
                    accepts = not full
                    if accepts:
                        selector.register(server, selectors.EVENT_READ)
                    else:
                        selector.unregister(server)
                for key, _ in selector.select(min(_PAUSE, _left(end) or _PAUSE) if full
                                              else _left(end)):
                    if key.fileobj is server:
                        try:
                            link, _ = server.accept()
                        except OSError:  # it has gone, or too many files are open
                            rests = time.monotonic() + _PAUSE
                            continue
                        guest = _welcomed(link)
                        if guest is not None:
                            guests[link] = guest
                            selector.register(link, selectors.EVENT_READ)
                    elif (guest := guests.get(key.fileobj)) is not None:
                        try:
                            said = guest.hello()
                        except OSError:
                            leave(guest)
                            guest.link.close()
                            continue
                        if said is not None:
                            leave(guest)
                            _seat(guest.link, *said, found, size, end)
            for link in found.values():
                _send(link, b"", end)
        except BaseException:  # undone
            for link in found.values():
                link.close()
            raise
        finally:
            for guest in guests.values():
                guest.link.close()
    return [found[rank] for rank in range(1, size)]


def _welcomed(link: socket.socket) -> _Guest | None:
    """Who has connected; None if it has gone again."""
    try:
        return _Guest(link)
    except OSError:
        link.close()
    return None


def _seat(link: socket.socket, rank: int, theirs: int, found: dict[int, socket.socket], size: int,
          end: float) -> None:
    """Add a connection of this program. Raises on all ranks, if the ranks do not fit together."""
    problem = (f"rank {rank} was told of {theirs} ranks and rank 0 of {size}" if theirs != size else
               f"a process is rank {rank} of {size}; wanted one of 1 to {size - 1}"
               if not 0 < rank < size else
               f"two processes are rank {rank}" if rank in found else "")
    found.setdefault(rank, link)
    for each in {link, *found.values()} if problem else (link,):
        _send(each, problem.encode(), end)
    if problem:
        link.close()
        raise DistributedError(problem)


def _connected(meeting: Meeting, end: float) -> socket.socket:
    """A connection to rank 0, which may not listen yet, and which answers twice: when it knows this
    rank and when it knows all."""
    place = f"rank {meeting.rank} of {meeting.size}: rank 0 at {meeting.host}:{meeting.port}"
    while True:
        try:
            link = socket.create_connection((meeting.host, meeting.port), _left(end))
            break
        except TimeoutError:
            raise
        except OSError:
            time.sleep(min(_PAUSE, _left(end) or _PAUSE))
    with ExitStack() as closing:
        closing.callback(link.close)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            name, number = _CHALLENGE.unpack(_exactly(link, _CHALLENGE.size, end))
            own = os.urandom(16)
            said = struct.pack("!II16s", meeting.rank, meeting.size, own)
            link.settimeout(_left(end))
            link.sendall(said + _signed(b"rank", number, said))
            proof = _exactly(link, _SIGNATURE, end)
            if name != _NAME or not hmac.compare_digest(proof, _signed(b"root", number, own)):
                raise ConnectionError("it does not know the secret")
            problem = _receive(link, end) or _receive(link, end)
        except ConnectionError as error:
            raise DistributedError(f"{place} has ended, or has another {SECRET} ({error})"
                                   ) from error
        if problem:
            raise DistributedError(problem.decode())
        closing.pop_all()
    return link


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=1024)


def _left(end: float) -> float | None:
    """Seconds until a time of `time.monotonic`, None for ever; raises TimeoutError behind it."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return None if seconds == inf else seconds


def _send(link: socket.socket, text: bytes, end: float = inf) -> None:
    link.settimeout(_left(end))
    link.sendall(struct.pack("!I", len(text)) + text)


def _receive(link: socket.socket, end: float = inf) -> bytes:
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
