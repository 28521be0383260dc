"""Refuses writes and worker calls unless this process is the leader.

A process that was frozen continues where it stopped, and would write outdated decisions before it
notices that leadership is lost. So every write and every call checks the Lease first. Epochs and
resourceVersions stop the requests that were sent already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from fleet_operator.core.actions import WorkerCall
from fleet_operator.errors import Terminal
from fleet_operator.ports import Addressee, Json, Kube, WorkerAnswer, Workers
from fleet_worker.protocol import Epoch

NOT_LEADING = "this process is not the leader any more"


class LeaderKube:
    """The Kubernetes API for a leader. Implements `ports.Kube`.

    Errors: Terminal for every write while not leading.
    """

    def __init__(self, kube: Kube, leads: Callable[[], bool]) -> None:
        self._kube = kube
        self._leads = leads

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object or one page of a list."""
        return await self._kube.get(path, params)

    async def create(self, path: str, body: Json) -> Json:
        """Create an object; `Conflict` if it exists."""
        return await self._for_leader().create(path, body)

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object at its resourceVersion; `Conflict` if it changed."""
        return await self._for_leader().replace(path, body)

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply: afterwards our fields are exactly those of the body."""
        return await self._for_leader().apply(path, body)

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""
        return await self._for_leader().merge(path, body)

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object if it has this uid. No error if it is gone."""
        await self._for_leader().delete(path, uid=uid)

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Stream watch events until the server ends the stream."""
        return self._kube.watch(path, params)

    def _for_leader(self) -> Kube:
        if not self._leads():
            raise Terminal(NOT_LEADING)
        return self._kube


class LeaderWorkers:
    """The workers' admin ports for a leader. Implements `ports.Workers`."""

    def __init__(self, workers: Workers, leads: Callable[[], bool]) -> None:
        self._workers = workers
        self._leads = leads

    def state(self, worker: Addressee) -> Awaitable[WorkerAnswer]:
        """Ask a worker for its state."""
        return self._workers.state(worker)

    def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> Awaitable[WorkerAnswer]:
        """Send a worker call. The answer comes when the worker has acted."""
        if not self._leads():
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(WorkerAnswer(silent=True, message=NOT_LEADING))
            return answer
        return self._workers.call(worker, action, epoch)
