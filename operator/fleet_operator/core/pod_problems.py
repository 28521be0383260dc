"""Messages about pods that need attention or wait.

They hold no running clock, so that the status of an unchanged fleet does not change.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_waits import Awaited, furthest_behind, waiting
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
    of = f"-n {observed.namespace}"
    many = f"{counted(len(broken), 'worker')} cannot run"
    return (
        f"{many}. {name}: {problem}. Kubernetes keeps retrying. See `kubectl {of} describe pod {name}` "
        f"and `kubectl {of} logs {name}`"
    )


class Missing(NamedTuple):
    """The waits of the workers of a fleet that do not serve yet.

    Fields:
        reason: the earliest step that any of them waits for.
        words: these waits, as far as the cluster may still end them, and workers that start again; empty without any.
    """

    reason: ConditionReason
    message: str


def missing_workers(observed: FleetObserved) -> Missing:
    """The waits of the missing workers of a fleet."""
    blocked = observed.workers.where(lambda f: f.pod.blocked and not f.pod.deleting)
    waits = [(w.pod.name, w.pod.wait) for w in blocked if w.pod.wait is not None]
    behind, starting = furthest_behind(waits), observed.workers.where(_starts)
    message = "; ".join(filter(None, (waiting(waits), _starting_again(starting))))
    if behind is not None:
        return Missing(behind[1].awaited.reason, message)
    reasons = ConditionReason
    return Missing(reasons.WAITING_FOR_ENGINE if starting else reasons.WAITING_FOR_WORKERS, message)


def _starts(worker: Facts) -> bool:
    running = worker.pod.running and not worker.pod.deleting
    return running and worker.phase in {None, Phase.STARTING}


def _starting_again(starting: Workers) -> str:
    """The workers whose engines have ended before and start now. `cannot_run` has those that keep ending."""
    again = [w.pod for w in starting if w.pod.starts_again and not w.pod.problem]
    if not again:
        return ""
    many = f"{counted(len(again), 'worker')} {agree(len(again), 'starts', 'start')} again"
    return f"{many}. {again[0].name}: {again[0].starts_again}"


_WAITS = frozenset(awaited.reason for awaited in Awaited)


def named_wait(before: str, missing: Missing, ready: ConditionReason | None) -> str:
    """The wait for `status.waitingFor`: the one that `Ready` names, or that it has named while pods still wait."""
    if ready in _WAITS:
        return str(ready)
    return before if missing.reason in _WAITS else ""


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
        f"the pod with `kubectl -n {observed.namespace} delete pod {first.name} --force`; the operator then "
        "recreates the pod"
    )
