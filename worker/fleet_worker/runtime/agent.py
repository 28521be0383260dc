"""The worker: one engine, one lock, and the calls of whoever drives it.

Every call checks, in this order: is it late (epoch), may this driver (lease), does it fit (phase).
What it then does happens under the lock, so that calls never interleave; only what must not wait
goes round it: closing the latch, cutting a drain short, renewing a lease.

All calls are idempotent, survive the caller's going away, and leave the worker in a state that
`core.states` knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fleet_worker.core import fencing
from fleet_worker.core.labels import Labels
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event, Standing, after
from fleet_worker.protocol import (
    Epoch,
    FenceRequest,
    LoadRequest,
    OpenRequest,
    PauseMode,
    PauseRequest,
    Phase,
    Reason,
    StageRequest,
    SwapTimings,
)
from fleet_worker.runtime import loading
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.metrics import WorkerMetrics
from fleet_worker.runtime.ports import Clock, Engine
from fleet_worker.runtime.quiesce import Quiescence, drained
from fleet_worker.runtime.staging import StageRules, Staging, Weights

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal or failure worth remembering until the next success, and when it happened."""

    version: str | None
    reason: Reason
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Work:
    """An operation under way, for the state document."""

    kind: str
    version: str | None
    started: float


class Agent:
    """Drives one engine.

    Fields (read by the state document and the latch; written here only):
        standing: phase, latch, whether the weights changed since the pause.
        good: the weights in the engine, and what a failed load goes back to.
        version: the label of the engine's weights; None while they are not to be trusted.
    """

    def __init__(
        self,
        engine: Engine,
        initial: Weights,
        rules: StageRules,
        *,
        clock: Clock,
        metrics: WorkerMetrics,
        end_process: Callable[[str], None],
    ) -> None:
        """Make an agent for an engine that has started on `initial`.

        Args:
            engine: What to drive.
            initial: The weights it started on.
            rules: What staging goes by.
            clock: Monotonic seconds.
            metrics: Where swaps and refusals are counted.
            end_process: Ends the process with a failure, for the reason given: nothing can be
                served any more.
        """
        self.engine = engine
        self.standing = Standing(Phase.STARTING)
        self.good = initial
        self.version: str | None = initial.version
        self.epoch: Epoch | None = None
        self.lease: fencing.Lease | None = None
        self.lease_expiries = 0
        self.stage_failure: Fault | None = None
        self.load_failure: Fault | None = None
        self.timings: SwapTimings | None = None
        self.work: Work | None = None
        self.changed = asyncio.Event()
        self.quiescence = Quiescence()
        self.clock = clock
        self._metrics = metrics
        self._end_process = end_process
        self._lock = asyncio.Lock()
        self._cut = asyncio.Event()
        self.labels = Labels()
        self.labels.remember(initial.version, initial.checkpoint.identity)
        self.staging = Staging(rules, self.labels, clock, self._make_room)

    @property
    def phase(self) -> Phase:
        """Where the worker stands."""
        return self.standing.phase

    @property
    def is_open(self) -> bool:
        """Whether the latch lets data requests in."""
        return self.standing.admitted

    def requests(self) -> tuple[int, int]:
        """How many requests generate now, and how many are held."""
        unfinished = self.engine.unfinished()
        if self.phase in (Phase.SERVING, Phase.PAUSING):
            return unfinished, 0
        return 0, unfinished

    async def ready(self) -> None:
        """The engine is up: close it to everybody, label its weights, wait to be admitted."""
        await self.engine.pause(PauseMode.ABORT)
        await self.engine.set_version(self.good.version)
        self._enter(Event.READY)
        _LOG.info(
            "joining with %s; the latch is closed until the operator admits this worker",
            self.version,
            extra=fields("joining", version=self.version),
        )

    async def stage(self, request: StageRequest) -> None:
        """`PUT stage`: see the protocol."""
        self._obey(request.epoch)
        if self.phase in (Phase.STARTING, Phase.BROKEN, Phase.DRAINING):
            reason = Reason.BROKEN if self.phase is Phase.BROKEN else Reason.WRONG_PHASE
            raise Refusal(reason, f"a worker that is {self.phase} stages nothing")
        if request.version == self.version and self.good.fulfils(request):
            return
        try:
            await self.staging.stage(request)
        except Refusal as refusal:
            if refusal.reason is not Reason.SUPERSEDED:
                self.stage_failure = self._fault(request.version, refusal)
                self._metrics.refused(refusal.reason)
            raise
        self.stage_failure = None
        staged = self.staging.staged
        if staged is not None and staged.stage_seconds is not None:
            self._metrics.staged(staged.stage_seconds)

    async def pause(self, request: PauseRequest) -> None:
        """`PUT pause`: stop generating, or renew the lease of a pause."""
        self._obey(request.epoch)
        self._check_holder(request.holder)
        if self._renew(request):
            return
        if self.phase is Phase.PAUSING and request.mode is PauseMode.ABORT:
            self._cut.set()  # takes over from a drain
        async with self._lock:
            self._check_holder(request.holder)
            if self._renew(request):
                return
            if self.phase is Phase.PAUSED:
                await self._abort_held(request)
            else:
                await self._stop_for(request)

    async def load(self, request: LoadRequest) -> None:
        """`PUT load`: put the staged version into the engine."""
        self._obey(request.epoch)
        self._check_holder(request.holder)
        async with self._lock:
            self._check_holder(request.holder)
            if request.version == self.version and self.staging_is_for_another(request.version):
                return
            after(self.standing, Event.LOAD)
            weights = self.staging.take(request.version)
            self._enter(Event.LOAD)
            with self._working("load", request.version):
                await self._load(weights)

    async def open(self, request: OpenRequest, event: Event) -> None:
        """`PUT resume` and `PUT admit`: serve, if the version is the one in the engine."""
        self._obey(request.epoch)
        self._check_holder(request.holder)
        async with self._lock:
            self._check_holder(request.holder)
            after(self.standing, event)
            if request.version != self.version:
                raise Refusal(
                    Reason.VERSION_MISMATCH,
                    f"{self.version} is in the engine, not {request.version}",
                )
            if self.phase is Phase.SERVING:
                return
            started = self.clock()
            with self._working("resume", request.version):
                await self.engine.resume()
            self._enter(event)
            self._note_opened(request.version, started)

    async def fence(self, request: FenceRequest) -> None:
        """`PUT fence`: close the latch at once, then end what is running."""
        self._obey(request.epoch)
        self._close_latch()
        async with self._lock:
            await self._quiesce(Event.FENCE)
        _LOG.info("fenced: %s", request.reason, extra=fields("fenced", reason=request.reason))

    async def drain(self, *, patience_seconds: float) -> None:
        """`POST drain`: end all requests with the tokens they have; the process ends next."""
        self._close_latch()
        try:
            async with asyncio.timeout(patience_seconds):
                async with self._lock:
                    self._enter(Event.DRAIN)
                    with self._working("drain"):
                        await self.quiescence.reach(self.engine)
        except (TimeoutError, EngineFailure) as error:
            self._enter(Event.DRAIN)
            _LOG.warning("draining cut short: %s", error, extra=fields("drain_cut_short"))

    async def expire_lease(self) -> None:
        """End a pause whose lease nobody renewed. Called by the watch; does nothing before time."""
        async with self._lock:
            lease = self.lease
            expired = lease is not None and lease.has_expired(self.clock())
            if not expired or self.phase is not Phase.PAUSED or lease is None:
                return
            self.lease_expiries += 1
            if self.standing.loaded:
                await self._quiesce(Event.LEASE_EXPIRED)
            else:
                await self.engine.resume()
                self.lease = None
                self._enter(Event.LEASE_EXPIRED)
            _LOG.warning(
                "%s did not renew its pause in time; now %s on %s",
                lease.holder,
                self.phase,
                self.version,
                extra=fields("lease_expired", holder=lease.holder, phase=self.phase),
            )

    def staging_is_for_another(self, version: str) -> bool:
        """Whether no fresh bytes of this version are staged: loading it again would change nothing."""
        return self.staging.staged is None or self.staging.staged.version != version

    # --- the steps ---------------------------------------------------------------------------

    async def _abort_held(self, request: PauseRequest) -> None:
        """A pause that held requests becomes one that ends them."""
        with self._working("pause"):
            await self.engine.pause(request.mode)
        since = self.lease.since if self.lease is not None else self.clock()
        self._hold(request, request.mode, timed_out=False, since=since)

    async def _stop_for(self, request: PauseRequest) -> None:
        self._enter(Event.PAUSE)
        started = self.clock()
        with self._working("pause"):
            timed_out = await self._stop_generating(request)
        self.lease = None
        self._enter(Event.PAUSED)
        if self.phase is not Phase.PAUSED:
            return  # fenced meanwhile: the fence goes on from here
        mode = PauseMode.KEEP if timed_out else request.mode
        self._hold(request, mode, timed_out=timed_out, since=started)
        seconds = self.clock() - started
        self.timings = SwapTimings(version=self.version or "", pause_seconds=seconds)

    async def _stop_generating(self, request: PauseRequest) -> bool:
        """Pause the engine; answers whether a drain ran into its deadline."""
        self._cut.clear()
        try:
            if request.mode is not PauseMode.WAIT:
                await self.engine.pause(request.mode)
                return False
            return not await drained(
                self.engine, request.drain_timeout_seconds, cut=self._cut, clock=self.clock
            )
        except EngineFailure:
            self._enter(Event.PAUSE_FAILED)
            await self.engine.resume()
            raise

    async def _load(self, weights: Weights) -> None:
        started = self.clock()
        try:
            await loading.put_in(self.engine, weights, self.staging.rules.roots)
        except Refusal as refusal:
            self._note_load_refused(weights, refusal)
            raise
        except EngineFailure as failure:
            if not failure.touched:
                self._note_load_refused(weights, failure)
                raise
            self.load_failure = self._fault(weights.version, failure)
            await self._recover(weights, failure)
            raise
        previous, self.good = self.good, weights
        self.version = weights.version
        self.labels.remember(weights.version, weights.checkpoint.identity)
        if previous.checkpoint is not weights.checkpoint:
            previous.checkpoint.close()
        self.load_failure = None
        self._enter(Event.LOADED)
        seconds = self.clock() - started
        self._metrics.loaded(seconds)
        timings = self.timings or SwapTimings(version=weights.version)
        self.timings = timings.model_copy(
            update={
                "version": weights.version,
                "stage_seconds": weights.stage_seconds,
                "load_seconds": seconds,
            }
        )
        _LOG.info(
            "%s is in the engine", weights.version, extra=fields("loaded", version=weights.version)
        )

    async def _recover(self, failed: Weights, failure: EngineFailure) -> None:
        """The model is neither old nor new: close, put the last good version back, or end."""
        self.version = None
        self.lease = None
        self._cut.set()
        self._enter(Event.LOAD_FAILED)
        self._metrics.failed(failure.reason)
        failed.checkpoint.close()
        _LOG.error(
            "loading %s failed inside the engine (%s); putting %s back",
            failed.version,
            failure.message,
            self.good.version,
            extra=fields("broken", version=failed.version, reason=failure.reason),
        )
        try:
            await self.quiescence.reach(self.engine)
            await loading.put_in(self.engine, self.good, None)
        except (Refusal, EngineFailure) as error:
            self._end_process(f"{self.good.version} could not be put back: {error.message}")
            return
        self.version = self.good.version
        self._enter(Event.RECOVERED)
        _LOG.warning(
            "%s is in the engine again; the latch stays closed until the operator admits it",
            self.version,
            extra=fields("recovered", version=self.version),
        )

    async def _quiesce(self, event: Event) -> None:
        """Close the latch, end all requests, then take the step that `event` stands for."""
        self._close_latch()  # again: an admission may have held the lock meanwhile
        with self._working("fence"):
            await self.quiescence.reach(self.engine)
        self.lease = None
        self._enter(event)

    # --- small things ------------------------------------------------------------------------

    def _obey(self, epoch: Epoch) -> None:
        self.epoch = fencing.newest(self.epoch, epoch)

    def _check_holder(self, holder: str) -> None:
        fencing.check_holder(self.lease, holder, self.clock())

    def _renew(self, request: PauseRequest) -> bool:
        """Renew the lease if there is one and the mode asks for nothing new."""
        lease, phase = self.lease, self.phase
        if lease is None or phase not in (Phase.PAUSED, Phase.LOADING):
            return False
        stronger = request.mode is PauseMode.ABORT and lease.mode is not PauseMode.ABORT
        if stronger and phase is Phase.PAUSED:
            return False
        self.lease = lease.renewed(self.clock(), request.lease_seconds)
        self.changed.set()
        return True

    def _hold(
        self, request: PauseRequest, mode: PauseMode, *, timed_out: bool, since: float
    ) -> None:
        expires = self.clock() + request.lease_seconds
        self.lease = fencing.Lease(mode, request.holder, since, expires, drain_timed_out=timed_out)
        self.changed.set()

    def _close_latch(self) -> None:
        self.standing = replace(self.standing, admitted=False)
        self._cut.set()
        self.changed.set()

    def _enter(self, event: Event) -> None:
        self.standing = after(self.standing, event)
        self.changed.set()

    def _note_opened(self, version: str, started: float) -> None:
        now = self.clock()
        paused = now - self.lease.since if self.lease is not None else None
        self.lease = None
        if paused is not None:
            self._metrics.paused(paused)
        timings = self.timings or SwapTimings(version=version)
        self.timings = timings.model_copy(
            update={"version": version, "resume_seconds": now - started, "paused_seconds": paused}
        )
        _LOG.info("serving %s", version, extra=fields("serving", version=version))

    def _note_load_refused(self, weights: Weights, why: Refusal | EngineFailure) -> None:
        if why.reason is Reason.CHECKPOINT_CHANGED:
            weights.checkpoint.close()  # staging it again reads what is there now
        else:
            self.staging.give_back(weights)
        self.load_failure = self._fault(weights.version, why)
        self._metrics.refused(why.reason)
        self._enter(Event.LOAD_REFUSED)

    def _fault(self, version: str | None, why: Refusal | EngineFailure) -> Fault:
        return Fault(version, why.reason, why.message, self.clock())

    def _make_room(self, size: int) -> int:
        """Give up the last good version's bytes in memory if both do not fit.

        Not while a load runs, which may have to put them back.
        """
        budget = self.staging.rules.budget_bytes
        held = self.good.checkpoint.size_bytes if self.good.in_memory else 0
        in_use = self.phase in (Phase.LOADING, Phase.BROKEN)
        if held and held + size > budget and not in_use:
            self.good.checkpoint.release()
            self.good = replace(self.good, in_memory=False)
            held = 0
        return budget - held

    @contextmanager
    def _working(self, kind: str, version: str | None = None) -> Iterator[None]:
        self.work = Work(kind, version, self.clock())
        try:
            yield
        finally:
            self.work = None
