"""The calls that load and remove LoRA adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.reference import StageRules
from fleet_worker.checkpoint.refused_sources import RefusedSources
from fleet_worker.checkpoint.sources import resolved, states_in, store_of
from fleet_worker.checkpoint.store_threads import Pulse, StoreThreads
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lora.comparing import Comparing
from fleet_worker.lora.files import (
    PrivateAdapter,
    label_of,
    make_private,
    open_fitting_adapter,
    read_accepted_adapter,
)
from fleet_worker.lora.host import Host
from fleet_worker.lora.refused import AdapterFault, RefusedAdapters
from fleet_worker.lora.turns import PutCall, Turns
from fleet_worker.protocol import AdapterRemoval, AdapterRequest, Phase, Reason

_PHASES = (Phase.JOINING, Phase.SERVING, Phase.PAUSED)


@dataclass(frozen=True, slots=True)
class Preparing:
    """A LoRA adapter that is being checked and read. `kind`: of the operation, for the state."""

    kind: str
    version: str
    run_id: str | None
    started: float


class LoraCalls:
    """The calls that change the LoRA adapters of a worker.

    Fields:
        refused: the refusals and failures that the state reports.
        turns: the order of the calls.
    """

    def __init__(self, host: Host, threads: StoreThreads, rules: StageRules) -> None:
        self.refused = RefusedAdapters()
        self.turns = Turns()
        self._preparing: list[Preparing] = []
        self._host = host
        self._threads = threads
        self._rules = rules
        self._comparing = Comparing(threads, rules.roots)
        self._refused_sources = RefusedSources()
        self._removals: set[asyncio.Task[None]] = set()
        host.adapters.on_idle = self._remove_retired_soon

    @property
    def preparing(self) -> Preparing | None:
        """The adapter that is being checked and read, of several the last one."""
        return self._preparing[-1] if self._preparing else None

    async def put(
        self,
        name: str,
        request: AdapterRequest,
        *,
        by_directory: bool = False,
        turn: int | None = None,
    ) -> None:
        """Check an adapter and read its bytes. Serve it, unless the request asks only to stage it.

        A version that is served already only drops what else is staged under the name.

        Args:
            name: The model name in requests.
            request: Version and source.
            by_directory: The trainer sends directories and no run. Each directory then counts as a
                run of its own.
            turn: The number from `turns` of a load that takes several calls; by default each call
                gets its own.

        Errors:
            Refusal: any of the source and checkpoint reasons, `VersionReused`, `NoAdapterSlot`,
                `NotAvailable` without enough memory, `Superseded` after a later call for the name
                that asks for something else.
        """
        with self.turns.turn() if turn is None else nullcontext(turn) as number:
            asked = (request.version, request.run_id, request.source, request.digest)
            check_last = partial(self.turns.check, name, number, asked)
            await self._put_or_note(PutCall(name, request, by_directory, check_last))

    async def _put_or_note(self, call: PutCall) -> None:
        adapters, name, request = self._host.adapters, call.name, call.request
        try:
            call.check_last()
            self._check_fits(name)
            source = await resolved(request.source, self._threads)
            request = request.model_copy(update={"source": source})
            call = replace(call, request=request)
            if not await self._has_served(call):
                await (self._stage(call) if request.stage_only else self._put(call))
        except (Refusal, EngineFailure) as error:
            if error.reason is Reason.SUPERSEDED:
                raise
            fault = AdapterFault(
                request.version,
                error.reason,
                error.message,
                self._host.clock(),
                run_id=request.run_id,
                source=str(request.source),
                retry_after_seconds=getattr(error, "retry_after_seconds", None),
                name=name,
            )
            self.refused.note(fault)
            raise
        if adapters.serves(name, request):
            self.refused.forget(name)
        else:
            self.refused.note_staged(name, request.version, request.run_id)

    async def remove(self, name: str, request: AdapterRemoval) -> None:
        """Stop serving an adapter."""
        self._host.adapters.check_enabled()
        with self.turns.turn() as turn:
            self.turns.check(name, turn, None)
            async with self._host.lock:
                self.turns.check(name, turn, None)
                self._host.check_holder(request.holder)
                await self._host.adapters.remove(name)
        self.refused.forget(name)

    def _check_fits(self, name: str) -> None:
        """Refuse an adapter that the worker cannot load now, before it reads any file."""
        host = self._host
        host.adapters.check_enabled()
        if name == host.engine.info.model:
            raise Refusal(
                Reason.BAD_REQUEST,
                f"{name} is the name of the base model; give the LoRA adapter another name",
            )
        if host.phase not in _PHASES:
            reason = Reason.BROKEN if host.phase is Phase.BROKEN else Reason.WRONG_PHASE
            raise Refusal(reason, f"the worker is {host.phase} and cannot load a LoRA adapter")
        if host.asleep:
            raise Refusal(
                Reason.WRONG_PHASE,
                "the engine sleeps and has no memory for a LoRA adapter; wake the worker first",
            )

    async def _has_served(self, call: PutCall) -> bool:
        """Whether a call needs nothing more. Then the copy that is staged under the name is dropped."""
        adapters, name, request = self._host.adapters, call.name, call.request
        served = adapters.served_files(name) if adapters.serves(name, request) else None
        if served is None or not await self._comparing.is_still_served(served, request):
            return False
        async with self._host.lock:  # an earlier call that holds it may serve another version
            call.check_last()
            if adapters.served_files(name) is not served:
                return False
            await adapters.staged.drop(name)
        return True

    async def _stage(self, call: PutCall) -> None:
        host, name, request = self._host, call.name, call.request
        if await self._holds(call):
            return
        files = await self._prepared(call)
        kept = False
        try:
            async with host.lock:
                call.check_last()
                host.check_holder(request.holder)
                self._check_fits(name)
                if not host.adapters.serves(name, request):  # else the files were only compared
                    await host.adapters.staged.put(name, request, files)
                    kept = True
        finally:
            if not kept:
                await asyncio.to_thread(files.close)

    async def _put(self, call: PutCall) -> None:
        host, name, request = self._host, call.name, call.request
        files = None
        if await self._holds(call):
            files = host.adapters.staged.take(name, request)
        if files is None:
            files = await self._prepared(call)
        kept = False
        try:
            async with host.lock:
                kept = await self._serve(call, files)
        except Refusal as refusal:
            # The others pass. Read again, the files may be others than the pinned ones.
            if refusal.reason not in (Reason.VERSION_REUSED, Reason.SUPERSEDED):
                kept = host.adapters.staged.put_back(name, request, files)
            raise
        finally:
            if not kept:
                await asyncio.to_thread(files.close)

    async def _serve(self, call: PutCall, files: PrivateAdapter) -> bool:
        """Load a version into the engine. Returns: False if it is served already."""
        host, name, request = self._host, call.name, call.request
        call.check_last()
        host.check_holder(request.holder)
        self._check_fits(name)
        label = label_of(name, request, files, by_directory=call.by_directory)
        # Another version may have been served under this label since it was staged.
        host.adapters.labels.check(label, files.digest, files.identity.source)
        if host.adapters.serves(name, request):
            return False
        with host.working("adapter", request.version, run_id=request.run_id):
            await host.adapters.put(name, request, files, label)
        return True

    async def _prepared(self, call: PutCall) -> PrivateAdapter:
        """Check an adapter and copy its bytes into memory. Without the lock: the worker keeps serving."""
        name, request = call.name, call.request
        call.check_last()
        await self._host.adapters.staged.drop(name)  # it is not used, and has memory
        kind = "stage-adapter" if request.stage_only else "adapter"
        preparing = Preparing(kind, request.version, request.run_id, self._host.clock())
        self._preparing.append(preparing)
        roots = self._rules.roots
        store = store_of(request.source, roots)
        try:
            looking = partial(states_in, request.source, roots)
            seen = await self._threads.run(looking, store=store)
            source = str(request.source)
            version, run_id, digest = request.version, request.run_id, request.digest
            asked = (name, source, digest, version, run_id, call.by_directory)
            with self._refused_sources.remembering(asked, seen):
                return await self._copied(call, store)
        finally:
            self._preparing.remove(preparing)

    async def _copied(self, call: PutCall, store: str) -> PrivateAdapter:
        request, pulse, opened = call.request, Pulse(), list[Checkpoint]()
        reading = partial(self._read, request, pulse.beat, opened)
        late = PrivateAdapter.close
        try:
            files = await self._threads.run(reading, store=store, pulse=pulse, late=late)
        except Refusal:
            for adapter in opened:  # its stager may hang
                await asyncio.to_thread(adapter.release)
            raise
        try:
            label = label_of(call.name, request, files, by_directory=call.by_directory)
            self._host.adapters.labels.check(label, files.digest, files.identity.source)
        except Refusal:
            await asyncio.to_thread(files.close)
            raise
        return files

    def _read(
        self, request: AdapterRequest, progress: Callable[[], None], opened: list[Checkpoint]
    ) -> PrivateAdapter:
        """Check an adapter, added to `opened`, and hold its bytes. Blocks."""
        rules, adapters = self._rules, self._host.adapters
        adapter = open_fitting_adapter(request.source, rules, max_rank=adapters.max_rank)
        opened.append(adapter)
        try:
            _, digest = read_accepted_adapter(
                adapter,
                rules,
                digest=request.digest,
                budget=self._host.memory_left(),
                check_cancelled=progress,
            )
            return make_private(adapter, digest)
        except BaseException:
            adapter.close()
            raise

    async def _holds(self, call: PutCall) -> bool:
        """Whether the staged copy is of the files that the worker would read for a request now."""
        held = self._host.adapters.staged.files_of(call.name, call.request)
        return held is not None and await self._comparing.is_unchanged(held, call.request)

    def _remove_retired_soon(self) -> None:
        async def remove_retired() -> None:
            async with self._host.lock:
                await self._host.adapters.remove_retired()

        task = asyncio.get_running_loop().create_task(remove_retired())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
