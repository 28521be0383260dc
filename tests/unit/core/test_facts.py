"""Workers that are alike are evaluated once, and the result counts for each of them."""

from __future__ import annotations

import pytest
from tests.support.builders import WorkerBuilder, make_fleet, make_worker, target
from tests.unit.core.test_linear_decisions import SITUATIONS

from fleet_operator.core.facts import NO_WORKERS, Facts, Workers
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.worker_view import Standing
from fleet_worker.protocol import Reason


def workers(*made: WorkerBuilder) -> Workers:
    return Workers(w.view() for w in made)


def ordinals(found: Workers) -> list[int]:
    return [w.pod.ordinal for w in found]


def is_open(worker: Facts) -> bool:
    return worker.standing is Standing.OPEN


MIXED = workers(
    make_worker(0).serving("41"),
    make_worker(1).paused("41"),
    make_worker(2).serving("41"),
    make_worker(3).serving("42"),
    make_worker(4).paused("41"),
)


class TestFacts:
    def test_equal_workers_share_their_facts(self):
        one, other = MIXED[0], MIXED[2]

        assert one.pod.uid != other.pod.uid
        assert one.facts is other.facts
        assert one.loaded is other.loaded

    @pytest.mark.parametrize(
        "different",
        [
            make_worker().serving("42"),
            make_worker().serving("41").staged("42"),
            make_worker().serving("41").doing("stage", "42"),
            make_worker().serving("41").refused("42", Reason.SOURCE_NOT_FOUND),
            make_worker().serving("41").silent(5),
            make_worker().serving("41").of_revision("older"),
            make_worker().serving("41").ended(),
            make_worker().serving("41").unready(),
            make_worker().paused("41"),
            make_worker().paused("41").loaded(),
        ],
    )
    def test_different_workers_do_not_share_facts(self, different):
        assert different.view().facts is not MIXED[0].facts

    def test_a_worker_that_loaded_during_its_pause_differs_from_one_that_did_not(self):
        assert make_worker().paused("41").loaded().view().facts is not MIXED[1].facts

    def test_the_age_of_a_state_is_not_a_fact(self):
        soon, late = (
            make_worker(n).paused("41", lease_seconds=s).view() for n, s in enumerate((2, 30))
        )

        assert soon.facts is late.facts

    @pytest.mark.parametrize("situation", SITUATIONS)
    def test_facts_equal_what_the_worker_reports(self, situation):
        for worker in (SITUATIONS[situation](n).view() for n in range(2)):
            facts, state, pod = worker.facts, worker.state, worker.pod
            assert facts.standing is worker.standing
            assert (facts.call, facts.silent) == (worker.call, worker.silent_seconds > 0)
            assert facts.pod.revision == pod.revision
            assert (facts.pod.ready, facts.pod.running, facts.pod.deleting) == (
                pod.ready,
                pod.running,
                pod.deleting,
            )
            assert facts.pod.drains == (pod.drains_since is not None)
            assert facts.pod.ended == (pod.phase in {"Failed", "Succeeded"})
            assert facts.pod.blocked == bool(pod.problem or pod.wait)
            if state is None:
                assert (facts.phase, facts.loaded, facts.staged) == (None, None, None)
                continue
            assert (facts.phase, facts.admitted) == (state.phase, state.admitted)
            failure = state.stage_failure or state.load_failure or state.earlier_stage_failures
            assert facts.refuses == bool(failure)
            staged = state.staged
            assert facts.staged == (
                None if staged is None else WeightsId(staged.version, staged.run_id, staged.digest)
            )
            for goal in (target("41"), target("42")):
                assert facts.is_doing("stage", goal) == worker.is_doing("stage", goal)
                assert facts.has_loaded(goal) == (state.version == goal.version)


class TestWorkers:
    def test_a_count_is_over_all_workers(self):
        assert MIXED.count(is_open) == 3
        assert MIXED.count(lambda f: f.has_loaded(target("41"))) == 4
        assert sum(MIXED.kinds.values()) == len(MIXED) == 5

    def test_a_predicate_is_evaluated_once_for_each_kind(self):
        asked: list[Facts] = []

        def note(worker: Facts) -> bool:
            asked.append(worker)
            return False

        many = workers(*(make_worker(n).serving("41") for n in range(100)))
        assert many.where(note) is NO_WORKERS
        assert len(asked) == 1

    def test_matching_workers_are_counted_and_stay_in_order(self):
        held = MIXED.where(lambda f: not is_open(f))

        assert ordinals(held) == [1, 4]
        assert held.count(lambda _: True) == 2
        assert ordinals(MIXED.where(is_open).where(lambda f: f.has_loaded(target("42")))) == [3]

    def test_if_all_workers_match_the_same_object_is_returned(self):
        assert MIXED.where(lambda _: True) is MIXED
        assert Workers.of(MIXED) is MIXED

    def test_any_and_all_are_evaluated(self):
        assert MIXED.any(lambda f: f.has_loaded(target("42")))
        assert not MIXED.all(lambda f: f.has_loaded(target("42")))
        assert not MIXED.any(lambda f: f.refuses)
        assert MIXED.all(lambda f: not f.refuses)
        assert NO_WORKERS.all(is_open)
        assert not NO_WORKERS.any(is_open)

    def test_a_fleet_accepts_any_sequence_of_workers(self):
        fleet = make_fleet(make_worker(0).serving("41"))

        assert isinstance(fleet.workers, Workers)
        assert fleet.workers == (make_worker(0).serving("41").view(),)
