"""External: a trainer updates the workers. The operator handles joining workers and differences.

    workers                                     next
    some are held, or have an operation         wait: an update is in progress
    all report one version                      joining workers are updated to it and admitted
    a minority reports another version          it is fenced, and joins at the version of the majority
    no version has a majority                   no call; Stalled reports it

The operator never pauses, loads or resumes an admitted worker. The applied version is the one that
the workers report.
"""

from __future__ import annotations

from collections import Counter

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.source import WeightSource, from_protocol
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import worker_calls
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.counts import agree, counted
from fleet_operator.core.identity import WeightsId, fill_digests, same_weights, short_digest
from fleet_operator.core.joining import Admission
from fleet_operator.core.messages import names, some
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step
from fleet_operator.core.strategies.shared import with_joiners
from fleet_operator.core.worker_view import Standing


def step(view: RolloutView) -> Step:
    """Decide the calls to joining workers and to workers that differ."""
    if not view.members:
        taken = Step(goal=view.applied, phase=RolloutPhase.PENDING, note="no worker is admitted")
        return with_joiners(view, taken, _open_at(view.applied))
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
    source = _source(view, weights)
    common = Checkpoint.passing(weights, source or view.applied.source)
    taken = Step(
        goal=common,
        phase=RolloutPhase.APPLIED,
        actions=tuple(worker_calls.take_out_of_service(m, reason=reason) for m in differing),
        note=f"{counted(alike, 'worker')} {agree(alike, 'serves', 'serve')} {version}",
        failed=names(differing),
        problem=None if source else _unreachable(view, weights),
    )
    # Without a directory, only workers that have received the weights can join.
    others = set() if source else {j.pod.uid for j in view.joining if not j.has_loaded(weights)}
    return with_joiners(view, taken, _open_at(common), but=others)


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


def _source(view: RolloutView, weights: WeightsId) -> WeightSource | None:
    """The source of these weights, as the workers that serve them report it."""
    states = (m.state for m in view.members if m.has_loaded(weights))
    reported = next((s.source for s in states if s is not None and s.source is not None), None)
    if reported is not None:
        return from_protocol(reported)
    return view.applied.source if same_weights(weights, view.applied) else None


def _unreachable(view: RolloutView, weights: WeightsId) -> RolloutProblem | None:
    """The problem that workers cannot join, because the weights came over a collective."""
    waiting = [j for j in view.joining if not j.has_loaded(weights)]
    if not waiting:
        return None
    message = (
        f"{some(waiting)} cannot join: version {weights} did not come from a directory. The trainer "
        "must send it to all workers again, or publish it from a directory."
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
