"""Which weights a fleet served last: as its status records."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import (
    WorkerBuilder,
    make_fleet,
    make_transition,
    make_view,
    make_worker,
    path_of,
    target,
)
from tests.support.identities import D1, D2, RUN_7, asks, decided, fleet_of, has, served

from fleet_operator.core import worker_calls
from fleet_operator.core.applied import applied_after, applied_of
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.strategies.base import Step
from fleet_worker.protocol import Source
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus
from rlfleet_resources.weights_status import RolloutPhase

W = make_worker


def applied(*workers, wants="42", recorded="41", transition=None):
    status = FleetStatus(transition=transition)
    if recorded is not None:
        record = AppliedWeights(version=recorded, source=target(recorded).source)
        status = status.model_copy(update={"applied": record})
    fleet = make_fleet(*workers, wants=wants, status=status)
    members = make_view(*workers).members
    return applied_of(fleet, members, target(wants), may_read_wanted=True)


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([W(0).serving("42"), W(1).serving("42")], id="the desired version"),
        pytest.param([W(0).serving("40"), W(1).serving("40")], id="an earlier version"),
        pytest.param([], id="none"),
    ],
)
def test_without_a_transition_the_record_counts_whatever_workers_serve(workers):
    assert applied(*workers).version == "41"


@pytest.mark.parametrize(
    ("workers", "version"),
    [
        pytest.param(
            [W(0).paused("42"), W(1).paused("42")], "41", id="all have loaded and none has served"
        ),
        pytest.param([W(0).paused("42"), W(1).serving("42")], "42", id="one of them serves"),
        pytest.param(
            [W(0).serving("42"), W(1).silent()], "42", id="a silent worker proves nothing"
        ),
        pytest.param(
            [W(0).serving("41"), W(1).serving("42")], "41", id="one serves what was before"
        ),
        pytest.param(
            [W(0).serving("42"), W(1).paused("41")], "41", id="one is held with what was before"
        ),
        pytest.param([W(0).serving("40")], "41", id="one serves neither"),
        pytest.param([W(0).pausing("42").doing("fence")], "41", id="the only one is being fenced"),
    ],
)
def test_behind_a_barrier_the_first_worker_that_serves_the_goal_makes_it_the_applied_version(
    workers, version
):
    assert applied(*workers, transition=make_transition()).version == version


def test_on_the_way_back_no_worker_makes_the_goal_the_applied_version():
    assert applied(W(0).serving("42"), transition=make_transition(back=True)).version == "41"


@pytest.mark.parametrize(
    ("workers", "wants", "version"),
    [
        pytest.param([W(0).serving("42"), W(1).serving("42")], "43", "42", id="superseded"),
        pytest.param([W(0).serving("42"), W(1).serving("41")], "43", "41", id="one is behind"),
        pytest.param([W(0).serving("42"), W(1).serving("42")], "42", "41", id="not ended yet"),
    ],
)
def test_without_a_barrier_a_superseded_version_that_all_serve_is_applied(workers, wants, version):
    """Before its rollout ends, another worker may break on it."""
    swaps = make_transition(strategy="InFlight")

    assert applied(*workers, wants=wants, transition=swaps).version == version


def test_without_a_record_it_is_the_models_version():
    assert applied(recorded=None).version == "base"


def test_without_a_record_the_weights_of_most_workers_count():
    workers = [W(0).serving("7"), W(1).serving("7"), W(2).paused("8")]
    found = applied(*workers, recorded=None)

    assert (found.version, found.source.path) == ("7", path_of("7"))


def test_their_source_comes_from_the_workers():
    found = applied(W(0).serving("7").from_source("/weights/elsewhere"), recorded=None)

    assert found.source.path == "/weights/elsewhere"


@pytest.mark.parametrize("source", [None, Source(path="/weights/step_9/")])
def test_weights_from_no_known_source_do_not_count(source):
    odd = W(0).serving("9").reporting(source=source, digest=D1)

    assert applied(odd, recorded=None).version == "base"


class TestRecordedWithTheCalls:
    def step(self, *actions):
        return Step(goal=target("42"), phase=RolloutPhase.RESUMING, actions=actions)

    def opened(self, *workers, actions):
        return applied_after(self.step(*actions), make_view(*workers), None).version

    def test_a_resume_records_the_version(self):
        held = W(0).paused("42")
        resume = worker_calls.resume(held.view(), reason="")

        assert self.opened(held, actions=[resume]) == "42"

    def test_an_admission_records_the_version(self):
        joining_worker = W(0).joining("42")
        admit = worker_calls.admit(joining_worker.view(), reason="")

        assert self.opened(joining_worker, actions=[admit]) == "42"

    def test_nothing_is_recorded_while_a_member_is_on_another_version(self):
        resume = worker_calls.resume(W(0).paused("42").view(), reason="")

        assert self.opened(W(0).paused("42"), W(1).paused("41"), actions=[resume]) == "41"

    @pytest.mark.parametrize(
        ("workers", "view", "version"),
        [
            pytest.param([W(0).serving("42"), W(1).serving("42")], {}, "42", id="one is missing"),
            pytest.param([W(0).serving("42")], {}, "41", id="most are missing"),
            pytest.param(
                [W(0).serving("42"), W(1).paused("42").silent()], {}, "41", id="one is silent"
            ),
            pytest.param(
                [W(0).serving("42"), W(1).serving("42"), W(2).serving("41")], {}, "41", id="mixed"
            ),
            pytest.param(
                [W(0).serving("42"), W(1).serving("42")], {"suspended": True}, "41", id="suspended"
            ),
            pytest.param(
                [W(n).serving("42") for n in range(3)], {"suspended": True}, "42", id="all have it"
            ),
            pytest.param([], {}, "41", id="none"),
        ],
    )
    def test_the_end_of_a_rollout_records_what_most_of_three_replicas_serve(
        self, workers, view, version
    ):
        """A swap opens no worker."""
        ends = Step(goal=target("42"), phase=RolloutPhase.APPLIED)

        assert applied_after(ends, make_view(*workers, replicas=3, **view), None).version == version

    def test_the_end_of_a_rollout_that_moved_workers_records_what_the_others_serve(self):
        """Two of three are missing."""
        ends = Step(goal=target("42"), phase=RolloutPhase.APPLIED)
        view = make_view(W(0).serving("42"), replicas=3)

        assert applied_after(ends, view, make_transition()).version == "42"
        assert applied_after(ends, view, make_transition("40")).version == "41"

    def test_calls_that_open_no_worker_record_nothing(self):
        pause = worker_calls.pause(W(0).serving("42").view(), make_view().settings, reason="")

        assert self.opened(W(0).serving("42"), actions=[pause]) == "41"
        assert self.opened(W(0).serving("42"), actions=[]) == "41"


def test_weights_passed_on_keep_the_identity_that_their_workers_report():
    named = WeightsId("42", "a", "sha256:" + "4" * 64)

    assert WeightsId.of(Checkpoint.passing(named, target("42").source)) == named


class TestSourceOfTheAppliedWeights:
    """The WeightVersion names the applied version, perhaps by its digest, and another path."""

    PATH = "/weights/moved/step_40"

    def _decided(self, *workers: WorkerBuilder, path: str, **fields: Any) -> Checkpoint:
        wants = asks("40", path, **fields)
        observed = fleet_of(*workers, wants=wants, status=served("40", RUN_7, D1), replicas=2)
        return decided(observed).rollout.applied

    @pytest.mark.parametrize("serve", [True, False])
    def test_the_source_is_the_present_path_of_the_spec_also_while_no_worker_serves(self, serve):
        workers = [has(W(n).serving("40"), RUN_7, D1) for n in range(2)] if serve else []
        found = self._decided(*workers, path=self.PATH, digest=D1)

        assert (str(found.source), found.digest) == (self.PATH, D1)

    @pytest.mark.parametrize("serve", [True, False])
    @pytest.mark.parametrize(
        "wanted",
        [
            pytest.param({"path": "/elsewhere/step_40", "digest": D1}, id="outside of the roots"),
            pytest.param({"path": PATH}, id="without the digest"),
            pytest.param({"path": PATH, "digest": D2}, id="with another digest"),
        ],
    )
    def test_a_refused_source_changes_nothing(self, serve, wanted):
        workers = [has(W(n).serving("40"), RUN_7, D1) for n in range(2)] if serve else []
        found = self._decided(*workers, **wanted)

        assert (str(found.source), found.digest) == (RUN_7, D1)
