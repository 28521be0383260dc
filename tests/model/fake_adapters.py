"""LoRA adapters of a fake worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.fake_state import FakeAdapter, Ticket

from fleet_worker.lora.refused import AdapterFault
from fleet_worker.protocol import AdapterRequest, Phase, Reason

if TYPE_CHECKING:
    from tests.model.fake_worker import FakeWorker


def remove(worker: FakeWorker, ticket: Ticket) -> None:
    """Stop serving an adapter."""
    if not worker.has_slots:
        ticket.end(Reason.ADAPTERS_OFF)
        return
    worker.adapters.pop(ticket.adapter, None)
    worker.staged_adapters.pop(ticket.adapter, None)
    worker.refused_adapters.forget(ticket.adapter)
    ticket.end()


def put(worker: FakeWorker, ticket: Ticket, request: AdapterRequest) -> None:
    """Stage or serve a version of an adapter."""
    name, reason = ticket.adapter, refusal(worker)
    if reason is None and not _has_served(worker, name, request):
        reason = (
            _stage(worker, name, request) if request.stage_only else _serve(worker, name, request)
        )
    if reason is not None:
        fault = AdapterFault(
            request.version, reason, "injected", worker.now, run_id=request.run_id, name=name
        )
        worker.refused_adapters.note(fault)
    elif _serves(worker, name, request):
        worker.refused_adapters.forget(name)
    else:
        worker.refused_adapters.note_staged(name, request.version, request.run_id)
    ticket.end(reason)


def refusal(worker: FakeWorker) -> Reason | None:
    """Why the worker cannot take an adapter now. It does not wait for the end of other calls to say so."""
    if not worker.has_slots:
        return Reason.ADAPTERS_OFF
    if worker.phase not in {Phase.SERVING, Phase.JOINING, Phase.PAUSED}:
        return Reason.BROKEN if worker.phase is Phase.BROKEN else Reason.WRONG_PHASE
    return None


def _serves(worker: FakeWorker, name: str, request: AdapterRequest) -> bool:
    served = worker.adapters.get(name)
    return served is not None and served.is_of(request)


def _has_served(worker: FakeWorker, name: str, request: AdapterRequest) -> bool:
    """Whether a call needs nothing more. Then the copy that is staged under the name is dropped."""
    if not _serves(worker, name, request) or _finds_others(worker, worker.adapters[name], request):
        return False
    worker.staged_adapters.pop(name, None)
    return True


def _finds_others(worker: FakeWorker, held: FakeAdapter, request: AdapterRequest) -> bool:
    """Whether a request without a digest finds other files than those that the worker holds."""
    if request.digest is not None:
        return False
    worker.files.note_read(held.source, worker.now)
    if held.source in worker.files.absent:
        return False
    spoilt = held.source in worker.bad_sources
    return spoilt or worker.files.are_others_than(held.weights, held.source)


def _held(worker: FakeWorker, name: str, request: AdapterRequest) -> FakeAdapter | None:
    """The staged copy, if it is of the files that the worker would read for a request now."""
    held = worker.staged_adapters.get(name)
    if held is None or not held.is_of(request) or _finds_others(worker, held, request):
        return None
    return held


def _stage(worker: FakeWorker, name: str, request: AdapterRequest) -> Reason | None:
    if _held(worker, name, request) is not None:
        return None
    found, reason = _read(worker, name, request)
    if reason is None and not _serves(worker, name, request):  # else the files were only compared
        worker.staged_adapters[name] = found
    return reason


def _serve(worker: FakeWorker, name: str, request: AdapterRequest) -> Reason | None:
    held = _held(worker, name, request)
    if held is None:
        held, reason = _read(worker, name, request)
        if reason is not None:
            return reason
    worker.staged_adapters.pop(name, None)
    known = (name, request.version, request.run_id)
    if worker.adapters_meant.get(known, held.digest) != held.digest:
        return Reason.VERSION_REUSED
    if worker.now < worker.no_slot_until or worker.lacks_slot:
        worker.staged_adapters[name] = held
        return Reason.NO_ADAPTER_SLOT
    if worker.failing_adapters > 0:
        worker.failing_adapters -= 1
        return Reason.ENGINE_FAILED
    worker.adapters[name], worker.adapters_meant[known] = held, held.digest
    return None


def _read(
    worker: FakeWorker, name: str, request: AdapterRequest
) -> tuple[FakeAdapter, Reason | None]:
    """The adapter that is there now, and why the worker refuses it. The staged copy is dropped first."""
    worker.staged_adapters.pop(name, None)
    source, reason = str(request.source), None
    worker.files.note_read(source, worker.now)
    found = FakeAdapter(request.version, request.run_id, source, worker.files.at(source))
    known = (name, request.version, request.run_id)
    taken = len(worker.adapters) + len(worker.staged_adapters)
    if source in worker.files.absent:
        reason = Reason.SOURCE_ABSENT
    elif source in worker.files.unfinished:
        reason = Reason.SOURCE_NOT_READY
    elif source in worker.bad_sources:
        reason = Reason.CHECKPOINT_TRUNCATED
    elif taken >= worker.room_for_adapters:
        reason = Reason.NOT_AVAILABLE
    elif not found.is_of(request):
        reason = Reason.DIGEST_MISMATCH
    elif worker.adapters_meant.get(known, found.digest) != found.digest:
        reason = Reason.VERSION_REUSED
    return found, reason
