"""External: a trainer drives the workers; the operator watches over who differs and who comes anew.

    some worker holds requests, or works      an update is under way: wait
    all report one version                    newcomers are brought to it and admitted
    a minority reports another one            it is fenced: it joins again, at the majority's version
    no version has a majority                 nothing is done; it is said

Never pauses, loads or resumes an admitted worker. What the fleet serves is what its workers report.
"""

from __future__ import annotations

from collections import Counter

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.source import WeightSource, from_protocol
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.counts import agree, counted
from fleet_operator.core.identity import WeightsId, fold, same_weights, short
from fleet_operator.core.joiners import Admission
from fleet_operator.core.observed import Standing, Target
from fleet_operator.core.problems import names, some
from fleet_operator.core.step import Problem, RolloutView, Step
from fleet_operator.core.strategies.shared import with_joiners


def step(view: RolloutView) -> Step:
    """Decide what to do about newcomers and workers that differ."""
    if not view.members:
        taken = Step(goal=view.applied, phase=RolloutPhase.PENDING, note="no worker is admitted")
        return with_joiners(view, taken, _open_at(view.applied))
    if view.held or any(m.busy for m in view.members):
        return Step(
            goal=view.applied,
            phase=RolloutPhase.LOADING,
            note=f"the trainer updates {some(view.held or view.members)}",
            disturbed=True,
        )
    weights = _majority(view)
    if weights is None:
        return _split(view)
    version = weights.version
    differing = [
        m for m in view.members if not m.has_loaded(weights) and m.standing is Standing.OPEN
    ]
    alike = len(view.members) - len(differing)
    reason = f"it serves other weights than the others, which serve {_told(weights)}"
    source = _source(view, weights)
    common = Target.passing(weights, source or view.applied.source)
    taken = Step(
        goal=common,
        phase=RolloutPhase.APPLIED,
        actions=tuple(calls.expel(m, reason=reason) for m in differing),
        note=f"{counted(alike, 'worker')} {agree(alike, 'serves', 'serve')} {version}",
        failed=names(differing),
        problem=None if source else _unreachable(view, weights),
    )
    return with_joiners(view, taken, _open_at(common)) if source else taken


def _open_at(target: Target) -> Admission:
    return Admission(version=target, fallback=target, open_now=True)


def _majority(view: RolloutView) -> WeightsId | None:
    """What more than half of the members serve. A trainer names directories and no runs: versions
    that are called alike and have different digests differ.
    """
    counts = Counter(fold(m.loaded for m in view.members))
    weights, count = counts.most_common(1)[0]
    return weights if 2 * count > len(view.members) else None


def _told(weights: WeightsId) -> str:
    return f"{weights} ({short(weights.digest)})" if weights.digest else str(weights)


def _source(view: RolloutView, weights: WeightsId) -> WeightSource | None:
    """Where these weights lie, by the account of those that serve them."""
    states = (m.state for m in view.members if m.has_loaded(weights))
    told = next((s.source for s in states if s is not None and s.source is not None), None)
    if told is not None:
        return from_protocol(told)
    return view.applied.source if same_weights(weights, view.applied) else None


def _unreachable(view: RolloutView, weights: WeightsId) -> Problem | None:
    """Newcomers cannot be brought to weights that came over a collective."""
    waiting = [j for j in view.joiners if not j.has_loaded(weights)]
    if not waiting:
        return None
    message = (
        f"{some(waiting)} cannot join: version {weights} came from no directory. The trainer must "
        "send it anew to all workers, or publish it from a directory."
    )
    return Problem(reason=ConditionReason.SOURCE_UNKNOWN, message=message, halt=False)


def _split(view: RolloutView) -> Step:
    loaded = ((m.pod.name, m.loaded) for m in view.members[:10])
    told = ", ".join(f"{name}: {_told(w) if w else 'nothing'}" for name, w in loaded)
    message = (
        f"workers serve different versions and none has a majority ({told}). The trainer must "
        "update them all; newcomers wait until then."
    )
    problem = Problem(reason=ConditionReason.VERSIONS_DIFFER, message=message, halt=False)
    return Step(
        goal=view.applied,
        phase=RolloutPhase.APPLIED,
        note="versions differ",
        problem=problem,
        disturbed=True,
    )
