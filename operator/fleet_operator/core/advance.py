"""Decides the next call to a worker on its way to its target: one table for all strategies, and for adapters.

Behind a barrier, a pause that ends soon is renewed before anything else. A worker that is at other work, or waits for a retry
after a refusal, gets no call. It opens at the weights that it has.

A load of an adapter takes no worker away. It reads the files by itself once their digest is pinned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_calls, worker_failures
from fleet_operator.core.actions import PutLora, StageLora, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.work import TAKES_TIME, WorkKind
from fleet_operator.core.worker_view import Standing, WorkerView


class Mode(Enum):
    """The way in which a worker should have the weights of its target."""

    KEEP = auto()
    """Have their bytes. It serves what it has, or holds its requests."""
    HOLD = auto()
    """Hold its requests. It has the bytes already."""
    LOAD = auto()
    """Load them. It holds its requests already."""
    SERVE = auto()
    """Serve them."""
    OUT = auto()
    """Load them, without clients."""


@dataclass(frozen=True, slots=True)
class Target:
    """The weights of a worker, and their mode.

    Fields:
        reason: of its next call.
        adapter: the name of the adapter whose weights these are; empty for base weights.
        needs_stage: a load takes bytes that were staged before.
    """

    weights: Checkpoint
    mode: Mode
    reason: str
    adapter: str = ""
    needs_stage: bool = True


_NEXT: Mapping[tuple[Standing, Mode], tuple[WorkKind | None, WorkKind | None, WorkKind | None]] = {
    # standing, mode               lacks the bytes, has them, has loaded the weights
    (Standing.OPEN, Mode.KEEP): ("stage", None, None),
    (Standing.OPEN, Mode.HOLD): ("stage", "pause", "pause"),
    (Standing.OPEN, Mode.SERVE): ("stage", "apply", None),
    (Standing.OPEN, Mode.OUT): ("stage", "fence", None),
    (Standing.HELD, Mode.KEEP): ("stage", None, None),
    (Standing.HELD, Mode.LOAD): ("stage", "load", None),
    (Standing.HELD, Mode.SERVE): ("resume", "resume", "resume"),
    (Standing.CLOSED, Mode.KEEP): ("stage", "load", None),
    (Standing.CLOSED, Mode.OUT): ("stage", "load", None),
    (Standing.CLOSED, Mode.SERVE): ("stage", "load", "admit"),
}
_CALLS: Mapping[WorkKind, Callable[[WorkerView, Target, Rollout], WorkerCall]] = {
    "stage": lambda w, t, how: worker_calls.stage(w, t.weights, how, reason=t.reason),
    "pause": lambda w, t, how: worker_calls.pause(w, how, reason=t.reason),
    "load": lambda w, t, how: worker_calls.load(w, t.weights, how, reason=t.reason),
    "apply": lambda w, t, how: worker_calls.apply(w, t.weights, how, reason=t.reason),
    "resume": lambda w, t, _: worker_calls.resume(w, reason=t.reason),
    "admit": lambda w, t, _: worker_calls.admit(w, reason=t.reason),
    "fence": lambda w, t, how: worker_calls.fence_after_drain(w, how, reason=t.reason),
}
_LORA_CALLS: Mapping[WorkKind, Callable[[WorkerView, Target, Rollout], WorkerCall]] = {
    "stage": lambda w, t, how: _put_lora(w, t, how, StageLora),
    "load": lambda w, t, how: _put_lora(w, t, how, PutLora),
    "apply": lambda w, t, how: _put_lora(w, t, how, PutLora),
}
_OPENS = frozenset({"apply", "resume", "admit"})
"""Calls that wait for any other work of a worker."""
_NEEDS_FILES = frozenset({"stage", "load", "apply", "fence"})
"""Calls that wait for a retry after a refusal."""


def advance(
    workers: Workers,
    target: Target,
    settings: Rollout,
    *,
    within_seconds: float = math.inf,
    renews: bool = True,
) -> tuple[WorkerCall, ...]:
    """The next calls to workers with the same target; of two to one worker the last is the better one.

    `within_seconds`: older refusals do not count. `renews`: pauses that end soon are renewed. The caller
    then limits how long a worker is held. The pause of a load of base weights is renewed always: without
    it the worker closes. The plan of an adapter pauses no worker.
    """
    work = {facts: _next_work(facts, target) for facts in workers.kinds}
    loads = {f: f.is_doing("load") and not target.adapter for f in work}
    holds = {f: f.standing is Standing.HELD and (renews or loads[f]) for f in work}
    makes = _LORA_CALLS if target.adapter else _CALLS
    calls: list[WorkerCall] = []
    for worker in workers.where(lambda f: work[f] is not None or holds[f]):
        facts = worker.facts
        kind = work[facts]
        if kind is not None and (facts.refuses or target.adapter):
            kind = None if _waits(worker, kind, target, within_seconds) else kind
        is_renewed = holds[facts] and worker_calls.needs_renewal(worker)
        if is_renewed:
            reason = "the rollout needs longer than the pause lease"
            calls.append(worker_calls.pause(worker, settings, reason=reason))
        # A resume is wished after the renewal, since it may not be permitted.
        if kind is not None and (kind == "resume" or not is_renewed):
            calls.append(makes[kind](worker, target, settings))
    return tuple(calls)


def _next_work(now: Facts, target: Target) -> WorkKind | None:
    weights = target.weights
    lacks, has_bytes, loaded = _NEXT.get((now.standing, target.mode), (None, None, None))
    kind = lacks
    if now.has_loaded(weights):
        kind = loaded
    elif now.has_bytes(weights) or not target.needs_stage:
        kind = has_bytes
    is_at_work = now.operation is not None and now.operation.kind in TAKES_TIME
    is_called = now.is_called_to("apply") or now.is_called_to("admit")
    stages = weights.is_transferred or now.is_doing("stage", weights)
    waits = is_at_work or is_called or (kind in _OPENS and now.operation is not None)
    waits = waits or (kind == "stage" and stages)
    return None if waits and kind != "pause" else kind


def _waits(worker: WorkerView, kind: WorkKind, target: Target, within_seconds: float) -> bool:
    """Whether a worker takes no call about adapters now, or the time for a retry has not come."""
    if target.adapter and not worker.accepts_lora:
        return True
    return kind in _NEEDS_FILES and worker_failures.failed_lately(
        worker, target.weights, within_seconds=within_seconds
    )


def _put_lora(
    worker: WorkerView, target: Target, settings: Rollout, kind: type[PutLora | StageLora]
) -> WorkerCall:
    name, goal, reason = target.adapter, target.weights, target.reason
    return worker_calls.put_lora(worker, name, goal, settings, reason=reason, kind=kind)
