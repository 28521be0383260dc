"""Workers that may come back as they were keep others from being opened beside them."""

from __future__ import annotations

import pytest
from tests.support.builders import (
    NOW,
    AWorker,
    history_of,
    make_fleet,
    make_view,
    make_weights,
    make_worker,
    target,
    told,
)

from fleet_operator.api.fleet import AppliedWeights, FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core import calls
from fleet_operator.core.actions import Fence, WorkerCall
from fleet_operator.core.observed import PROBE_SECONDS
from fleet_operator.core.one_voice import keep_out
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.step import Step

LONG = PROBE_SECONDS + 1
APPLIED = FleetStatus(applied=AppliedWeights(version="41", source=target("41").source))
W = make_worker


def hung(n: int, version: str = "41") -> AWorker:
    return W(n).serving(version).silent(LONG).unready()


def unknown(n: int) -> AWorker:
    """Nobody has heard of it since this operator began."""
    return W(n).silent(LONG).unready().is_up()


@pytest.mark.parametrize(
    ("worker", "may"),
    [
        pytest.param(hung(0), True, id="one that was admitted and hangs"),
        pytest.param(W(0).paused("41").silent(LONG).unready(), True, id="a pause ends by itself"),
        pytest.param(unknown(0), True, id="one that is up and was never heard of"),
        pytest.param(W(0).joining("41").silent(LONG), False, id="a joiner's latch is closed"),
        pytest.param(W(0).silent(LONG).unready(), False, id="one that never came up is closed"),
        pytest.param(hung(0).quarantined(), False, id="a quarantine lasts"),
        pytest.param(hung(0).going(), False, id="a pod that goes does not come back"),
        pytest.param(hung(0).not_running(), False, id="a container that ended starts closed"),
        pytest.param(W(0).serving("41"), False, id="one that answers can be told"),
        pytest.param(hung(0).ready(), False, id="one that may serve now is a member"),
    ],
)
def test_who_may_reopen(worker, may):
    assert worker.view().may_reopen is may


def step(*actions: WorkerCall) -> Step:
    return Step(goal=target("42"), phase=RolloutPhase.RESUMING, actions=actions, note="resuming")


RESUME = calls.resume(W(0).paused("42").view(), reason="")
ADMIT = calls.admit(W(1).joining("42").view(), reason="")
STAGE = calls.stage(W(2).view(), target("42"), make_view().settings, reason="")


def test_nobody_is_opened_before_it_is_out_of_the_service():
    made = keep_out(step(RESUME, ADMIT, STAGE), [hung(3).view()])

    assert told(made.actions) == ["Quarantine policy-3", "stage 42 on policy-2"]
    assert made.note == ("resuming; policy-3 must be out of the Service before anybody is opened")
    assert made.requeue_after_seconds == 1


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param([], id="nobody is lost"),
        pytest.param([hung(3, "42").view()], id="it would come back with the same weights"),
    ],
)
def test_otherwise_all_are_opened(lost):
    assert keep_out(step(RESUME, ADMIT), lost) == step(RESUME, ADMIT)


def test_steps_that_open_nobody_are_left_alone():
    assert keep_out(step(STAGE), [hung(3).view()]) == step(STAGE)


def test_one_question_that_got_lost_is_no_proof():
    made = keep_out(step(RESUME), [W(3).silent(1).unready().is_up().view()])

    assert made.actions == ()


@pytest.mark.parametrize(("seconds", "expelled"), [(9.9, []), (10, ["Quarantine policy-3"])])
def test_one_whose_latch_was_closed_may_have_been_opened_by_a_call_without_an_answer(
    seconds, expelled
):
    quiet = W(3).joining("41").silent(seconds).is_up().view()

    lost = [w for w in [quiet] if w.may_reopen]
    assert told(keep_out(step(RESUME), lost).actions) == (expelled or ["resume 42 on policy-0"])


class TestInARollout:
    def plan(self, *workers: AWorker, **spec):
        return plan_rollout(make_fleet(*workers, wants="42", **spec), now=NOW)

    def test_the_applied_version_is_not_written_down_before_anybody_serves_it(self):
        made = self.plan(W(0).paused("42"), hung(1))

        assert told(made.step.actions) == ["Quarantine policy-1"]
        assert made.applied.version != "42"

    def test_it_is_quarantined_while_the_others_pause_so_that_it_holds_up_nobody_later(self):
        made = self.plan(W(0).serving("41").staged("42"), hung(1))

        assert told(made.step.actions) == ["Quarantine policy-1", "pause on policy-0"]

    def test_a_stray_is_set_apart_and_joins_again(self):
        workers = [W(0).serving("41"), W(1).serving("7"), W(2).serving("41")]
        made = self.plan(*workers, status=APPLIED)

        assert "fence on policy-1" in told(made.step.actions)
        assert not [a for a in told(made.step.actions) if a.startswith("stage 42 on policy-1")]
        (fence,) = (a for a in made.step.actions if isinstance(a, Fence))
        assert fence.reason == "it has 7, and the fleet serves 41"
        assert fence.drain_timeout_seconds == 60

    def test_a_stray_that_would_go_on_by_itself_is_set_apart_too(self):
        workers = [W(0).serving("41"), W(1).paused("7"), W(2).serving("41")]
        made = self.plan(*workers, status=APPLIED)

        assert "fence on policy-1" in told(made.step.actions)
        assert "pause on policy-1" not in told(made.step.actions)

    @pytest.mark.parametrize(
        ("ended", "fenced"),
        [
            pytest.param(["41", "40"], True, id="it came before"),
            pytest.param(["40", "41"], False, id="it came after"),
            pytest.param([], False, id="nobody knows"),
        ],
    )
    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(
                W(1).serving("41").silent(LONG).ready(), id="clients reach the applied one"
            ),
            pytest.param(W(1).joining("41"), id="the applied one is about to be admitted"),
        ],
    )
    def test_what_came_before_is_a_stray_also_where_nobody_else_is_known_to_serve(
        self, other, ended, fenced
    ):
        """That nobody who answers serves what was applied may be an error of ours, or not."""
        weights = make_weights("42", status=WeightsStatus(history=history_of(*ended)))
        workers = [W(0).serving("40"), other]
        made = plan_rollout(make_fleet(*workers, wants=weights, status=APPLIED), now=NOW)

        assert ("fence on policy-0" in told(made.step.actions)) is fenced

    def test_one_that_is_on_its_way_out_is_left_to_it(self):
        going = W(1).pausing("7").doing("fence")
        made = self.plan(W(0).serving("41"), going, status=APPLIED)

        assert "policy-1" not in str(told(made.step.actions))

    @pytest.mark.parametrize(
        "workers",
        [
            pytest.param([W(0).serving("41"), W(1).serving("42")], id="it has what is wanted"),
            pytest.param(
                [W(0).serving("41"), W(1).paused("7").loaded()],
                id="it holds its requests on weights that it does not serve by itself",
            ),
            pytest.param(
                [W(0).serving("7"), W(1).serving("8")], id="nobody serves what was recorded"
            ),
        ],
    )
    def test_others_are_no_strays(self, workers):
        made = self.plan(*workers, status=APPLIED)

        assert not [a for a in told(made.step.actions) if a.startswith("fence")]

    def test_where_versions_may_mix_it_comes_back_as_it_was(self):
        made = self.plan(W(0).paused("42"), hung(1), rollout={"strategy": "InFlight"})

        assert told(made.step.actions) == ["resume 42 on policy-0"]
