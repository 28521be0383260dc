"""How long a leader has watched a rollout: from its first look, without the time it was away."""

from __future__ import annotations

from datetime import timedelta

from tests.support.builders import NOW, applied_status

from fleet_operator.core.observed import Watched
from fleet_operator.runtime.rollout_timers import GAP_SECONDS, RolloutTimers
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus


def status(
    phase: RolloutPhase = RolloutPhase.STAGING, *, version: str = "42", since: float = 0
) -> WeightsStatus:
    return applied_status(version, phase=phase, phase_started_at=NOW + timedelta(seconds=since))


def test_a_leader_that_has_just_come_has_seen_nothing():
    assert RolloutTimers().update("uid", status(since=-1000), 5.0, term=1) == Watched()


def test_looks_add_up():
    watch = RolloutTimers()
    seen = [watch.update("uid", status(), at, term=1) for at in (10.0, 11.0, 13.5)]

    assert [s.phase_seconds for s in seen] == [0, 1, 3.5]
    assert [s.attempt_seconds for s in seen] == [0, 1, 3.5]
    assert not seen[-1].saw_it_begin


def test_a_new_phase_begins_at_its_decision_and_the_attempt_continues():
    watch = RolloutTimers()
    watch.update("uid", status(), 10.0, term=1)
    watch.decided("uid", status(RolloutPhase.PAUSING), 11.0, term=1)
    seen = watch.update("uid", status(RolloutPhase.PAUSING), 14.0, term=1)

    assert (seen.phase_seconds, seen.attempt_seconds) == (3, 4)


def test_an_attempt_that_this_leader_has_begun_is_known_from_its_beginning():
    watch = RolloutTimers()
    watch.update("uid", status(version="41"), 10.0, term=1)
    watch.decided("uid", status(version="42"), 10.0, term=1)
    seen = watch.update("uid", status(version="42"), 12.0, term=1)

    assert seen == Watched(phase_seconds=2, attempt_seconds=2, saw_it_begin=True)


def test_the_same_phase_after_another_one_begins_again():
    watch = RolloutTimers()
    watch.update("uid", status(), 10.0, term=1)
    watch.decided("uid", status(since=7), 17.0, term=1)

    assert watch.update("uid", status(since=7), 18.0, term=1).phase_seconds == 1


def test_time_without_reconciles_does_not_count():
    watch = RolloutTimers()
    watch.update("uid", status(), 10.0, term=1)
    watch.update("uid", status(), 15.0, term=1)
    away = watch.update("uid", status(), 15.0 + GAP_SECONDS + 1, term=1)
    back = watch.update("uid", status(), 15.0 + GAP_SECONDS + 3, term=1)

    assert (away.phase_seconds, back.phase_seconds) == (5, 7)
    assert back.attempt_seconds == GAP_SECONDS + 8, "failures grow older meanwhile"


def test_slow_reconciles_count():
    watch = RolloutTimers()
    seen = [watch.update("uid", status(), n * GAP_SECONDS, term=1) for n in range(4)]

    assert seen[-1].phase_seconds == 3 * GAP_SECONDS


def test_only_time_counts_in_which_calls_had_one_term():
    watch = RolloutTimers()
    looks = [(10.0, 1), (14.0, None), (15.0, 2), (16.0, 2), (21.0, 4), (23.0, 4)]
    seen = [watch.update("uid", status(), at, term=term) for at, term in looks]

    assert [s.phase_seconds for s in seen] == [0, 0, 0, 1, 1, 3]


def test_weightversions_count_by_themselves_and_are_forgotten():
    watch = RolloutTimers()
    for uid in ("a", "b"):
        watch.update(uid, status(), 10.0, term=1)
    watch.forget_all_but({"b"})
    seen = [watch.update(uid, status(), 12.0, term=1).phase_seconds for uid in ("a", "b")]

    assert seen == [0, 2]
