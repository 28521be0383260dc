"""The record of a worker's state, which every step reads and writes.

The steps (`pausing`, `loading`) change it and the agent orders them. The state document, the latch
and the metrics read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import HeldBase
from fleet_worker.checkpoint.identity import Labels, WeightName, WeightNames
from fleet_worker.checkpoint.peers import Peers
from fleet_worker.checkpoint.reference import StageRules
from fleet_worker.checkpoint.store_threads import leave
from fleet_worker.engine.limits import Limits, timed
from fleet_worker.engine.port import Clock, Engine
from fleet_worker.errors import EngineFailure, Fault, Refusal
from fleet_worker.lifecycle import authority
from fleet_worker.lifecycle.canary_report import History
from fleet_worker.lifecycle.freshness import Freshness
from fleet_worker.lifecycle.held_bytes import HeldByEngine
from fleet_worker.lifecycle.holding import Holding, Outcome, origins_of
from fleet_worker.lifecycle.kept_cache import KeptCache
from fleet_worker.lifecycle.load_effects import effect_never_compared
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.lifecycle.quiesce import Quiescence
from fleet_worker.lifecycle.sessions import Sessions
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.lifecycle.states import Event, LifecycleState, after
from fleet_worker.lifecycle.weights import Received, Weights
from fleet_worker.lora.slots import Adapters
from fleet_worker.protocol import Epoch, LoadEffect, Phase, SwapTimings

_RUNNING = frozenset({Phase.SERVING, Phase.PAUSING, Phase.DRAINING})
"""Phases in which unfinished requests generate."""


@dataclass(frozen=True, slots=True)
class Work:
    """A running operation, for the state document."""

    kind: str
    version: str | None
    started: float
    run_id: str | None = None


class Worker:
    """One engine and the state of its worker.

    Fields:
        lifecycle: phase, latch, and whether the weights changed since the pause.
        good: the last good weights, in the engine or to be loaded again after a failed load.
        version: version of the engine's weights; None while they cannot be trusted.
        labels: the weights that each label belongs to.
        names: the weights that each of the engine's labels names.
        lease: lease of the current pause.
        changed: set at each change that the watch waits for.
        cut: set to end a running drain or canary prompts early.
        ends_pause: the call that holds the lock is about to end the current pause.
        generates: the engine takes requests, as far as the worker has asked it to.
        steps: the number of steps of `lifecycle` so far.
        overdue: set to end a call that moves weights and has outlived its lease.
        held: the requests that arrived during a pause.
        held_by_engine: the versions that the engine's processes may map.
        quiescence: counts the requests inside the worker.
        sessions: counts the sessions that requests named lately.
        freshness: how far the weights are behind the desired version.
        lock: held by every call that changes the worker, so that calls never interleave.
        on_released: called when the holder of a pause loses the worker, to end its transfer.
        adapters: LoRA adapters in the engine.
        may_rename: the weights that were loaded last have made no token yet.
        asleep: the engine has freed its memory.
        canary_history: results of canary prompts.
        effect: changes that the last load made.
        kept: the weights whose keys and values may still be in the KV cache.
        unsettled: set from the begin of a load until `settling.settle`.
        uncompared: `effect` is not compared yet.
        made_ready: a staged version, and how a load will copy its bytes.
        not_idle_since: when the worker first failed to end the requests behind its closed
            latch; None while it is idle.
        end_process: ends the process with exit code 1, for the reason given.
        loads_in_place: a load writes only what differs from the version in the engine, where it can.
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
        peers: Peers | None = None,
        loads_in_place: bool = False,
    ) -> None:
        """Make the record of an engine that has started on `initial`.

        `end_process`: called when the worker cannot serve any more. `adapters`: by default the engine has no slots for them.
        """
        self.loads_in_place = loads_in_place
        self.limits = limits or Limits()
        self.cut = asyncio.Event()
        self.overdue = asyncio.Event()
        self.engine = timed(engine, self.limits, (self.cut, self.overdue))
        self.held_by_engine = HeldByEngine(self.engine)
        self.clock = clock
        self.metrics = metrics
        self.end_process = end_process
        self.lifecycle = LifecycleState(Phase.STARTING)
        self.generates = False
        self.steps = 0
        self.good: Weights | Received = initial
        self.version: str | None = initial.version
        self.epoch: Epoch | None = None
        self.lease: authority.PauseLease | None = None
        self.ends_pause = False
        self.lease_expiries = 0
        self.refused_stages: tuple[Fault, ...] = ()
        self.load_failure: Fault | None = None
        self.timings: SwapTimings | None = None
        self.effect: LoadEffect | None = None
        self.work: Work | None = None
        self.changed = asyncio.Event()
        self.held = Holding()
        self.quiescence = Quiescence()
        self.sessions = Sessions(clock)
        self.freshness = Freshness(clock)
        self.lock = asyncio.Lock()
        self.on_released: Callable[[], Awaitable[None]] = _nothing
        self.labels = Labels()
        self.names = WeightNames()
        self.note_in_engine(initial)
        self.staging = Staging(
            rules, self.labels, clock, self._make_room, self._bases, metrics.staged, peers
        )
        self.adapters = adapters or Adapters(engine, slots=0, max_rank=0)
        self.adapters.engine = self.engine
        self.may_rename = False
        self.asleep = False
        self.canary_history = History()
        self.kept = KeptCache()
        self.unsettled = asyncio.Event()
        self.uncompared = False
        self.made_ready: tuple[Weights | None, str] = (None, "")
        self.not_idle_since: float | None = None

    @property
    def phase(self) -> Phase:
        """The worker's phase."""
        return self.lifecycle.phase

    @property
    def is_open(self) -> bool:
        """Whether the latch is open."""
        return self.lifecycle.admitted

    @property
    def holds(self) -> bool:
        """Whether a request that arrives now waits for the end of a pause."""
        return self.is_open and self.phase is not Phase.SERVING

    async def let_in(self, request_id: str, since: int) -> bool:
        """Wait until the worker generates; say whether a request that vLLM has refused may be sent again.

        Args:
            request_id: The engine's id of the request.
            since: `steps` when it was sent. If none has come since, it was refused for another reason than a pause.
        """
        if self.generates and self.steps == since:
            return False
        while not self.generates:
            drains = self.phase is Phase.DRAINING and not self.cut.is_set()
            if not (self.holds or drains):
                return False
            with self.held.place(origins_of(request_id)) as end:
                if await end is not Outcome.LET_IN:
                    return False
        return not self.held.is_aborted(request_id)

    @property
    def changes(self) -> bool:
        """Whether the weights in the engine change."""
        return self.phase in (Phase.LOADING, Phase.BROKEN)

    @property
    def is_idle(self) -> bool:
        """Whether the worker is idle: its latch is closed, its engine paused and without requests."""
        return self.lifecycle.idle and self.engine.unfinished() == 0

    @property
    def name(self) -> WeightName | None:
        """The name of the engine's weights; None while they cannot be trusted."""
        return self.good.name if self.version is not None else None

    def label_of(self, weights: Weights | Received) -> str:
        """The engine's label for weights. It never leaves the worker."""
        return self.names.label_of(weights.name, weights.mark)

    def note_in_engine(self, weights: Weights | Received) -> None:
        """Record the name and labels of weights in the engine; other weights cannot have them."""
        self.names.note_loaded(weights.name)
        for label in weights.labels_in_engine:
            self.labels.remember(label, weights.identity, weights.origin)

    def requests(self) -> tuple[int, int]:
        """How many requests generate now, and how many are held."""
        unfinished, waiting = self.engine.unfinished(), self.held.count
        if self.phase in _RUNNING or self.not_idle_since is not None:
            return unfinished, waiting
        return 0, unfinished + waiting

    def check_step(self, event: Event) -> None:
        """Refuse a step that does not fit the phase.

        A closed worker may still have requests: they are ended before the step.
        """
        after(replace(self.lifecycle, idle=True), event)

    def enter(self, event: Event) -> None:
        """Take a step of the transition table; raises `Refusal` if the table does not have it."""
        self.lifecycle = after(self.lifecycle, event)
        self.steps += 1
        if self.phase is not Phase.DRAINING:
            self.generates = self.phase is Phase.SERVING and self.is_open
        if event is Event.LOAD:
            self.unsettled.set()
        elif event is Event.LOAD_FAILED:
            if self.uncompared and self.effect is not None:
                self.effect = effect_never_compared(self.effect)
            self.uncompared = False
        if self.lifecycle.idle or self.phase is Phase.DRAINING:
            self.not_idle_since = None
        if self.phase is Phase.SERVING and self.is_open:
            self.held.end(Outcome.LET_IN)
        elif self.phase is Phase.BROKEN:
            self.held.end(Outcome.TURNED_AWAY)
        self.changed.set()

    def close_latch(self, *, cut: bool = True) -> None:
        """Close the latch at once. The caller changes the phase later.

        `cut`: also end a running drain early, and the wait of held requests.
        """
        self.lifecycle = replace(self.lifecycle, admitted=False)
        if cut:
            self.cut.set()
            self.held.end(Outcome.TURNED_AWAY)
        self.changed.set()

    def note_opened(self, version: str, started: float, *, held: int) -> None:
        """Record that the worker serves, after a resume that began at `started` with `held` requests."""
        now = self.clock()
        paused = now - self.lease.since if self.lease is not None else None
        self.lease = None
        if paused is not None:
            self.metrics.paused.observe(paused)
        timings = self.timings or SwapTimings(version=version)
        self.timings = timings.model_copy(
            update={"version": version, "resume_seconds": now - started, "paused_seconds": paused}
            | ({"requests_held": held} if paused is not None else {})
        )

    def fault(
        self,
        version: str | None,
        error: Refusal | EngineFailure,
        *,
        run_id: str | None = None,
        source: str | None = None,
    ) -> Fault:
        """A refusal or failure for the state document."""
        retry = error.retry_after_seconds if isinstance(error, Refusal) else None
        return Fault(version, error.reason, error.message, self.clock(), run_id, source, retry)

    @contextmanager
    def working(
        self, kind: str, version: str | None = None, *, run_id: str | None = None
    ) -> Iterator[None]:
        """Show an operation in the state document while it runs. The innermost one is shown."""
        outer, self.work = self.work, Work(kind, version, self.clock(), run_id)
        try:
            yield
        finally:
            self.work = outer

    def dispose(self, checkpoint: Checkpoint) -> None:
        """Free a checkpoint in a thread, because freeing takes the kernel 0.2 s per GB."""
        leave(checkpoint.close)

    def memory_left(self) -> int:
        """The memory that is left for checkpoints and LoRA adapters, in bytes."""
        taken = self._held_bytes() + self.adapters.size_bytes + self.held_by_engine.changes_bytes
        if (staged := self.staging.staged) is not None and staged.in_memory:
            taken += staged.checkpoint.size_bytes
        for weights in (staged, self.good):
            if isinstance(weights, Weights):
                taken += weights.checkpoint.delta_bytes
        return max(0, self.staging.rules.budget_bytes - taken)

    def _held_bytes(self) -> int:
        """The memory of the last good version, which a failed load needs."""
        good = self.good
        in_memory = isinstance(good, Weights) and good.in_memory
        return good.checkpoint.size_bytes if in_memory and good.checkpoint else 0

    async def _make_room(self, size: int) -> int:
        """Free the last good version's memory if it and a new version do not both fit.

        Not during a load, which may have to load the last good version again. And not if no file has it, as the
        result of a delta. Memory that the engine does not let go of is not free.
        """
        await self.held_by_engine.let_go(lambda: not self.changes and not self.staging.staged)
        if isinstance(self.good, Weights):
            await asyncio.to_thread(self.good.checkpoint.drop_delta)
        in_use = self.changes  # a change of weights may have begun meanwhile
        budget = self._budget() - self._mapped_bytes()
        good, held = self.good, self._held_bytes()
        leaves = isinstance(good, Weights) and not good.checkpoint.is_only_in_memory
        if isinstance(good, Weights) and leaves and held and held + size > budget and not in_use:
            self.good = on_disk = replace(good, in_memory=False)
            leaving = partial(self.staging.rules.inspector.leave_memory, good.checkpoint)
            try:
                await asyncio.to_thread(leaving)
            except Refusal:
                if self.good is on_disk:
                    self.good = good
                raise
            held, budget = 0, self._budget() - self._mapped_bytes()
        return max(0, budget - held)

    def _budget(self) -> int:
        return self.staging.rules.budget_bytes - self.adapters.size_bytes

    def _mapped_bytes(self) -> int:
        """The memory that only the engine may still have."""
        good = self.good
        in_memory = isinstance(good, Weights) and good.in_memory
        held = self.held_by_engine
        return held.size_beside(good.checkpoint if in_memory else None) + held.changes_bytes

    def _bases(self) -> tuple[HeldBase, ...]:
        """The weights that the worker holds, which a delta may change: duplicates, with their own descriptors.

        Their memory is used if the result fits next to it, else their files.
        """
        room = self.staging.rules.budget_bytes - self.adapters.size_bytes - self._held_bytes()
        found = []
        for weights in (self.staging.staged, self.good):
            if not isinstance(weights, Weights):
                continue
            checkpoint = weights.checkpoint
            of_staged = weights is not self.good and weights.in_memory
            extra = checkpoint.size_bytes if of_staged else 0
            from_memory = weights.in_memory and checkpoint.size_bytes + extra <= room
            if from_memory or not checkpoint.is_only_in_memory:
                duplicate = checkpoint.duplicate(from_memory=from_memory)
                found.append(HeldBase(weights.digest, duplicate, extra if from_memory else 0))
        return tuple(found)


async def _nothing() -> None:
    return
