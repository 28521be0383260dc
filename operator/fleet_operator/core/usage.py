"""What users ask of a fleet's status: which versions serve on how many workers, since when the
applied one is, and which sources must stay.

Sources that workers name are untrusted: one that is no source of a resource is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from fleet_operator.api.fleet import (
    MAX_SOURCES_IN_USE,
    MAX_VERSIONS,
    AppliedWeights,
    ServedVersion,
    SourceInUse,
)
from fleet_operator.api.source import WeightSource, from_protocol
from fleet_operator.core.adapter_goals import goals_of
from fleet_operator.core.identity import Named, WeightsId, fold, same_weights
from fleet_operator.core.observed import FleetObserved, Standing, Target
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_worker import protocol

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def versions_of(observed: FleetObserved) -> tuple[ServedVersion, ...]:
    """What admitted workers hold, the most frequent first; at most 20."""
    held = (w.loaded for w in observed.workers if w.standing in {Standing.OPEN, Standing.HELD})
    counts = Counter(weights for weights in fold(held) if weights is not None)
    ranked = sorted(
        counts.items(), key=lambda e: (-e[1], e[0].version, e[0].run_id or "", e[0].digest or "")
    )[:MAX_VERSIONS]
    before = observed.status.versions
    if [(WeightsId(v.version, v.run_id, v.digest), v.workers) for v in before] == ranked:
        return before
    return tuple(
        ServedVersion(
            version=w.version, run_id=w.run_id, digest=_known_digest(w.digest), workers=number
        )
        for w, number in ranked
    )


def _known_digest(said: str | None) -> str | None:
    """A digest of a kind that this release does not know is left out."""
    return said if said is not None and _DIGEST.fullmatch(said) else None


def applied_record(
    rollout: RolloutPlan, before: AppliedWeights | None, *, now: datetime
) -> AppliedWeights:
    """The applied weights, with the time at which all admitted workers were first seen to have them.

    `before`: as the last status has it.
    """
    known = before is not None and same_weights(Target.recorded(before), rollout.applied)
    applied_at = before.applied_at if known and before is not None else None
    if applied_at is None and rollout.serving:
        applied_at = now
    return rollout.applied.to_record(before, applied_at=applied_at)


def sources_in_use(observed: FleetObserved, rollout: RolloutPlan) -> tuple[SourceInUse, ...]:
    """Every source that a worker serves, holds or loads, or that a worker which joins, or the way
    back, would read; sorted, at most 100. Where there are more, those that the fleet needs stay.
    """
    found: dict[WeightSource, Named] = {}
    for named, source in (*_needed(observed, rollout), *_held(observed)):
        if source not in found and len(found) < MAX_SOURCES_IN_USE:
            found[source] = named
    in_order = sorted(found.items(), key=lambda e: (e[1].run_id or "", e[1].version, str(e[0])))
    before = observed.status.sources_in_use
    if [(s.source, s.version, s.run_id) for s in before] == [
        (source, named.version, named.run_id) for source, named in in_order
    ]:
        return before
    return tuple(
        SourceInUse(version=named.version, run_id=named.run_id, source=source)
        for source, named in in_order
    )


def _needed(observed: FleetObserved, rollout: RolloutPlan) -> Iterator[tuple[Named, WeightSource]]:
    model = observed.spec.model
    # Tokenizer and configuration of every start come from here.
    yield Target(version=model.version, source=model.source), model.source
    for target in (rollout.applied, rollout.desired, rollout.step.goal):
        yield target, target.source
    for goal in goals_of(observed):
        for adapter in (goal.desired, goal.applied):
            if adapter is not None:
                yield adapter, adapter.source
    steering = observed.base_weights
    if steering is not None:
        # As asked for, too: a pin may have put a commit in place of a branch.
        yield steering.desired, steering.desired.source
    yield from _applied_before(observed, rollout)


def _applied_before(
    observed: FleetObserved, rollout: RolloutPlan
) -> Iterator[tuple[Named, WeightSource]]:
    """The version that was applied before the applied one."""
    steering = observed.base_weights
    if steering is None:
        return
    applied = (rollout.applied.version, rollout.applied.run_id)
    ended = ((e.version, e.run_id) for e in steering.status.history if e.result == "Applied")
    key = next((e for e in ended if e != applied), None)
    for pin in rollout.pinned:
        if (pin.version, pin.run_id) == key:
            yield WeightsId(pin.version, pin.run_id, pin.digest), pin.source


def _held(observed: FleetObserved) -> Iterator[tuple[Named, WeightSource]]:
    # Thousands of workers hold the same few.
    told: dict[protocol.Source, WeightsId] = {}
    for worker in observed.workers:
        state = worker.state
        if state is None:
            continue
        if worker.loaded is not None and state.source is not None:
            told.setdefault(state.source, worker.loaded)
        if worker.staged is not None and state.staged is not None:
            told.setdefault(state.staged.source, worker.staged)
    for source, weights in told.items():
        try:
            named = from_protocol(source)
        except ValueError:
            continue  # no source of a resource
        yield weights, named
