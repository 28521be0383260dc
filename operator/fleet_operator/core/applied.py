"""Finds the applied weights: those that the fleet serves, or served last. The status records them."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.core.actions import Admit, Resume
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers, reported_source
from fleet_operator.core.identity import (
    TRANSFERRED_DIGEST,
    WeightsId,
    fill_digests,
    same_weights,
)
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.fleet_status import FleetStatus, Transition
from rlfleet_resources.weights_status import RolloutPhase


def applied_of(
    observed: FleetObserved,
    members: Workers,
    wanted: Checkpoint | None,
    *,
    may_read_wanted: bool,
) -> Checkpoint:
    """Returns the weights that the fleet served last: the recorded ones, or those of its transition.

    Behind a barrier, one worker that serves the weights of the transition proves that the fleet has reached
    them: it was opened when all had loaded them. If others are held with the base, it has swapped before the
    strategy was changed, and proves nothing. Without a barrier, a version counts that all members serve when
    another one supersedes it.

    Without a record, and in an External fleet, the weights count that most members generate with. If
    these are the wanted ones, their source is the wanted one, provided that workers may read it
    (`may_read_wanted`): a WeightVersion with the digest may name another path.
    """
    recorded = recorded_in(observed.status)
    known = recorded or _model_of(observed)
    current = observed.status.transition
    if current is not None and not current.back:
        goal, base = Checkpoint.recorded(current), Checkpoint.recorded(current.base)
        answering = members.where(
            lambda f: f.standing is not Standing.UNKNOWN and not f.is_doing("fence")
        )
        opened = answering.where(lambda f: f.standing is Standing.OPEN)
        if current.strategy == "Synchronized":
            reached = not answering.any(lambda f: f.has_loaded(base))
        else:
            ended = wanted is None or not same_weights(goal, wanted)
            reached = ended and members.all(lambda f: f.has_loaded(goal))
        if reached and opened.any(lambda f: f.has_loaded(goal)):
            known = goal
    if recorded is None or observed.is_external:
        common = _common_weights(members)
        alike = members.where(lambda f: common is not None and f.has_loaded(common))
        if common is not None and 2 * len(alike) > len(members):
            sources = (reported_source(m.state.source) for m in alike if m.state)
            source = next(filter(None, sources), None)
            if common.digest == TRANSFERRED_DIGEST:
                known = Checkpoint.transferred(common)
            elif source is not None and not same_weights(known, common):
                known = Checkpoint.passing(common, source)
    if wanted is not None and may_read_wanted and same_weights(known, wanted):
        return replace(known, source=wanted.source)
    return known


def recorded_in(status: FleetStatus) -> Checkpoint | None:
    """Returns the applied weights that a status of the fleet names; None without any."""
    return None if status.applied is None else Checkpoint.recorded(status.applied)


def _model_of(observed: FleetObserved) -> Checkpoint:
    model = observed.spec.model
    return Checkpoint(version=model.version, source=model.source)


def served_last(observed: FleetObserved) -> Checkpoint:
    """Returns the recorded weights, or those that a fleet starts with."""
    return recorded_in(observed.status) or _model_of(observed)


def _common_weights(members: Workers) -> WeightsId | None:
    """Returns the weights of all generating members; None if there is no such member, or if they differ."""
    generating = (f for f in members.kinds if f.standing is Standing.OPEN)
    loaded = set(fill_digests({f.loaded for f in generating if not f.is_doing("fence")}))
    return loaded.pop() if len(loaded) == 1 else None


def applied_after(step: Step, view: RolloutView, transition: Transition | None) -> Checkpoint:
    """Returns the weights that the fleet serves from this step on.

    Recorded together with the calls that open workers, not after their answers. A worker may serve and
    die before its answer arrives, and the fleet must not go back behind the version that it served.

    Recorded at the end of a rollout, too, since a swap opens no worker. If the rollout took no worker away,
    most of the replicas must serve: one worker may have been left behind with these weights. While it is
    suspended, all must: the missing ones would join at them.
    """
    opened = (a for a in step.actions if isinstance(a, Resume | Admit))
    opens = any(same_weights(a, step.goal) for a in opened)
    moved = transition is not None and same_weights(Checkpoint.recorded(transition), step.goal)
    serve = view.members.count(lambda f: f.standing is Standing.OPEN)
    enough = serve >= view.replicas if view.suspended else moved or 2 * serve > view.replicas
    whole = (opens or (step.phase is RolloutPhase.APPLIED and enough)) and view.members.all(
        lambda f: f.has_loaded(step.goal)
    )
    return step.goal if whole else view.applied
