"""A worker that may come back with its old version keeps the others from opening."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    fleet_at,
    make_fleet,
    make_transition,
    make_view,
    make_worker,
    target,
    texts_of,
)
from tests.support.figures import figures

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Fence, WorkerCall
from fleet_operator.core.apart import set_apart
from fleet_operator.core.lora_goals import LoraGoal
from fleet_operator.core.permits import Situation, permitted
from fleet_operator.core.pins import Pins
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.work import Outcome
from fleet_operator.core.worker_view import PROBE_SECONDS
from fleet_worker.protocol import AdapterSlots
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import RolloutPhase

LONG = PROBE_SECONDS + 1
APPLIED = fleet_at("41")
MOVES = APPLIED.model_copy(update={"transition": make_transition()})
W = make_worker


def hung(n: int, version: str = "41") -> WorkerBuilder:
    return W(n).serving(version).silent(LONG).unready()


def unknown(n: int) -> WorkerBuilder:
    """It has not answered since this operator started."""
    return W(n).silent(LONG).unready().is_up()


@pytest.mark.parametrize(
    ("worker", "may"),
    [
        pytest.param(hung(0), True, id="an admitted worker that hangs"),
        pytest.param(W(0).paused("41").silent(LONG).unready(), True, id="a pause ends by itself"),
        pytest.param(unknown(0), True, id="a started worker without a state"),
        pytest.param(W(0).joining("41").silent(LONG), False, id="a joiner's latch is closed"),
        pytest.param(
            W(0).broken().silent(LONG).is_up().that_may_open(), True, id="a late admission opens it"
        ),
        pytest.param(
            W(0).silent(LONG).unready(), False, id="a worker that never started is closed"
        ),
        pytest.param(hung(0).quarantined(), False, id="a quarantine lasts"),
        pytest.param(hung(0).going(), False, id="a pod that goes does not come back"),
        pytest.param(hung(0).not_running(), False, id="a container that ended starts closed"),
        pytest.param(W(0).serving("41"), False, id="a worker that answers can be called"),
        pytest.param(hung(0).ready(), False, id="a worker that may serve is a member"),
    ],
)
def test_the_workers_that_may_resume(worker, may):
    assert worker.view().may_reopen is may


OPENING = ("admit 41 on policy-1", "resume 41 on policy-2")


@pytest.mark.parametrize(
    ("worker", "calls"),
    [
        pytest.param(W(0).joining("41").that_may_open(), {*OPENING}, id="at the same weights"),
        pytest.param(W(0).joining("40"), {*OPENING}, id="its latch stays closed"),
        pytest.param(W(0).joining("40").that_may_open(), {"fence on policy-0"}, id="others"),
        pytest.param(
            W(0).joining("40").asked_to("admit 40").that_may_open(),
            {"fence on policy-0"},
            id="its admission is in flight",
        ),
        pytest.param(
            W(0).joining("40").asked_to("stage 41").that_may_open(),
            set(),
            id="another call is in flight",
        ),
        pytest.param(
            W(0).joining("40").silent(1).unready(), {*OPENING}, id="a silent one stays closed"
        ),
        pytest.param(
            W(0).joining("40").silent(99).unready().that_may_open(), set(), id="it is silent"
        ),
        pytest.param(
            W(0).joining("40").ignoring("stage 41", outcome=Outcome.UNANSWERED).that_may_open(),
            {"Quarantine policy-0"},
            id="it follows no call",
        ),
        pytest.param(
            W(0).joining("40").ignoring("stage 41", outcome=Outcome.REFUSED).that_may_open(),
            {"fence on policy-0"},
            id="it refuses another call",
        ),
        pytest.param(
            W(0).joining("40").ignoring("adapter x 1", outcome=Outcome.UNANSWERED).that_may_open(),
            {"fence on policy-0"},
            id="it follows no call about an adapter",
        ),
        pytest.param(W(0).joining("40").that_may_open().going(), {*OPENING}, id="its pod goes"),
        pytest.param(
            W(0).joining("40").that_may_open().quarantined(), {*OPENING}, id="a quarantine lasts"
        ),
        pytest.param(W(0).serving("40").that_may_open(), {*OPENING}, id="it serves already"),
    ],
)
def test_no_worker_opens_while_a_late_admission_may_open_another_at_other_weights(worker, calls):
    taken = step(
        worker_calls.admit(W(1).joining("41").view(), reason=""),
        worker_calls.resume(W(2).paused("41").view(), reason=""),
        STAGE,
    )

    done = made_of(taken, worker)

    assert set(texts_of(done.actions)) == {"stage 42 on policy-4"} | calls


def step(*actions: WorkerCall) -> Step:
    return Step(goal=target("42"), phase=RolloutPhase.RESUMING, actions=actions, note="resuming")


def made_of(taken: Step, *workers: WorkerBuilder) -> Step:
    """The rest of a step after all permits."""
    apart, others = set_apart(taken, make_view(*workers), Pins())
    return permitted(apart, Situation(goal=taken.goal, others=others))[0]


@pytest.mark.parametrize(
    ("other", "calls"),
    [
        pytest.param(
            W(1).serving("41"), {"fence on policy-0"}, id="another one serves the applied ones"
        ),
        pytest.param(W(1).joining("41"), {"fence on policy-0"}, id="another one could at once"),
        pytest.param(W(1).joining("base"), set(), id="no other one has them"),
        pytest.param(W(1).joining("41").doing("stage", "42"), set(), id="it is busy"),
    ],
)
def test_a_worker_at_weights_that_the_fleet_does_not_serve_goes_if_another_one_can_serve(
    other, calls
):
    made = made_of(step(STAGE), W(0).serving("base"), other)

    assert set(texts_of(made.actions)) - {"stage 42 on policy-4"} == calls


def test_it_keeps_serving_while_the_other_one_lacks_an_adapter():
    adapter = LoraGoal(name="math", desired=target("7"), applied=target("7"), pins=Pins())
    lacks = W(1).joining("41").reporting(adapter_slots=AdapterSlots(total=1, used=0, max_rank=16))
    view = replace(make_view(W(0).serving("base"), lacks), lora_goals=(adapter,))

    assert not set_apart(step(), view, Pins())[0].actions


HOLD = 60 + 60 + 600
HANGS = W(0).loading("41", "42").working_for(601)
SWAPS = W(0).loading("41", "42").doing("apply", "42").working_for(601)


NEWER = HANGS.reporting(phase="verifying")


def test_a_load_that_hangs_in_a_phase_of_a_newer_release_is_fenced_at_once():
    fleet = make_fleet(NEWER.heard(2 * HOLD), W(1).serving("41"), status=MOVES)
    calls = plan_rollout(fleet, now=NOW).step.actions

    assert [
        a.drain_timeout_seconds for a in calls if isinstance(a, Fence) and a.pod_name == "policy-0"
    ] == [0]


@pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling", "Canary"])
@pytest.mark.parametrize(
    ("worker", "calls"),
    [
        pytest.param(HANGS.heard(2 * HOLD), {"fence"}, id="a load hangs"),
        pytest.param(HANGS.heard(2 * HOLD - 1), {"pause"}, id="it may still end"),
        pytest.param(
            W(0).loading("41", "42").working_for(600).heard(3 * HOLD), {"pause"}, id="it began late"
        ),
        pytest.param(
            HANGS.heard(2 * HOLD).silent(LONG).unready(),
            {"Quarantine"},
            id="a load hangs, silently",
        ),
        pytest.param(SWAPS.heard(2 * HOLD), {"fence"}, id="a swap hangs"),
        pytest.param(SWAPS.heard(2 * HOLD - 1), set(), id="a swap may still end"),
    ],
)
def test_a_worker_whose_work_does_not_end_holds_its_requests_no_longer_than_the_limit(
    worker, calls, strategy
):
    fleet = make_fleet(worker, W(1).serving("41"), status=MOVES, rollout={"strategy": strategy})
    plan = plan_rollout(fleet, now=NOW)

    assert {a.split()[0] for a in texts_of(plan.step.actions) if "policy-0" in a} == calls


def test_the_operator_does_not_limit_how_long_a_trainer_holds_requests():
    fleet = make_fleet(
        HANGS.heard(9 * HOLD), weights={"roots": ["/weights"], "management": "External"}
    )

    assert not plan_rollout(fleet, now=NOW).step.actions


RESUME = worker_calls.resume(W(0).paused("42").view(), reason="")
ADMIT = worker_calls.admit(W(1).joining("42").view(), reason="")
STAGE = worker_calls.stage(W(4).view(), target("42"), make_view().settings, reason="")


def test_no_worker_is_opened_before_another_version_is_out_of_the_service():
    made = made_of(step(RESUME, ADMIT, STAGE), hung(3))

    assert texts_of(made.actions) == ["Quarantine policy-3", "stage 42 on policy-4"]
    assert made.waiting.endswith(": policy-3")
    assert made.requeue_after_seconds == 1


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param([], id="no worker is unreachable"),
        pytest.param([hung(3, "42")], id="it would come back with the same weights"),
    ],
)
def test_otherwise_all_are_opened(lost):
    assert made_of(step(RESUME, ADMIT), *lost) == step(RESUME, ADMIT)


def test_steps_without_an_open_are_unchanged():
    assert made_of(step(STAGE), hung(3)) == step(STAGE)


def test_one_lost_answer_proves_nothing():
    made = made_of(step(RESUME), W(3).silent(1).unready().is_up())

    assert made.actions == ()


@pytest.mark.parametrize(("seconds", "expelled"), [(9.9, []), (10, ["Quarantine policy-3"])])
def test_a_closed_worker_may_have_been_opened_by_an_unanswered_call(seconds, expelled):
    quiet = W(3).joining("41").silent(seconds).is_up()

    assert texts_of(made_of(step(RESUME), quiet).actions) == (expelled or ["resume 42 on policy-0"])


class TestInARollout:
    def plan(self, *workers: WorkerBuilder, status: FleetStatus = MOVES, **spec):
        return plan_rollout(make_fleet(*workers, wants="42", status=status, **spec), now=NOW)

    def test_a_worker_on_another_version_is_quarantined_during_the_pause(self):
        made = self.plan(W(0).serving("41").staged("42"), hung(1))

        assert texts_of(made.step.actions) == ["Quarantine policy-1", "pause on policy-0"]

    def test_a_worker_on_another_version_is_fenced_and_joins_again(self):
        workers = [W(0).serving("41"), W(1).serving("7"), W(2).serving("41")]
        made = self.plan(*workers, status=APPLIED)

        assert "fence on policy-1" in texts_of(made.step.actions)
        assert not [a for a in texts_of(made.step.actions) if a.startswith("stage 42 on policy-1")]
        (fence,) = (a for a in made.step.actions if isinstance(a, Fence))
        assert figures(fence.reason) == {7, 41}
        assert fence.drain_timeout_seconds == 60

    def test_a_paused_worker_that_would_resume_another_version_is_fenced(self):
        workers = [W(0).serving("41"), W(1).paused("7"), W(2).serving("41")]
        made = self.plan(*workers, status=APPLIED)

        assert "pause on policy-1" not in texts_of(made.step.actions)
        (fence,) = (a for a in made.step.actions if isinstance(a, Fence))
        assert (fence.pod_name, fence.drain_timeout_seconds) == ("policy-1", 0), (
            "requests that a pause holds cannot finish"
        )

    def test_a_paused_worker_that_loads_the_goal_keeps_its_requests(self):
        """After a change of strategy in the middle of a rollout some may serve the goal already."""
        others = [W(0).serving("42"), W(1).serving("42")]
        made = self.plan(*others, W(2).paused("41").staged("42"))

        assert texts_of(made.step.actions) == ["load 42 on policy-2"]
        made = self.plan(*others, W(2).paused("41"))
        assert texts_of(made.step.actions) == ["stage 42 on policy-2"], "41 is still the base"

    @pytest.mark.parametrize(
        "swapping",
        [
            pytest.param(
                W(1).pausing("7").staged("41").doing("apply", "41"), id="it reports the swap"
            ),
            pytest.param(
                W(1).serving("7").staged("41").asked_to("apply 41"), id="the call is in flight"
            ),
        ],
    )
    def test_a_worker_that_swaps_to_the_applied_version_keeps_its_requests(self, swapping):
        """A swap of `InFlight` may run when the strategy becomes one that forbids mixed versions."""
        made = self.plan(W(0).serving("41"), swapping, W(2).serving("41"), status=APPLIED)

        assert not [a for a in texts_of(made.step.actions) if a.startswith("fence")]

    def test_a_call_to_swap_to_another_version_spares_no_worker(self):
        swapping = W(1).serving("7").staged("8").asked_to("apply 8")
        made = self.plan(W(0).serving("41"), swapping, W(2).serving("41"), status=APPLIED)

        assert "fence on policy-1" in texts_of(made.step.actions)

    def test_a_draining_worker_keeps_draining(self):
        going = W(1).pausing("7").doing("fence")
        made = self.plan(W(0).serving("41"), going, status=APPLIED)

        assert "policy-1" not in str(texts_of(made.step.actions))

    @pytest.mark.parametrize(
        "workers",
        [
            pytest.param([W(0).serving("41"), W(1).serving("42")], id="it has what is wanted"),
            pytest.param(
                [W(0).serving("41"), W(1).paused("7").loaded()],
                id="it holds its requests on weights that it does not serve by itself",
            ),
            pytest.param([W(0).serving("7"), W(1).serving("8")], id="no worker serves the record"),
        ],
    )
    def test_other_workers_are_not_fenced(self, workers):
        made = self.plan(*workers, status=APPLIED)

        assert not [a for a in texts_of(made.step.actions) if a.startswith("fence")]
