"""Workers that may come back as they were: open, and with the weights of before.

One that hangs, or whose node is cut off, is out of the Service as soon as its probe fails. But
nobody can close its latch, and when it recovers the Service has it again. Where versions never mix,
nobody is opened beside it with other weights before it is quarantined: that lasts.

An operator that has just begun does not know whether such a worker was admitted; one question that
got lost is no proof, so it is given the time in which the kubelet's probe would have failed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.actions import Admit, Quarantine, Resume
from fleet_operator.core.observed import PROBE_SECONDS, WorkerView
from fleet_operator.core.problems import some
from fleet_operator.core.step import Step

_SOON_OPEN = frozenset({RolloutPhase.PAUSING, RolloutPhase.LOADING})


def keep_out(step: Step, lost: Sequence[WorkerView]) -> Step:
    """The step, with nobody opened at a version that differs from what a lost worker may serve."""
    opened = {a.version for a in step.actions if isinstance(a, Resume | Admit)}
    if step.phase in _SOON_OPEN and step.problem is None:
        opened.add(step.goal.version)  # done now, it holds up nobody later
    strays = [w for w in lost if opened - {w.version}]
    if not strays:
        return step
    others = {v for v in opened if any(w.version != v for w in strays)}
    kept = (a for a in step.actions if not (isinstance(a, Resume | Admit) and a.version in others))
    reason = "it does not answer and may come back with other weights than the others serve"
    expelled = (
        Quarantine(name=w.pod.name, uid=w.pod.uid, reason=reason)
        for w in strays
        if w.state is not None or w.silent_seconds >= PROBE_SECONDS
    )
    return replace(
        step,
        actions=(*kept, *expelled),
        note=f"{step.note}; {some(strays)} must be out of the Service before anybody is opened",
        requeue_after_seconds=1.0,
    )
