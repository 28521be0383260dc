"""Where versions never mix: what else can make two of them generate at once, and what is done.

* A worker that hangs, or whose node is cut off, is out of the Service as soon as its probe fails.
  But nobody can close its latch, and when it recovers the Service has it again. So nobody is opened
  beside it with other weights before it is quarantined: that lasts.
  An operator that has just begun does not know whether such a worker was admitted; one question
  that got lost is no proof, so it is given the time in which the kubelet's probe would have failed.
* A member that generates neither what the fleet serves nor what it is to serve is a stray: one that
  said it had loaded and had not, one that somebody drove by hand, or what another strategy left. It
  does not wait for the next barrier: its latch is closed when its requests have ended, and it joins
  again. So is one that holds its requests while others serve, and would generate such weights again
  as soon as nobody renews its pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Admit, Quarantine, Resume
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.observed import PROBE_SECONDS, Standing, WorkerView
from fleet_operator.core.problems import some
from fleet_operator.core.step import RolloutView, Step

_SOON_OPEN = frozenset({RolloutPhase.PAUSING, RolloutPhase.LOADING})


def keep_out(step: Step, lost: Sequence[WorkerView]) -> Step:
    """The step, with nobody opened at a version that differs from what a lost worker may serve."""
    opened = {WeightsId.of(a) for a in step.actions if isinstance(a, Resume | Admit)}
    if step.phase in _SOON_OPEN and step.problem is None:
        opened.add(WeightsId.of(step.goal))  # done now, it holds up no worker later
    strays = [w for w in lost if any(not w.has_loaded(o) for o in opened)]
    if not strays:
        return step
    others = {o for o in opened if any(not w.has_loaded(o) for w in strays)}
    kept = (
        a for a in step.actions if not (isinstance(a, Resume | Admit) and WeightsId.of(a) in others)
    )
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


def expel_strays(step: Step, view: RolloutView, *, older: AbstractSet[WeightsId]) -> Step:
    """The step, with an end to what generates, or would without us, beside the applied version and
    is not the goal. `older`: versions that are known to have been served before the applied one.

    If nobody is known to serve what is held to be applied, that may be an error of ours; not so with
    an older version, for which joiners that have the applied one would have to wait.
    """
    serving = [m for m in view.members if m.standing is Standing.OPEN]
    voiced = [*serving, *(m for m in view.held if m.goes_on_by_itself and not m.operation)]
    certain = any(m.has_loaded(view.applied) for m in serving)
    strays = {
        m.pod.uid: m
        for m in voiced
        if not (m.has_loaded(view.applied) or m.has_loaded(step.goal))
        and (certain or m.loaded in older)
    }
    if not strays:
        return step
    reason = f"it has {{}}, and the fleet serves {view.applied.label}"
    apart = (
        calls.set_apart(m, view.settings, reason=reason.format(m.loaded))
        for m in strays.values()
        if not m.operation.startswith("fence")
    )
    kept = (a for a in step.actions if getattr(a, "pod_uid", "") not in strays)
    return replace(step, actions=(*kept, *apart))
