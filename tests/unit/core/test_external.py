"""External fleets, one decision at a time: watch, join newcomers, fence strays."""

from __future__ import annotations

import pytest
from tests.support.builders import make_view, make_worker, path_of, told

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.strategies.external import step

W = make_worker


@pytest.mark.parametrize(
    ("workers", "done"),
    [
        pytest.param([W(0).serving("7"), W(1).serving("7")], [], id="all agree"),
        pytest.param(
            [W(0).serving("7"), W(1).serving("7"), W(2).serving("6")],
            ["fence on policy-2"],
            id="one that differs is fenced",
        ),
        pytest.param(
            [W(0).serving("7"), W(1).serving("7"), W(2).serving("6").silent()],
            [],
            id="one that does not answer may have been updated by now",
        ),
        pytest.param([W(0).serving("7"), W(1).serving("6")], [], id="a tie is nobody's majority"),
        pytest.param(
            [W(0).serving("7"), W(1).paused("7"), W(2).serving("6")],
            [],
            id="while the trainer holds one nothing is done",
        ),
        pytest.param(
            [W(0).serving("7"), W(1).serving("7").doing("load", "8"), W(2).serving("6")],
            [],
            id="nor while one works",
        ),
        pytest.param(
            [W(0).serving("7"), W(1).joining("7")], ["admit 7 on policy-1"], id="newcomers come in"
        ),
        pytest.param(
            [W(0).serving("7"), W(1).joining("base")],
            ["stage 7 on policy-1"],
            id="after they were brought to what the others serve",
        ),
        pytest.param(
            [W(0).joining("41"), W(1).joining("41")],
            ["admit 41 on policy-0", "admit 41 on policy-1"],
            id="the first come in at what was served last",
        ),
    ],
)
def test_the_next_step(workers, done):
    assert told(step(make_view(*workers)).actions) == done


def test_newcomers_are_brought_there_from_where_the_others_say():
    other = W(0).serving("7").from_source("/weights/elsewhere")
    (action,) = step(make_view(other, W(1).joining("base"))).actions

    assert action.source.path == "/weights/elsewhere"


def test_a_split_is_said_with_who_serves_what():
    problem = step(make_view(W(0).serving("7"), W(1).serving("6"))).problem

    assert problem is not None
    assert problem.reason is ConditionReason.VERSIONS_DIFFER
    assert "(policy-0: 7, policy-1: 6)" in problem.message


class TestWeightsOfNoDirectory:
    SERVING = W(0).serving("7").from_source(None)

    def test_newcomers_wait_and_it_is_said(self):
        taken = step(make_view(self.SERVING, W(1).joining("base")))

        assert taken.actions == ()
        assert taken.problem is not None
        assert taken.problem.reason is ConditionReason.SOURCE_UNKNOWN
        assert "policy-1 cannot join" in taken.problem.message

    @pytest.mark.parametrize("others", [[], [W(1).joining("7")]])
    def test_where_nobody_waits_nothing_is_said(self, others):
        assert step(make_view(self.SERVING, *others)).problem is None

    def test_what_was_applied_before_is_found_where_it_was(self):
        serving = W(0).serving("41").from_source(None)
        (action,) = step(make_view(serving, W(1).joining("base"))).actions

        assert action.source.path == path_of("41")
