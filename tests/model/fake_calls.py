"""Effects of calls on a fake worker, step by step.

    pause  drain →                            paused
    apply  drain → load → (broken → recover)  serving
    load           load → (broken → recover)  paused, or joining
    fence  drain →                            joining

Steps without a duration end in the moment in which they begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.fake_state import FakeAdapter, Note, Ticket, digest_of

from fleet_operator.core.actions import (
    Admit,
    Apply,
    CanaryPrompts,
    CompareLora,
    Fence,
    Load,
    Pause,
    ReadLora,
    RemoveLora,
    Resume,
    Stage,
    StageLora,
    WorkerCall,
)
from fleet_worker.lifecycle.refused_stages import with_refusal, without_version
from fleet_worker.lora.refused import AdapterFault
from fleet_worker.protocol import Phase, PromptsReport, Reason

if TYPE_CHECKING:
    from tests.model.fake_worker import FakeWorker

CUT_SECONDS = 60.0
"""A fence leaves a load this long, as the documentation says."""
FENCE_TRIES_SECONDS = 5.0
"""How long one fence tries to end requests."""
_DEAF = {Phase.STARTING, Phase.BROKEN, Phase.DRAINING}


def take(worker: FakeWorker, ticket: Ticket) -> Ticket:
    """Act, or wait for the end of what is under way. Round that go staging, renewals of a pause and
    the closing of the latch. Returns: the ticket of the same work if it runs already.
    """
    action = ticket.action
    if isinstance(action, Stage):
        return _stage(worker, ticket)
    if isinstance(action, Pause) and _renewed(worker, action):
        return ticket.end()
    if isinstance(action, Fence) and worker.phase not in _DEAF:
        if action.drain_timeout_seconds and worker.phase in {Phase.PAUSED, Phase.LOADING}:
            return ticket.end(Reason.WRONG_PHASE)
        worker.admitted = False
        _limit_load(worker)
    if worker.work is not None and not _cut_short(worker, action):
        same = (t for t in (worker.work, *worker.waiting) if t.action.work == action.work)
        known = next(same, None)
        if known is None:
            worker.waiting.append(ticket)
        return known or ticket
    act(worker, ticket)
    return ticket


def act(worker: FakeWorker, ticket: Ticket) -> None:
    """Its turn has come."""
    match ticket.action:
        case CanaryPrompts() | Admit() | Load() if worker.phase is Phase.JOINING and _is_not_idle(
            worker
        ):
            ticket.end(Reason.WRONG_PHASE)
        case Pause() if worker.phase is Phase.SERVING:
            _stop(worker, ticket)
        case Load() | Apply():
            _swap(worker, ticket)
        case Resume() | Admit():
            _open(worker, ticket)
        case Fence():
            _fence(worker, ticket)
        case CanaryPrompts() if worker.phase in {Phase.SERVING, Phase.JOINING}:
            _begin(worker, ticket, "probe", worker.slow_seconds)
        case ReadLora() | RemoveLora():
            _adapt(worker, ticket)
        case _:
            ticket.end(Reason.WRONG_PHASE)


def go_on(worker: FakeWorker, ticket: Ticket) -> None:
    """A step of a call has ended."""
    match ticket.step, ticket.action:
        case (("drain" | "rest"), Fence()):
            _close(worker, ticket, "fence after its drain" if ticket.step == "drain" else "fence")
        case "drain", _:
            _stopped(worker, ticket)
        case "load", _:
            _loaded(worker, ticket)
        case "recover", _:
            worker.label, worker.weights = ticket.good, ticket.good_weights
            worker.phase = Phase.JOINING
            ticket.end(Reason.ENGINE_FAILED)
            if worker.not_idle_since is not None and not worker.careless:
                worker.kill(worker.now)  # the last good weights cannot be put under live requests
        case "probe", _:
            assert isinstance(ticket.action, CanaryPrompts)
            worker.probe = _report(worker, ticket.action)
            ticket.end()


def staged(worker: FakeWorker, ticket: Ticket) -> None:
    """A stage has come to its end."""
    action = ticket.action
    assert isinstance(action, Stage)
    source = str(action.source)
    weights = worker.files.at(source)
    if source in worker.files.absent:
        reason = Reason.SOURCE_ABSENT
    elif source in worker.bad_sources:
        reason = Reason.CHECKPOINT_TRUNCATED
    elif action.digest not in {None, digest_of(weights)}:
        reason = Reason.DIGEST_MISMATCH
    elif worker.meant.get((action.version, action.run_id), digest_of(weights)) != digest_of(
        weights
    ):
        reason = Reason.VERSION_REUSED
    else:
        worker.staged, worker.staged_run_id = action.version, action.run_id
        worker.staged_source, worker.staged_weights = source, weights
        worker.refused_stages = without_version(
            worker.refused_stages, action.version, action.run_id
        )
        ticket.end()
        return
    if reason is not Reason.SOURCE_ABSENT:
        # Most defects are found while the bytes are read, and these have taken the place of the others.
        worker.staged = worker.staged_run_id = None
    note = Note(action.version, reason, worker.now, run_id=action.run_id)
    worker.refused_stages = with_refusal(worker.refused_stages, note)
    ticket.end(reason)


def _begin(worker: FakeWorker, ticket: Ticket, step: str, seconds: float) -> None:
    ticket.step, ticket.ends_at = step, worker.now + seconds
    ticket.began_at = ticket.began_at or worker.now
    worker.work = ticket


def _stage(worker: FakeWorker, ticket: Ticket) -> Ticket:
    action = ticket.action
    assert isinstance(action, Stage)
    if worker.phase in _DEAF:
        return ticket.end(Reason.WRONG_PHASE)
    there = (_is_loaded(worker, action), worker.source), (_is_staged(worker, action), worker.staged_source)  # fmt: skip
    if (True, str(action.source)) in there and not _finds_others(worker, action):
        return ticket.end()
    running = worker.staging
    if running is not None and running.action.work == action.work:
        return running
    if running is not None:
        running.end(Reason.SUPERSEDED)
    ticket.began_at, ticket.ends_at = worker.now, worker.now + worker.slow_seconds
    worker.staging = ticket
    return ticket


def _finds_others(worker: FakeWorker, action: Stage) -> bool:
    """Whether a request without a digest finds other files than those in the engine."""
    source = str(action.source)
    if action.digest is not None or source != worker.source or not _is_loaded(worker, action):
        return False
    changed = source in worker.files.absent or source in worker.bad_sources
    return changed or digest_of(worker.files.at(source)) != worker.digest


def _renewed(worker: FakeWorker, action: Pause) -> bool:
    """Whether a pause is only prolonged; also while a load runs."""
    if worker.paused_at is None or worker.phase not in {Phase.PAUSED, Phase.LOADING}:
        return False
    worker.lease_until, worker.renewed_at = worker.now + action.lease_seconds, worker.now
    if action.mode == "abort" and worker.phase is Phase.PAUSED:
        worker.requests.end("pause abort")
    return True


def _cut_short(worker: FakeWorker, action: WorkerCall) -> bool:
    """End a drain, or prompts, that this call does not wait for. Returns: whether it may act now."""
    running = worker.work
    at_once = isinstance(action, Fence) and not action.drain_timeout_seconds
    aborts = isinstance(action, Pause) and action.mode == "abort"
    if running is None:
        return True
    if running.step == "probe" and at_once:
        worker.work = None
        running.end(Reason.WRONG_PHASE)
    elif running.step == "drain" and (at_once or aborts):
        worker.work = None
        if aborts:
            worker.requests.end("pause abort")
        go_on(worker, running)
    return worker.work is None


def _stop(worker: FakeWorker, ticket: Ticket) -> None:
    """Stop generating, at once or after a drain."""
    action = ticket.action
    assert isinstance(action, Pause | Apply)
    left = worker.requests.left_seconds
    if action.mode == "abort":
        worker.requests.end("pause abort")
    if action.mode != "wait" or left is None:
        _stopped(worker, ticket)
        return
    worker.phase = Phase.PAUSING
    _begin(worker, ticket, "drain", min(left, action.drain_timeout_seconds))


def _stopped(worker: FakeWorker, ticket: Ticket) -> None:
    action = ticket.action
    assert isinstance(action, Pause | Apply)
    if not worker.admitted:  # fenced meanwhile: the fence continues from here
        worker.phase = Phase.JOINING
        ticket.end(Reason.WRONG_PHASE if isinstance(action, Apply) else None)
        return
    worker.phase, worker.loaded_since_pause = Phase.PAUSED, False
    worker.paused_at = worker.renewed_at = worker.now
    worker.lease_until = worker.now + action.lease_seconds
    if isinstance(action, Pause):
        ticket.end()
    elif not _is_staged(worker, action):  # another one was staged during the drain
        ticket.end(Reason.NOT_STAGED)
    else:
        _load(worker, ticket)


def _swap(worker: FakeWorker, ticket: Ticket) -> None:
    action, both = ticket.action, isinstance(ticket.action, Apply)
    phases = {Phase.SERVING, Phase.PAUSED} if both else {Phase.PAUSED, Phase.JOINING}
    if _is_loaded(worker, action) and not _is_staged(worker, action):
        if both and worker.phase is Phase.PAUSED:
            worker.serve()
        ticket.end()
    elif worker.phase not in phases:
        ticket.end(Reason.WRONG_PHASE)
    elif not _is_staged(worker, action):
        ticket.end(Reason.NOT_STAGED)
    elif worker.phase is Phase.SERVING:
        _stop(worker, ticket)
    else:
        _load(worker, ticket)


def _load(worker: FakeWorker, ticket: Ticket) -> None:
    if worker.lie:
        if isinstance(ticket.action, Apply):
            worker.serve()
        ticket.end()
        return
    ticket.source, ticket.weights = worker.staged_source, worker.staged_weights
    ticket.good_weights, worker.staged = worker.weights, None
    worker.phase, worker.weights = Phase.LOADING, None
    _begin(worker, ticket, "load", worker.slow_seconds)


def _limit_load(worker: FakeWorker) -> None:
    """A load that outlasts a fence for long fails in the engine."""
    running = worker.work
    if running is not None and running.step == "load":
        running.cut |= running.ends_at > worker.now + CUT_SECONDS
        running.ends_at = min(running.ends_at, worker.now + CUT_SECONDS)


def _loaded(worker: FakeWorker, ticket: Ticket) -> None:
    action = ticket.action
    if ticket.cut or action.version in worker.breaking_versions:
        worker.close("broken")
        ticket.good, worker.label, worker.phase = worker.label, None, Phase.BROKEN
        worker.load_failure = Note(
            action.version, Reason.ENGINE_FAILED, worker.now, run_id=action.run_id
        )
        _begin(worker, ticket, "recover", worker.slow_seconds)
        return
    if worker.compare is not None:
        assert isinstance(action, Load | Apply)
        worker.effect = worker.compare(worker, action)
    worker.label, worker.run_id, worker.weights = action.version, action.run_id, ticket.weights
    worker.source, worker.load_failure = ticket.source, None
    worker.meant[action.version, action.run_id] = digest_of(ticket.weights)
    worker.phase, worker.loaded_since_pause = Phase.PAUSED, True
    if not worker.admitted:
        worker.close("fence")
    elif isinstance(action, Apply):
        worker.serve()
    ticket.end()


def _open(worker: FakeWorker, ticket: Ticket) -> None:
    action = ticket.action
    needed = Phase.PAUSED if isinstance(action, Resume) else Phase.JOINING
    if worker.phase not in {needed, Phase.SERVING}:
        ticket.end(Reason.WRONG_PHASE)
    elif not _is_loaded(worker, action):
        ticket.end(Reason.VERSION_MISMATCH)
    elif worker.epoch is not None and ticket.epoch < worker.epoch:
        ticket.end(Reason.STALE_EPOCH)
    else:
        worker.serve()
        ticket.end()


def _is_loaded(worker: FakeWorker, action: WorkerCall) -> bool:
    """Whether these weights are in its engine, by its own account."""
    named = (action.version, action.run_id) == (worker.label, worker.run_id)
    return named and action.digest in {None, worker.digest}


def _is_staged(worker: FakeWorker, action: WorkerCall) -> bool:
    """Whether it holds the bytes of these weights."""
    named = (action.version, action.run_id) == (worker.staged, worker.staged_run_id)
    return named and action.digest in {None, digest_of(worker.staged_weights)}


def _fence(worker: FakeWorker, ticket: Ticket) -> None:
    action, left = ticket.action, worker.requests.left_seconds
    assert isinstance(action, Fence)
    if worker.phase in _DEAF:
        ticket.end()
    elif action.drain_timeout_seconds and worker.phase is Phase.SERVING and left is not None:
        worker.phase = Phase.PAUSING
        _begin(worker, ticket, "drain", min(left, action.drain_timeout_seconds))
    elif worker.now < worker.stubborn_until and not worker.careless:
        _begin(worker, ticket, "rest", FENCE_TRIES_SECONDS)
    else:
        _close(worker, ticket, "fence")


def _close(worker: FakeWorker, ticket: Ticket, why: str) -> None:
    worker.close(why)
    ticket.end(Reason.ENGINE_FAILED if worker.not_idle_since is not None else None)


def _is_not_idle(worker: FakeWorker) -> bool:
    """Whether a closed worker still has requests that it cannot end now."""
    if worker.not_idle_since is None or worker.careless:
        return False
    worker.close("fence")
    return worker.not_idle_since is not None


def _report(worker: FakeWorker, action: CanaryPrompts) -> PromptsReport:
    """Odd versions are far from all others, and near to each other."""
    run = str(worker.label), worker.run_id, worker.digest
    wanted = action.compare_with, action.compare_with_run_id
    before = next((n for n in reversed(worker.probed) if n != run and n[:2] == wanted), None)
    worker.probed = (run,) if before is None else (before, run)
    drift = None
    if before is not None:
        drift = 9.0 if len({run[0], before[0]} & worker.odd_versions) == 1 else 0.1
    with_version, with_run_id, with_digest = before or (None, None, None)
    return PromptsReport(
        version=run[0],
        run_id=worker.run_id,
        digest=worker.digest,
        compared_with=with_version,
        compared_with_run_id=with_run_id,
        compared_with_digest=with_digest,
        finite=True,
        repetition=0.1,
        logprob_drift=drift,
        kl=drift,
    )


def _adapt(worker: FakeWorker, ticket: Ticket) -> None:
    action = ticket.action
    if isinstance(action, RemoveLora):
        worker.adapters.pop(action.adapter, None)
        worker.staged_adapters.pop(action.adapter, None)
        worker.refused_adapters.forget(action.adapter)
        ticket.end()
        return
    assert isinstance(action, ReadLora)
    if worker.phase not in {Phase.SERVING, Phase.JOINING, Phase.PAUSED}:
        ticket.end(Reason.WRONG_PHASE)
        return
    name = action.adapter
    served, held = worker.adapters.get(name), worker.staged_adapters.get(name)
    if held is not None and not held.is_of(action):
        del worker.staged_adapters[name]
        held = None
    reason = None
    if served is None or not served.is_of(action) or _finds_another(worker, served, action):
        reason = _put(worker, action, held)
    if reason is not None:
        fault = AdapterFault(
            action.version, reason, "injected", worker.now, run_id=action.run_id, name=name
        )
        worker.refused_adapters.note(fault)
    elif name in worker.adapters and worker.adapters[name].is_of(action):
        worker.refused_adapters.forget(name)
    else:
        worker.refused_adapters.note_staged(name, action.version, action.run_id)
    ticket.end(reason)


def _finds_another(worker: FakeWorker, served: FakeAdapter, action: ReadLora) -> bool:
    """Whether a request without a digest finds other files than the served ones."""
    files = worker.files
    if action.digest is not None or served.source in files.absent:
        return False
    spoilt = served.source in worker.bad_sources
    return spoilt or digest_of(files.at(served.source)) != served.digest


def _put(worker: FakeWorker, action: ReadLora, held: FakeAdapter | None) -> Reason | None:
    """Stage or serve a version. Returns: why it is refused. `held`: it, if it is staged already."""
    name, known = action.adapter, (action.adapter, action.version, action.run_id)
    if held is None or isinstance(action, CompareLora):
        held, reason = _read(worker, action)
        if reason is not None:
            return reason
    if worker.adapters_meant.get(known, held.digest) != held.digest:
        worker.staged_adapters.pop(name, None)
        return Reason.VERSION_REUSED
    served = worker.adapters.get(name)
    if not (isinstance(action, CompareLora) and served is not None and served.is_of(action)):
        worker.staged_adapters[name] = held
    if isinstance(action, StageLora):
        return None
    if worker.now < worker.no_slot_until:
        return Reason.NO_ADAPTER_SLOT  # it stays staged
    del worker.staged_adapters[name]
    if worker.failing_adapters > 0:
        worker.failing_adapters -= 1
        return Reason.ENGINE_FAILED
    worker.adapters[name], worker.adapters_meant[known] = held, held.digest
    return None


def _read(worker: FakeWorker, action: ReadLora) -> tuple[FakeAdapter, Reason | None]:
    """The adapter that is there now, and why the worker refuses it."""
    source, reason = str(action.source), None
    found = FakeAdapter(action.version, action.run_id, source, worker.files.at(source))
    taken = len(worker.adapters) + len(worker.staged_adapters)
    if source in worker.files.absent:
        reason = Reason.SOURCE_ABSENT
    elif source in worker.files.unfinished:
        reason = Reason.SOURCE_NOT_READY
    elif source in worker.bad_sources:
        reason = Reason.CHECKPOINT_TRUNCATED
    elif taken >= worker.room_for_adapters:
        reason = Reason.NOT_AVAILABLE
    elif not found.is_of(action):
        reason = Reason.DIGEST_MISMATCH
    return found, reason
