"""A worker as the planner meets it: the protocol's rules, no engine, no clock of its own.

`label` is the version that it reports. `weights` is the version that its engine would compute with,
named by its origin; None between old and new. The simulator compares the two on every token.

As in the real worker one call acts at a time: a call that comes while another is under way waits for
its end and acts then (`fake_calls`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.model import fake_calls
from tests.model.fake_requests import FakeRequests
from tests.model.fake_state import (
    MODEL_SOURCE,
    FakeAdapter,
    Files,
    Note,
    Ticket,
    digest_of,
    state_of,
)

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import authority
from fleet_worker.lifecycle.authority import PauseLease
from fleet_worker.lifecycle.canary_report import History, WeightsName
from fleet_worker.lora.refused import RefusedAdapters
from fleet_worker.protocol import (
    ApplyRequest,
    Epoch,
    LoadEffect,
    LoadRequest,
    PauseMode,
    PauseRequest,
    Phase,
    Reason,
    Request,
    WantedRequest,
    WorkerState,
)

ENGINE_START_SECONDS = 5.0
LONGEST_MENDED_SECONDS = 50.0
"""How long a load takes at most when faults have ended."""
ROOM_FOR_ADAPTERS = 4
ALL = "all"
"""Every kind of call."""
IDLE_TIMEOUT_SECONDS = 60.0
"""After this time a closed worker that is not idle ends its process, as the documentation says."""
_SURVIVES_A_RESTART = (
    *("uid", "ordinal", "revision", "start_version", "start_source", "start_seconds", "requests"),
    *("slow_seconds", "odd_versions", "bad_sources", "breaking_versions", "ahead"),
    *("ignores", "refuses", "resets", "claims"),
    *("start_run_id", "start_digest", "files", "room_for_adapters", "has_slots", "slots"),
)


@dataclass
class FakeWorker:
    """One process.

    Faults, switched on from outside:
        slow_seconds: how long stages, loads and prompts take.
        lingers: a step of its work, and how many seconds longer the next one takes.
        bad_sources: staging these is refused.
        breaking_versions: loading these breaks the engine; the last good weights come back.
        odd_versions: the canary's prompts give nonsense with these.
        ignores: kinds of calls that it answers with success, and does nothing; `ALL` for every call.
        refuses: kinds of calls that it refuses, whatever they ask for.
        resets: kinds of calls whose connection it resets.
        claims: its answers to ignored loads show the requested state.
        files: the weights under every path, shared by all workers.
        meant: digest that each version of a run has had in the engine of this process.
        stubborn_until: until then its engine does not end its requests.
        sessions: how many sessions it reports.
        limits_lag: as its state shows it. It answers no requests that it could refuse.
        careless: behaves as workers once did with such an engine. A fence that fails only closes
            the latch, and loads and admissions ignore unfinished requests.
        ahead: it is of a newer release, which has words of its own for a load and for staging.
        hung: it answers no call; running requests continue.
        has_slots, slots: whether its template has slots for adapters, and how many.
        room_for_adapters: how many versions of adapters its memory holds.
        no_slot_until: until then requests use all slots of adapters.
        failing_adapters: how many of the next loads of adapters fail in the engine.
        remarked: version → the remarks on its files. All workers say the same.
        compare: what a load has changed, given the worker before it and the call; without, no effect
            is reported.
    """

    uid: str
    ordinal: int
    revision: str
    started_at: float
    start_version: str = "base"
    start_source: str = "/models/base"
    start_run_id: str | None = None
    start_digest: str | None = None
    start_seconds: float = ENGINE_START_SECONDS
    phase: Phase = Phase.STARTING
    admitted: bool = False
    label: str | None = "base"
    weights: str | None = "base"
    source: str = "/models/base"
    run_id: str | None = None
    staged: str | None = None
    staged_source: str = ""
    staged_run_id: str | None = None
    staged_weights: str = ""
    files: Files = field(default_factory=Files)
    meant: dict[tuple[str, str | None], str] = field(default_factory=dict)
    adapters: dict[str, FakeAdapter] = field(default_factory=dict)
    staged_adapters: dict[str, FakeAdapter] = field(default_factory=dict)
    adapters_meant: dict[tuple[str, str, str | None], str] = field(default_factory=dict)
    lease: PauseLease | None = None
    lease_expiries: int = 0
    renewed_at: float = 0
    loaded_since_pause: bool = False
    epoch: Epoch | None = None
    refused_stages: tuple[Note, ...] = ()
    refused_sources: dict[tuple[str | None, ...], tuple[str, bool]] = field(default_factory=dict)
    load_failure: Note | None = None
    refused_adapters: RefusedAdapters = field(default_factory=RefusedAdapters)
    has_slots: bool = True
    slots: int = 4
    room_for_adapters: int = ROOM_FOR_ADAPTERS
    no_slot_until: float = 0
    failing_adapters: int = 0
    probes: History = field(default_factory=History)
    paused_seconds: float | None = None
    staging: Ticket | None = None
    work: Ticket | None = None
    waiting: list[Ticket] = field(default_factory=list)
    requests: FakeRequests = field(default_factory=FakeRequests)
    sessions: int = 0
    limits_lag: bool | None = None
    restarts: int = 0
    now: float = 0
    slow_seconds: float = 0
    lingers: tuple[str, float] = ("", 0.0)
    ahead: bool = False
    hung: bool = False
    stubborn_until: float = 0
    careless: bool = False
    not_idle_since: float | None = None
    drains_until: float | None = None
    ignores: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    resets: frozenset[str] = frozenset()
    refused_since: dict[str, float] = field(default_factory=dict)
    claims: bool = False
    effect: LoadEffect | None = None
    remarked: dict[str, str] = field(default_factory=dict)
    compare: Callable[[FakeWorker, LoadRequest | ApplyRequest], LoadEffect | None] | None = None
    odd_versions: set[str] = field(default_factory=set)
    bad_sources: set[str] = field(default_factory=set)
    breaking_versions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.now = max(self.now, self.started_at)

    @property
    def name(self) -> str:
        return f"policy-{self.ordinal}"

    @property
    def instance(self) -> str:
        """The name of its process."""
        return f"{self.uid}-{self.restarts}"

    @property
    def refuses_files(self) -> bool:
        """Whether the last files that it was to stage are not those of their version. If it is to go
        back to these it can go neither on nor back, and is set apart.
        """
        return any(n.reason is Reason.DIGEST_MISMATCH for n in self.refused_stages[:1])

    @property
    def generates(self) -> bool:
        """Whether it makes tokens for its clients, the last ones of a drain included."""
        return self.phase is Phase.PAUSING or (self.admitted and self.phase is Phase.SERVING)

    @property
    def lives_on(self) -> bool:
        """Whether requests may go on behind the closed latch, which could not be ended."""
        unended = self.not_idle_since is not None and self.phase is not Phase.BROKEN
        unended |= self.drains_until is not None
        return unended and self.requests.left_seconds is not None

    @property
    def digest(self) -> str | None:
        """The digest of the weights that its label names. None while they are not trusted, and for weights
        that came over a collective.
        """
        weights = self.good_weights
        if self.label is None or weights is None or not self.source:
            return None
        return digest_of(weights)

    @property
    def good_weights(self) -> str | None:
        """The weights that its label names: during a load those from before it."""
        loads = self.work is not None and self.work.step == "load"
        return self.work.good_weights if loads and self.work else self.weights

    @property
    def lost_requests(self) -> int:
        """How many requests did not get all of their tokens."""
        return len(self.requests.ended)

    @property
    def lacks_slot(self) -> bool:
        """Whether adapters use all slots. A new version of a served adapter needs one, too."""
        return len(self.adapters) >= self.slots

    @property
    def probed(self) -> tuple[WeightsName, ...]:
        """The weights whose answers to canary prompts it has."""
        return tuple(answers.weights for answers in self.probes._kept)

    @property
    def paused_at(self) -> float | None:
        """When its pause began; None without one."""
        return self.lease.since if self.lease is not None else None

    @property
    def lease_until(self) -> float | None:
        """When its pause ends without a renewal; None without a pause."""
        return self.lease.expires if self.lease is not None else None

    @property
    def holds_for_seconds(self) -> float:
        """How long it has been holding its requests."""
        return 0 if self.lease is None else self.now - self.lease.since

    def lies_about(self, kind: str) -> bool:
        """Whether it answers calls of this kind with success, and does nothing."""
        return bool(self.ignores & {kind, ALL})

    def refuses_all(self, kind: str) -> bool:
        """Whether it refuses all calls of this kind."""
        return bool(self.refuses & {kind, ALL})

    def resets_connection_of(self, kind: str) -> bool:
        """Whether it resets the connection of calls of this kind."""
        return bool(self.resets & {kind, ALL})

    # --- time ---------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """When something will happen by itself."""
        times = [t.ends_at for t in (self.staging, self.work) if t is not None]
        if self.phase is Phase.STARTING:
            times.append(self.started_at + self.start_seconds)
        if self.lease_until is not None and self.work is None and self.phase is Phase.PAUSED:
            times.append(self.lease_until)
        if self.not_idle_since is not None and self.work is None and not self.careless:
            gives_up = self.not_idle_since + IDLE_TIMEOUT_SECONDS
            times.append(max(self.now, min(self.stubborn_until, gives_up)))
        if self.drains_until is not None:
            times.append(min(self.drains_until, self.now + (self.requests.left_seconds or 0)))
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Advance to `now`, with the events until then in order."""
        while (at := self.next_at()) is not None and at <= now:
            self._pass(max(at, self.now))
            self._happen()
        self._pass(max(now, self.now))

    def _pass(self, now: float) -> None:
        seconds, self.now = now - self.now, now
        if self.phase is Phase.PAUSING or self.drains_until is not None:
            self.requests.finish(seconds)
        elif self.generates:
            self.requests.generate(seconds)

    def _happen(self) -> None:
        if self.phase is Phase.STARTING and self.now >= self.started_at + self.start_seconds:
            self.phase = Phase.JOINING
        if self.staging is not None and self.now >= self.staging.ends_at:
            ticket, self.staging = self.staging, None
            fake_calls.staged(self, ticket)
        if self.work is not None and self.now >= self.work.ends_at:
            ticket, self.work = self.work, None
            fake_calls.go_on(self, ticket)
        self._end_drain()
        self._expire()
        self._seek_rest()
        while self.waiting and self.work is None:
            fake_calls.act(self, self.waiting.pop(0))
            self._expire()

    def _end_drain(self) -> None:
        over = self.drains_until is not None and self.now >= self.drains_until
        if over or self.requests.left_seconds is None:
            self.drains_until = None
        if over:
            self.requests.end("drain")

    def _expire(self) -> None:
        over = self.lease_until is not None and self.now >= self.lease_until
        if not over or self.work is not None or self.phase is not Phase.PAUSED:
            return
        self.lease_expiries += 1
        if self.careless and not self.admitted:
            self.phase, self.lease = Phase.JOINING, None
        elif self.loaded_since_pause or not self.admitted:
            self.close("lease")
        else:
            self.serve()

    def _seek_rest(self) -> None:
        """Keep ending the requests of a closed worker; end the process if they do not end."""
        if self.not_idle_since is None or self.work is not None or self.careless:
            return
        if self.now >= self.stubborn_until:
            self.close("fence")
        elif self.now >= self.not_idle_since + IDLE_TIMEOUT_SECONDS:
            self.kill(self.now)

    # --- faults -------------------------------------------------------------------------------

    def kill(self, now: float, *, back_after_seconds: float = 0) -> None:
        """The container dies and starts again, on what the ConfigMap tells."""
        self.requests.end("died")
        kept = {name: getattr(self, name) for name in _SURVIVES_A_RESTART}
        fresh = FakeWorker(started_at=now + back_after_seconds, **kept)
        fresh.now = now
        fresh.restarts = self.restarts + 1
        fresh.start()
        self.__dict__.update(fresh.__dict__)

    def start(self) -> None:
        """Begin on what the ConfigMap tells, or, if the files there are others now or it names no
        directory, on the model's own weights.
        """
        self.label, self.run_id, self.source = (
            self.start_version,
            self.start_run_id,
            self.start_source,
        )
        self.weights = self.files.at(self.source)
        if self.start_digest not in {None, digest_of(self.weights)} or not self.source:
            self.label, self.run_id, self.source = "base", None, MODEL_SOURCE
            self.weights = self.files.at(self.source)
        self.meant = {(self.label, self.run_id): digest_of(self.weights)}

    def end_slow_work(self, seconds: float) -> None:
        """Its present and later work ends in time. A drain lasts as long as its requests need."""
        self.slow_seconds = min(self.slow_seconds, max(seconds, LONGEST_MENDED_SECONDS))
        self.lingers = ("", 0.0)
        for ticket in (self.staging, self.work):
            if ticket is None or ticket.step == "drain":
                continue
            ticket.ends_at = min(ticket.ends_at, self.now + self.slow_seconds)

    def drain(self, seconds: float = 0) -> None:
        """The preStop hook: running and held requests get this long; the rest then ends."""
        if self.phase is Phase.DRAINING:
            return
        fenced = self.work is not None and self.work.step == "drain"
        trusted = self.weights is not None and self.phase not in {Phase.STARTING, Phase.BROKEN}
        if seconds and trusted and (self.work is None or fenced) and self.requests.left_seconds:
            self.drains_until = self.now + seconds
        else:
            self.requests.end("drain")
        self.admitted, self.phase = False, Phase.DRAINING
        self.lease = self.staging = self.work = None
        self.not_idle_since = None
        self.waiting = []

    # --- calls --------------------------------------------------------------------------------

    def take(self, request: Request, now: float, *, adapter: str = "") -> Ticket:
        """Take a call; it may last, or wait for another one's end. `adapter`: the name in its path."""
        self.tick(now)
        ticket = Ticket(request, adapter)
        if (reason := self.refusal_of_caller(request)) is not None:
            return ticket.end(reason)
        if self.refuses_all(ticket.kind):
            self.refused_since.setdefault(ticket.kind, now)
            return ticket.end(Reason.WRONG_PHASE)
        if self.lies_about(ticket.kind):
            return ticket.end()
        ticket = fake_calls.take(self, ticket)
        self.tick(self.now)
        return ticket

    def refusal_of_caller(self, request: Request, *, again: bool = False) -> Reason | None:
        """Why the caller may not drive the worker: its epoch is old, or another one holds it.

        `again`: the call has waited for its turn. Then only calls that rely on it check the epoch again.
        """
        epoch = getattr(request, "epoch")  # noqa: B009 - every request has one, its base class not
        holder = getattr(request, "holder", None)
        try:
            if not again or isinstance(request, PauseRequest | LoadRequest | ApplyRequest):
                self.epoch = authority.newest(self.epoch, epoch)
            if holder is not None:
                authority.check_holder(self.lease, holder, self.now)
        except Refusal as refusal:
            return refusal.reason
        return None

    def hold(self, seconds: float, holder: str = "operator") -> None:
        """A driver has paused it, and renews its lease for this long."""
        self.phase, self.renewed_at = Phase.PAUSED, self.now
        self.lease = PauseLease(PauseMode.KEEP, holder, self.now, self.now + seconds)

    def hear(self, request: WantedRequest) -> None:
        """The operator names the desired versions.

        Errors: Refusal, from an earlier leader.
        """
        if self.epoch is None or request.term != self.epoch.term:
            self.epoch = authority.newest(self.epoch, Epoch(term=request.term, sequence=0))
        self.limits_lag = request.limits if request.wanted else None

    def state(self, now: float) -> WorkerState:
        """The state that it reports."""
        self.tick(now)
        return state_of(self)

    def serve(self) -> None:
        """The latch is open and it generates."""
        if self.lease is not None:
            self.paused_seconds = self.holds_for_seconds
        self.admitted, self.phase, self.lease = True, Phase.SERVING, None

    def close(self, why: str) -> None:
        """The latch is closed, requests end with the tokens that they have, if the engine lets go."""
        if self.now < self.stubborn_until:
            self.lose_rest()
            return
        self.requests.end(why)
        self.not_idle_since = None
        self.admitted, self.phase, self.lease = False, Phase.JOINING, None

    def lose_rest(self) -> None:
        """The latch is closed, and requests could not be ended."""
        self.admitted = False
        if self.not_idle_since is None:
            self.not_idle_since = self.now
        if not self.careless:
            self.phase, self.lease = Phase.JOINING, None
