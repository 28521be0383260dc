"""External: a trainer updates the workers. The operator handles joining workers and differences.

    workers                                     next
    some are held, or have an operation         wait: an update is in progress
    all report one version                      joining workers are updated to it and admitted
    a minority reports another version          it is fenced, and joins at the version of the majority
    no version has a majority                   no call; Stalled reports it
    none is admitted, all have a newer version  they are admitted: the trainer has updated them all

The operator never pauses, loads or resumes an admitted worker. The applied version is the one that
the workers report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.source import TRANSFERRED, WeightSource, from_protocol
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import worker_calls
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.counts import agree, counted
from fleet_operator.core.identity import WeightsId, fill_digests, same_weights, short_digest
from fleet_operator.core.joining import Admission
from fleet_operator.core.messages import names, some
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step
from fleet_operator.core.strategies.shared import with_joiners
from fleet_operator.core.worker_view import Standing, WorkerView


def step(view: RolloutView) -> Step:
    """Decide the calls to joining workers and to workers that differ."""
    if not view.members:
        taken = Step(goal=view.applied, phase=RolloutPhase.PENDING, note="no worker is admitted")
        return _with_joiners(view, taken, view.applied)
    if view.held or view.members.any(lambda f: f.busy):
        return Step(
            goal=view.applied,
            phase=RolloutPhase.LOADING,
            note=f"the trainer updates {some(view.held or view.members)}",
            holds_requests=True,
        )
    weights = _majority(view)
    if weights is None:
        return _split(view)
    version = weights.version
    differing = view.members.where(
        lambda f: not f.has_loaded(weights) and f.standing is Standing.OPEN
    )
    alike = len(view.members) - len(differing)
    reason = f"most workers serve {_described(weights)}, and it serves other weights"
    common = Checkpoint.passing(weights, _source(view, weights))
    taken = Step(
        goal=common,
        phase=RolloutPhase.APPLIED,
        actions=tuple(worker_calls.take_out_of_service(m, reason=reason) for m in differing),
        note=f"{counted(alike, 'worker')} {agree(alike, 'serves', 'serve')} {version}",
        failed=names(differing),
    )
    return _with_joiners(view, taken, common)


def _with_joiners(view: RolloutView, taken: Step, common: Checkpoint) -> Step:
    """The step with the calls to joining workers. Without a directory, only workers that have received
    the weights can join.
    """
    if not common.is_transferred:
        return with_joiners(view, taken, _open_at(common))
    others = view.joining.where(lambda f: not f.has_loaded(common))
    step = replace(taken, problem=_unreachable(others, common)) if others else taken
    return with_joiners(view, step, _open_at(common), but={j.pod.uid for j in others})


def sent_to_all(view: RolloutView, model: str) -> Checkpoint | None:
    """The weights that a trainer has loaded into every worker while none was admitted; None otherwise.

    The files of the applied version may be gone for good. Workers that could not start on it have the
    model's own weights, which count as no update. `model`: the version of these.
    """
    if view.members or len(view.joining) < view.replicas or view.joining.any(lambda f: f.busy):
        return None
    loaded = set(fill_digests(f.loaded for f in view.joining.kinds))
    weights = loaded.pop() if len(loaded) == 1 else None
    if weights is None or weights.version == model or same_weights(weights, view.applied):
        return None
    return Checkpoint.passing(weights, _source(view, weights))


def _open_at(target: Checkpoint) -> Admission:
    return Admission(goal=target, fallback=target, open_now=True)


def _majority(view: RolloutView) -> WeightsId | None:
    """The weights that more than half of the members serve; None without a majority.

    A trainer names directories and no runs. So two versions with the same name and different digests
    differ.
    """
    counts = Counter(fill_digests(m.loaded for m in view.members))
    weights, count = counts.most_common(1)[0]
    return weights if 2 * count > len(view.members) else None


def _described(weights: WeightsId) -> str:
    return f"{weights} ({short_digest(weights.digest)})" if weights.digest else str(weights)


def _source(view: RolloutView, weights: WeightsId) -> WeightSource:
    """The source of these weights, as the workers that have loaded them report it."""
    workers = view.members or view.joining
    states = (m.state for m in workers if m.has_loaded(weights))
    reported = next((s.source for s in states if s is not None and s.source is not None), None)
    if reported is not None:
        return from_protocol(reported)
    return view.applied.source if same_weights(weights, view.applied) else TRANSFERRED


def _unreachable(waiting: Sequence[WorkerView], weights: Checkpoint) -> RolloutProblem:
    """The problem that workers cannot join, because the weights came over a collective."""
    message = (
        f"{some(waiting)} cannot join: version {weights.label} did not come from a directory. The "
        "trainer must send it to all workers again, or publish it from a directory."
    )
    return RolloutProblem(reason=ConditionReason.SOURCE_UNKNOWN, message=message, halt=False)


def _split(view: RolloutView) -> Step:
    loaded = ((m.pod.name, m.loaded) for m in view.members[:10])
    found = ", ".join(f"{name}: {_described(w) if w else 'no weights'}" for name, w in loaded)
    message = (
        f"workers serve different versions and none has a majority ({found}). The trainer must "
        "update all workers; joining workers wait until then."
    )
    problem = RolloutProblem(reason=ConditionReason.VERSIONS_DIFFER, message=message, halt=False)
    return Step(
        goal=view.applied,
        phase=RolloutPhase.APPLIED,
        note="versions differ",
        problem=problem,
        holds_requests=True,
    )
