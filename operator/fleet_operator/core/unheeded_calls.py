"""Reports the calls that workers do not follow, whatever their answers are.

A call is planned again until the worker's state shows its effect. The runtime spaces the repetitions out,
and counts them. Refusals that a worker reports in its state, and ignored calls to take the desired weights,
are failures of the rollout (`worker_failures`): those are reported there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.messages import CHECK_WORKERS
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.problems import Problem
from fleet_operator.core.work import Outcome, Unheeded, Work
from fleet_operator.core.worker_view import WorkerView
from rlfleet_resources.reasons import ConditionReason

LATELY_SECONDS = 15.0
"""A call that was sent within this time is still needed."""
_NAMED_AT_MOST = 3
_ANSWERS = {
    Outcome.NO_EFFECT: "with success, and",
    Outcome.REVERTED: "with success, and",
    Outcome.REFUSED: "with",
    Outcome.UNANSWERED: "not at all:",
}


def problems_of_calls(observed: FleetObserved, calls: Iterable[WorkerCall]) -> tuple[Problem, ...]:
    """The problems that workers do not follow calls which are still needed: one for the base weights, and
    one for each adapter.

    `calls`: those of this decision.
    """
    lasting = [(w, u) for w in observed.workers for u in w.unheeded if u.lasts]
    if not lasting:
        return ()
    desired = {(w.spec.adapter, w.spec.version, w.spec.run_id) for w in observed.weights}
    planned = {(c.pod_uid, c.work) for c in calls}
    by_adapter: dict[str, list[str]] = {}
    for worker, call in lasting:
        adapter = call.work.adapter or ""
        in_rollout = (adapter, call.work.version, call.work.run_id) in desired
        if _is_needed(worker, call, planned) and not (call.is_failure and in_rollout):
            by_adapter.setdefault(adapter, []).append(_described(worker, call))
    return tuple(_problem(adapter, found) for adapter, found in sorted(by_adapter.items()))


def _is_needed(worker: WorkerView, call: Unheeded, planned: set[tuple[str, Work]]) -> bool:
    """Whether the call is still needed. It is not planned in each decision: renewals of a pause take its
    turn, and a silent worker gets no call.
    """
    if worker.pod.deleting:
        return False
    under_way = worker.silent_seconds > 0 or worker.call == call.work
    return under_way or call.seconds < LATELY_SECONDS or (worker.pod.uid, call.work) in planned


def _described(worker: WorkerView, call: Unheeded) -> str:
    return f"{worker.pod.name} answers {call.work} {_ANSWERS[call.outcome]} {call.why}"


def _problem(adapter: str, found: Sequence[str]) -> Problem:
    more = len(found) - _NAMED_AT_MOST
    others = f"; and {more} more" if more > 0 else ""
    return Problem(
        part=f"calls to workers{f' about adapter {adapter}' if adapter else ''}",
        reason=ConditionReason.CALL_WITHOUT_EFFECT,
        message=(
            f"{'; '.join(found[:_NAMED_AT_MOST])}{others}. The operator repeats these calls every few "
            f"seconds. {CHECK_WORKERS} and delete these pods"
        ),
        concerns_weights=True,
        adapter=adapter,
    )
