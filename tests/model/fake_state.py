"""State that a fake worker reports, in the records of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from fleet_worker.lora.refused import AdapterFault
from fleet_worker.protocol import (
    PROTOCOL_VERSION,
    AdapterFailure,
    AdapterRemoval,
    AdapterRequest,
    AdapterSlots,
    AdapterState,
    Failure,
    Operation,
    Phase,
    Reason,
    Request,
    Source,
    Staged,
    SwapTimings,
    WorkerState,
)

if TYPE_CHECKING:
    from tests.model.fake_worker import FakeWorker


@dataclass(frozen=True)
class Note:
    """A refusal or failure worth remembering, and when it was."""

    version: str
    reason: Reason
    at: float
    run_id: str | None = None


@dataclass
class Ticket:
    """A call that was taken: what it is at, whether it has ended, and why if it was refused.

    Fields:
        adapter: the name in its path, of a call about an adapter.
        version, run_id, source, weights: of a load: what it puts into the engine, and where it came from.
        cut: a fence has made a load shorter, so it fails.
        good, good_weights: what a broken engine goes back to, as labelled and as it is.
    """

    request: Request
    adapter: str = ""
    step: str = ""
    began_at: float = 0
    ends_at: float = 0
    version: str | None = None
    run_id: str | None = None
    source: str = ""
    weights: str = ""
    cut: bool = False
    good: str | None = None
    good_weights: str | None = None
    done: bool = False
    reason: Reason | None = None

    @property
    def kind(self) -> str:
        """The last part of its path, or what it does with an adapter."""
        return kind_of(self.request)

    @property
    def work(self) -> tuple[str, str, str | None, str | None]:
        """Kind, adapter, version and run: calls for the same work wait for the same end."""
        named = getattr(self.request, "version", None), getattr(self.request, "run_id", None)
        return self.kind, self.adapter, *named

    @property
    def operation(self) -> str:
        """The kind of operation that the worker reports now. A swap that drains reports a pause."""
        return "pause" if self.step == "drain" and self.kind == "apply" else self.kind

    def end(self, reason: Reason | None = None) -> Ticket:
        """It has ended."""
        self.done, self.reason = True, reason
        return self


def kind_of(request: Request) -> str:
    """The kind of a call, as a worker names it in its operation."""
    if isinstance(request, AdapterRemoval):
        return "remove-adapter"
    if isinstance(request, AdapterRequest):
        return "stage-adapter" if request.stage_only else "adapter"
    return request.path.rpartition("/")[2]


@dataclass(frozen=True)
class FakeAdapter:
    """A version of an adapter, as labelled and as it is."""

    version: str
    run_id: str | None
    source: str
    weights: str

    @property
    def digest(self) -> str:
        """The digest of its files."""
        return digest_of(self.weights)

    def is_of(self, request: AdapterRequest) -> bool:
        """Whether a call names this version and its source, and its digest if any."""
        named = (self.version, self.run_id) == (request.version, request.run_id)
        alike = request.digest in {None, self.digest}
        return named and alike and self.source == str(request.source)


MODEL_SOURCE = "/models/base"
_VARIANT, _COPY = "~", "="


@dataclass
class Files:
    """Contents of every path of the shared store. `copied`: path → first contents that are those of an
    earlier step, too. `rewritten`: path → contents that replaced the first ones. `absent`: paths that do
    not exist now. `unfinished`: paths without their last file. `changed_at`: path → when that changed
    last. `read_at`: path → when the last read began that has ended.
    """

    copied: dict[str, str] = field(default_factory=dict)
    rewritten: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    unfinished: set[str] = field(default_factory=set)
    changed_at: dict[str, float] = field(default_factory=dict)
    read_at: dict[str, float] = field(default_factory=dict)

    def note_read(self, source: str, began_at: float) -> None:
        """A worker has read the files of a path, or has found none."""
        self.read_at[source] = max(began_at, self.read_at.get(source, began_at))

    def at(self, source: str) -> str:
        """Which weights lie there."""
        return self.rewritten.get(source, self.first_at(source))

    def first_at(self, source: str) -> str:
        """The first weights there."""
        return self.copied.get(source, content_of(source))

    def copy(self, source: str, path: str, now: float) -> None:
        """The trainer writes the files of one step under the path of another one."""
        self.changed_at[path] = now
        self.copied[path] = f"{version_in(content_of(path))}{_COPY}{self.at(source)}"

    def are_others_than(self, weights: str, source: str) -> bool:
        """Whether a path holds other files than these weights. A path that is gone does not. Files that
        were written again with the same contents count as the same.
        """
        return source not in self.absent and self.at(source) != weights


def content_of(source: str) -> str:
    """Which weights lie there at first: the model's own, a step of the trainer, or of another run."""
    folder, _, name = source.rpartition("/")
    version, run = name.removeprefix("step_"), folder.rpartition("/")[2]
    return version if run in {"models", "weights"} else f"{version}{_VARIANT}{run}"


def version_in(weights: str | None) -> str:
    """The label that weights were made for."""
    return str(weights).partition(_VARIANT)[0].partition(_COPY)[0]


@cache
def digest_of(weights: str) -> str:
    """The digest of weights: that of the step from which they were copied, if they were."""
    return f"sha256:{sha256(weights.rpartition(_COPY)[2].encode()).hexdigest()}"


