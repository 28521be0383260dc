"""Which weights a fleet served last: by its workers' account where they can tell, else recorded."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import (
    WorkerBuilder,
    history_of,
    make_fleet,
    make_view,
    make_weights,
    make_worker,
    path_of,
    target,
)
from tests.support.identities import D1, D2, RUN_7, asks, decided, fleet_of, has, served

from fleet_operator.api.fleet_status import AppliedWeights, FleetStatus, PinnedWeights
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core import worker_calls
from fleet_operator.core.applied import applied_after, applied_of
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.strategies.base import Step
from fleet_worker.protocol import Source

W = make_worker


def applied(
    *workers, wants="42", recorded="41", forbids_mixing=True, replicas=None, history=(), pinned=()
):
    status = FleetStatus(pinned=tuple(_pin(version) for version in pinned))
    if recorded is not None:
        record = AppliedWeights(version=recorded, source=target(recorded).source)
        status = status.model_copy(update={"applied": record})
    count = len(workers) if replicas is None else replicas
    weights = make_weights(wants, status=WeightsStatus(history=history_of(*history)))
    fleet = make_fleet(*workers, wants=weights, status=status, replicas=count)
    members = make_view(*workers).members
    return applied_of(
        fleet, members, target(wants), may_read_wanted=True, forbids_mixing=forbids_mixing
    )


def _pin(version):
    digest = f"sha256:{version:0>64}"
    return PinnedWeights(version=version, digest=digest, source=target(version).source)


def test_a_source_that_no_resource_could_have_leaves_the_record():
    odd = Source(path="/weights/step_9/")
    workers = [W(n).serving("9").reporting(source=odd, digest=D1) for n in range(2)]

    assert applied(*workers).version == "41"


@pytest.mark.parametrize(
    ("workers", "version"),
    [
        pytest.param([W(0).serving("41"), W(1).serving("41")], "41", id="as recorded"),
        pytest.param([], "41", id="no workers: the record"),
        pytest.param(
            [W(0).serving("42"), W(1).serving("42")],
            "42",
            id="agreeing workers beat an older record",
        ),
        pytest.param(
            [W(0).serving("40"), W(1).serving("40")],
            "40",
            id="agreeing workers beat a newer record",
        ),
        pytest.param(
            [W(0).serving("41"), W(1).serving("42")], "41", id="workers that differ prove nothing"
        ),
        pytest.param(
            [W(0).paused("42"), W(1).paused("42")], "41", id="all have loaded and none has served"
        ),
        pytest.param(
            [W(0).paused("42"), W(1).serving("42")], "42", id="one of them serves already"
        ),
        pytest.param([W(0).silent()], "41", id="a silent worker proves nothing"),
        pytest.param(
            [W(0).serving("42"), W(1).silent(), W(2).serving("42")],
            "42",
            id="a silent worker proves nothing against others",
        ),
        pytest.param(
            [W(0).serving("42"), W(1).paused("42"), W(2).paused("40")],
            "42",
            id="a paused worker on another version proves nothing",
        ),
        pytest.param([W(0).paused("40")], "41", id="a single paused worker proves nothing"),
        pytest.param(
            [W(0).pausing("40").doing("fence")],
            "41",
            id="a worker that is being fenced proves nothing",
        ),
        pytest.param(
            [W(0).pausing("7"), W(1).paused("41"), W(2).paused("41")],
            "41",
            id="a worker that alone generates another version does not count",
        ),
    ],
)
def test_under_a_strategy_without_mixing_the_workers_agreement_is_the_applied_version(
    workers, version
):
    assert applied(*workers).version == version


@pytest.mark.parametrize(
    ("replicas", "history", "version"),
    [
        pytest.param(2, ["41", "40"], "41", id="one of two is on the previous version"),
        pytest.param(2, ["40"], "41", id="the recorded one has not ended yet"),
        pytest.param(2, ["40", "41"], "40", id="the recorded one came before"),
        pytest.param(
            2, ["40", "41", "40"], "40", id="of a version served twice the last time counts"
        ),
        pytest.param(2, [], "40", id="the order is unknown"),
        pytest.param(1, ["41", "40"], "40", id="it is the whole fleet"),
    ],
)
def test_a_single_worker_that_returns_with_an_earlier_version_does_not_change_it(
    replicas, history, version
):
    found = applied(W(0).serving("40"), replicas=replicas, history=history)

    assert found.version == version


@pytest.mark.parametrize(
    ("pinned", "history", "version"),
    [
        pytest.param(["41", "40"], [], "41", id="pinned before the recorded one"),
        pytest.param(["40", "41"], [], "40", id="pinned after the recorded one"),
        pytest.param(["40"], [], "40", id="the recorded one has no pin"),
        pytest.param(["41"], [], "40", id="it has no pin"),
        pytest.param(["41", "40"], ["40", "41"], "40", id="the history says otherwise"),
        pytest.param(["41", "40"], ["40"], "41", id="the recorded one has not ended yet"),
        pytest.param(["40", "41"], ["40"], "40", id="the history has lost the recorded one"),
    ],
)
def test_the_pins_tell_an_earlier_version_where_the_history_does_not_name_both(
    pinned, history, version
):
    found = applied(W(0).serving("40"), replicas=2, pinned=pinned, history=history)

    assert found.version == version


def test_a_single_worker_that_returns_with_the_desired_version_changes_it():
    found = applied(W(0).serving("40"), wants="40", replicas=2, history=["41", "40"])

    assert found.version == "40"


@pytest.mark.parametrize(
    ("workers", "replicas", "version"),
    [
        pytest.param([W(0).serving("42"), W(1).serving("42")], 2, "42", id="all serve the wanted"),
        pytest.param([W(0).serving("42")], 2, "41", id="one of two serves the desired version"),
        pytest.param([W(0).serving("40")], 1, "41", id="a single worker on another version"),
    ],
)
def test_under_a_strategy_with_mixing_only_the_desired_version_replaces_the_record(
    workers, replicas, version
):
    found = applied(*workers, forbids_mixing=False, replicas=replicas)

    assert found.version == version


def test_without_a_record_it_is_the_models_version():
    assert applied(recorded=None).version == "base"


def test_without_a_record_agreeing_workers_count_under_any_strategy():
    found = applied(W(0).serving("7"), recorded=None, forbids_mixing=False, replicas=3)

    assert (found.version, found.source.path) == ("7", path_of("7"))


def test_the_source_of_an_unrecorded_version_comes_from_its_workers():
    found = applied(W(0).serving("7").from_source("/weights/elsewhere"))

    assert found.source.path == "/weights/elsewhere"


def test_a_version_without_a_known_source_is_not_applied():
    assert applied(W(0).serving("7").from_source(None)).version == "41"


class TestRecordedWithTheCalls:
    def step(self, *actions):
        return Step(goal=target("42"), phase=RolloutPhase.RESUMING, actions=actions)

    def opened(self, *workers, actions):
        return applied_after(self.step(*actions), make_view(*workers)).version

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
            pytest.param([], {}, "41", id="none"),
        ],
    )
    def test_the_end_of_a_rollout_records_what_most_of_three_replicas_serve(
        self, workers, view, version
    ):
        """A swap opens no worker."""
        ends = Step(goal=target("42"), phase=RolloutPhase.APPLIED)

        assert applied_after(ends, make_view(*workers, replicas=3, **view)).version == version

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
    def test_the_source_is_the_present_path_of_the_spec_also_while_no_worker_serves(
        self,
        serve: bool,  # noqa: FBT001 - a parameter of the table
    ):
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
    def test_a_refused_source_changes_nothing(
        self,
        serve: bool,  # noqa: FBT001 - a parameter of the table
        wanted: dict[str, Any],
    ):
        workers = [has(W(n).serving("40"), RUN_7, D1) for n in range(2)] if serve else []
        found = self._decided(*workers, **wanted)

        assert (str(found.source), found.digest) == (RUN_7, D1)
