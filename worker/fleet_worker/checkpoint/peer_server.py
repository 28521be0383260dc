"""Serves the versions that a worker holds to other workers of its fleet. `python -m fleet_worker.checkpoint.peer_server`.

A process of its own with low priority: it must take no time of the engine and of the server's event loop.
It holds no token. The worker offers versions with the headers that allow a peer to read them.

```
GET /v1/peers/DIGEST          the files as JSON: [[name, size], …]
GET /v1/peers/DIGEST/NUMBER   the bytes of a file, always with a Range; each as soon as the worker has it
GET /v1/peers/DIGEST-delta…   the same of the delta by which the worker has read the version
```

The kernel copies the bytes from sealed memory to the connection (sendfile). Memory that is still being filled is
copied by this process, and so are all bytes with TLS.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import h11

from fleet_worker.checkpoint.lengths import Lengths
from fleet_worker.checkpoint.memory import is_sealed
from fleet_worker.checkpoint.peer_tls import Certificate
from fleet_worker.checkpoint.stager_messages import GoneError, Offer, Taken, Withdraw, receive, send
from fleet_worker.protocol import PEER_PATH

_NICE = 10
"""As a stager. With 19, readers would leave it where the engine uses all processors."""
_MOST_CONNECTIONS = 64
"""Of peers, by their signatures."""
_MOST_STRANGERS = 512
"""Connections without a valid request yet. Beyond it the oldest one ends, so that strangers keep no peer out."""
_MOST_STRANGERS_WITH_TLS = 64
"""Each has 330 KB from its first packet on."""
_REQUEST_SECONDS = 10.0
_SEND_SECONDS = 60.0
"""Timeout of a peer that takes no bytes."""
_PIECE_BYTES = 4 * 1024 * 1024
_COPIED_BYTES = 256 * 1024
"""Of a piece that this process copies. With TLS a connection takes about 1 MB then."""
_TURN_SECONDS = 0.05
"""Of one connection, if there is a limit. So the last of all waits for about 3 s."""
_LOOK_SECONDS = 0.02
"""How often to look for new bytes of a version that the worker still reads."""
_NUMBER = re.compile(r"[0-9]{1,6}")
_RANGE = re.compile(rb"bytes=([0-9]{1,18})-([0-9]{0,18})")


@dataclass(slots=True)
class _Served:
    """A version that is served."""

    number: int
    authorizations: list[bytes]
    listing: bytes
    files: list[BinaryIO]
    sizes: list[int]
    growing: int
    lengths: Lengths | None
    readers: set[asyncio.Task[None]] = field(default_factory=set)

    def available(self, number: int) -> int:
        """How many bytes of a file are there so far."""
        if self.lengths is None or number >= self.growing:
            return self.sizes[number]
        return self.lengths[number]

    def close(self) -> None:
        for file in self.files:
            file.close()
        if self.lengths is not None:
            self.lengths.close()


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class PeerServer:
    """The versions that are served, and the connections of peers."""

    def __init__(
        self,
        control: socket.socket,
        bytes_per_second: int,
        certificate: Certificate | None = None,
    ) -> None:
        """Serve nothing yet.

        Args:
            control: To the worker.
            bytes_per_second: Of all connections together; 0 for no limit.
            certificate: Of this worker; None for connections without TLS.
        """
        self._control = control
        self._certificate = certificate
        self._rate = bytes_per_second
        turn = int(bytes_per_second * _TURN_SECONDS) or _PIECE_BYTES
        self._piece = min(turn, _PIECE_BYTES)
        self._free_at = 0.0
        self._served: dict[str, list[_Served]] = {}
        self._connections = 0
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """The oldest come first."""

    async def run(self, listener: socket.socket) -> None:
        """Serve until the worker closes its connection."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            while True:
                try:
                    message, files = receive(self._control)
                except GoneError:
                    os._exit(0)  # at once: the memory must not outlive the worker
                if isinstance(message, Offer | Withdraw):
                    asyncio.run_coroutine_threadsafe(self._obey(message, files), loop).result()
                    with suppress(OSError):
                        send(self._control, Taken())

        threading.Thread(target=read, daemon=True).start()
        server = await asyncio.start_server(self._take, sock=listener)
        await server.serve_forever()

    async def _obey(self, message: Offer | Withdraw, files: list[int]) -> None:
        if isinstance(message, Offer):
            self._offer(message, files)
        else:
            await self._withdraw(message)

    def _offer(self, offer: Offer, descriptors: list[int]) -> None:
        lengths = None
        if offer.growing:
            lengths = Lengths(descriptors.pop())
        listing = json.dumps([[each.name, each.size] for each in offer.files]).encode()
        served = _Served(
            number=offer.number,
            authorizations=[each.encode() for each in offer.authorizations],
            listing=listing,
            files=[os.fdopen(each, "rb", buffering=0) for each in descriptors],
            sizes=[each.size for each in offer.files],
            growing=offer.growing,
            lengths=lengths,
        )
        self._served.setdefault(offer.digest, []).append(served)

    async def _withdraw(self, withdraw: Withdraw) -> None:
        """End an offer with its connections. Then nothing in this process keeps its memory."""
        for digest, offers in list(self._served.items()):
            for served in [each for each in offers if each.number == withdraw.number]:
                offers.remove(served)
                for reader in served.readers:
                    reader.cancel()
                if served.readers:
                    await asyncio.wait(served.readers)
                served.close()
            if not offers:
                del self._served[digest]

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strangers[writer] = None
        most = _MOST_STRANGERS if self._certificate is None else _MOST_STRANGERS_WITH_TLS
        if len(self._strangers) > most:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            if self._certificate is not None:
                # Before the first byte is read, and as a stranger.
                async with asyncio.timeout(_REQUEST_SECONDS):
                    await writer.start_tls(self._certificate.serving())
            await self._answer(reader, writer)
            writer.close()
            # With TLS the peer has to close, too. A stranger counts until it has.
            async with asyncio.timeout(_SEND_SECONDS):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError, h11.RemoteProtocolError):
            # The peer has gone, or may read no more: what is in the buffers of the connection is dropped, too.
            writer.transport.abort()
        finally:
            self._strangers.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=8192)
        async with asyncio.timeout(_REQUEST_SECONDS):
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(8192))
        if not isinstance(event, h11.Request):
            return
        try:
            served, number = self._asked_for(event)
            begin, end = _range_of(event, served, number)
        except _Refused as refused:
            head = h11.Response(status_code=refused.status, headers=_headers(0))
            writer.write(connection.send(head) or b"")
            await writer.drain()
            return
        self._strangers.pop(writer, None)
        if self._connections >= _MOST_CONNECTIONS:
            return
        self._connections += 1
        task = asyncio.current_task()
        if task is not None:
            served.readers.add(task)
        try:
            head = h11.Response(status_code=206, headers=_headers(end - begin))
            writer.write(connection.send(head) or b"")
            if number is None:
                writer.write(served.listing[begin:end])
                await writer.drain()
            else:
                await self._send(served, number, begin, end, writer)
        finally:
            self._connections -= 1
            if task is not None:
                served.readers.discard(task)

    def _asked_for(self, request: h11.Request) -> tuple[_Served, int | None]:
        """The version and the number of the file. Without the right header all versions look absent."""
        digest, _, number = request.target.decode().removeprefix(PEER_PATH).partition("/")
        given = dict(request.headers).get(b"authorization", b"").split(b", ")
        for served in reversed(self._served.get(digest, [])):
            known = served.authorizations
            if not any(hmac.compare_digest(one, each) for one in given for each in known):
                continue
            if not number:
                return served, None
            if _NUMBER.fullmatch(number) and int(number) < len(served.sizes):
                return served, int(number)
        raise _Refused(404)

    async def _send(
        self, served: _Served, number: int, begin: int, end: int, writer: asyncio.StreamWriter
    ) -> None:
        loop, file = asyncio.get_running_loop(), served.files[number]
        while begin < end:
            there = min(served.available(number), end)
            if there <= begin:
                if writer.transport.is_closing():
                    return
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            # Of memory that is not sealed sendfile would hold pages, and the stager could not seal it.
            is_copied = self._certificate is not None or not is_sealed(file.fileno())
            count = min(there - begin, self._piece, _COPIED_BYTES if is_copied else _PIECE_BYTES)
            await self._turn(count)
            async with asyncio.timeout(_SEND_SECONDS):
                if not is_copied:
                    await loop.sendfile(writer.transport, file, begin, count)
                else:
                    writer.write(os.pread(file.fileno(), count, begin))
                    await writer.drain()
            begin += count

    async def _turn(self, count: int) -> None:
        """Wait until as many bytes may be sent."""
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        wait = max(0.0, self._free_at - now)
        self._free_at = now + wait + count / self._rate
        await asyncio.sleep(wait)


def _range_of(request: h11.Request, served: _Served, number: int | None) -> tuple[int, int]:
    size = len(served.listing) if number is None else served.sizes[number]
    asked = _RANGE.fullmatch(dict(request.headers).get(b"range", b""))
    if request.method != b"GET" or asked is None:
        raise _Refused(400)
    begin, end = int(asked[1]), int(asked[2]) + 1 if asked[2] else size
    if not begin < end <= size:
        raise _Refused(416)
    return begin, end


def _headers(length: int) -> list[tuple[str, str]]:
    return [("Content-Length", str(length)), ("Connection", "close")]


def main() -> int:
    """Serve. Arguments: descriptors of the connection to the worker and of the port, rate, and files of `Certificate`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    with suppress(OSError):  # some sandboxes have no such file
        Path("/proc/self/oom_score_adj").write_text("1000")
    control, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    certificate = Certificate(*sys.argv[4:]) if sys.argv[4:] else None
    asyncio.run(PeerServer(control, int(sys.argv[3]), certificate).run(listener))
    return 0


if __name__ == "__main__":
    sys.exit(main())
