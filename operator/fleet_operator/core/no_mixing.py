"""Guards of the strategies that forbid mixed versions: three ways in which two versions could still
generate at once.

* Silent workers. A worker that hangs, or whose node is cut off, leaves the Service when its probe
  fails, and returns when it recovers. Its latch cannot be closed meanwhile. So no worker is opened
  with other weights until the silent one is quarantined, which lasts.
  A new leader does not know whether a silent worker was admitted. One lost request proves nothing,
  so the worker gets the time in which the kubelet's probe would have failed.
* Members with another version: they generate neither the applied version nor the goal. A worker may
  have reported a load that did not happen, a client may have driven it by hand, or another strategy
  may have left it so. It is fenced after its requests have ended, without waiting for the next barrier,
  and joins again. A paused worker with such weights is fenced at once: it would generate again when its
  lease ends. A worker that loads the goal or the applied version now, or has the call for it, keeps its
  requests.
* Workers whose admission got no answer yet: they may serve already, or soon. The operator calls them
  with a newer epoch, after which they refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Admit, Load, Resume
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.identity import WeightsId, same_weights
from fleet_operator.core.messages import some
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.precedence import called_only_by
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing, WorkerView

_NO_CLIENTS = frozenset({Standing.CLOSED, Standing.ABSENT})
_SOON_OPEN = frozenset({RolloutPhase.PAUSING, RolloutPhase.LOADING})


def quarantine_before_opening(step: Step, lost: Sequence[WorkerView]) -> Step:
    """Returns the step without opening a worker at a version other than that of a silent worker, and
    with the quarantine of these silent workers. `lost`: workers that may generate again by themselves.
    """
    if not lost:
        return step
    opened = {WeightsId.of(a) for a in step.actions if isinstance(a, Resume | Admit)}
    if step.phase in _SOON_OPEN and step.problem is None:
        opened.add(WeightsId.of(step.goal))  # quarantined now, they delay no worker later
    differing = [w for w in lost if any(not w.has_loaded(o) for o in opened)]
    if not differing:
        return step
    others = {o for o in opened if any(not w.has_loaded(o) for w in differing)}
    kept = (
        a for a in step.actions if not (isinstance(a, Resume | Admit) and WeightsId.of(a) in others)
    )
    reason = "it does not answer, and may serve other weights than the fleet when it comes back"
    expelled = (
        Quarantine(pod_name=w.pod.name, pod_uid=w.pod.uid, reason=reason)
        for w in differing
        if w.state is not None or w.silent_seconds >= PROBE_SECONDS
    )
    return replace(
        step,
        actions=(*kept, *expelled),
        note=f"{step.note}; before workers open, these leave the Service: {some(differing)}",
        requeue_after_seconds=1.0,
    )


def wait_for_admissions(step: Step, workers: Workers, settings: Rollout) -> Step:
    """Returns the step without opening a worker at another version than that of a worker whose latch may
    open. It fences this worker, which then refuses the late admission.

    A call for other work carries a newer epoch, too. If the admission has taken effect meanwhile, the
    fence lets requests end first.
    """
    unsure = workers.where(_may_open_late)
    if not unsure:
        return step
    kept = tuple(
        a
        for a in step.actions
        if not isinstance(a, Resume | Admit) or all(f.has_loaded(a) for f in unsure.kinds)
    )
    if len(kept) == len(step.actions):
        return step
    called = {a.pod_uid for a in kept}
    reason = "an admission at another version may still be under way to it"
    fences = tuple(
        worker_calls.fence_after_drain(w, settings, reason=reason)
        for w in unsure
        if w.standing is Standing.CLOSED
        and w.pod.uid not in called
        and (w.call is None or w.is_called_to("admit"))
    )
    return replace(
        step,
        actions=kept + fences,
        note=f"{step.note}; before workers open, admissions of these must end: {some(unsure)}",
        requeue_after_seconds=1.0,
    )


def _may_open_late(worker: Facts) -> bool:
    """Whether a late admission may give clients to a worker that has none now."""
    pod = worker.pod
    gone = pod.deleting or pod.quarantined or pod.drains or not pod.running
    return worker.may_open and worker.standing in _NO_CLIENTS and not gone


def fence_other_versions(step: Step, view: RolloutView) -> Step:
    """Returns the step with a fence for every member with another version, if workers serve the applied one.
    Otherwise the rollout to it replaces the other versions.
    """
    serving = view.members.where(lambda f: f.standing is Standing.OPEN)
    if not serving.any(lambda f: f.has_loaded(view.applied)):
        return step
    loads = {a.pod_uid for a in step.actions if isinstance(a, Load) and same_weights(a, step.goal)}

    def differs(worker: Facts) -> bool:
        fits = worker.has_loaded(view.applied) or worker.has_loaded(step.goal)
        comes = worker.is_loading(view.applied) or worker.is_called_to_load(view.applied)
        return not fits and not comes

    back = view.held.where(lambda f: f.paused_unchanged and not f.operation).where(differs)
    differing = {m.pod.uid: m for m in serving.where(differs)}
    differing |= {m.pod.uid: m for m in back if m.pod.uid not in loads}
    if not differing:
        return step
    reason = f"it has version {{}}, and the fleet serves {view.applied.label}"
    apart = (
        worker_calls.drain_out_of_service(m, view.settings, reason=reason.format(m.loaded))
        for m in differing.values()
        if not m.is_doing("fence")
    )
    return replace(step, actions=called_only_by(differing, apart, step.actions))
