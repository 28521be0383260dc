"""Ends the pauses of an earlier strategy, or version, so that canaries can be judged.

Paused members cannot wait for a verdict. Their rollout finishes, or they go back to those that serve.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.core import worker_calls
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import NO_WORKERS, Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.messages import why
from fleet_operator.core.strategies.base import RolloutView, Step, Strategy
from fleet_operator.core.strategies.shared import (
    Actions,
    blocking,
    held_by_work,
    loaded_beside,
    renew,
    resumed_on_applied,
    source_of,
    staged,
)
from fleet_operator.core.worker_view import Standing


def finish_earlier(view: RolloutView, strategy: Strategy) -> Step | None:
    """The next step of the rollout that has paused members; None without one, or if it is over.

    `strategy`: what follows a good verdict.
    """
    if (superseded := _superseded(view)) is not None:
        return strategy(replace(view, desired=superseded, is_superseded=True))
    begun = view.held.any(lambda f: f.is_doing("load", view.desired)) or _ahead(view)
    return strategy(view) if begun and not view.suspended and not _serves(view) else None


def going_back(view: RolloutView) -> Workers:
    """Paused members with the desired version while others serve the applied one. Their load was late."""
    if not _serves(view):
        return NO_WORKERS
    return view.held.where(
        lambda f: not f.has_loaded(view.applied) and not f.paused_unchanged and not f.operation
    )


def ended_pauses(view: RolloutView) -> Actions:
    """The calls that end the pauses of members while canaries are judged: back, and then resumed."""
    back, applied = going_back(view), view.applied
    calls = staged(view, applied, back.where(lambda f: not f.has_bytes(applied)))
    calls += tuple(
        worker_calls.load(m, applied, view.settings, reason=f"version {applied.label} serves")
        for m in back.where(lambda f: f.has_bytes(applied))
    )
    calls += renew(view) + resumed_on_applied(view)
    late = [*blocking(view, back), *held_by_work(view)]
    return calls + tuple(worker_calls.take_out_of_service(m, reason=why(m, applied)) for m in late)


def _superseded(view: RolloutView) -> Checkpoint | None:
    """The superseded version that held members have loaded already, if there is one.

    It was judged, or comes from a strategy without canaries. Paused members cannot wait for the next
    verdict: the rollout finishes with it. A worker that loads still names the weights that it had.
    """
    held = view.held.where(lambda f: not f.paused_unchanged and not f.operation)
    loaded = [w for w in loaded_beside(held, view.applied) if not same_weights(w, view.desired)]
    if len(loaded) != 1:
        return None
    ahead = next(m for m in held if m.has_loaded(loaded[0]))
    served = view.members.any(lambda f: f.standing is Standing.OPEN and f.has_loaded(loaded[0]))
    if _serves(view) and not served:
        return None  # a late load: it goes back
    return Checkpoint.passing(loaded[0], source_of(ahead, view))


def _ahead(view: RolloutView) -> Workers:
    """Paused members that have loaded the desired version, without a verdict."""
    return view.held.where(
        lambda f: f.has_loaded(view.desired) and not f.paused_unchanged and not f.operation
    )


def _serves(view: RolloutView) -> bool:
    return view.members.any(lambda f: f.standing is Standing.OPEN and f.has_loaded(view.applied))
