"""The agent: the calls of whoever drives the worker, one at a time.

Every call checks, in this order: is it late (epoch), may this driver (lease), does it fit (phase).
What it then does happens under the lock, so that calls never interleave; only what must not wait
goes round it: closing the latch, cutting a drain short, renewing a lease.

All calls are idempotent, survive the caller's going away, and leave the worker in a state that
`core.states` knows.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.refused_stages import with_refusal
from fleet_worker.core.states import Event, after
from fleet_worker.protocol import (
    ApplyRequest,
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
from fleet_worker.runtime import loading, pausing, probing
from fleet_worker.runtime.adapter_calls import AdapterCalls
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.reference import resolved
from fleet_worker.runtime.weights import Weights, check_labels, in_words, is_named_by

_LOG = logging.getLogger(__name__)


class Agent(AdapterCalls):
    """A worker that can be driven."""

    async def ready(self) -> None:
        """The engine is up: close it to everybody, label its weights, wait to be admitted."""
        await self.engine.pause(PauseMode.ABORT)
        await self.engine.set_version(self.label_of(self.good))
        self.enter(Event.READY)
        _LOG.info(
            "joining with %s; the latch is closed until the operator admits this worker",
            self.version,
            extra=fields("joining", version=self.version),
        )

    async def stage(self, request: StageRequest, *, by_directory: bool = False) -> str:
        """`PUT stage`: check a version and hold its bytes; without the lock, it disturbs nobody.

        Args:
            request: What, and from where.
            by_directory: A trainer names the directory and no run: another is another run's.

        Returns:
            The digest of the bytes that were meant, staged or in the engine.
        """
        self.obey(request.epoch)
        if self.phase in (Phase.STARTING, Phase.BROKEN, Phase.DRAINING):
            reason = Reason.BROKEN if self.phase is Phase.BROKEN else Reason.WRONG_PHASE
            raise Refusal(reason, f"a worker that is {self.phase} stages nothing")
        try:
            # A branch may have moved since: by its commit, or it could be taken for the same.
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
            request: How.
            keep_cache: Leave what was computed for later weights to read; no call of the operator's
                asks for that.
        """
        self.obey(request.epoch)
        self.check_holder(request.holder)
        if pausing.renew(self, request, keep_cache=keep_cache):
            return
        if self.phase is Phase.PAUSING and request.mode is PauseMode.ABORT:
            self.cut.set()  # takes over from a drain
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
            if self._has(request):
                return
            self.check_step(Event.LOAD)
            self.staging.check_staged(request)
            await loading.hold_still(self)
            weights = self.staging.take(request)
            self.enter(Event.LOAD)
            with self.working("load", weights.version, run_id=weights.run_id):
                await loading.load(self, weights)

    async def apply(self, request: ApplyRequest) -> None:
        """`PUT apply`: pause, load and resume under one lock; refused, the old weights serve on."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        async with self.lock:
            self.check_holder(request.holder)
            if self._has(request):
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
        """`PUT resume` and `PUT admit`: serve, if the version is the one in the engine."""
        self.obey(request.epoch)
        self.check_holder(request.holder)
        async with self.lock:
            self.check_holder(request.holder)
            self.check_step(event)
            if self.version is None or not is_named_by(self.good, request):
                has = in_words(self.good) if self.version is not None else "no version"
                raise Refusal(
                    Reason.VERSION_MISMATCH,
                    f"{has} is in the engine, not {in_words(request)}. Load that first",
                )
            if self.phase is Phase.SERVING and self.is_open:
                return
            if self.phase is Phase.SERVING:
                raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
            if self.phase is Phase.JOINING and not self.is_at_rest:
                await self.come_to_rest()
            await self._resume(request.version, event)
        self._log_serving()

    async def fence(self, request: FenceRequest) -> None:
        """`PUT fence`: close the latch at once, let requests end if there is time, end the rest."""
        self.obey(request.epoch)
        self.close_latch(cut=request.drain_timeout_seconds == 0)
        outlived = False
        async with self.lock:
            try:
                if request.drain_timeout_seconds > 0 and self.phase is Phase.SERVING:
                    self.enter(Event.PAUSE)
                    with self.working("fence"):
                        ended = await self.quiescence.settle(
                            request.drain_timeout_seconds, cut=self.cut
                        )
                    outlived = not ended and not self.cut.is_set()
                    self.quiescence.outlived |= outlived
                await self.on_released()
            finally:
                try:
                    await self.quiesce(Event.FENCE)
                finally:
                    self.quiescence.outlived &= not outlived
        _LOG.info("fenced: %s", request.reason, extra=fields("fenced", reason=request.reason))

    async def probe(self, request: ProbeRequest) -> None:
        """`PUT probe`: run prompts on the weights in the engine."""
        self.obey(request.epoch)
        async with self.lock:
            await probing.probe(self, request)

    async def drain(self, *, patience_seconds: float, drain_timeout_seconds: float = 0) -> float:
        """`POST drain`: let requests end if there is time, end the rest; the process ends next.

        Args:
            patience_seconds: How long ending the rest may take.
            drain_timeout_seconds: How long requests may go on. Held ones go on, too, with the
                weights in the engine; where these are not to be trusted, all requests end at once.

        Returns:
            The seconds of the patience that ending the rest has left over.
        """
        self.close_latch(cut=drain_timeout_seconds == 0)
        if drain_timeout_seconds > 0:
            await self._let_requests_end(drain_timeout_seconds)
        self.quiescence.outlived = True
        self.close_latch()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_seconds
        try:
            async with asyncio.timeout_at(deadline), self.lock:
                self.enter(Event.DRAIN)
                with self.working("drain"):
                    await self.quiescence.reach(self.engine)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends next
            _LOG.warning("draining cut short: %s", error, extra=fields("drain_cut_short"))
        finally:
            self.enter(Event.DRAIN)
        self.adapters.close()
        return max(0.0, deadline - loop.time())

    async def _let_requests_end(self, seconds: float) -> None:
        """Wait until the requests inside have ended, at most so long. Never raises but for
        cancellation.
        """
        try:
            async with asyncio.timeout(seconds), self.lock:
                holds = not self.is_at_rest and self.phase in (Phase.PAUSED, Phase.JOINING)
                trusted = self.version is not None and self.phase is not Phase.BROKEN
                self.enter(Event.DRAIN)
                with self.working("drain"):
                    if holds and trusted and not self.asleep:
                        await self.engine.resume()
                    if trusted:
                        await self.quiescence.settle(seconds, cut=self.cut)
        except TimeoutError:
            _LOG.info("requests have outlived the drain timeout", extra=fields("drain_timeout"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest is ended next
            _LOG.warning("draining cut short: %s", error, extra=fields("drain_cut_short"))

    async def rename(self, version: str) -> None:
        """Call the weights in the engine by another label, under the lock, while nothing generates.

        Errors:
            Refusal: `VersionReused`, or `WrongPhase` if the engine has not come to rest.
            EngineFailure: the label is as it was; or (touched) the last good weights are back
                behind a closed latch, or the process is about to end.
        """
        good = self.good
        new = replace(good, version=version)
        check_labels(self.labels, new)
        if self.phase is Phase.JOINING and not self.is_at_rest:
            await self.come_to_rest()
        before, label = self.label_of(good), self.label_of(new)
        await loading.relabel(self, label, before)
        self.note_in_engine(new)
        self.kept.loaded(label, before, cleared=self.kept.oldest is None)
        self.good, self.version = new, version

    async def seek_rest(self) -> None:
        """End what requests a closed worker still has. Called by the watch.

        Errors:
            Refusal: the engine has not come to rest.
        """
        async with self.lock:
            if self.not_at_rest_since is not None:
                await self.come_to_rest()

    async def expire_lease(self) -> None:
        """End a pause, or an update, whose lease nobody renewed. Called by the watch."""
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
            await loading.hold_still(self)
        if self.phase is not Phase.PAUSED or not self.is_open:
            raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
        weights = self.staging.take(request)
        self.enter(Event.LOAD)
        try:
            await loading.load(self, weights)
        finally:
            # Loaded, or refused with the old weights intact. A load that broke the engine, and a
            # fence meanwhile, have left this phase.
            if self.phase is Phase.PAUSED and self.is_open:
                await self._resume(self.version or "", Event.RESUME)

    async def _resume(self, version: str, event: Event) -> None:
        if not after(self.standing, event).admitted:
            raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
        started = self.clock()
        with self.working("resume", version):
            await pausing.let_go(self)
        self.enter(event)
        self.note_opened(version, started)

    def _has(self, request: LoadRequest | ApplyRequest) -> bool:
        """Whether a load would change nothing: the weights are in the engine, not staged anew."""
        if self.version is None or not is_named_by(self.good, request):
            return False
        staged = self.staging.staged
        return staged is None or not is_named_by(staged, request)

    async def _digest_if_in_engine(self, request: StageRequest) -> str | None:
        """The digest of the engine's weights, if they are what is to be staged.

        Unless the request names the digest, the files are looked at: they may have been rewritten,
        and then their bytes decide.
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
            in_words(good),
            extra=fields("serving", version=good.version, run_id=good.run_id, digest=good.digest),
        )
