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
    texts_of,
)

from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import Watched
from fleet_operator.core.recycling import recycle
from fleet_worker.protocol import Reason
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, RecycledWorker
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

PAUSING, STAGING, LOADING = RolloutPhase.PAUSING, RolloutPhase.STAGING, RolloutPhase.LOADING
DAY = 86_400.0
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


def calls_of(decision: Decision) -> list[str]:
    return texts_of(decision.worker_calls)


@pytest.mark.parametrize("seconds_ago", [31, 130, 3600, 30 * DAY, -90, -30 * DAY])
@pytest.mark.parametrize(
    ("phase", "workers", "call"),
    [
        pytest.param(
            STAGING, [make_worker(n).serving("41") for n in range(3)], "stage 42", id="staging"
        ),
        pytest.param(
            PAUSING,
            [make_worker(n).serving("41").staged("42") for n in range(3)],
            "pause",
            id="pausing",
        ),
        pytest.param(
            LOADING,
            [make_worker(n).paused("41").staged("42") for n in range(3)],
            "load 42",
            id="loading",
        ),
    ],
)
def test_a_new_leader_calls_the_workers_whatever_was_recorded(seconds_ago, phase, workers, call):
    made = decided(*workers, status=begun(phase, seconds_ago))

    assert not made.rollout.halted
    assert made.weights["wv-1"].phase is phase
    assert calls_of(made) == [f"{call} on policy-{n}" for n in range(3)]


@pytest.mark.parametrize("strategy", ["InFlight", "Rolling", "Canary"])
@pytest.mark.parametrize("phase", [STAGING, LOADING, RolloutPhase.JUDGING])
def test_a_new_leader_calls_the_workers_under_every_strategy(strategy, phase):
    workers = [make_worker(n).serving("41") for n in range(3)]
    made = decided(*workers, status=begun(phase, DAY), strategy=strategy)

    assert not made.rollout.halted
    assert made.rollout.step.problem is None


def test_a_clock_that_is_90_seconds_ahead_abandons_no_version_during_a_pause():
    """The next leader's clock, 1 s after the calls to pause."""
    workers = [
        make_worker(0).paused("41").staged("42"),
        make_worker(1).pausing("41").staged("42"),
        make_worker(2).paused("41").staged("42"),
    ]
    made = decided(*workers, status=begun(PAUSING, 91), watched=Watched(phase_seconds=1))

    assert not made.rollout.halted
    assert made.weights["wv-1"].phase is PAUSING


@pytest.mark.parametrize(("seconds", "halted"), [(60, False), (61, True)])
@pytest.mark.parametrize("clock_seconds", [-90, 0, 90])
def test_the_time_that_this_leader_waited_counts_on_any_wall_clock(seconds, halted, clock_seconds):
    workers = [make_worker(0).pausing("41").staged("42"), make_worker(1).paused("41").staged("42")]
    status = begun(PAUSING, seconds + clock_seconds)
    made = decided(*workers, status=status, watched=Watched(phase_seconds=seconds))

    assert made.rollout.halted is halted


@pytest.mark.parametrize("clock_seconds", [-90, 0, 90])
def test_a_failure_before_an_attempt_is_not_part_of_it_on_any_wall_clock(clock_seconds):
    """It failed 20 s ago, and a user requested it again 10 s ago."""
    workers = [
        make_worker(0).serving("41").refused("42", Reason.CHECKPOINT_TRUNCATED, age_seconds=20)
    ]
    watched = Watched(phase_seconds=10, attempt_seconds=10, saw_it_begin=True)
    made = decided(*workers, status=begun(STAGING, 10 + clock_seconds), watched=watched)

    assert made.rollout.step.problem is None
    assert calls_of(made) == ["stage 42 on policy-0"]


@pytest.mark.parametrize("clock_seconds", [-90, 0, 90])
def test_a_failure_within_an_attempt_counts_on_any_wall_clock(clock_seconds):
    workers = [
        make_worker(0).serving("41").refused("42", Reason.CHECKPOINT_TRUNCATED, age_seconds=5)
    ]
    watched = Watched(phase_seconds=10, attempt_seconds=10, saw_it_begin=True)
    made = decided(*workers, status=begun(STAGING, 10 + clock_seconds), watched=watched)

    assert made.rollout.step.problem is not None
    assert made.rollout.step.problem.reason == "CheckpointTruncated"


@pytest.mark.parametrize(
    ("watched", "seconds_ago", "most"),
    [
        pytest.param(Watched(attempt_seconds=12, saw_it_begin=True), 102, 12, id="clock ahead"),
        pytest.param(Watched(attempt_seconds=12, saw_it_begin=True), -78, 0, id="clock behind"),
        pytest.param(Watched(), -78, 0, id="clock of the next leader behind"),
    ],
)
def test_timings_are_neither_negative_nor_longer_than_the_leader_watched(
    watched, seconds_ago, most
):
    workers = [make_worker(n).serving("42") for n in range(2)]
    made = decided(*workers, status=begun(LOADING, seconds_ago), watched=watched)
    status = made.weights["wv-1"]

    assert status.phase is RolloutPhase.APPLIED
    assert 0 <= status.timings.total_seconds <= most
    assert 0 <= status.timings.load_seconds <= most
    assert 0 <= status.history[0].total_seconds <= most


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
