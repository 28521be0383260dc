"""What is true of a worker: the one record that every step reads and writes.

The steps (`pausing`, `loading`) change it, the agent puts them in order, the state document, the
latch and the metrics read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.core import fencing
from fleet_worker.core.kept_cache import KeptCache
from fleet_worker.core.labels import Labels
from fleet_worker.core.probing import History
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event, Standing, after
from fleet_worker.core.weight_names import WeightName, WeightNames
from fleet_worker.protocol import Epoch, LoadEffect, PauseMode, Phase, Reason, SwapTimings
from fleet_worker.runtime.adapters import Adapters
from fleet_worker.runtime.limits import Limits, TimedEngine
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.metrics import WorkerMetrics
from fleet_worker.runtime.ports import Clock, Engine
from fleet_worker.runtime.quiesce import Quiescence
from fleet_worker.runtime.staging import StageRules, Staging
from fleet_worker.runtime.store_threads import leave
from fleet_worker.runtime.weights import Received, Weights

_LOG = logging.getLogger(__name__)
_RUNNING = frozenset({Phase.SERVING, Phase.PAUSING, Phase.DRAINING})
"""Phases in which unfinished requests generate."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal or failure worth remembering until the next success, and when it happened.

    Fields:
        source: where the weights came from, in words, if that is known.
    """

    version: str | None
    reason: Reason
    message: str
    at: float
    run_id: str | None = None
    source: str | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AdapterFault(Fault):
    """A refusal or failure of an adapter."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """An operation under way, for the state document."""

    kind: str
    version: str | None
    started: float
    run_id: str | None = None


class Worker:
    """One engine and all that is known about it.

    Fields:
        standing: phase, latch, whether the weights changed since the pause.
        good: the weights in the engine, and what a failed load goes back to.
        version: of the engine's weights; None while they are not to be trusted.
        labels: what versions have stood for.
        names: what the engine's labels stand for.
        lease: of the pause, while there is one.
        changed: set whenever something changed that the watch waits for.
        cut: set when a drain or a probe must not go on, until it has ended.
        quiescence: counts the data requests that are inside.
        lock: calls that change something hold it, so that they never interleave.
        on_released: what else ends, besides a pause, when its driver has lost the worker.
        adapters: LoRA adapters in the engine.
        may_rename: no token was made yet by the weights that were loaded last.
        asleep: the engine has given its memory up.
        preparing: an adapter that is being checked and read.
        probes: what prompts have shown.
        effect: what the last load has changed.
        kept: which weights' keys and values the engine may still be reading.
        not_at_rest_since: when ending the requests of a closed worker failed first; None once the
            engine has come to rest.
        end_process: ends the process with a failure, for the reason given.
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
        adapters: Adapters | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Make the record of an engine that has started on `initial`.

        Args:
            engine: What to drive.
            initial: The weights it started on.
            rules: What staging goes by.
            clock: Monotonic seconds.
            metrics: Where swaps are counted.
            end_process: Called when nothing can be served any more.
            adapters: Of the engine; without, it has no room for any.
            limits: How long to wait for the engine and for files.
        """
        self.limits = limits or Limits()
        self.cut = asyncio.Event()
        self.engine: Engine = TimedEngine(engine, self.limits, self.cut)
        self.clock = clock
        self.metrics = metrics
        self.end_process = end_process
        self.standing = Standing(Phase.STARTING)
        self.good: Weights | Received = initial
        self.version: str | None = initial.version
        self.epoch: Epoch | None = None
        self.lease: fencing.Lease | None = None
        self.lease_expiries = 0
        self.refused_stages: tuple[Fault, ...] = ()
        self.load_failure: Fault | None = None
        self.timings: SwapTimings | None = None
        self.effect: LoadEffect | None = None
        self.work: Work | None = None
        self.changed = asyncio.Event()
        self.quiescence = Quiescence()
        self.lock = asyncio.Lock()
        self.on_released: Callable[[], Awaitable[None]] = _nothing
        self.labels = Labels()
        self.names = WeightNames()
        self.note_in_engine(initial)
        self.staging = Staging(rules, self.labels, clock, self._make_room)
        self.adapters = adapters or Adapters(engine, slots=0, max_rank=0)
        self.adapters.engine = self.engine
        self.may_rename = False
        self.asleep = False
        self.adapter_failure: AdapterFault | None = None
        self.preparing: Work | None = None
        self.probes = History()
        self.kept = KeptCache()
        self.not_at_rest_since: float | None = None

    @property
    def phase(self) -> Phase:
        """Where the worker stands."""
        return self.standing.phase

    @property
    def is_open(self) -> bool:
        """Whether the latch lets data requests in."""
        return self.standing.admitted

    @property
    def is_at_rest(self) -> bool:
        """Whether the latch is closed and the engine paused, with no request in it."""
        return self.standing.at_rest and self.engine.unfinished() == 0

    @property
    def name(self) -> WeightName | None:
        """What the engine's weights are called; None while they are not to be trusted."""
        return self.good.name if self.version is not None else None

    def label_of(self, weights: Weights | Received) -> str:
        """What the engine calls some weights; it leaves the worker nowhere."""
        return self.names.label_of(weights.name, weights.mark)

    def note_in_engine(self, weights: Weights | Received) -> None:
        """Remember what weights in the engine are called, and that no others may be."""
        self.names.note_loaded(weights.name)
        for label in weights.stands_for:
            self.labels.remember(label, weights.identity, weights.origin)

    def requests(self) -> tuple[int, int]:
        """How many requests generate now, and how many are held."""
        unfinished = self.engine.unfinished()
        if self.phase in _RUNNING or self.not_at_rest_since is not None:
            return unfinished, 0
        return 0, unfinished

    def check_step(self, event: Event) -> None:
        """Refuse what does not fit the phase. That a closed worker is not at rest does not matter:
        it is brought to rest before the step is taken.
        """
        after(replace(self.standing, at_rest=True), event)

    def enter(self, event: Event) -> None:
        """Take a step of the transition table; raises `Refusal` if there is none."""
        self.standing = after(self.standing, event)
        if self.standing.at_rest or self.phase is Phase.DRAINING:
            self.not_at_rest_since = None
        self.changed.set()

    def close_latch(self, *, cut: bool = True) -> None:
        """Let nobody in any more, from this moment on; the phase follows.

        Args:
            cut: Also end the drain that is under way.
        """
        self.standing = replace(self.standing, admitted=False)
        if cut:
            self.cut.set()
        self.changed.set()

    async def quiesce(self, event: Event) -> None:
        """Close the latch, end all requests, then take the step that `event` stands for.

        The phase follows the latch also if the requests do not end: then the worker is closed and
        not at rest (`lose_rest`).

        Errors:
            Refusal: the step does not fit; the latch is closed and nothing else has changed.
            EngineFailure: the engine has not come to rest.
        """
        self.close_latch()  # again: an admission may have held the lock meanwhile
        after(self.standing, event)
        try:
            with self.working("fence"):
                await self.quiescence.reach(self.engine)
        except BaseException:
            self.lose_rest()
            raise
        finally:
            self.cut.clear()
            self.lease = None
        self.kept.clear()
        self.enter(event)

    def lose_rest(self) -> None:
        """The latch is closed, and the engine may still hold requests or generate.

        The watch goes on to end them, and ends the process if they do not end.
        """
        if self.phase is Phase.DRAINING:
            return
        self.enter(Event.NOT_AT_REST)
        if self.not_at_rest_since is None:
            self.not_at_rest_since = self.clock()
            _LOG.error(
                "the latch is closed and the engine is not at rest; the worker goes on ending its"
                " requests",
                extra=fields("not_at_rest", unfinished=self.engine.unfinished()),
            )

    async def come_to_rest(self) -> None:
        """End what requests a closed worker still has. Under the lock.

        Errors:
            Refusal: `WrongPhase`; the engine has not come to rest.
        """
        try:
            await self.quiesce(Event.FENCE)
        except EngineFailure as failure:
            raise Refusal(
                Reason.WRONG_PHASE,
                f"the engine of this closed worker has not come to rest ({failure.message}). The"
                " worker keeps ending its requests, and ends its process if that does not succeed",
            ) from failure

    async def hold(self) -> None:
        """Pause the engine of a paused worker again, as its pause says. Under the lock.

        Vouches for a pause before weights change, and mends one whose end has failed midway.

        Errors:
            EngineFailure: the engine failed; the worker is closed and not at rest.
        """
        lease = self.lease
        aborts = lease is not None and lease.mode is PauseMode.ABORT
        try:
            await self.engine.pause(
                PauseMode.ABORT if aborts else PauseMode.KEEP,
                keep_cache=lease is not None and lease.cache_kept,
            )
        except BaseException:
            self.close_latch()
            self.lease = None
            self.lose_rest()
            raise

    def note_opened(self, version: str, started: float) -> None:
        """The worker serves (again), after a resume that began at `started`."""
        self.may_rename = False
        now = self.clock()
        paused = now - self.lease.since if self.lease is not None else None
        self.lease = None
        if paused is not None:
            self.metrics.paused(paused)
        timings = self.timings or SwapTimings(version=version)
        self.timings = timings.model_copy(
            update={"version": version, "resume_seconds": now - started, "paused_seconds": paused}
        )

    def fault(
        self,
        version: str | None,
        why: Refusal | EngineFailure,
        *,
        run_id: str | None = None,
        source: str | None = None,
    ) -> Fault:
        """A failure as the state document remembers it."""
        retry = why.retry_after_seconds if isinstance(why, Refusal) else None
        return Fault(version, why.reason, why.message, self.clock(), run_id, source, retry)

    @contextmanager
    def working(
        self, kind: str, version: str | None = None, *, run_id: str | None = None
    ) -> Iterator[None]:
        """Show an operation in the state document while it runs; the innermost one is shown."""
        outer, self.work = self.work, Work(kind, version, self.clock(), run_id)
        try:
            yield
        finally:
            self.work = outer

    def dispose(self, checkpoint: Checkpoint) -> None:
        """Give a checkpoint's memory back, some time: freeing takes the kernel 0.2 s a GB."""
        leave(checkpoint.close)

    def memory_left(self) -> int:
        """How many bytes may still be held."""
        taken = self._held_bytes() + self.adapters.size_bytes
        if (staged := self.staging.staged) is not None and staged.in_memory:
            taken += staged.checkpoint.size_bytes
        return max(0, self.staging.rules.budget_bytes - taken)

    def _held_bytes(self) -> int:
        """Of the last good version, should a load fail."""
        good = self.good
        in_memory = isinstance(good, Weights) and good.in_memory
        return good.checkpoint.size_bytes if in_memory and good.checkpoint else 0

    async def _make_room(self, size: int) -> int:
        """Give up the last good version's bytes in memory if both do not fit.

        Not while a load runs, which may have to put them back.
        """
        budget = self.staging.rules.budget_bytes - self.adapters.size_bytes
        good, held = self.good, self._held_bytes()
        in_use = self.phase in (Phase.LOADING, Phase.BROKEN)
        if isinstance(good, Weights) and held and held + size > budget and not in_use:
            self.good = replace(good, in_memory=False)
            await asyncio.to_thread(good.checkpoint.release)
            held = 0
        return budget - held


async def _nothing() -> None:
    return
