"""Finds the applied weights: those that the fleet serves, or served last.

The workers decide where their answers are conclusive, otherwise the status. Labels of versions have
no order, so the weights of a single worker prove nothing about the fleet.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.actions import Admit, Resume
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers, reported_source
from fleet_operator.core.identity import (
    TRANSFERRED_DIGEST,
    Named,
    WeightsId,
    fill_digests,
    same_weights,
)
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.worker_view import Standing


def applied_of(
    observed: FleetObserved,
    members: Workers,
    wanted: Checkpoint | None,
    *,
    may_read_wanted: bool,
    forbids_mixing: bool,
) -> Checkpoint:
    """Returns the weights that the fleet served last.

    If these are the wanted weights, their source is the wanted one, provided that workers may read it
    (`may_read_wanted`): a WeightVersion with the digest may name another path.

    `forbids_mixing`: two versions never generate at once. If all generating members agree, they
    override an older status, with two exceptions. A minority of the members does not count, nor do
    at most half of the replicas with older weights (`came_before`): they hung while the others
    continued. Members that hold requests, or are being fenced, do not count: their weights may be
    newer or older than what the fleet served.

    Where versions may mix, a lagging worker may be the only member. So only the desired version
    overrides the status, and only when all expected workers serve it.
    """
    recorded = recorded_in(observed)
    known = [_model_of(observed)]
    if recorded is not None:
        known.insert(0, recorded)
    if wanted is not None and may_read_wanted and same_weights(known[0], wanted):
        known[0] = replace(known[0], source=wanted.source)
    common = _common_weights(members)
    if common is None:
        return known[0]
    alike = members.where(lambda f: f.has_loaded(common))
    is_wanted = wanted is not None and same_weights(common, wanted)
    if forbids_mixing:
        few = 2 * len(alike) <= observed.spec.replicas
        left_over = few and not is_wanted and came_before(observed, common, known[0])
        believed = 2 * len(alike) > len(members) and not left_over
    else:
        all_there = len(members) >= observed.expected_workers
        believed = len(alike) == len(members) and ((is_wanted and all_there) or recorded is None)
    if not believed:
        return known[0]
    if wanted is not None and is_wanted and may_read_wanted:
        return wanted
    sources = (reported_source(m.state.source) for m in alike if m.state)
    source = next(filter(None, sources), None)
    same = next((k for k in known if same_weights(k, common)), None)
    if same is None and observed.is_external and common.digest == TRANSFERRED_DIGEST:
        return Checkpoint.transferred(common)
    if same is None and source is not None:
        return Checkpoint.passing(common, source)
    return same or known[0]


def recorded_in(observed: FleetObserved) -> Checkpoint | None:
    """Returns the weights that the fleet's status names; None without any.

    Earlier releases recorded weights that came over a collective with the directory of the version
    before. Such a record of an External fleet has no digest. Nor has one of the model's own weights.
    """
    applied = observed.status.applied
    if applied is None:
        return None
    found = Checkpoint.recorded(applied)
    known = found.digest is not None or found.version == observed.spec.model.version
    if known or not observed.is_external:
        return found
    return Checkpoint.transferred(WeightsId.of(found))


def _model_of(observed: FleetObserved) -> Checkpoint:
    model = observed.spec.model
    return Checkpoint(version=model.version, source=model.source)


def served_last(observed: FleetObserved) -> Checkpoint:
    """Returns the recorded weights, or those that a fleet starts with."""
    return recorded_in(observed) or _model_of(observed)


def _common_weights(members: Workers) -> WeightsId | None:
    """Returns the weights of all generating members; None if there is no such member, or if they differ."""
    generating = (f for f in members.kinds if f.standing is Standing.OPEN)
    loaded = set(fill_digests({f.loaded for f in generating if not f.is_doing("fence")}))
    return loaded.pop() if len(loaded) == 1 else None


def came_before(observed: FleetObserved, weights: Named, other: Named) -> bool:
    """Whether these weights are the older ones.

    The history of the rollouts decides on two versions that it names. It has the last ten, and is
    deleted with its WeightVersion: a version that it does not name may be older or newer. So the pins of
    the fleet decide on these. Both are newest first. Pins are in the order in which the fleet first saw
    the weights. Weights that become the applied ones again move up (`Pins.in_order_of_use`). Others that
    workers serve again do not: the fleet can go back to such a version without a record of it.

    Where one of the two has no pin either, a version that the history names counts as the older one.
    """
    steering = observed.base_weights
    ended = [(e.version, e.run_id) for e in steering.status.history] if steering else []
    one, two = (weights.version, weights.run_id), (other.version, other.run_id)
    if one in ended and two in ended:
        return ended.index(two) < ended.index(one)
    pinned = [(e.version, e.run_id) for e in observed.status.pinned]
    if one in pinned and two in pinned:
        return pinned.index(two) < pinned.index(one)
    return one in ended


def applied_after(step: Step, view: RolloutView) -> Checkpoint:
    """Returns the weights that the fleet serves from this step on.

    Recorded together with the calls that open workers, not after their answers. A worker may serve and
    die before its answer arrives, and the fleet must not go back behind the version that it served.

    Recorded at the end of a rollout, too, if most of the replicas serve. A swap opens no worker, and while
    a worker is missing, `applied_of` does not believe the others: a rollback would skip all versions
    since then.
    """
    opened = (a for a in step.actions if isinstance(a, Resume | Admit))
    opens = any(same_weights(a, step.goal) for a in opened)
    serve = view.members.count(lambda f: f.standing is Standing.OPEN)
    ends = step.phase is RolloutPhase.APPLIED and not view.suspended and 2 * serve > view.replicas
    whole = (opens or ends) and view.members.all(lambda f: f.has_loaded(step.goal))
    return step.goal if whole else view.applied
