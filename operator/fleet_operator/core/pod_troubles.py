"""What pods of a fleet need attention for, and what they wait for, in words.

Messages hold no running clocks, so that an unchanged fleet has an unchanged status.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fleet_operator.core.counts import agree, counted
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_waits import waiting
from fleet_worker.protocol import PROTOCOL_VERSION

STUCK_SECONDS = 60.0
"""A pod that is deleted and still there so long after its grace period needs attention."""


def of_another_release(observed: FleetObserved) -> str:
    """Which workers speak another protocol than this operator; empty if none does."""
    others = [
        (w.pod.name, w.state.protocol)
        for w in observed.workers
        if w.state is not None and w.state.protocol != PROTOCOL_VERSION and not w.pod.deleting
    ]
    if not others:
        return ""
    name, number = others[0]
    many = f"{counted(len(others), 'worker')} {agree(len(others), 'speaks', 'speak')}"
    older = "upgrade the operator" if number > PROTOCOL_VERSION else "upgrade the worker image"
    return (
        f"{many} another protocol than the operator. {name} speaks {number}, the operator "
        f"{PROTOCOL_VERSION}. Use one release for both: {older}, or set spec.engine.image to the "
        "worker image of the operator's release. What both understand is still done"
    )


def cannot_run(observed: FleetObserved, now: datetime) -> str:
    """Which pods cannot run, or wait for longer than the fleet allows; empty if none does."""
    deadline = observed.spec.progress_deadline_seconds
    troubled = []
    for worker in observed.workers:
        pod = worker.pod
        if pod.deleting:
            continue
        if pod.trouble:
            troubled.append((pod.name, pod.trouble))
        elif pod.wait is not None and pod.wait.is_overdue(deadline, now):
            troubled.append((pod.name, f"{pod.wait} (for longer than {deadline} s)"))
    if not troubled:
        return ""
    name, trouble = troubled[0]
    again = agree(
        len(troubled), "It is tried again by itself", "They are tried again by themselves"
    )
    many = f"{counted(len(troubled), 'worker')} cannot run"
    return (
        f"{many}. {name}: {trouble}. {again}; `kubectl describe pod {name}` and its log tell more"
    )


def waits_for(observed: FleetObserved) -> str:
    """What pods wait for that the cluster may still bring; empty if for nothing."""
    pods = (w.pod for w in observed.workers if not w.pod.deleting)
    return waiting([(p.name, p.wait) for p in pods if p.wait is not None])


def will_not_go(observed: FleetObserved, now: datetime) -> str:
    """Which pods are deleted and do not end; empty if none."""
    late = timedelta(seconds=STUCK_SECONDS)
    going = [w.pod for w in observed.workers if w.pod.gone_by]
    stuck = [p for p in going if p.evicted or (p.gone_by and now - p.gone_by > late)]
    if not stuck:
        return ""
    first = stuck[0]
    return (
        f"{counted(len(stuck), 'pod')} {agree(len(stuck), 'is', 'are')} deleted and "
        f"{agree(len(stuck), 'does', 'do')} not end. {first.name} is on node {first.node}: if "
        f"that node is gone for good, delete the Node, or the pod with `kubectl delete pod "
        f"{first.name} --force`; its successor follows"
    )
