"""Renews the Lease from a thread of its own, with an event loop and a connection of its own.

The operator's loop can be busy for seconds: thousands of answers at once, or a large fleet to plan.
A renewal that waits for it would end a healthy process. This thread does not keep a hanging loop
alive: that loop answers `/livez`, and the kubelet restarts the container.
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
    """Implements `Leadership`. Create it with `start`, and end it with `stop`."""

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
        # A daemon thread: the end of the process does not wait for a hanging request.
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
    def is_leader(self) -> bool:
        """Whether this process may act as the leader right now. Readable from every thread."""
        return self._lease.is_leader

    @property
    def term(self) -> int:
        """Number of this leadership; 0 before the first one."""
        return self._lease.term

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        await _in(self._loop, self._lease.acquire())

    async def keep_renewing(self) -> None:
        """Renew until leadership is lost."""
        await _in(self._loop, self._lease.keep_renewing())

    async def release(self) -> None:
        """Release the Lease, so that a standby takes over at once."""
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
    """Run a coroutine in the other loop. Cancelling it here cancels it there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
