"""Which workers are not where they should be, and why, in words.

Bounded: at most 20, those that need a person first. Workers that merely take part in a running
rollout are not listed. Messages hold no running clocks, so that an unchanged fleet has an
unchanged status.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet_operator.api.base import renewed
from fleet_operator.api.fleet import MAX_LAGGARDS, Laggard
from fleet_operator.core.calls import is_about
from fleet_operator.core.observed import FleetObserved, Standing, Target, WorkerView
from fleet_operator.core.problems import why
from fleet_worker.protocol import Failure, Phase

_MAX_MESSAGE = 300


def laggards_of(
    observed: FleetObserved, desired: Target, before: Sequence[Laggard] = ()
) -> tuple[Laggard, ...]:
    """The laggards of a fleet with respect to the desired weights, worst first. `before`: the last
    ones.
    """
    ranked = [(rank, w.pod.ordinal, w) for w in observed.workers if (rank := _rank(w, desired))]
    ranked.sort(key=lambda entry: entry[:2])
    known = {laggard.pod: laggard for laggard in before}
    worst = (w for _, _, w in ranked[:MAX_LAGGARDS])
    return tuple(_laggard(w, desired, known.get(w.pod.name)) for w in worst)


def _rank(worker: WorkerView, desired: Target) -> int:
    """0 for a worker that is where it should be or on its way, else lower is worse."""
    failure = _failure(worker)
    if worker.pod.deleting:
        return 0
    if worker.pod.quarantine or worker.pod.trouble:
        return 1
    if failure is not None and (is_about(failure, desired) or _is_closed(worker)):
        return 2
    if worker.standing is Standing.UNKNOWN:
        return 3
    return 4 if _is_closed(worker) else 0


def _laggard(worker: WorkerView, desired: Target, before: Laggard | None) -> Laggard:
    reason, message = _cause(worker, desired)
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


def _cause(worker: WorkerView, desired: Target) -> tuple[str, str]:
    if (of_pod := _cause_in_pod(worker)) is not None:
        return of_pod
    if failure := _failure(worker):
        return str(failure.reason), f"version {failure.version}: {failure.message}"
    if worker.standing is Standing.UNKNOWN:
        return "NotAnswering", why(worker, desired)
    if worker.standing is Standing.ABSENT:
        return "Starting", "its engine is not up yet"
    return "Joining", f"is brought to version {desired.label}"


def _cause_in_pod(worker: WorkerView) -> tuple[str, str] | None:
    pod = worker.pod
    if pod.quarantine:
        return "Quarantined", pod.quarantine
    if pod.trouble:
        reason, _, message = pod.trouble.partition(": ")
        return reason, message
    return (pod.wait.reason, pod.wait.message) if pod.wait is not None else None


def _failure(worker: WorkerView) -> Failure | None:
    if worker.state is None:
        return None
    return worker.state.load_failure or worker.state.stage_failure


def _is_closed(worker: WorkerView) -> bool:
    return worker.standing in {Standing.CLOSED, Standing.ABSENT}


def _state(worker: WorkerView) -> str:
    if worker.standing is Standing.ABSENT or worker.state is None:
        return str(worker.pod.phase if not worker.pod.running else Phase.STARTING)
    return str(worker.state.phase)
