"""Failed workers are recreated: at once, then after growing waits, up to a limit."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_worker
from tests.support.figures import figures

from fleet_operator.core.recycling import LONGEST_WAIT_SECONDS, Recycling, recycle
from rlfleet_resources.fleet_status import MAX_RECYCLED, FleetStatus, RecycledWorker


def failed(ordinal: int = 0, uid: str = "new") -> WorkerBuilder:
    return make_worker(ordinal).with_uid(uid).quarantined()


def entry(ordinal: int, count: int, *, seconds_ago: float, uid: str = "old") -> RecycledWorker:
    at = NOW - timedelta(seconds=seconds_ago)
    return RecycledWorker(pod=f"policy-{ordinal}", uid=uid, count=count, last_at=at)


def decide(
    *workers: WorkerBuilder, before: tuple[RecycledWorker, ...] = (), **settings
) -> Recycling:
    fleet = make_fleet(*workers, status=FleetStatus(recycled=before), recycle=settings)
    return recycle(fleet, fleet.workers, now=NOW)


def test_a_worker_that_fails_for_the_first_time_is_recreated_at_once():
    made = decide(failed())

    assert [(a.pod_name, a.pod_uid) for a in made.actions] == [("policy-0", "new")]
    assert made.recycled == (RecycledWorker(pod="policy-0", uid="new", count=1, last_at=NOW),)
    assert made.problem == ""


def test_a_failed_deletion_is_repeated_and_counts_once():
    before = (entry(0, 1, seconds_ago=3, uid="same"),)
    made = decide(failed(uid="same"), before=before)

    assert [a.pod_uid for a in made.actions] == ["same"]
    assert made.recycled == before


@pytest.mark.parametrize(
    ("times", "seconds"), [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (50, 300)]
)
def test_each_failure_of_the_same_worker_doubles_its_delay_up_to_a_limit(times, seconds):
    def after(ago: float) -> Recycling:
        return decide(
            failed(), before=(entry(0, times, seconds_ago=ago),), maxPerWorker=100, maxPerFleet=100
        )

    assert after(seconds - 1).actions == ()
    assert after(seconds - 1).requeue_after_seconds == pytest.approx(1)
    assert [r.count for r in after(seconds).recycled] == [times + 1]
    assert len(after(seconds).actions) == 1


def test_the_next_reconcile_is_when_the_first_worker_may_be_recreated():
    before = (entry(0, 1, seconds_ago=2), entry(1, 1, seconds_ago=7))
    made = decide(failed(0), failed(1), before=before)

    assert made.requeue_after_seconds == pytest.approx(3)


def test_a_worker_beyond_its_budget_stays_and_is_reported():
    made = decide(failed(), before=(entry(0, 5, seconds_ago=2000),))

    assert made.actions == ()
    assert figures(made.problem) >= {1, 5}
    assert "policy-0: " in made.problem


def test_a_fleet_beyond_its_budget_recreates_no_worker():
    before = tuple(entry(n, 2, seconds_ago=1000) for n in range(5))
    made = decide(failed(7), before=before)

    assert made.actions == ()
    assert "10 times per fleet" in made.problem


def test_the_last_of_the_fleets_budget_recreates_one_worker():
    before = tuple(entry(n, 3, seconds_ago=1000) for n in range(3))
    made = decide(failed(7), failed(8), before=before)

    assert [a.pod_name for a in made.actions] == ["policy-7"]
    assert "policy-8" in made.problem


def test_failures_before_the_window_do_not_count():
    made = decide(failed(), before=(entry(0, 5, seconds_ago=3601),))

    assert [r.count for r in made.recycled] == [1]
    assert len(made.actions) == 1


def test_a_budget_of_zero_recreates_no_worker():
    made = decide(failed(), maxPerWorker=0)

    assert made.actions == ()
    assert "0 times per worker" in made.problem


def test_a_worker_that_ended_by_itself_has_its_problem_as_the_reason():
    made = decide(make_worker(0).ended()._pod(problem="Evicted: the node was low on memory"))

    assert made.actions[0].reason == "it ended: Evicted: the node was low on memory"
    assert decide(make_worker(0).ended()).actions[0].reason == "it ended: Failed"


def test_the_record_is_bounded_and_keeps_the_newest_failures():
    many = [entry(n, 1, seconds_ago=100 + n) for n in range(MAX_RECYCLED + 5)]
    made = decide(failed(99), before=tuple(many), maxPerFleet=1000)

    assert len(made.recycled) == MAX_RECYCLED
    assert made.recycled[0].pod == "policy-99"
    assert made.recycled[-2].pod == f"policy-{MAX_RECYCLED - 3}"


def test_failures_dropped_from_the_record_count_for_the_fleet():
    record: tuple[RecycledWorker, ...] = ()
    for ordinal in range(60):
        record = decide(failed(ordinal), before=record, maxPerFleet=60).recycled
    made = decide(failed(60), before=record, maxPerFleet=60)

    assert sum(r.count for r in record) == 60
    assert made.actions == ()
    assert "60 times per fleet" in made.problem


@pytest.mark.parametrize(
    ("share", "workers", "used", "allowed"),
    [("0%", 3, 0, False), ("1%", 3, 0, True), ("50%", 3, 2, False), ("300%", 3, 8, True)],
)
def test_a_percentage_of_the_replicas_limits_the_fleet_rounded_up(share, workers, used, allowed):
    before = (entry(99, used, seconds_ago=0),) if used else ()
    others = (make_worker(n).serving("41") for n in range(1, workers))
    fleet = make_fleet(
        failed(), *others, status=FleetStatus(recycled=before), recycle={"maxPerFleet": share}
    )

    assert bool(recycle(fleet, fleet.workers[:1], now=NOW).actions) is allowed


def test_delays_stay_below_the_maximum_so_that_counts_cannot_overflow():
    made = decide(
        failed(), before=(entry(0, 99, seconds_ago=0),), maxPerWorker=100, maxPerFleet=1000
    )

    assert made.requeue_after_seconds == LONGEST_WAIT_SECONDS
