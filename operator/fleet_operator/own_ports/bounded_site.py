"""Serves an aiohttp application on a port that strangers reach, at a bounded cost of the event loop.

A connection carries one request, and ends after some seconds. An address has a part of the connections, and a place
rests after its use: more connections are closed unread. So are those beyond a rate of all, except for three places of
each address that was served before. Where all are in use the oldest one gives way. So a client that comes now and then, such
as a kubelet or Prometheus, is answered next to many clients that never stop, and to any number of new addresses. None
waits in the queue of Linux, where nothing is in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Self, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from fleet_operator.own_ports.parse_errors import forget_frames
from fleet_worker.http.passing import Passing

logger = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a line of the server is about an error of ours, and not about a request that is not HTTP. Such a
    request may hold a secret, and strangers could fill the log with it.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_served = logging.getLogger(f"{__name__}.served")
_served.addFilter(_is_ours)

BACKLOG = 1024
SHUTDOWN_SECONDS = 1.0
ACCEPTED_AT_ONCE, ACCEPTED_PER_SECOND = 50, 10_000.0
OWN_PLACES = 3
"""Of a known address, beyond the rate. A kubelet has one for `/livez` and two for `/readyz`."""
OWN_RATES = 2
"""The own places of all addresses together are served at this multiple of the rate."""
KNOWN_ADDRESSES = 8192
"""Those of which a connection was served last. A client may have any number of addresses, so that a new one has no own
places."""
LONGEST_REST_SECONDS = 4.0
"""Of a place, with any number of addresses: the three places of a kubelet would not last for its probes in a longer one.
It also bounds how many addresses rest, since no more are served than the rates allow."""
BURST_SECONDS = 0.1
"""Connections that may be served at once are those of this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one port.

    Fields:
        connections: how many are open at once.
        per_address: how many of them one address has.
        rest_seconds: how long the place of an ended connection counts as that of its address, at least.
        per_second: how many are served. Beyond it, known addresses have `OWN_PLACES` each, which are served at
            `OWN_RATES` times this rate at most. Places rest for longer with more addresses.
        seconds: how long one may last.
    """

    connections: int
    per_address: int
    rest_seconds: float
    per_second: float
    seconds: float


METRICS = Bounds(connections=32, per_address=16, rest_seconds=1, per_second=100, seconds=10)
"""Of metrics. A page may have some MiB, and each connection may hold one that its client does not read."""
PROBES = Bounds(connections=64, per_address=16, rest_seconds=0.5, per_second=250, seconds=2)
"""Of `/livez` and `/readyz`."""


class _Rate:
    """A rate of connections of all addresses."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        """When as many have been served as the rate allows."""

    def take(self, burst_seconds: float) -> bool:
        """Count a connection if the rate allows one more. `burst_seconds`: those of this time may come at once."""
        now = asyncio.get_running_loop().time()
        if self._free_at > now + burst_seconds:
            return False
        self._free_at = max(self._free_at, now) + 1 / self._per_second
        return True


class BoundedSite:
    """One port, and its application. Use `start` to make it."""

    def __init__(self, runner: web.AppRunner, sockets: list[socket.socket], bounds: Bounds) -> None:
        self._runner = runner
        self._make_protocol = cast("web.Server", runner.server)  # of a runner that is set up
        self._sockets = sockets
        self._bounds = bounds
        self._open: dict[_Connection, None] = {}  # the oldest come first
        self._by_address: Counter[str] = Counter()
        self._accepting: list[asyncio.Task[None]] = []
        self._known: OrderedDict[str, None] = OrderedDict()
        """Addresses that were served. The one that is longest ago comes first."""
        self._rate = _Rate(bounds.per_second)
        self._own_rate = _Rate(OWN_RATES * bounds.per_second)

    @classmethod
    async def start(cls, app: web.Application, port: int, bounds: Bounds) -> Self:
        """Listen on all addresses of both families. Errors: OSError if the port is not available."""
        sockets = _listen(port)

        async def close(_: web.Request, response: web.StreamResponse) -> None:
            response.force_close()
            response.headers["Connection"] = "close"

        app.on_response_prepare.append(close)
        runner = web.AppRunner(
            app, access_log=None, logger=_served, shutdown_timeout=SHUTDOWN_SECONDS
        )
        await runner.setup()
        site = cls(runner, sockets, bounds)
        site._accepting = [asyncio.create_task(site._accept(each)) for each in sockets]
        return site

    async def cleanup(self) -> None:
        """Stop listening, and close all connections."""
        for task in self._accepting:
            task.cancel()
        await asyncio.wait(self._accepting)
        for each in self._sockets:
            each.close()
        for connection in list(self._open):
            connection.abort()
        await self._runner.cleanup()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._admit(*await loop.sock_accept(listening))
                for _ in range(ACCEPTED_AT_ONCE - 1):
                    await self._admit(*listening.accept())
            except BlockingIOError:
                pass  # that was the last one
            except OSError as error:  # the client has gone, or the process has no more descriptors
                logger.debug("a connection was not accepted: %s", error)
            await asyncio.sleep(ACCEPTED_AT_ONCE / ACCEPTED_PER_SECOND)

    async def _admit(self, accepted: socket.socket, peer: Any) -> None:
        address = str(peer[0])
        if not self._may(address):
            accepted.close()
            return
        self._known[address] = None
        self._known.move_to_end(address)
        if len(self._known) > KNOWN_ADDRESSES:
            self._known.popitem(last=False)
        accepted.settimeout(0)
        await self._take(accepted, address)

    def _may(self, address: str) -> bool:
        """Whether a connection of this address is served. It counts then."""
        held, is_known = self._by_address[address], address in self._known
        if held >= self._bounds.per_address:
            return False
        own = max(0, OWN_PLACES - held)
        # Each rank leaves a part of the burst to the next one: to addresses with fewer places, and to new ones at last,
        # which have no own places. Without ranks, few clients that never stop would use up all.
        rank = (1 + own if is_known else 2 + OWN_PLACES) / (2 + OWN_PLACES)
        if self._rate.take(rank * BURST_SECONDS):
            return True
        return is_known and own > 0 and self._own_rate.take(own / OWN_PLACES * BURST_SECONDS)

    async def _take(self, accepted: socket.socket, address: str) -> None:
        if len(self._open) >= self._bounds.connections:
            next(iter(self._open)).abort()
        connection = _Connection(self._make_protocol(), self, address)
        self._open[connection] = None
        self._by_address[address] += 1
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:
            self.forget(connection)
            accepted.close()
            return
        loop.call_later(self._bounds.seconds, connection.abort)

    def forget(self, connection: _Connection) -> None:
        """Note that a connection has ended."""
        if connection in self._open:
            del self._open[connection]
            # So that the rate of own places is enough for all of them. An address that comes seldom has rested meanwhile.
            of_all_seconds = len(self._by_address) / self._bounds.per_second
            rest_seconds = max(self._bounds.rest_seconds, min(of_all_seconds, LONGEST_REST_SECONDS))
            asyncio.get_running_loop().call_later(rest_seconds, self._leave, connection.address)

    def _leave(self, address: str) -> None:
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class _Connection(Passing):
    """Tells its site when it ends."""

    def __init__(self, inner: asyncio.Protocol, site: BoundedSite, address: str) -> None:
        super().__init__(inner)
        self._site = site
        self.address = address

    def abort(self) -> None:
        """End the connection at once. The client loses the rest."""
        self._site.forget(self)
        super().abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        forget_frames(self.inner)

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.forget(self)
        super().connection_lost(exc)


def _listen(port: int) -> list[socket.socket]:
    """Sockets for all addresses of the families that this machine has."""
    made: list[socket.socket] = []
    with contextlib.ExitStack() as failing:
        for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            try:
                each = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # the machine does not have this family
            failing.callback(each.close)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                each.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
                raise
            each.listen(BACKLOG)
            each.settimeout(0)
            made.append(each)
        failing.pop_all()
    return made
