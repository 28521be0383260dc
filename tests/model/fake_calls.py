"""Effects of calls on a fake worker, step by step.

    pause  drain →                            paused
    apply  drain → load → (broken → recover)  serving
    load           load → (broken → recover)  paused, or joining
    fence  drain →                            joining

Steps without a duration end in the moment in which they begin.

The rules are those of the real worker (`fleet_worker.lifecycle`), and its pure parts are used: the
transitions, the order of epochs, the leases, the refusals. A contract test plays the same calls on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model import fake_adapters
from tests.model.fake_state import Note, Ticket, digest_of

from fleet_worker.checkpoint.refused_sources import LASTING
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.authority import PauseLease
from fleet_worker.lifecycle.canary_report import Answers
from fleet_worker.lifecycle.refused_stages import with_refusal, without_version
from fleet_worker.lifecycle.states import Event, LifecycleState, after
from fleet_worker.protocol import (
    AdapterRemoval,
    AdapterRequest,
    AdmitRequest,
    ApplyRequest,
    FenceRequest,
    LoadRequest,
    Named,
    OpenRequest,
    PauseMode,
    PauseRequest,
    Phase,
    PromptsReport,
    PromptsRequest,
    Reason,
    Request,
    StageRequest,
)

if TYPE_CHECKING:
    from tests.model.fake_worker import FakeWorker

CUT_SECONDS = 60.0
"""A fence leaves a load this long, as the documentation says."""
FENCE_TRIES_SECONDS = 5.0
"""How long one fence tries to end requests."""
_IN_THE_BYTES = {Reason.DIGEST_MISMATCH, Reason.VERSION_REUSED}
_DEAF = {Phase.STARTING, Phase.BROKEN, Phase.DRAINING}


def take(worker: FakeWorker, ticket: Ticket) -> Ticket:
    """Act, or wait for the end of what is under way. Round that go staging, renewals of a pause and
    the closing of the latch. Returns: the ticket of the same stage if it runs already.
    """
    request = ticket.request
    if isinstance(request, StageRequest):
        return _stage(worker, ticket)
    if isinstance(request, PauseRequest) and _renewed(worker, request):
        return ticket.end()
    if isinstance(request, AdapterRequest) and fake_adapters.refusal(worker) is not None:
        fake_adapters.put(worker, ticket, request)
        return ticket
    if isinstance(request, FenceRequest) and worker.phase not in _DEAF:
        if request.drain_timeout_seconds and worker.phase in {Phase.PAUSED, Phase.LOADING}:
            return ticket.end(Reason.WRONG_PHASE)
        worker.admitted = False
        _limit_load(worker)
    if worker.work is not None and not _cut_short(worker, ticket):
        worker.waiting.append(ticket)
    else:
        act(worker, ticket)
    return ticket


def act(worker: FakeWorker, ticket: Ticket) -> None:
    """Its turn has come."""
    request = ticket.request
    reason = worker.refusal_of_caller(request, again=True)
    if reason is None and _has_to_wait(worker, request):
        reason = Reason.WRONG_PHASE
    if reason is not None:
        ticket.end(reason)
        return
    match request:
        case PauseRequest():
            _pause(worker, ticket, request)
        case LoadRequest() | ApplyRequest():
            _swap(worker, ticket, request)
        case OpenRequest():
            _open(worker, ticket, request)
        case FenceRequest():
            _fence(worker, ticket, request)
        case PromptsRequest():
            _run_prompts(worker, ticket)
        case AdapterRequest():
            fake_adapters.put(worker, ticket, request)
        case AdapterRemoval():
            fake_adapters.remove(worker, ticket)


def _has_to_wait(worker: FakeWorker, request: Request) -> bool:
    """Whether a closed worker must end its requests before such a call."""
    needs_rest = isinstance(request, PromptsRequest | AdmitRequest | LoadRequest)
    return needs_rest and worker.phase is Phase.JOINING and _is_not_idle(worker)


def go_on(worker: FakeWorker, ticket: Ticket) -> None:
    """A step of a call has ended."""
    match ticket.step, ticket.request:
        case (("drain" | "rest"), FenceRequest()):
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
        case "probe", PromptsRequest() as request:
            worker.probes.report = _report(worker, request)
            ticket.end()


def staged(worker: FakeWorker, ticket: Ticket) -> None:
    """A stage has come to its end."""
    request = ticket.request
    assert isinstance(request, StageRequest)
    source = str(request.source)
    weights = worker.files.at(source)
    worker.files.note_read(source, ticket.began_at)
    reason = _refusal(worker, request, source)
    if reason is None:
        worker.staged, worker.staged_run_id = request.version, request.run_id
        worker.staged_source, worker.staged_weights = source, weights
        _forget_refusal(worker, request)
        ticket.end()
        return
    asked = (source, request.digest, request.version, request.run_id)
    seen = (weights, source in worker.bad_sources)
    if reason in _IN_THE_BYTES and worker.refused_sources.get(asked) != seen:
        # The bytes that were read have taken the place of the staged ones.
        worker.staged = worker.staged_run_id = None
    if reason in LASTING:
        worker.refused_sources[asked] = seen  # the same files are not read again
    note = Note(request.version, reason, worker.now, run_id=request.run_id)
    worker.refused_stages = with_refusal(worker.refused_stages, note)
    ticket.end(reason)


def _refusal(worker: FakeWorker, request: StageRequest, source: str) -> Reason | None:
    """Why the worker refuses the files of a version."""
    digest = digest_of(worker.files.at(source))
    if source in worker.files.absent:
        return Reason.SOURCE_ABSENT
    if source in worker.bad_sources:
        return Reason.CHECKPOINT_TRUNCATED
    if request.digest not in {None, digest}:
        return Reason.DIGEST_MISMATCH
    known = worker.meant.get((request.version, request.run_id), digest)
    return None if known == digest else Reason.VERSION_REUSED


def _begin(worker: FakeWorker, ticket: Ticket, step: str, seconds: float) -> None:
    ticket.step, ticket.ends_at = step, worker.now + seconds + _linger_seconds(worker, step)
    ticket.began_at = ticket.began_at or worker.now
    worker.work = ticket


def _linger_seconds(worker: FakeWorker, step: str) -> float:
    """How much longer than usual this step takes, once."""
    if worker.lingers[0] != step:
        return 0.0
    seconds, worker.lingers = worker.lingers[1], ("", 0.0)
    return seconds


def _may(worker: FakeWorker, ticket: Ticket, event: Event) -> bool:
    """Whether a step fits the phase; if it does not, the call ends with the reason."""
    try:
        after(_lifecycle(worker), event)
    except Refusal as refusal:
        ticket.end(refusal.reason)
        return False
    return True


def _lifecycle(worker: FakeWorker) -> LifecycleState:
    """The state of a worker whose requests have ended, if its latch is closed."""
    return LifecycleState(
        worker.phase, admitted=worker.admitted, loaded=worker.loaded_since_pause, idle=True
    )


def _stage(worker: FakeWorker, ticket: Ticket) -> Ticket:
    request = ticket.request
    assert isinstance(request, StageRequest)
    if worker.phase in _DEAF:
        broken = worker.phase is Phase.BROKEN
        return ticket.end(Reason.BROKEN if broken else Reason.WRONG_PHASE)
    running = worker.staging
    loaded = worker.label is not None and _fulfils(worker, request, loaded=True)
    if loaded or (_fulfils(worker, request, loaded=False) and not _is_for(running, request)):
        _forget_refusal(worker, request)
        return ticket.end()
    if running is not None and _is_for(running, request):
        return running
    if running is not None:
        running.end(Reason.SUPERSEDED)
    ticket.began_at = worker.now
    ticket.ends_at = worker.now + worker.slow_seconds + _linger_seconds(worker, "stage")
    worker.staging = ticket
    return ticket


def _is_for(running: Ticket | None, request: StageRequest) -> bool:
    """Whether a stage has the version, run, source and digest of a request."""
    if running is None:
        return False
    own = running.request
    assert isinstance(own, StageRequest)
    return own.model_copy(update={"epoch": request.epoch}) == request


def _fulfils(worker: FakeWorker, request: StageRequest, *, loaded: bool) -> bool:
    """Whether the loaded, or the staged, weights are those of a request. Without a digest in it the files
    must still be the same.
    """
    if loaded:
        name, source, weights = (worker.label, worker.run_id), worker.source, worker.good_weights
    else:
        name, source, weights = (
            (worker.staged, worker.staged_run_id),
            worker.staged_source,
            worker.staged_weights,
        )
    if name != (request.version, request.run_id) or source != str(request.source) or not weights:
        return False
    if request.digest is not None:
        return request.digest == digest_of(weights)
    worker.files.note_read(source, worker.now)
    return source not in worker.bad_sources and not worker.files.are_others_than(weights, source)


def _forget_refusal(worker: FakeWorker, request: StageRequest) -> None:
    before = worker.refused_stages
    worker.refused_stages = without_version(before, request.version, request.run_id)


def _renewed(worker: FakeWorker, request: PauseRequest) -> bool:
    """Whether a pause is only prolonged, or made stronger; also while a load runs."""
    lease = worker.lease
    if lease is None or worker.phase not in {Phase.PAUSED, Phase.LOADING}:
        return False
    worker.renewed_at = worker.now
    stronger = request.mode is PauseMode.ABORT and lease.mode is not PauseMode.ABORT
    if stronger and worker.phase is Phase.PAUSED:
        worker.requests.end("pause abort")
        _start_lease(worker, request, PauseMode.ABORT, since=lease.since)
    elif lease.holder == request.holder:
        worker.lease = lease.renewed(worker.now, request.lease_seconds)
    else:  # the lease has expired, and another holder takes over
        _start_lease(worker, request, lease.mode, since=lease.since)
    return True


def _start_lease(
    worker: FakeWorker,
    request: PauseRequest | ApplyRequest,
    mode: PauseMode,
    *,
    since: float,
    timed_out: bool = False,
) -> None:
    worker.lease = PauseLease(
        mode,
        request.holder,
        since,
        worker.now + request.lease_seconds,
        drain_timed_out=timed_out,
    )


def _cut_short(worker: FakeWorker, ticket: Ticket) -> bool:
    """End a drain, or prompts, that this call does not wait for. Returns: whether it may act now."""
    running, request = worker.work, ticket.request
    at_once = _is_fence_at_once(request)
    aborts = isinstance(request, PauseRequest) and request.mode is PauseMode.ABORT
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


def _is_fence_at_once(request: Request) -> bool:
    return isinstance(request, FenceRequest) and not request.drain_timeout_seconds


def _pause(worker: FakeWorker, ticket: Ticket, request: PauseRequest) -> None:
    if _renewed(worker, request):
        ticket.end()
    elif _may(worker, ticket, Event.PAUSE):
        _stop(worker, ticket)


def _run_prompts(worker: FakeWorker, ticket: Ticket) -> None:
    is_cut = any(_is_fence_at_once(waiting.request) for waiting in worker.waiting)
    if worker.phase in {Phase.SERVING, Phase.JOINING} and not is_cut:
        _begin(worker, ticket, "probe", worker.slow_seconds)
    else:
        ticket.end(Reason.WRONG_PHASE)


def _stop(worker: FakeWorker, ticket: Ticket) -> None:
    """Stop generating, at once or after a drain."""
    request = ticket.request
    assert isinstance(request, PauseRequest | ApplyRequest)
    left = worker.requests.left_seconds
    if request.mode is PauseMode.ABORT:
        worker.requests.end("pause abort")
    if request.mode is not PauseMode.WAIT or left is None:
        _stopped(worker, ticket)
        return
    worker.phase = Phase.PAUSING
    _begin(worker, ticket, "drain", min(left, request.drain_timeout_seconds))


def _stopped(worker: FakeWorker, ticket: Ticket) -> None:
    request = ticket.request
    assert isinstance(request, PauseRequest | ApplyRequest)
    if not worker.admitted:  # fenced meanwhile: the fence continues from here
        worker.phase = Phase.JOINING
        ticket.end(Reason.WRONG_PHASE if isinstance(request, ApplyRequest) else None)
        return
    worker.phase, worker.loaded_since_pause = Phase.PAUSED, False
    worker.renewed_at = worker.now
    timed_out = request.mode is PauseMode.WAIT and worker.requests.left_seconds is not None
    mode = PauseMode.KEEP if timed_out else request.mode
    since = ticket.began_at or worker.now
    _start_lease(worker, request, mode, since=since, timed_out=timed_out)
    if isinstance(request, PauseRequest):
        ticket.end()
    elif not _is_staged(worker, request):  # another one was staged during the drain
        ticket.end(Reason.NOT_STAGED)
    else:
        _load(worker, ticket)


def _swap(worker: FakeWorker, ticket: Ticket, request: LoadRequest | ApplyRequest) -> None:
    both = isinstance(request, ApplyRequest)
    if _is_loaded(worker, request) and not _is_staged(worker, request):
        if both and worker.phase is not Phase.SERVING:
            if not _may(worker, ticket, Event.RESUME):
                return
            worker.serve()
        ticket.end()
        return
    paused = worker.phase is Phase.PAUSED
    if not (both and paused) and not _may(worker, ticket, Event.PAUSE if both else Event.LOAD):
        return
    if not _is_staged(worker, request):
        ticket.end(Reason.NOT_STAGED)
    elif worker.phase is Phase.SERVING:
        _stop(worker, ticket)
    else:
        _load(worker, ticket)


def _load(worker: FakeWorker, ticket: Ticket) -> None:
    ticket.source, ticket.weights = worker.staged_source, worker.staged_weights
    ticket.version, ticket.run_id = worker.staged, worker.staged_run_id
    ticket.good_weights, worker.staged, worker.staged_run_id = worker.weights, None, None
    worker.phase, worker.weights = Phase.LOADING, None
    _begin(worker, ticket, "load", worker.slow_seconds)


def _limit_load(worker: FakeWorker) -> None:
    """A load that outlasts a fence for long fails in the engine."""
    running = worker.work
    if running is not None and running.step == "load":
        running.cut |= running.ends_at > worker.now + CUT_SECONDS
        running.ends_at = min(running.ends_at, worker.now + CUT_SECONDS)


def _loaded(worker: FakeWorker, ticket: Ticket) -> None:
    request, version = ticket.request, str(ticket.version)
    if ticket.cut or version in worker.breaking_versions:
        worker.close("broken")
        ticket.good, worker.label, worker.phase = worker.label, None, Phase.BROKEN
        worker.load_failure = Note(version, Reason.ENGINE_FAILED, worker.now, run_id=ticket.run_id)
        _begin(worker, ticket, "recover", worker.slow_seconds)
        return
    if worker.compare is not None:
        assert isinstance(request, LoadRequest | ApplyRequest)
        worker.effect = worker.compare(worker, request)
    worker.probes.note_loaded((version, ticket.run_id, digest_of(ticket.weights)))
    worker.label, worker.run_id, worker.weights = version, ticket.run_id, ticket.weights
    worker.source, worker.load_failure = ticket.source, None
    worker.meant[version, ticket.run_id] = digest_of(ticket.weights)
    worker.phase, worker.loaded_since_pause = Phase.PAUSED, True
    if not worker.admitted:
        worker.close("fence")
    elif isinstance(request, ApplyRequest):
        worker.serve()
    ticket.end()


def _open(worker: FakeWorker, ticket: Ticket, request: OpenRequest) -> None:
    event = Event.ADMIT if isinstance(request, AdmitRequest) else Event.RESUME
    if not _may(worker, ticket, event):
        return
    if worker.label is None or not _is_loaded(worker, request):
        ticket.end(Reason.VERSION_MISMATCH)
    elif worker.phase is Phase.SERVING and worker.admitted:
        ticket.end()
    elif worker.epoch is not None and request.epoch < worker.epoch:
        ticket.end(Reason.STALE_EPOCH)
    else:
        worker.serve()
        ticket.end()


def _is_loaded(worker: FakeWorker, wanted: Named) -> bool:
    """Whether these weights are in its engine, by its own account. An omitted run may be any."""
    if worker.label != wanted.version or wanted.run_id not in {None, worker.run_id}:
        return False
    return wanted.digest in {None, worker.digest}


def _is_staged(worker: FakeWorker, wanted: Named) -> bool:
    """Whether it holds the bytes of these weights."""
    if worker.staged != wanted.version or wanted.run_id not in {None, worker.staged_run_id}:
        return False
    return wanted.digest in {None, digest_of(worker.staged_weights)}


def _fence(worker: FakeWorker, ticket: Ticket, request: FenceRequest) -> None:
    left = worker.requests.left_seconds
    if worker.phase in _DEAF:
        ticket.end()
    elif request.drain_timeout_seconds and worker.phase is Phase.SERVING and left is not None:
        worker.phase = Phase.PAUSING
        _begin(worker, ticket, "drain", min(left, request.drain_timeout_seconds))
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


def _report(worker: FakeWorker, request: PromptsRequest) -> PromptsReport:
    """Odd versions are far from all others, and near to each other."""
    version = str(worker.label)
    answers = Answers(version, (), run_id=worker.run_id, digest=worker.digest)
    named = request.compare_with, request.compare_with_run_id, request.compare_with_digest
    before = worker.probes.note(answers, named)
    drift = None
    if before is not None:
        drift = 9.0 if len({version, before.version} & worker.odd_versions) == 1 else 0.1
    return PromptsReport(
        version=version,
        run_id=worker.run_id,
        digest=worker.digest,
        compared_with=before and before.version,
        compared_with_run_id=before and before.run_id,
        compared_with_digest=before and before.digest,
        finite=True,
        repetition=0.1,
        logprob_drift=drift,
        kl=drift,
    )
