"""Workers that are alike are evaluated once, and the result counts for each of them."""

from __future__ import annotations

from tests.support.builders import WorkerBuilder, make_worker

from fleet_operator.core.facts import NO_WORKERS, Facts, Workers


def workers(*made: WorkerBuilder) -> Workers:
    return Workers(w.view() for w in made)


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

    def test_the_age_of_a_state_is_not_a_fact(self):
        soon, late = (
            make_worker(n).paused("41", lease_seconds=s).view() for n, s in enumerate((2, 30))
        )

        assert soon.facts is late.facts


class TestWorkers:
    def test_a_predicate_is_evaluated_once_for_each_kind(self):
        asked: list[Facts] = []

        def note(worker: Facts) -> bool:
            asked.append(worker)
            return False

        many = workers(*(make_worker(n).serving("41") for n in range(100)))
        assert many.where(note) is NO_WORKERS
        assert len(asked) == 1

    def test_if_all_workers_match_the_same_object_is_returned(self):
        assert MIXED.where(lambda _: True) is MIXED
        assert Workers.of(MIXED) is MIXED
