"""Workers that must be out of service, whatever the strategy wishes.

    worker                                                  its call
    has worked for longer than requests may be held         a fence at once, or a quarantine if it is silent
    serves other bytes than the pin of its version          a fence after its requests have ended
    serves neither the applied weights nor the goal         the same
    holds its requests with such weights                    a fence at once: they cannot end
    is silent, and may serve other weights by itself        a quarantine, before others open
    is closed, and an admission may still be under way      a fence, unless another call goes to it, and a
                                                            quarantine if it follows none

A pause is renewed until the work of its worker ends, so a load that hangs has its end here. The rows from the
third one on hold only where versions must not mix, and keep two versions from generating at once:

* A worker that hangs, or whose node is cut off, leaves the Service when its probe fails, and returns when it
  recovers. Its latch cannot be closed meanwhile. A quarantine lasts. A new leader does not know whether a
  silent worker was admitted. One lost request proves nothing, so the worker gets the time in which the
  kubelet's probe would have failed.
* A worker may have reported a load that did not happen, a client may have driven it by hand, or another
  strategy may have left it with its weights. It joins again. One that loads the goal or the applied version
  now, or has the call for it, keeps its requests. If no worker serves the applied version, or could at once, the
  rollout to it replaces the others.
* A worker whose admission got no answer may serve already, or soon. After a call with a newer epoch it
  refuses the admission. If this has taken effect meanwhile, the fence lets requests end first. One that has
  followed no call for a minute may open until its pod is quarantined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Admit, Load, Resume
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.identity import TRANSFERRED_DIGEST, WeightsId, same_weights
from fleet_operator.core.lateness import working_too_long
from fleet_operator.core.messages import some
from fleet_operator.core.pins import Pins
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.work import Outcome, Unheeded
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing, WorkerView
from fleet_worker.protocol import Phase
from rlfleet_resources.weights_status import RolloutPhase

_NO_CLIENTS = frozenset({Standing.CLOSED, Standing.ABSENT})
_HOLDS = frozenset({Phase.PAUSED, Phase.LOADING})
_SOON_OPEN = frozenset({RolloutPhase.PAUSING, RolloutPhase.LOADING})


def set_apart(
    step: Step, view: RolloutView, pins: Pins, *, limits_holds: bool = False
) -> tuple[Step, Mapping[WeightsId, str]]:
    """The step, in which workers that must be out of service have no other calls than these.

    `limits_holds`: the operator decides how long requests are held, not a trainer.

    Returns: the step; and the names of workers that may generate other weights, by the weights at which the
        step opens workers.
    """
    differ = "the digest of its weights differs from the pin of their version"
    apart = {m.pod.uid: (m, differ) for m in _with_other_bytes(view, pins)}
    if limits_holds:
        at_work = working_too_long(view, view.workers.where(_holds_for_its_work))
        apart |= {m.pod.uid: (m, _ENDLESS) for m in at_work}
    if view.forbids_mixing:
        reason = f"it has version {{}}, and the fleet serves {view.applied.label}"
        for m in _of_other_versions(step, view):
            apart.setdefault(m.pod.uid, (m, reason.format(m.loaded)))
    if apart:
        wishes = (a for a in step.actions if a.pod_uid not in apart or isinstance(a, Quarantine))
        calls = (
            worker_calls.drain_out_of_service(m, view.settings, reason=why)
            for m, why in apart.values()
            if not m.is_doing("fence")
        )
        step = replace(step, actions=(*wishes, *calls))
    return _before_opening(step, view) if view.forbids_mixing else (step, {})


def _holds_for_its_work(worker: Facts) -> bool:
    """Whether it may hold its requests until its work ends, or did so when it answered last. A swap to the goal has
    an earlier limit. One to other weights has only this limit. Phases of a newer release count, too.
    """
    pod, works = worker.pod, worker.operation is not None
    gone = pod.deleting or pod.quarantined or not pod.running
    holds = worker.phase in _HOLDS or not isinstance(worker.phase, Phase)
    return worker.admitted and holds and works and not gone


def _with_other_bytes(view: RolloutView, pins: Pins) -> Workers:
    def differs(worker: Facts) -> bool:
        loaded = worker.loaded
        if loaded is None or loaded.digest in {None, TRANSFERRED_DIGEST}:
            return False
        pin = pins.of(loaded)
        return pin is not None and pin.digest != loaded.digest

    return view.members.where(differs)


def _of_other_versions(step: Step, view: RolloutView) -> list[WorkerView]:
    serving = view.members.where(lambda f: f.standing is Standing.OPEN)
    if not (serving.any(lambda f: f.has_loaded(view.applied)) or _could_serve(view)):
        return []
    loads = {a.pod_uid for a in step.actions if isinstance(a, Load) and same_weights(a, step.goal)}

    def differs(worker: Facts) -> bool:
        fits = worker.has_loaded(view.applied) or worker.has_loaded(step.goal)
        comes = worker.is_loading(view.applied) or worker.is_called_to_load(view.applied)
        return not fits and not comes

    # When its lease ends, it would generate again.
    back = view.held.where(lambda f: f.paused_unchanged and not f.operation).where(differs)
    return [*serving.where(differs), *(m for m in back if m.pod.uid not in loads)]


def _could_serve(view: RolloutView) -> bool:
    """Whether a joining worker lacks nothing to serve the applied weights. It would wait for workers that have others,
    and each newer version puts off the rollout that replaces these.
    """
    has_them = view.joining.where(
        lambda f: f.phase is Phase.JOINING and not f.operation and f.has_loaded(view.applied)
    )
    return any(all(goal.is_met_by(w) for goal in view.lora_goals) for w in has_them)


def _before_opening(step: Step, view: RolloutView) -> tuple[Step, Mapping[WeightsId, str]]:
    """The step, with the calls that end what may generate next to the workers that open."""
    silent = [
        w for w in view.workers.where(lambda f: f.standing is Standing.ABSENT) if w.may_reopen
    ]
    unsure = view.workers.where(_may_open_late)
    if not silent and not unsure:
        return step, {}
    opened = {WeightsId.of(a) for a in step.actions if isinstance(a, Resume | Admit)}
    soon = {WeightsId.of(step.goal)} if step.phase in _SOON_OPEN and step.problem is None else set()
    may_generate = {w.pod.uid: w for w in (*silent, *unsure)}.values()
    in_the_way = {
        weights: [w for w in may_generate if not w.has_loaded(weights)]
        for weights in opened | soon  # quarantined now, they delay no worker later
    }
    quarantines = {
        w.pod.uid: worker_calls.take_out_of_service(w, reason=_SILENT)
        for w in silent
        if any(not w.has_loaded(weights) for weights in in_the_way)
        and (w.state is not None or w.silent_seconds >= PROBE_SECONDS)
    }
    fences = {
        w.pod.uid: worker_calls.fence_after_drain(w, view.settings, reason=_UNSURE)
        for w in unsure
        if any(not w.has_loaded(weights) for weights in opened)
        and w.standing is Standing.CLOSED
        and (w.call is None or w.is_called_to("admit"))
    }
    stubborn = [w for w in unsure if any(map(_settles_nothing, w.unheeded))]
    quarantines |= {
        w.pod.uid: Quarantine(pod_name=w.pod.name, pod_uid=w.pod.uid, reason=_STUBBORN)
        for w in stubborn
        if any(not w.has_loaded(weights) for weights in in_the_way)
    }
    others = {weights: some(found) for weights, found in in_the_way.items() if found}
    if not others:
        return step, {}
    actions = (*fences.values(), *step.actions, *quarantines.values())
    return replace(step, actions=actions, requeue_after_seconds=1.0), others


_SILENT = "it does not answer, and may serve other weights than the fleet when it comes back"
_ENDLESS = "it holds its requests, and its work does not end"
_STUBBORN = "an admission at another version may still be under way to it, and it follows no call"
_UNSURE = "an admission at another version may still be under way to it"


def _settles_nothing(call: Unheeded) -> bool:
    """Whether a call shows that its worker takes no newer epoch. A refusal of another call than a fence has it."""
    takes_none = call.work.kind == "fence" or call.outcome is Outcome.UNANSWERED
    return call.lasts and call.work.adapter is None and takes_none


def _may_open_late(worker: Facts) -> bool:
    """Whether a late admission may give clients to a worker that has none now."""
    pod = worker.pod
    gone = pod.deleting or pod.quarantined or pod.drains or not pod.running
    return worker.may_open and worker.standing in _NO_CLIENTS and not gone
