"""Read a version from a peer: another worker of the fleet, which holds the version in memory.

A peer names the files of the version, and sends their bytes from any position. It may still be reading the
version itself, and then sends each byte as soon as it has it. Nothing from a peer is trusted. Its files pass the
same checks as those of a store, and the digest of all bytes must be the one of the call.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import FileState, RemoteDirectory, RemoteFile
from fleet_worker.checkpoint.opening import checkpoint_in
from fleet_worker.checkpoint.peer_tls import reading
from fleet_worker.checkpoint.stager_messages import Place
from fleet_worker.checkpoint.weight_sets import INDEX_LIMIT
from fleet_worker.errors import Refusal
from fleet_worker.protocol import PEER_PATH, Reason
from rlfleet_resources.weight_files import INDEX_FILE

SILENCE_SECONDS = 20.0
"""Timeout of a peer that sends nothing. A peer that reads from a store waits for it."""
LEAST_BYTES_PER_SECOND = 64 * 1024
_LISTING_LIMIT = 16 * 1024 * 1024
_MOST_FILES = 8192
_MOST_BYTES = 1 << 50
_RECEIVE_BYTES = 1024 * 1024
_RETRY_SECONDS = 1.0
R = TypeVar("R", bound=Refusal)
_NAME = re.compile(r"[^/\0\ud800-\udfff]{1,255}")
"""Of a file: text that UTF-8 can carry."""


class NotServed(Refusal):
    """A peer answers, and does not have what this worker asks for."""


def delta_name(digest: str) -> str:
    """Return what a peer calls the delta by which it has read a version."""
    return f"{digest}-delta"


def of_delta(place: Place) -> Place:
    """Return where a peer serves that delta."""
    return replace(place, digest=delta_name(place.digest))


def unreadable(place: Place, problem: str) -> Refusal:
    """Return the refusal of a peer that does not send what it should."""
    return _refusal(Refusal, place, problem)


def _refusal(kind: type[R], place: Place, problem: str) -> R:
    return kind(
        Reason.PEER_UNREADABLE,
        f"the peer {place.host}:{place.port} {problem}",
        retry_after_seconds=_RETRY_SECONDS,
    )


class Stream:
    """The bytes of one file from some position on, in order. At most one request at a time."""

    def __init__(self, place: Place, number: int | None, size: int) -> None:
        """`number`: of the file in the listing; None for the listing itself. `size`: of the file in bytes."""
        self._place, self._size = place, size
        self._path = PEER_PATH + place.digest + ("" if number is None else f"/{number}")
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._position = 0
        self._since, self._received = 0.0, 0

    def open(self, position: int, length: int | None = None) -> int:
        """Ask for bytes from a position on, by default all; return how many the peer will send.

        Errors:
            Refusal: `PeerUnreadable`.
        """
        self.close()
        place = self._place
        try:
            self._connection = http.client.HTTPConnection(
                place.host, place.port, timeout=SILENCE_SECONDS
            )
            last = "" if length is None else position + length - 1
            headers = {"Authorization": place.authorization, "Range": f"bytes={position}-{last}"}
            self._connection.connect()
            if place.certificate:
                self._connection.sock = reading(place.certificate).wrap_socket(
                    self._connection.sock, do_handshake_on_connect=False
                )
            with _ended_after(SILENCE_SECONDS, self._connection.sock):
                if isinstance(self._connection.sock, ssl.SSLSocket):
                    self._connection.sock.do_handshake()
                self._connection.request("GET", self._path, headers=headers)
                self._response = response = self._connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            self.close()
            problem = f"has a certificate that this worker does not take: {error.verify_message}"
            raise unreadable(place, problem) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise unreadable(place, f"does not answer: {type(error).__name__}") from error
        if response.status != http.client.PARTIAL_CONTENT or response.length is None:
            self.close()
            kind = NotServed if response.status == http.client.NOT_FOUND else Refusal
            problem = f"does not serve the version: HTTP status {response.status}"
            raise _refusal(kind, place, problem)
        self._position = position
        self._since, self._received = time.monotonic(), 0
        return response.length

    def read_into(self, piece: memoryview, position: int) -> None:
        """Fill a buffer with the bytes at a position.

        Errors:
            Refusal: `PeerUnreadable`.
        """
        if self._response is None or position != self._position:
            length = self.open(position)
            if length != self._size - position:
                self.close()
                raise unreadable(
                    self._place, f"has {length} bytes where it named {self._size - position}"
                )
        done = 0
        while done < len(piece):
            chunk = self._receive(min(len(piece) - done, _RECEIVE_BYTES))
            piece[done : done + len(chunk)] = chunk
            done += len(chunk)
        self._position += done
        if self._position == self._size:
            self.close()

    def read(self, position: int, length: int | None, limit: int) -> bytes:
        """Return some bytes, by default all from a position on, and end the connection.

        Errors:
            Refusal: `PeerUnreadable`; there are others than that many, or more than the limit.
        """
        try:
            found = self.open(position, length)
            if found > limit or length not in (None, found):
                raise unreadable(self._place, f"sends {found} bytes where it should not")
            content = bytearray()
            while len(content) < found:
                content += self._receive(min(found - len(content), _RECEIVE_BYTES))
        finally:
            self.close()
        return bytes(content)

    def _receive(self, most: int) -> bytes:
        try:
            chunk = self._response.read1(most) if self._response is not None else b""
            if not chunk:
                raise unreadable(self._place, "has ended the connection too early")
            self._check_speed(len(chunk))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise unreadable(self._place, f"has stopped sending: {type(error).__name__}") from error
        except Refusal:
            self.close()
            raise
        return chunk

    def _check_speed(self, received: int) -> None:
        """Refuse a peer that sends, but so slowly that the version would never be complete."""
        self._received += received
        seconds = time.monotonic() - self._since
        if seconds < SILENCE_SECONDS:
            return
        if self._received < seconds * LEAST_BYTES_PER_SECOND:
            raise unreadable(
                self._place, f"has sent {self._received} bytes in the last {seconds:.0f} s"
            )
        self._since, self._received = time.monotonic(), 0

    def close(self) -> None:
        """End the connection. Safe to call again."""
        ended, self._connection, self._response = (self._response, self._connection), None, None
        for each in ended:
            if each is not None:
                with suppress(OSError):
                    each.close()


@contextmanager
def _ended_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """End a connection if this block lasts longer: a peer may send headers one by one, without an end."""

    def end() -> None:
        with suppress(OSError):
            # That of TLS would take the state from under the thread that reads.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True, slots=True)
class PeerFile(RemoteFile):
    """A file whose bytes a peer has. It has no descriptor.

    Fields:
        place: of the peer.
        number: in the listing of the peer.
    """

    place: Place = field(kw_only=True)
    number: int = field(kw_only=True)
    stream: Stream = field(kw_only=True, compare=False)

    @classmethod
    def of(cls, place: Place, name: str, number: int, state: FileState) -> PeerFile:
        """Return a file of a peer. Nothing is read yet."""
        stream = Stream(place, number, state.size)
        return cls(name, -1, state, place=place, number=number, stream=stream)

    def read_into(self, piece: memoryview, position: int) -> None:
        """Fill a buffer from the peer. Errors: Refusal (`PeerUnreadable`)."""
        self.stream.read_into(piece, position)

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Errors: Refusal (`PeerUnreadable`)."""
        return self.stream.read(offset, length, length) if length else b""

    def close(self) -> None:
        """End the connection."""
        self.stream.close()


