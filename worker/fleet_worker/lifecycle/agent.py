"""The agent: the calls of the operator or a trainer to a worker, one at a time.

Every call checks the epoch, then the holder of the lease, then the phase. It then works under the
lock, so that calls never interleave. A call that has waited for the lock checks epoch and holder
again: the caller of a newer one relies on older ones having no effect. Three actions do not wait
for the lock: closing the latch, cutting a drain short, and renewing a lease.

All calls are idempotent, run to the end if the caller disconnects, and leave the worker in a state
of `states`.
"""

from __future__ import annotations

import logging
from functools import cached_property

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import (
    authority,
    canary_prompts,
    closing,
    draining,
    loading,
    pausing,
    stage_call,
)
from fleet_worker.lifecycle.states import Event, after
from fleet_worker.lifecycle.weights import is_named_by, renamed
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.lora.calls import LoraCalls
from fleet_worker.protocol import (
    AdapterRemoval,
    AdapterRequest,
    ApplyRequest,
    Epoch,
    FenceRequest,
    LoadRequest,
    OpenRequest,
    PauseMode,
    PauseRequest,
    Phase,
    PromptsRequest,
    Reason,
    StageRequest,
    WantedRequest,
)

_LOG = logging.getLogger(__name__)


class Agent(Worker):
    """A worker with the calls of the operator and of trainers."""

    @cached_property
    def lora(self) -> LoraCalls:
        """The calls that change LoRA adapters."""
        return LoraCalls(self, self.staging.threads, self.staging.rules)

    def obey(self, epoch: Epoch) -> None:
        """Record the epoch of a call; refuse an older one with `StaleEpoch`."""
        self.epoch = authority.newest(self.epoch, epoch)

    def check_holder(self, holder: str) -> None:
        """Refuse with `HeldByAnother` while another holder's lease runs."""
        authority.check_holder(self.lease, holder, self.clock())

    def check_call(self, request: PauseRequest | LoadRequest | ApplyRequest | OpenRequest) -> None:
        """Check epoch and holder of a call: at its begin, and again after it has waited for the lock."""
        self.obey(request.epoch)
        self.check_holder(request.holder)

    async def ready(self) -> None:
        """Pause the started engine and label its weights; the worker then waits for admission."""
        await self.engine.pause(PauseMode.ABORT)
        await self.engine.set_version(self.label_of(self.good))
        self.enter(Event.READY)
        _LOG.info(
            "joining with version %s; the latch is closed until the operator admits this worker",
            self.version,
            extra=fields("joining", version=self.version),
        )

    async def stage(self, request: StageRequest, *, by_directory: bool = False) -> str:
        """`PUT stage`: check a version and read its bytes. Without the lock: the worker keeps serving.

        Args:
            request: Version and source.
            by_directory: The trainer sends a directory and no run. Each directory then counts as a
                run of its own.

        Returns:
            The digest of the version, staged or already in the engine.
        """
        self.obey(request.epoch)
        if self.phase in (Phase.STARTING, Phase.BROKEN, Phase.DRAINING):
            reason = Reason.BROKEN if self.phase is Phase.BROKEN else Reason.WRONG_PHASE
            raise Refusal(reason, f"the worker is {self.phase} and cannot stage a version")
        return await stage_call.stage(self, request, by_directory=by_directory)

    async def pause(self, request: PauseRequest, *, keep_cache: bool = False) -> None:
        """`PUT pause`: stop generating, or renew the lease of a pause.

        Args:
            request: Mode and lease.
            keep_cache: Keep the KV cache for later weights to read. The operator never does.
        """
        self.check_call(request)
        renewed = pausing.renew(self, request, keep_cache=keep_cache)
        if renewed and not self.ends_pause:
            return
        if self.phase is Phase.PAUSING and request.mode is PauseMode.ABORT:
            self.cut.set()  # ends the drain that holds the lock
        async with self.lock:
            self.check_call(request)
            if pausing.renew(self, request, keep_cache=keep_cache):
                return
            if self.phase is Phase.PAUSED:
                await pausing.strengthen(self, request, keep_cache=keep_cache)
            else:
                await pausing.stop(self, request, keep_cache=keep_cache)

    async def load(self, request: LoadRequest) -> None:
        """`PUT load`: put the staged version into the engine."""
        self.check_call(request)
        async with self.lock:
            self.check_call(request)
            if self._is_loaded(request):
                return
            self.check_step(Event.LOAD)
            self.staging.check_staged(request)
            await loading.ensure_quiet(self)
            weights = self.staging.take(request)
            self.enter(Event.LOAD)
            with self.working("load", weights.version, run_id=weights.run_id):
                await loading.load(self, weights)

    async def apply(self, request: ApplyRequest) -> None:
        """`PUT apply`: pause, load and resume under one lock.

        If the load is refused, the worker serves the old weights again.
        """
        self.check_call(request)
        async with self.lock:
            self.check_call(request)
            if self._is_loaded(request):
                if self.phase is not Phase.SERVING:
                    await pausing.resume(self, request.version, Event.RESUME)
                return
            if self.phase is not Phase.PAUSED:
                after(self.lifecycle, Event.PAUSE)
            staged = self.staging.check_staged(request)
            with self.working("apply", staged.version, run_id=staged.run_id):
                await self._apply(request)
        pausing.log_serving(self)

    async def open(self, request: OpenRequest, event: Event) -> None:
        """`PUT resume` and `PUT admit`: serve, if the engine has the version of the request."""
        self.check_call(request)
        async with self.lock:
            self.check_holder(request.holder)
            await pausing.open_latch(self, request, event)

    async def fence(self, request: FenceRequest) -> None:
        """`PUT fence`: close the latch at once, drain for the given time, then end all requests.

        Errors:
            Refusal: `WrongPhase`; the call asks for a drain, and a pause holds the requests. They
                cannot end within any time, so the caller resumes the worker first.
        """
        self.obey(request.epoch)
        if request.drain_timeout_seconds > 0 and self.phase in {Phase.PAUSED, Phase.LOADING}:
            raise Refusal(
                Reason.WRONG_PHASE,
                "a pause holds the requests of the worker, so it cannot drain: resume it first, or"
                " send a fence without drain_timeout_seconds, which ends them",
            )
        self.close_latch(cut=request.drain_timeout_seconds == 0)
        timed_out = False
        async with self.lock:
            try:
                if request.drain_timeout_seconds > 0 and self.phase is Phase.SERVING:
                    self.enter(Event.PAUSE)
                    with self.working("fence"):
                        ended = await self.quiescence.wait_until_empty(
                            request.drain_timeout_seconds, cut=self.cut
                        )
                    timed_out = not ended and not self.cut.is_set()
                    self.quiescence.drain_timed_out |= timed_out
                await self.on_released()
            finally:
                try:
                    await closing.quiesce(self, Event.FENCE)
                finally:
                    self.quiescence.drain_timed_out &= not timed_out
        _LOG.info("fenced: %s", request.reason, extra=fields("fenced", reason=request.reason))

    async def hear(self, request: WantedRequest) -> None:
        """`PUT wanted`: the versions that were desired last. Without the lock, since a load may last. It makes
        calls of earlier leaders outdated, and none of its own.

        Errors:
            Refusal: `StaleEpoch`, from an earlier leader.
        """
        if self.epoch is None or request.term != self.epoch.term:
            self.obey(Epoch(term=request.term, sequence=0))
        self.freshness.hear(request)

    async def run_prompts(self, request: PromptsRequest) -> None:
        """`PUT probe`: run the canary prompts on the weights in the engine."""
        self.obey(request.epoch)
        async with self.lock:
            await canary_prompts.run(self, request)

    async def put_adapter(
        self,
        name: str,
        request: AdapterRequest,
        *,
        by_directory: bool = False,
        turn: int | None = None,
    ) -> None:
        """`PUT adapters/{name}`: see `LoraCalls.put`."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        await self.lora.put(name, request, by_directory=by_directory, turn=turn)

    async def remove_adapter(self, name: str, request: AdapterRemoval) -> None:
        """`DELETE adapters/{name}`: see `LoraCalls.remove`."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        await self.lora.remove(name, request)

    async def drain(self, *, patience_seconds: float, drain_timeout_seconds: float = 0) -> float:
        """`POST drain`: see `draining.drain`."""
        return await draining.drain(
            self, patience_seconds=patience_seconds, drain_timeout_seconds=drain_timeout_seconds
        )

    async def rename(self, version: str) -> None:
        """Give the weights in the engine another version, under the lock, while nothing generates.

        Errors:
            Refusal: `VersionReused`, or `WrongPhase` if the engine still has requests.
            EngineFailure: See `loading.relabel`.
        """
        good = self.good
        new = renamed(good, version, self.labels)
        if self.phase is Phase.JOINING and not self.is_idle:
            await closing.end_requests(self)
        before, label = self.label_of(good), self.label_of(new)
        await loading.relabel(self, label, before)
        self.note_in_engine(new)
        self.kept.renamed(label, before)
        self.good, self.version = new, version

    async def end_leftover_requests(self) -> None:
        """End the requests that a closed worker still has. Called by the watch.

        Errors:
            Refusal: The engine still has requests.
        """
        async with self.lock:
            if self.not_idle_since is not None:
                await closing.end_requests(self)

    async def expire_lease(self) -> None:
        """End a pause or an update whose lease has expired. Called by the watch."""
        async with pausing.locked_after_lease(self):
            await pausing.expire(self)
            if self.lease is not None and self.lease.has_expired(self.clock()):
                await self.on_released()

    async def _apply(self, request: ApplyRequest) -> None:
        if self.phase is Phase.SERVING:
            pause = PauseRequest(
                mode=request.mode,
                drain_timeout_seconds=request.drain_timeout_seconds,
                lease_seconds=request.lease_seconds,
                holder=request.holder,
                epoch=request.epoch,
            )
            await pausing.stop(self, pause)
        elif self.phase is Phase.PAUSED:
            await loading.ensure_quiet(self)
        if self.phase is not Phase.PAUSED or not self.is_open:
            raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
        weights = self.staging.take(request)
        self.enter(Event.LOAD)
        try:
            await loading.load(self, weights)
        finally:
            # The load succeeded, or was refused with the old weights intact. Otherwise a failed
            # load or a fence has changed the phase.
            if self.phase is Phase.PAUSED and self.is_open:
                await pausing.resume(self, self.version or "", Event.RESUME)

    def _is_loaded(self, request: LoadRequest | ApplyRequest) -> bool:
        """Whether the engine has the weights already, and they have not been staged again."""
        if self.version is None or not is_named_by(self.good, request):
            return False
        staged = self.staging.staged
        return staged is None or not is_named_by(staged, request)
