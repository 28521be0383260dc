"""External fleets, one decision at a time: watch, admit new workers, fence those with another version."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import (
    A_DIGEST,
    WorkerBuilder,
    make_view,
    make_worker,
    path_of,
    texts_of,
)
from tests.support.present import present

from fleet_operator.core.strategies.external import step
from fleet_worker.protocol import Source
from rlfleet_resources.reasons import ConditionReason

W = make_worker


def with_files(worker: WorkerBuilder) -> WorkerBuilder:
    """A worker that reports the digest of its files."""
    return worker.reporting(digest=A_DIGEST)


AGREE = [W(0).serving("7"), W(1).serving("7")]
ADMITS = [f"admit 41 on policy-{n}" for n in range(2)]
STEPS = {
    "all agree": (AGREE, []),
    "a worker on another version is fenced": ([*AGREE, W(2).serving("6")], ["fence on policy-2"]),
    "a silent worker may have been updated": ([*AGREE, W(2).serving("6").silent()], []),
    "a tie is not a majority": ([W(0).serving("7"), W(1).serving("6")], []),
    "no call while the trainer holds a worker": (
        [W(0).serving("7"), W(1).paused("7"), W(2).serving("6")],
        [],
    ),
    "no call while a worker has a running call": (
        [W(0).serving("7"), W(1).serving("7").doing("load", "8"), W(2).serving("6")],
        [],
    ),
    "newcomers come in": ([W(0).serving("7"), W(1).joining("7")], ["admit 7 on policy-1"]),
    "with what the others serve": (
        [W(0).serving("7"), W(1).joining("base")],
        ["stage 7 on policy-1"],
    ),
    "the first come in at what was served last": ([W(n).joining("41") for n in range(2)], ADMITS),
}


@pytest.mark.parametrize(("workers", "done"), STEPS.values(), ids=STEPS)
def test_the_next_step(workers, done):
    assert texts_of(step(make_view(*workers)).actions) == done


def test_a_silent_worker_that_was_not_admitted_says_nothing_about_the_fleet():
    """The kubelet still calls it ready. It may have started on a ConfigMap that lags behind."""
    silent = W(0).joining("40").ready().silent()
    taken = step(make_view(silent, W(1).joining("40")))

    assert texts_of(taken.actions) == ["stage 41 on policy-1"]


def test_a_worker_that_became_silent_in_an_update_does_not_keep_the_others_waiting():
    cut_off = W(2).loading("6", "7").ready().silent(20)
    taken = step(make_view(W(0).serving("7"), W(1).serving("7"), cut_off, W(3).joining("7")))

    assert texts_of(taken.actions) == ["admit 7 on policy-3"]


@pytest.mark.parametrize("now", [W(0).loading("6", "7"), W(0).paused("6")])
def test_one_lost_answer_does_not_end_an_update(now):
    """Its old version has no majority, and no worker joins at it."""
    lost = now.ready().silent(0.1)
    another = replace(lost, ordinal=1)

    assert step(make_view(lost, another, W(2).serving("7"))).actions == ()
    assert step(make_view(lost, W(1).joining("6"))).actions == ()
    assert step(make_view(lost, W(1).serving("7"))).problem is None


def test_a_worker_that_became_silent_in_an_update_has_no_vote():
    cut_off = [W(n).loading("6", "7").ready().silent(20) for n in (0, 1)]
    taken = step(make_view(*cut_off, W(2).serving("7")))

    assert taken.actions == ()
    assert present(taken.problem).reason is ConditionReason.VERSIONS_DIFFER


def test_workers_that_have_not_answered_yet_may_have_another_version():
    """After a change of the leader. The only worker that has answered may have missed the update."""
    unheard = [W(n).ready() for n in (0, 1)]
    taken = step(make_view(*unheard, W(2).serving("40"), W(3).joining("40")))

    assert taken.actions == ()


def test_joining_workers_get_the_version_from_the_others_source():
    other = W(0).serving("7").from_source("/weights/elsewhere")
    (action,) = step(make_view(other, W(1).joining("base"))).actions

    assert action.source.path == "/weights/elsewhere"


def test_different_versions_are_reported_with_their_workers():
    problem = present(step(make_view(W(0).serving("7"), W(1).serving("6"))).problem)

    assert problem.reason is ConditionReason.VERSIONS_DIFFER
    assert "(policy-0: 7, policy-1: 6)" in problem.message


@pytest.mark.parametrize(
    ("runs", "version", "named"),
    [(("group-a", "group-b"), "7", True), (("group-a", "group-a"), "6", False)],
    ids=["of two groups", "of two versions"],
)
def test_one_version_of_two_groups_has_the_remedy_of_a_common_text(runs, version, named):
    """Another update alone leaves the workers in two runs."""
    one, other = runs
    workers = [
        W(0).serving("7").reporting(run_id=one, source=None),
        W(1).serving(version).reporting(run_id=other, source=None),
    ]
    problem = present(step(make_view(*workers)).problem)

    assert problem.reason is ConditionReason.VERSIONS_DIFFER
    assert ("join_id" in problem.message) is named


class TestWeightsWithoutADirectory:
    SERVING = W(0).serving("7").from_source(None)

    def test_joining_workers_wait_with_a_message(self):
        taken = step(make_view(self.SERVING, W(1).joining("base")))

        assert taken.actions == ()
        assert present(taken.problem).reason is ConditionReason.SOURCE_UNKNOWN
        assert "policy-1 cannot join" in present(taken.problem).message

    def test_a_joining_worker_that_has_received_them_is_admitted(self):
        received = W(1).joining("7").from_source(None)
        taken = step(make_view(self.SERVING, received, W(2).joining("base")))

        assert texts_of(taken.actions) == ["admit 7 on policy-1"]
        assert "policy-2 cannot join" in present(taken.problem).message

    def test_a_joining_worker_with_files_of_the_same_name_is_not_admitted(self):
        taken = step(make_view(self.SERVING, with_files(W(1).joining("7"))))

        assert taken.actions == ()
        assert "policy-1 cannot join" in present(taken.problem).message

    def test_a_member_with_files_of_the_same_name_is_fenced(self):
        others = W(1).serving("7").from_source(None)
        taken = step(make_view(self.SERVING, others, with_files(W(2).serving("7"))))

        assert texts_of(taken.actions) == ["fence on policy-2"]

    @pytest.mark.parametrize("others", [[], [W(1).joining("7").from_source(None)]])
    def test_without_a_joining_worker_there_is_no_message(self, others):
        assert step(make_view(self.SERVING, *others)).problem is None

    def test_transferred_weights_do_not_get_the_source_of_an_applied_version_of_the_same_name(self):
        serving = W(0).serving("41").from_source(None)
        taken = step(make_view(serving, W(1).joining("base")))

        assert taken.goal.is_transferred
        assert taken.actions == ()


class TestSourcesThatNoResourceCouldHave:
    """A worker may report a trainer's spelling, and one of a newer release another kind of source."""

    ODD = W(0).serving("7").reporting(source=Source(path="/weights/step_7/"), digest=A_DIGEST)
    UNKNOWN = W(0).serving("7").reporting(source=None, digest=A_DIGEST)

    @pytest.mark.parametrize("serving", [ODD, UNKNOWN])
    def test_joining_workers_wait_with_a_message(self, serving):
        taken = step(make_view(serving, W(1).joining("base")))

        assert taken.actions == ()
        assert present(taken.problem).reason is ConditionReason.SOURCE_UNKNOWN

    @pytest.mark.parametrize("serving", [ODD, UNKNOWN])
    def test_another_workers_source_of_the_same_weights_is_taken(self, serving):
        other = with_files(W(1).serving("7"))
        (action,) = step(make_view(serving, other, W(2).joining("base"))).actions

        assert action.source.path == path_of("7")

    @pytest.mark.parametrize("serving", [ODD, UNKNOWN])
    def test_a_minority_is_still_fenced(self, serving):
        taken = step(make_view(serving, with_files(W(1).serving("7")), W(2).serving("6")))

        assert texts_of(taken.actions) == ["fence on policy-2"]