class PeerDirectory(RemoteDirectory):
    """The files of a version at a peer."""

    def __init__(self, place: Place, path: str) -> None:
        """Ask a peer for the files of a version. `path`: of the directory that the version was published in.

        Errors:
            Refusal: `PeerUnreadable`.
        """
        self.path = path
        self.small = {}
        self._place = place
        sizes, now = _listing(place), time.time_ns()
        self.states = {name: FileState(size, 0, now, 0) for name, size in sizes.items()}
        self._numbers = {name: number for number, name in enumerate(sizes)}
        self.names = frozenset(sizes)

    def of_state(self, name: str, state: FileState) -> PeerFile:
        """See `RemoteDirectory.of_state`."""
        return PeerFile.of(self._place, name, self._numbers[name], state)


def _listing(place: Place) -> dict[str, int]:
    content = Stream(place, None, 0).read(0, None, _LISTING_LIMIT)
    try:
        found = json.loads(content)
        sizes = {str(name): int(size) for name, size in found}
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise unreadable(place, "names its files in a way that cannot be read") from error
    if len(sizes) > _MOST_FILES or any(
        not is_name(name) or not 0 <= size <= _MOST_BYTES for name, size in sizes.items()
    ):
        raise unreadable(place, "names files that cannot be those of a version")
    return sizes


def is_name(name: str) -> bool:
    """Whether a file may have this name at a peer."""
    return _NAME.fullmatch(name) is not None


def open_from_peer(place: Place, path: str) -> Checkpoint:
    """Open a version that a peer holds, as `open_checkpoint`. Only the result of its pass has the bytes.

    `path`: of the directory that the version was published in.

    Errors:
        Refusal: `PeerUnreadable`, or any of the checkpoint reasons.
    """
    directory = PeerDirectory(place, path)
    checkpoint = checkpoint_in(directory, directory.read(INDEX_FILE, limit=INDEX_LIMIT))
    checkpoint.is_from_peer = True
    return checkpoint
