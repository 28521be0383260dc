"""Lists the workers that do not serve the desired version, and why.

At most 20, those that need attention first. A worker that takes part in a running rollout is not
listed. Messages hold no running clocks, so that the status of an unchanged fleet does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts
from fleet_operator.core.messages import why
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.worker_failures import ignored_calls, is_about
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing, WorkerView
from fleet_worker.protocol import Failure, Phase
from rlfleet_resources.base import renewed
from rlfleet_resources.fleet_status import MAX_LAGGARDS, Laggard
from rlfleet_resources.reasons import LaggardReason

_MAX_MESSAGE = 300


def lagging_workers(
    observed: FleetObserved,
    desired: Checkpoint,
    before: Sequence[Laggard] = (),
    *,
    goal: Checkpoint | None = None,
) -> tuple[Laggard, ...]:
    """Returns the lagging workers, worst first.

    Args:
        observed: The fleet.
        desired: The weights that they lack.
        before: The last list.
        goal: The weights that the operator leads them to now; by default the desired ones.
    """
    candidates = observed.workers.where(_may_lag)
    ranked = [(rank, w) for w in candidates if (rank := _rank(w, desired))]
    ranked.sort(key=itemgetter(0))  # workers of one rank stay in the order of their ordinals
    known = {laggard.pod: laggard for laggard in before}
    worst = ranked[:MAX_LAGGARDS]
    return tuple(_laggard(w, goal or desired, known.get(w.pod.name)) for _, w in worst)


def silent_workers(observed: FleetObserved) -> int:
    """Returns how many running workers have answered before, and have been silent for 10 s or longer."""
    return sum(
        w.state is not None and w.silent_seconds >= PROBE_SECONDS and w.pod.running
        for w in observed.workers.where(lambda f: f.silent)
        if not w.pod.deleting
    )


def _may_lag(worker: Facts) -> bool:
    """Whether the worker may be lagging: a quick filter before `_rank`."""
    blocked = worker.pod.quarantined or worker.pod.blocked or worker.refuses
    return blocked or worker.standing not in {Standing.OPEN, Standing.HELD}


def _rank(worker: WorkerView, desired: Checkpoint) -> int:
    """Returns 0 for a worker that is up to date or on its way, otherwise 1 (worst) to 4."""
    failure = _failure(worker)
    if worker.pod.deleting:
        return 0
    if worker.pod.quarantine or worker.pod.problem:
        return 1
    if failure is not None and (is_about(failure, desired) or _is_closed(worker)):
        return 2
    if worker.standing is Standing.UNKNOWN:
        return 3
    return 4 if _is_closed(worker) else 0


def _laggard(worker: WorkerView, goal: Checkpoint, before: Laggard | None) -> Laggard:
    reason, message = _cause(worker, goal)
    if before is None:
        before = Laggard(pod=worker.pod.name, state="", reason="")
    return renewed(
        before,
        pod=worker.pod.name,
        version=worker.version,
        state=_state(worker),
        reason=reason,
        message=message[:_MAX_MESSAGE],
    )


def _cause(worker: WorkerView, goal: Checkpoint) -> tuple[str, str]:
    if (of_pod := _cause_in_pod(worker)) is not None:
        return of_pod
    if failure := _failure(worker):
        return str(failure.reason), f"version {failure.version}: {failure.message}"
    if worker.standing is Standing.UNKNOWN:
        return LaggardReason.NOT_ANSWERING, why(worker, goal)
    if worker.standing is Standing.ABSENT:
        again = worker.pod.starts_again
        return LaggardReason.STARTING, "its engine is starting" + (f"; {again}" if again else "")
    return LaggardReason.JOINING, f"being updated to version {goal.label}"


def _cause_in_pod(worker: WorkerView) -> tuple[str, str] | None:
    pod = worker.pod
    if pod.quarantine:
        return LaggardReason.QUARANTINED, pod.quarantine
    if pod.problem:
        reason, _, message = pod.problem.partition(": ")
        return reason, message
    return (pod.wait.reason, pod.wait.message) if pod.wait is not None else None


def _failure(worker: WorkerView) -> Failure | None:
    if worker.state is None or not worker.facts.refuses:
        return None
    reported = worker.state.load_failure or worker.state.stage_failure
    return reported or next(iter(ignored_calls(worker)), None)


def _is_closed(worker: WorkerView) -> bool:
    return worker.standing in {Standing.CLOSED, Standing.ABSENT}


def _state(worker: WorkerView) -> str:
    if worker.standing is Standing.ABSENT or worker.state is None:
        return str(worker.pod.phase if not worker.pod.running else Phase.STARTING)
    return str(worker.state.phase)
