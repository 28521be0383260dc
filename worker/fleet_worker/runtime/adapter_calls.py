"""The calls that change adapters; the rest of an agent is above it."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet_worker.core import fencing
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import AdapterRemoval, AdapterRequest, Epoch
from fleet_worker.runtime import adapting
from fleet_worker.runtime.reference import resolved
from fleet_worker.runtime.worker import Worker


class AdapterCalls(Worker):
    """A worker whose adapters can be changed."""

    def __init__(self, *needed: Any, **named: Any) -> None:
        """See `Worker`."""
        super().__init__(*needed, **named)
        self._clearing: set[asyncio.Task[None]] = set()
        self.adapters.on_idle = self._clear_adapters_soon

    async def put_adapter(
        self, name: str, request: AdapterRequest, *, by_directory: bool = False
    ) -> None:
        """`PUT adapters/{name}`: check and hold it first, then put it into the engine.

        Args:
            name: What requests call it.
            request: What, and from where.
            by_directory: A trainer names directories and no runs: another directory is another
                run's.
        """
        self.obey(request.epoch)
        self.check_holder(request.holder)
        try:
            adapting.check_fits(self, name)
            source = await asyncio.to_thread(resolved, request.source)
            request = request.model_copy(update={"source": source})
            if self.adapters.serves(name, request) and await adapting.is_unchanged(
                self, name, request
            ):
                return
            await self._put_adapter(name, request, by_directory=by_directory)
        except (Refusal, EngineFailure) as why:
            self.adapter_failure = adapting.fault_of(self, name, request, why)
            raise
        if self.adapter_failure is not None and self.adapter_failure.name == name:
            self.adapter_failure = None

    async def remove_adapter(self, name: str, request: AdapterRemoval) -> None:
        """`DELETE adapters/{name}`: serve it no more."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        self.adapters.check_on()
        async with self.lock:
            self.check_holder(request.holder)
            await self.adapters.remove(name)

    async def _put_adapter(self, name: str, request: AdapterRequest, *, by_directory: bool) -> None:
        files = await adapting.prepare(self, name, request, by_directory=by_directory)
        label = adapting.label_of(name, request, files, by_directory=by_directory)
        used = False
        try:
            async with self.lock:
                self.check_holder(request.holder)
                adapting.check_fits(self, name)
                if not self.adapters.serves(name, request):
                    with self.working("adapter", request.version, run_id=request.run_id):
                        await self.adapters.put(name, request, files, label)
                    used = True
        finally:
            if not used:
                await asyncio.to_thread(files.close)

    def _clear_adapters_soon(self) -> None:
        async def clear_out() -> None:
            async with self.lock:
                await self.adapters.clear_out()

        task = asyncio.get_running_loop().create_task(clear_out())
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    def obey(self, epoch: Epoch) -> None:
        """Note the epoch of a call, or refuse it with `StaleEpoch`."""
        self.epoch = fencing.newest(self.epoch, epoch)

    def check_holder(self, holder: str) -> None:
        """Refuse with `HeldByAnother` if somebody else's lease runs."""
        fencing.check_holder(self.lease, holder, self.clock())
