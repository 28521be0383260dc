"""A worker as the planner meets it, for the simulator: the protocol's rules, no engine.

`weights` is what the engine would really compute with, `label` what it reports; the simulator
compares the two on every token. Faults are switched on from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_operator.core.actions import (
    Admit,
    Apply,
    Fence,
    Load,
    Pause,
    Probe,
    Resume,
    Stage,
    WorkerCall,
)
from fleet_operator.core.observed import PodView
from fleet_worker.protocol import (
    Epoch,
    Failure,
    Operation,
    PauseMode,
    PauseState,
    Phase,
    ProbeReport,
    Reason,
    Source,
    Staged,
    WorkerState,
)

ENGINE_START_SECONDS = 5.0


@dataclass
class FakeWorker:
    """One pod with its process."""

    uid: str
    ordinal: int
    revision: str
    started_at: float
    start_version: str = "base"
    start_source: str = "/models/base"
    phase: Phase = Phase.STARTING
    admitted: bool = False
    label: str = "base"
    weights: str = "base"
    source: str = "/models/base"
    staged: str | None = None
    staged_source: str = ""
    lease_until: float | None = None
    paused_at: float = 0
    renewed_at: float = 0
    loaded_since_pause: bool = False
    epoch: Epoch | None = None
    stage_failure: tuple[str, Reason, float] | None = None
    load_failure: tuple[str, Reason, float] | None = None
    deleting: bool = False
    quarantine: str = ""
    unreachable: bool = False
    restarts: int = 0
    lost_requests: int = 0
    slow_seconds: float = 0
    staging: tuple[Stage, float] | None = None
    swap: tuple[Load | Apply, float] | None = None
    probe: ProbeReport | None = None
    odd_versions: set[str] = field(default_factory=set)
    bad_sources: set[str] = field(default_factory=set)
    breaking_versions: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"policy-{self.ordinal}"

    @property
    def generates(self) -> bool:
        """Whether clients get tokens from it right now."""
        return self.admitted and self.phase is Phase.SERVING

    @property
    def in_service(self) -> bool:
        """Whether the fleet's Service sends clients to it."""
        ready = self.admitted and self.phase is not Phase.STARTING
        return ready and not self.quarantine and not self.deleting

    def tick(self, now: float) -> None:
        """What happens by itself: the engine comes up, a lease runs out."""
        if self.phase is Phase.STARTING and now - self.started_at >= ENGINE_START_SECONDS:
            self.phase = Phase.JOINING
        if self.staging is not None and now >= self.staging[1]:
            staged, self.staging = self.staging[0], None
            self._stage(staged, now)
        if self.swap is not None and now >= self.swap[1]:
            swapped, self.swap = self.swap[0], None
            self._finish(swapped, now)
        if self.lease_until is not None and now >= self.lease_until and self.swap is None:
            self.lease_until = None
            if self.loaded_since_pause:
                self.admitted, self.phase = False, Phase.JOINING
            else:
                self.phase = Phase.SERVING

    def kill(self, now: float) -> None:
        """The container dies and starts again, on what the ConfigMap tells."""
        if self.generates:
            self.lost_requests += 1
        kept = (self.uid, self.ordinal, self.revision)
        fresh = FakeWorker(*kept, now, self.start_version, self.start_source)
        fresh.label = fresh.weights = self.start_version
        fresh.source = self.start_source
        fresh.restarts = self.restarts + 1
        fresh.deleting, fresh.quarantine = self.deleting, self.quarantine
        fresh.lost_requests = self.lost_requests
        fresh.bad_sources, fresh.breaking_versions = self.bad_sources, self.breaking_versions
        fresh.slow_seconds, fresh.odd_versions = self.slow_seconds, self.odd_versions
        self.__dict__.update(fresh.__dict__)

    def call(
        self, action: WorkerCall, epoch: Epoch, now: float
    ) -> tuple[WorkerState, Reason | None]:
        """Do what the protocol says; answer with the state and, if refused, why."""
        if self.epoch is not None and epoch < self.epoch:
            return self.state(now), Reason.STALE_EPOCH
        self.epoch = epoch
        reason = self._act(action, now)
        return self.state(now), reason

    def _act(self, action: WorkerCall, now: float) -> Reason | None:
        match action:
            case Stage() | Load() | Apply():
                return self._begin(action, now)
            case Pause():
                return self._pause(action, now)
            case Resume() | Admit():
                return Reason.WRONG_PHASE if self.swap else self._open(action, now)
            case Probe():
                return self._probe()
            case Fence():
                self.swap = None
                self.lost_requests += self.generates and not action.drain_timeout_seconds
                self.admitted, self.phase, self.lease_until = False, Phase.JOINING, None
                return None

    def _probe(self) -> Reason | None:
        if self.phase not in {Phase.SERVING, Phase.JOINING}:
            return Reason.WRONG_PHASE
        before = self.probe.version if self.probe else None
        drift = 9.0 if self.label in self.odd_versions else 0.1
        self.probe = ProbeReport(
            version=self.label,
            compared_with=before,
            finite=True,
            repetition=0.1,
            logprob_drift=drift if before else None,
            kl=drift if before else None,
        )
        return None

    def _begin(self, action: Stage | Load | Apply, now: float) -> Reason | None:
        """Do it now, or, on a slow worker, over some time; the same again joins what runs."""
        if isinstance(action, Stage):
            if self.slow_seconds and (self.staging is None or self.staging[0].key != action.key):
                self.staging = (action, now + self.slow_seconds)
            return None if self.slow_seconds else self._stage(action, now)
        if self.swap is not None:
            return None if self.swap[0].key == action.key else Reason.WRONG_PHASE
        if refused := self._refused(action):
            return refused
        if isinstance(action, Apply):
            self._pause(_pause_of(action), now)
        if not self.slow_seconds:
            return self._finish(action, now)
        self.swap = (action, now + self.slow_seconds)
        if self.phase is Phase.PAUSED:
            self.phase = Phase.LOADING
        return None

    def _refused(self, action: Load | Apply) -> Reason | None:
        phases = {Phase.PAUSED, Phase.JOINING} if isinstance(action, Load) else {Phase.SERVING}
        if self.phase not in phases:
            return Reason.WRONG_PHASE
        if action.version not in {self.label, self.staged}:
            return Reason.NOT_STAGED
        return None

    def _finish(self, action: Load | Apply, now: float) -> Reason | None:
        if self.phase is Phase.LOADING:
            self.phase = Phase.PAUSED
        reason = self._load(action, now)
        if reason is None and isinstance(action, Apply):
            self.admitted, self.phase, self.lease_until = True, Phase.SERVING, None
        return reason

    def _stage(self, action: Stage, now: float) -> Reason | None:
        source = str(action.source)
        if source in self.bad_sources:
            self.stage_failure = (action.version, Reason.CHECKPOINT_TRUNCATED, now)
            return Reason.CHECKPOINT_TRUNCATED
        self.staged, self.staged_source, self.stage_failure = action.version, source, None
        return None

    def _pause(self, action: Pause, now: float) -> Reason | None:
        if self.phase is Phase.LOADING:
            self.renewed_at = now
            return None
        if self.phase not in {Phase.SERVING, Phase.PAUSED}:
            return Reason.WRONG_PHASE
        if self.phase is Phase.SERVING:
            self.loaded_since_pause, self.paused_at = False, now
            if action.mode == "abort":
                self.lost_requests += 1
        self.phase, self.lease_until, self.renewed_at = (
            Phase.PAUSED,
            now + action.lease_seconds,
            now,
        )
        return None

    def _load(self, action: Load | Apply, now: float) -> Reason | None:
        if self.label == action.version:
            return None
        if action.version in self.breaking_versions:
            # Broken inside the engine: closed, the last good version reloaded.
            self.admitted, self.phase, self.lease_until = False, Phase.JOINING, None
            self.staged = None
            self.load_failure = (action.version, Reason.ENGINE_FAILED, now)
            return Reason.ENGINE_FAILED
        self.weights = self.label = action.version
        self.source, self.staged = self.staged_source, None
        self.load_failure, self.loaded_since_pause = None, True
        return None

    def _open(self, action: Resume | Admit, now: float) -> Reason | None:
        del now
        if action.version != self.label:
            return Reason.VERSION_MISMATCH
        wanted = Phase.PAUSED if isinstance(action, Resume) else Phase.JOINING
        if self.phase is Phase.SERVING:
            return None
        if self.phase is not wanted:
            return Reason.WRONG_PHASE
        self.admitted, self.phase, self.lease_until = True, Phase.SERVING, None
        return None

    def state(self, now: float) -> WorkerState:
        pause = None
        if self.lease_until is not None:
            pause = PauseState(
                mode=PauseMode.KEEP,
                holder="operator",
                paused_seconds=now - self.paused_at,
                lease_remaining_seconds=self.lease_until - now,
            )
        return WorkerState(
            worker=self.name,
            instance=f"{self.uid}-{self.restarts}",
            uptime_seconds=now - self.started_at,
            phase=self.phase,
            admitted=self.admitted,
            version=self.label,
            source=Source(path=self.source) if self.source else None,
            staged=_staged(self.staged, self.staged_source),
            pause=pause,
            operation=self._operation(now),
            probe=self.probe,
            epoch=self.epoch,
            stage_failure=_failure(self.stage_failure, now),
            load_failure=_failure(self.load_failure, now),
        )

    def _operation(self, now: float) -> Operation | None:
        work = self.swap or self.staging
        if work is None:
            return None
        action, done_at = work
        running = self.slow_seconds - (done_at - now)
        return Operation(kind=action.kind, version=action.version, running_seconds=running)

    def pod(self) -> PodView:
        return PodView(
            uid=self.uid,
            name=self.name,
            ordinal=self.ordinal,
            revision=self.revision,
            owner="fleet",
            ip="10.0.0.1",
            phase="Running",
            running=True,
            ready=self.admitted,
            deleting=self.deleting,
            restarts=self.restarts,
            quarantine=self.quarantine,
        )


def _pause_of(action: Apply) -> Pause:
    return Pause(
        pod_uid=action.pod_uid,
        pod_name=action.pod_name,
        reason=action.reason,
        mode=action.mode,
        drain_timeout_seconds=action.drain_timeout_seconds,
        lease_seconds=action.lease_seconds,
    )


def _staged(version: str | None, source: str) -> Staged | None:
    if version is None:
        return None
    return Staged(version=version, source=Source(path=source), size_bytes=1, in_memory=True)


def _failure(failure: tuple[str, Reason, float] | None, now: float) -> Failure | None:
    if failure is None:
        return None
    version, reason, at = failure
    return Failure(version=version, reason=reason, message="injected", age_seconds=now - at)
