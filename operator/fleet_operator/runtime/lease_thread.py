"""Renews the Lease from a thread of its own, with an event loop and a connection of its own.

The operator's loop is busy for seconds at a time: thousands of answers at once, a large fleet to
plan. A renewal that waits behind that would end the process for no fault of its own. A loop that
stands still for good is not kept alive by this thread: `/livez` is answered by that loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

from fleet_operator.ports import Kube
from fleet_operator.runtime.lease import Lease

T = TypeVar("T")


class OwnKube(Kube, Protocol):
    """A client that can be closed."""

    async def close(self) -> None:
        """Close its connections."""


class LeaseThread:
    """Implements `Leadership`. Use `start`, and `stop` when it is not needed any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: Lease, kube: OwnKube) -> None:
        self._loop = loop
        self._lease = lease
        self._kube = kube

    @classmethod
    async def start(
        cls,
        connect: Callable[[], Awaitable[OwnKube]],
        *,
        namespace: str,
        name: str,
        identity: str,
    ) -> Self:
        """Start the thread. `connect` runs in it, so that the connection belongs to its loop.

        Errors: those of `connect`.
        """
        loop = asyncio.new_event_loop()
        # A daemon: a process that ends does not wait for a request that hangs.
        threading.Thread(target=_run, args=(loop,), name="lease", daemon=True).start()

        async def build() -> tuple[Lease, OwnKube]:
            kube = await connect()
            return Lease(kube, namespace=namespace, name=name, identity=identity), kube

        try:
            lease, kube = await _in(loop, build())
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            raise
        return cls(loop, lease, kube)

    async def stop(self) -> None:
        """Close the connection and end the thread."""
        await _in(self._loop, self._kube.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    @property
    def held(self) -> bool:
        """Whether this process may act as the leader right now. Readable from every thread."""
        return self._lease.held

    @property
    def term(self) -> int:
        """Number of this leadership; 0 before the first one."""
        return self._lease.term

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        await _in(self._loop, self._lease.acquire())

    async def hold(self) -> None:
        """Renew until leadership is lost."""
        await _in(self._loop, self._lease.hold())

    async def release(self) -> None:
        """Let a standby take over at once."""
        await _in(self._loop, self._lease.release())

    async def confirm(self) -> bool:
        """Read the Lease again. Returns: whether it names this process, read after this call."""
        return await _in(self._loop, self._lease.confirm())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the other loop; cancelled here, it is cancelled there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
