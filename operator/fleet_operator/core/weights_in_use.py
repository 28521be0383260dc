"""The weights in use, for the status of a fleet: versions, the applied version, and sources.

Sources that workers report are untrusted: a source that no resource could have is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.dropped_pins import with_marks
from fleet_operator.core.facts import source_of
from fleet_operator.core.identity import Named, WeightsId, file_digest, fill_digests, same_weights
from fleet_operator.core.lora_goals import lora_goals_of
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.worker_view import Standing
from fleet_worker.protocol import Phase
from rlfleet_resources.fleet_status import (
    MAX_SOURCES_IN_USE,
    MAX_VERSIONS,
    AppliedWeights,
    DroppedPins,
    PinnedWeights,
    ServedVersion,
    SourceInUse,
)
from rlfleet_resources.source import SourceKey, Transferred, WeightSource


def versions_of(observed: FleetObserved) -> tuple[ServedVersion, ...]:
    """The versions that admitted workers have loaded, the most frequent first; at most 20."""
    admitted = [
        (f.loaded, number)
        for f, number in observed.workers.kinds.items()
        if f.standing in {Standing.OPEN, Standing.HELD}
    ]
    counts: Counter[WeightsId] = Counter()
    for weights, (_, number) in zip(fill_digests(w for w, _ in admitted), admitted, strict=True):
        if weights is not None:
            counts[weights._replace(digest=file_digest(weights.digest))] += number
    ranked = sorted(
        counts.items(), key=lambda e: (-e[1], e[0].version, e[0].run_id or "", e[0].digest or "")
    )[:MAX_VERSIONS]
    before = observed.status.versions
    if [(WeightsId(v.version, v.run_id, v.digest), v.workers) for v in before] == ranked:
        return before
    return tuple(
        ServedVersion(version=w.version, run_id=w.run_id, digest=w.digest, workers=number)
        for w, number in ranked
    )


def applied_record(
    rollout: RolloutPlan, before: AppliedWeights | None, *, now: datetime
) -> AppliedWeights:
    """The applied weights, with the time at which all admitted workers were first seen to serve them.

    `before`: the record in the last status.
    """
    known = before is not None and same_weights(Checkpoint.recorded(before), rollout.applied)
    applied_at = before.applied_at if known and before is not None else None
    if applied_at is None and rollout.serving:
        applied_at = now
    return rollout.applied.to_record(before, applied_at=applied_at)


def sources_in_use(observed: FleetObserved, rollout: RolloutPlan) -> tuple[SourceInUse, ...]:
    """The sources that workers serve, stage or load, and those that a join or a rollback would read.

    A source leaves the list only when no worker may still read it. Sorted, at most 100. Of more, the sources that the fleet itself needs stay.
    """
    found: dict[SourceKey, tuple[WeightSource, Named]] = {}
    for named, source in (*_needed(observed, rollout), *_held(observed), *_still_read(observed)):
        if len(found) < MAX_SOURCES_IN_USE and not isinstance(source, Transferred):
            found.setdefault(source.key(), (source, named))
    in_order = sorted(found.values(), key=lambda e: (e[1].run_id or "", e[1].version, str(e[0])))
    before = observed.status.sources_in_use
    if [(s.source, s.version, s.run_id) for s in before] == [
        (source, named.version, named.run_id) for source, named in in_order
    ]:
        return before
    return tuple(
        SourceInUse(version=named.version, run_id=named.run_id, source=source)
        for source, named in in_order
    )


def memory_of(
    observed: FleetObserved, rollout: RolloutPlan, dropped: Sequence[PinnedWeights]
) -> DroppedPins | None:
    """The memory of dropped pins. Runs in use keep their place in it, so that they can go on."""
    if not dropped:
        return observed.status.dropped_pins
    adapters = [
        (goal.name, weights.run_id)
        for goal in lora_goals_of(observed)
        for weights in (goal.desired, goal.applied)
        if weights is not None
    ]
    base = [("", weights.run_id) for weights in (rollout.applied, rollout.desired)]
    return with_marks(observed.status.dropped_pins, dropped, in_use={*base, *adapters})


def _needed(observed: FleetObserved, rollout: RolloutPlan) -> Iterator[tuple[Named, WeightSource]]:
    model = observed.spec.model
    # Every worker starts with this tokenizer and configuration.
    yield Checkpoint(version=model.version, source=model.source), model.source
    for target in (rollout.applied, rollout.desired, rollout.step.goal):
        yield target, target.source
    for goal in lora_goals_of(observed):
        for adapter in (goal.desired, goal.applied):
            if adapter is not None:
                yield adapter, adapter.source
    steering = observed.base_weights
    if steering is not None:
        # The source of the spec, too: a pin may have replaced its branch by a commit.
        asked = steering.desired
        yield asked, asked.source
    yield from _applied_before(observed, rollout)


def _applied_before(
    observed: FleetObserved, rollout: RolloutPlan
) -> Iterator[tuple[Named, WeightSource]]:
    """The version that was applied before the current one."""
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
    reported: dict[SourceKey, WeightsId] = {}
    for worker in observed.workers.kinds:
        for weights, source in zip((worker.loaded, worker.staged), worker.sources, strict=True):
            if weights is not None and source is not None:
                reported.setdefault(source, weights)
    for key, weights in reported.items():
        named = source_of(key)
        if named is not None:
            yield weights, named


def _still_read(observed: FleetObserved) -> Iterator[tuple[Named, WeightSource]]:
    """Sources of the last list that a worker stages or loads, also if nothing wants them any more. One that starts
    may read any version that was applied since its container started. So all of them stay until it answers.
    """
    kinds = [f for f in observed.workers.kinds if f.pod.running]
    unknown = any(f.silent or f.phase in {None, Phase.STARTING} for f in kinds)
    under_way = {
        (w.version, w.run_id) for f in kinds for w in (f.operation, f.call) if w is not None
    }
    for entry in observed.status.sources_in_use:
        if unknown or under_way & {(entry.version, entry.run_id), (entry.version, None)}:
            yield WeightsId(entry.version, entry.run_id), entry.source