def state_of(worker: FakeWorker) -> WorkerState:
    """The state document of a worker now."""
    state = _state_of(worker)
    return _in_newer_words(state) if worker.ahead else state


def _in_newer_words(state: WorkerState) -> WorkerState:
    """As a worker of an imagined next release would say it."""
    phase = "verifying" if state.phase is Phase.LOADING else state.phase
    working = state.operation
    if working is not None and working.kind in {"stage", "load"}:
        working = working.model_copy(update={"kind": "fetch"})
    changed = {"protocol": PROTOCOL_VERSION + 1, "phase": phase, "operation": working}
    return state.model_copy(update=changed)


def _state_of(worker: FakeWorker) -> WorkerState:
    now = worker.now
    adapter_failures = tuple(_adapter_failure(f, now) for f in worker.refused_adapters.faults)
    return WorkerState(
        worker=worker.name,
        pod_uid=worker.uid,
        instance=worker.instance,
        uptime_seconds=now - worker.started_at,
        phase=worker.phase,
        admitted=worker.admitted,
        sessions=worker.sessions,
        limits_lag=worker.limits_lag,
        version=worker.label,
        run_id=worker.run_id if worker.label else None,
        digest=worker.digest,
        remarks=(worker.remarked[worker.label],) if worker.label in worker.remarked else (),
        source=_source(worker.source) if worker.source and worker.label else None,
        staged=_staged(worker),
        pause=worker.lease.as_state(now) if worker.lease is not None else None,
        lease_expiries=worker.lease_expiries,
        operation=_operation(worker),
        probe=worker.probes.report,
        effect=worker.effect,
        epoch=worker.epoch,
        stage_failure=next((_failure(n, now) for n in worker.refused_stages), None),
        earlier_stage_failures=tuple(_failure(n, now) for n in worker.refused_stages[1:]),
        load_failure=_failure(worker.load_failure, now) if worker.load_failure else None,
        adapter_failure=next(iter(adapter_failures), None),
        adapter_failures=adapter_failures,
        timings=_timings(worker),
        adapters=tuple(
            _adapter(name, worker.adapters.get(name), worker.staged_adapters.get(name))
            for name in sorted(worker.adapters.keys() | worker.staged_adapters)
        ),
        adapter_slots=_slots(worker.slots, len(worker.adapters)) if worker.has_slots else None,
    )


# Validated values are reused: most of a simulation's answers repeat them.


@cache
def _source(path: str) -> Source:
    return Source(path=path)


@cache
def _adapter(name: str, served: FakeAdapter | None, held: FakeAdapter | None) -> AdapterState:
    staged = held and Staged(
        version=held.version,
        run_id=held.run_id,
        source=_source(held.source),
        digest=held.digest,
        size_bytes=1,
        in_memory=True,
    )
    if served is None:
        return AdapterState(name=name, version=None, staged=staged)
    return AdapterState(
        name=name,
        version=served.version,
        run_id=served.run_id,
        source=_source(served.source),
        digest=served.digest,
        staged=staged,
    )


@cache
def _slots(total: int, used: int) -> AdapterSlots:
    return AdapterSlots(total=total, used=used, max_rank=16)


def _staged(worker: FakeWorker) -> Staged | None:
    if worker.staged is None:
        return None
    source = _source(worker.staged_source)
    return Staged(
        version=worker.staged,
        run_id=worker.staged_run_id,
        source=source,
        digest=digest_of(worker.staged_weights),
        size_bytes=1,
        in_memory=True,
    )


def _timings(worker: FakeWorker) -> SwapTimings | None:
    if worker.label is None or (worker.paused_seconds is None and worker.lease is None):
        return None
    return SwapTimings(
        version=worker.label,
        load_seconds=max(worker.slow_seconds, 0.001) if worker.loaded_since_pause else None,
        paused_seconds=worker.paused_seconds if worker.lease is None else None,
    )


def _operation(worker: FakeWorker) -> Operation | None:
    now = worker.now
    if (work := worker.work) is not None:
        running = {"kind": work.operation, "running_seconds": now - work.began_at}
        return Operation.model_validate(running | _named_in(work, worker))
    if worker.not_idle_since is not None and not worker.careless:
        return Operation(kind="fence", running_seconds=now - worker.not_idle_since)
    if (stage := worker.staging) is None:
        return None
    running = {"kind": stage.kind, "running_seconds": now - stage.began_at}
    return Operation.model_validate(running | _named_in(stage, worker))


def _named_in(ticket: Ticket, worker: FakeWorker) -> dict[str, str | None]:
    """Version and run of an operation, as a worker names them."""
    if ticket.operation == "probe":
        return {"version": worker.label}
    if ticket.operation in {"pause", "fence"}:
        return {}
    if ticket.step == "load":
        return {"version": ticket.version, "run_id": ticket.run_id}
    request = ticket.request
    return {
        "version": getattr(request, "version", None),
        "run_id": getattr(request, "run_id", None),
    }


def _failure(note: Note, now: float) -> Failure:
    age = now - note.at
    return Failure(
        version=note.version,
        run_id=note.run_id,
        reason=note.reason,
        message="injected",
        age_seconds=age,
    )


def _adapter_failure(fault: AdapterFault, now: float) -> AdapterFailure:
    return AdapterFailure(
        name=fault.name,
        version=fault.version,
        run_id=fault.run_id,
        reason=fault.reason,
        message=fault.message,
        age_seconds=now - fault.at,
    )
