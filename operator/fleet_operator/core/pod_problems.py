"""Messages about pods that need attention or wait.

They hold no running clock, so that the status of an unchanged fleet does not change.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fleet_operator.core.facts import Facts
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_waits import Awaited, PodWait, furthest_behind, waiting
from fleet_operator.counts import agree, counted
from fleet_worker.protocol import PROTOCOL_VERSION, Phase
from rlfleet_resources.reasons import ConditionReason

STUCK_SECONDS = 60.0
"""Time after its grace period from which a deleted pod that still exists needs attention."""


def of_another_release(observed: FleetObserved) -> str:
    """The workers that use another protocol than this operator; empty without any."""
    others = [
        (w.pod.name, w.state.protocol)
        for w in observed.workers.where(lambda f: f.other_protocol and not f.pod.deleting)
        if w.state is not None
    ]
    if not others:
        return ""
    name, number = others[0]
    many = f"{counted(len(others), 'worker')} {agree(len(others), 'uses', 'use')}"
    older = "upgrade the operator" if number > PROTOCOL_VERSION else "upgrade the worker image"
    return (
        f"{many} another protocol than the operator. {name} uses {number}, the operator "
        f"{PROTOCOL_VERSION}. Use one release for both: {older}, or set spec.engine.image to the "
        "worker image of the operator's release. Calls that both know still work"
    )


def cannot_run(observed: FleetObserved, now: datetime) -> str:
    """The pods that cannot run, or wait for longer than `progressDeadlineSeconds`; empty without any."""
    deadline = observed.spec.progress_deadline_seconds
    broken = []
    for worker in observed.workers.where(lambda f: f.pod.blocked and not f.pod.deleting):
        pod = worker.pod
        if pod.problem:
            broken.append((pod.name, pod.problem))
        elif pod.wait is not None and pod.wait.is_overdue(deadline, now):
            broken.append((pod.name, f"{pod.wait} (for longer than {deadline} s)"))
    if not broken:
        return ""
    name, problem = broken[0]
    many = f"{counted(len(broken), 'worker')} cannot run"
    return (
        f"{many}. {name}: {problem}. Kubernetes keeps retrying. See `kubectl describe pod {name}` "
        f"and `kubectl logs {name}`"
    )


def waits_for(observed: FleetObserved) -> str:
    """The waits of pods that the cluster may still end, and workers that start again; empty without any."""
    return "; ".join(filter(None, (waiting(_waits(observed)), _starting_again(observed))))


def what_it_waits_for(observed: FleetObserved) -> ConditionReason:
    """Why workers are missing: the earliest step that any of them waits for."""
    behind = furthest_behind(_waits(observed))
    if behind is not None:
        return behind[1].awaited.reason
    starting = observed.workers.any(_starts)
    reasons = ConditionReason
    return reasons.WAITING_FOR_ENGINE if starting else reasons.WAITING_FOR_WORKERS


def _starts(worker: Facts) -> bool:
    running = worker.pod.running and not worker.pod.deleting
    return running and worker.phase in {None, Phase.STARTING}


def _starting_again(observed: FleetObserved) -> str:
    """The workers whose engines have ended before and start now. `cannot_run` has those that keep ending."""
    pods = [w.pod for w in observed.workers.where(_starts)]
    again = [p for p in pods if p.starts_again and not p.problem]
    if not again:
        return ""
    many = f"{counted(len(again), 'worker')} {agree(len(again), 'starts', 'start')} again"
    return f"{many}. {again[0].name}: {again[0].starts_again}"


_WAITS = frozenset(awaited.reason for awaited in Awaited)


def named_wait(observed: FleetObserved, ready: ConditionReason | None) -> str:
    """The wait for `status.waitingFor`: the one that `Ready` names, or that it has named while pods still wait."""
    if ready in _WAITS:
        return str(ready)
    before = observed.status.waiting_for
    return before if before and what_it_waits_for(observed) in _WAITS else ""


def _waits(observed: FleetObserved) -> list[tuple[str, PodWait]]:
    blocked = observed.workers.where(lambda f: f.pod.blocked and not f.pod.deleting)
    return [(w.pod.name, w.pod.wait) for w in blocked if w.pod.wait is not None]


def will_not_go(observed: FleetObserved, now: datetime) -> str:
    """The deleted pods that do not terminate; empty without any."""
    late = timedelta(seconds=STUCK_SECONDS)
    going = [w.pod for w in observed.workers.where(lambda f: f.pod.deleting) if w.pod.gone_by]
    stuck = [p for p in going if p.evicted or (p.gone_by and now - p.gone_by > late)]
    if not stuck:
        return ""
    first = stuck[0]
    return (
        f"{counted(len(stuck), 'pod')} {agree(len(stuck), 'is', 'are')} stuck terminating. "
        f"{first.name} is on node {first.node}: if that node is gone for good, delete the Node, or "
        f"the pod with `kubectl delete pod {first.name} --force`; the operator then recreates the pod"
    )
