"""The agent: the calls of the operator or a trainer to a worker, one at a time.

Every call checks the epoch, then the holder of the lease, then the phase. It then works under the
lock, so that calls never interleave. Three actions do not wait for the lock: closing the latch,
cutting a drain short, and renewing a lease.

All calls are idempotent, run to the end if the caller disconnects, and leave the worker in a state
of `states`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from fleet_worker.checkpoint.reference import resolved
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import fencing, loading, pausing, probing
from fleet_worker.lifecycle.refused_stages import with_refusal
from fleet_worker.lifecycle.states import Event, after
from fleet_worker.lifecycle.weights import Weights, check_labels, description_of, is_named_by
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
    ProbeRequest,
    Reason,
    StageRequest,
)

_LOG = logging.getLogger(__name__)


class Agent(Worker):
    """A worker with the calls of the operator and of trainers.

    Fields:
        `lora`: the calls that change LoRA adapters.
    """

    def __init__(self, *needed: Any, **named: Any) -> None:
        """See `Worker`."""
        super().__init__(*needed, **named)
        self.lora = LoraCalls(self, self.staging.threads, self.staging.rules)

    def obey(self, epoch: Epoch) -> None:
        """Record the epoch of a call; refuse an older one with `StaleEpoch`."""
        self.epoch = fencing.newest(self.epoch, epoch)

    def check_holder(self, holder: str) -> None:
        """Refuse with `HeldByAnother` while another holder's lease runs."""
        fencing.check_holder(self.lease, holder, self.clock())

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
        try:
            # By its commit: a branch that has moved would look like the same source.
            source = await self.staging.threads.run(partial(resolved, request.source))
            request = request.model_copy(update={"source": source})
            if (digest := await self._digest_if_in_engine(request)) is not None:
                return digest
            staged = await self.staging.stage(request, by_directory=by_directory)
        except Refusal as refusal:
            if refusal.reason is not Reason.SUPERSEDED:
                fault = self.fault(
                    request.version,
                    refusal,
                    run_id=request.run_id,
                    source=str(request.source),
                )
                self.refused_stages = with_refusal(self.refused_stages, fault)
            raise
        self.refused_stages = ()
        if staged.stage_seconds is not None:
            self.metrics.staged(staged.stage_seconds)
        return staged.digest

    async def pause(self, request: PauseRequest, *, keep_cache: bool = False) -> None:
        """`PUT pause`: stop generating, or renew the lease of a pause.

        Args:
            request: Mode and lease.
            keep_cache: Keep the KV cache for later weights to read. The operator never does.
        """
        self.obey(request.epoch)
        self.check_holder(request.holder)
        if pausing.renew(self, request, keep_cache=keep_cache):
            return
        if self.phase is Phase.PAUSING and request.mode is PauseMode.ABORT:
            self.cut.set()  # ends the drain that holds the lock
        async with self.lock:
            self.check_holder(request.holder)
            if pausing.renew(self, request, keep_cache=keep_cache):
                return
            if self.phase is Phase.PAUSED:
                await pausing.strengthen(self, request, keep_cache=keep_cache)
            else:
                await pausing.stop(self, request, keep_cache=keep_cache)

    async def load(self, request: LoadRequest) -> None:
        """`PUT load`: put the staged version into the engine."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        async with self.lock:
            self.check_holder(request.holder)
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
        self.obey(request.epoch)
        self.check_holder(request.holder)
        async with self.lock:
            self.check_holder(request.holder)
            if self._is_loaded(request):
                if self.phase is not Phase.SERVING:
                    await self._resume(request.version, Event.RESUME)
                return
            if self.phase is not Phase.PAUSED:
                after(self.standing, Event.PAUSE)
            staged = self.staging.check_staged(request)
            with self.working("apply", staged.version, run_id=staged.run_id):
                await self._apply(request)
        self._log_serving()

    async def open(self, request: OpenRequest, event: Event) -> None:
        """`PUT resume` and `PUT admit`: serve, if the engine has the version of the request."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        async with self.lock:
            self.check_holder(request.holder)
            self.check_step(event)
            if self.version is None or not is_named_by(self.good, request):
                loaded = description_of(self.good) if self.version is not None else "no version"
                raise Refusal(
                    Reason.VERSION_MISMATCH,
                    f"the engine has {loaded}, not {description_of(request)}; load that first",
                )
            if self.phase is Phase.SERVING and self.is_open:
                return
            if self.phase is Phase.SERVING:
                raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
            if self.phase is Phase.JOINING and not self.is_at_rest:
                await self.end_requests()
            await self._resume(request.version, event)
        self._log_serving()

    async def fence(self, request: FenceRequest) -> None:
        """`PUT fence`: close the latch at once, drain for the given time, then end all requests."""
        self.obey(request.epoch)
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
                    await self.quiesce(Event.FENCE)
                finally:
                    self.quiescence.drain_timed_out &= not timed_out
        _LOG.info("fenced: %s", request.reason, extra=fields("fenced", reason=request.reason))

    async def probe(self, request: ProbeRequest) -> None:
        """`PUT probe`: run the canary prompts on the weights in the engine."""
        self.obey(request.epoch)
        async with self.lock:
            await probing.probe(self, request)

    async def put_adapter(
        self, name: str, request: AdapterRequest, *, by_directory: bool = False
    ) -> None:
        """`PUT adapters/{name}`: see `LoraCalls.put`."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        await self.lora.put(name, request, by_directory=by_directory)

    async def remove_adapter(self, name: str, request: AdapterRemoval) -> None:
        """`DELETE adapters/{name}`: see `LoraCalls.remove`."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        await self.lora.remove(name, request)

    async def drain(self, *, patience_seconds: float, drain_timeout_seconds: float = 0) -> float:
        """`POST drain`: let requests finish until the timeout, then end them. The process ends next.

        Args:
            patience_seconds: How long it may take to end the requests that remain.
            drain_timeout_seconds: How long requests may keep running. Held requests continue too,
                with the weights in the engine. If these weights cannot be trusted, all requests
                end at once.

        Returns:
            The unused part of `patience_seconds`.
        """
        self.close_latch(cut=drain_timeout_seconds == 0)
        if drain_timeout_seconds > 0:
            await self._let_requests_finish(drain_timeout_seconds)
        self.quiescence.drain_timed_out = True
        self.close_latch()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_seconds
        try:
            async with asyncio.timeout_at(deadline), self.lock:
                self.enter(Event.DRAIN)
                with self.working("drain"):
                    await self.quiescence.reach(self.engine)
        except Exception as error:  # noqa: BLE001 - the process ends next in any case
            _LOG.warning("the drain ended early: %s", error, extra=fields("drain_cut_short"))
        finally:
            self.enter(Event.DRAIN)
        self.adapters.close()
        return max(0.0, deadline - loop.time())

    async def _let_requests_finish(self, seconds: float) -> None:
        """Wait until all requests have ended, at most for the given time.

        Raises nothing, except when it is cancelled.
        """
        try:
            async with asyncio.timeout(seconds), self.lock:
                has_held = not self.is_at_rest and self.phase in (Phase.PAUSED, Phase.JOINING)
                trusted = self.version is not None and self.phase is not Phase.BROKEN
                self.enter(Event.DRAIN)
                with self.working("drain"):
                    if has_held and trusted and not self.asleep:
                        await self.engine.resume()
                    if trusted:
                        await self.quiescence.wait_until_empty(seconds, cut=self.cut)
        except TimeoutError:
            _LOG.info(
                "requests still run at the drain timeout; the worker ends them",
                extra=fields("drain_timeout"),
            )
        except Exception as error:  # noqa: BLE001 - the requests are ended next in any case
            _LOG.warning("the drain ended early: %s", error, extra=fields("drain_cut_short"))

    async def rename(self, version: str) -> None:
        """Give the weights in the engine another version, under the lock, while nothing generates.

        Errors:
            Refusal: `VersionReused`, or `WrongPhase` if the engine still has requests.
            EngineFailure: See `loading.relabel`.
        """
        good = self.good
        new = replace(good, version=version)
        check_labels(self.labels, new)
        if self.phase is Phase.JOINING and not self.is_at_rest:
            await self.end_requests()
        before, label = self.label_of(good), self.label_of(new)
        await loading.relabel(self, label, before)
        self.note_in_engine(new)
        self.kept.loaded(label, before, cleared=self.kept.oldest is None)
        self.good, self.version = new, version

    async def end_leftover_requests(self) -> None:
        """End the requests that a closed worker still has. Called by the watch.

        Errors:
            Refusal: The engine still has requests.
        """
        async with self.lock:
            if self.not_at_rest_since is not None:
                await self.end_requests()

    async def expire_lease(self) -> None:
        """End a pause or an update whose lease has expired. Called by the watch."""
        async with self.lock:
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
                await self._resume(self.version or "", Event.RESUME)

    async def _resume(self, version: str, event: Event) -> None:
        if not after(self.standing, event).admitted:
            raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
        started = self.clock()
        with self.working("resume", version):
            await pausing.resume_engine(self)
        self.enter(event)
        self.note_opened(version, started)

    def _is_loaded(self, request: LoadRequest | ApplyRequest) -> bool:
        """Whether the engine has the weights already, and they have not been staged again."""
        if self.version is None or not is_named_by(self.good, request):
            return False
        staged = self.staging.staged
        return staged is None or not is_named_by(staged, request)

    async def _digest_if_in_engine(self, request: StageRequest) -> str | None:
        """The digest of the engine's weights, if the request is for them.

        If the request has no digest, the files must be unchanged: rewritten files are staged again.
        """
        good = self.good
        if self.version is None or not isinstance(good, Weights) or not good.fulfils(request):
            return None
        if request.digest is None:
            try:
                roots = self.staging.rules.roots
                await self.staging.threads.run(
                    partial(good.checkpoint.check_same_on_disk, roots),
                    store=roots.root_of(good.checkpoint.path),
                )
            except Refusal:
                return None
        return good.digest

    def _log_serving(self) -> None:
        good = self.good
        _LOG.info(
            "serving %s",
            description_of(good),
            extra=fields("serving", version=good.version, run_id=good.run_id, digest=good.digest),
        )
