"""Time without a leader, and jumps of a wall clock, delay no worker and abandon no version."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    applied_status,
    make_fleet,
    make_transition,
    make_weights,
    make_worker,
    target,
)

from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import Watched
from fleet_operator.core.recycling import recycle
from fleet_worker.protocol import Reason
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, RecycledWorker
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

PAUSING, STAGING = RolloutPhase.PAUSING, RolloutPhase.STAGING
TRUNCATED = Reason.CHECKPOINT_TRUNCATED
APPLIED = FleetStatus(
    applied=AppliedWeights(version="41", source=target("41").source), transition=make_transition()
)


def begun(phase: RolloutPhase, seconds_ago: float) -> WeightsStatus:
    """A rollout of 42 that another leader has recorded, by a clock of its own."""
    began = NOW - timedelta(seconds=seconds_ago)
    return applied_status(
        "42", phase=phase, applied_version=None, started_at=began, phase_started_at=began
    )


def decided(
    *workers: WorkerBuilder,
    status: WeightsStatus,
    watched: Watched | None = None,
    **rollout: object,
) -> Decision:
    weights = make_weights("42", status=status, watched=watched or Watched())
    bare = make_fleet(*workers, rollout=rollout)
    of_today = [w.of_revision(revision_of(bare)) for w in workers]
    fleet = make_fleet(*of_today, wants=weights, status=APPLIED, rollout=rollout)
    return decide(fleet, default_image="image", now=NOW)


@pytest.mark.parametrize(("seconds", "halted"), [(60, False), (61, True)])
@pytest.mark.parametrize("clock_seconds", [-90, 0, 90])
def test_the_time_that_this_leader_waited_counts_on_any_wall_clock(seconds, halted, clock_seconds):
    workers = [make_worker(0).pausing("41").staged("42"), make_worker(1).paused("41").staged("42")]
    status = begun(PAUSING, seconds + clock_seconds)
    made = decided(*workers, status=status, watched=Watched(phase_seconds=seconds))

    assert made.rollout.halted is halted


@pytest.mark.parametrize(("age_seconds", "counts"), [(20, False), (5, True)])
@pytest.mark.parametrize("clock_seconds", [-90, 0, 90])
def test_only_a_failure_within_the_attempt_counts_on_any_wall_clock(
    age_seconds, counts, clock_seconds
):
    """A user has requested the version again 10 s ago."""
    refused = make_worker(0).serving("41").refused("42", TRUNCATED, age_seconds=age_seconds)
    watched = Watched(phase_seconds=10, attempt_seconds=10, saw_it_begin=True)
    made = decided(refused, status=begun(STAGING, 10 + clock_seconds), watched=watched)

    assert (made.rollout.step.problem is not None) is counts
    assert bool(made.worker_calls) is not counts


def test_a_worker_recreated_in_the_future_waits_no_longer_than_its_delay():
    later = NOW + timedelta(hours=5)
    entry = RecycledWorker(pod="policy-0", uid="before", count=1, last_at=later)
    fleet = make_fleet(make_worker(0).ended(), status=FleetStatus(recycled=(entry,)))
    waiting = recycle(fleet, fleet.workers, now=NOW)

    assert waiting.requeue_after_seconds == 10
    (known,) = waiting.recycled
    assert known.last_at == NOW
    again = make_fleet(make_worker(0).ended(), status=FleetStatus(recycled=waiting.recycled))
    assert len(recycle(again, again.workers, now=NOW + timedelta(seconds=10)).actions) == 1
