"""Which weights a fleet served last: by its workers' account where they can tell, else recorded."""

from __future__ import annotations

import pytest
from tests.support.builders import (
    history_of,
    make_fleet,
    make_view,
    make_weights,
    make_worker,
    path_of,
    target,
)

from fleet_operator.api.fleet import AppliedWeights, FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core import calls
from fleet_operator.core.applied import applied_of, opened_by
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.observed import Target
from fleet_operator.core.step import Step

W = make_worker


def applied(*workers, wants="42", recorded="41", one_voice=True, replicas=None, history=()):
    status = FleetStatus()
    if recorded is not None:
        source = target(recorded).source
        status = FleetStatus(applied=AppliedWeights(version=recorded, source=source))
    count = len(workers) if replicas is None else replicas
    weights = make_weights(wants, status=WeightsStatus(history=history_of(*history)))
    fleet = make_fleet(*workers, wants=weights, status=status, replicas=count)
    members = make_view(*workers).members
    return applied_of(fleet, members, target(wants), one_voice=one_voice)


@pytest.mark.parametrize(
    ("workers", "version"),
    [
        pytest.param([W(0).serving("41"), W(1).serving("41")], "41", id="as recorded"),
        pytest.param([], "41", id="nobody is there: what was recorded"),
        pytest.param(
            [W(0).serving("42"), W(1).serving("42")], "42", id="one voice beats an older record"
        ),
        pytest.param(
            [W(0).serving("40"), W(1).serving("40")], "40", id="one voice beats a newer record"
        ),
        pytest.param([W(0).serving("41"), W(1).serving("42")], "41", id="who differ prove nothing"),
        pytest.param(
            [W(0).paused("42"), W(1).paused("42")], "41", id="all have loaded and none has served"
        ),
        pytest.param(
            [W(0).paused("42"), W(1).serving("42")], "42", id="one of them serves already"
        ),
        pytest.param([W(0).silent()], "41", id="a silent one says nothing"),
        pytest.param(
            [W(0).serving("42"), W(1).silent(), W(2).serving("42")], "42", id="nor against others"
        ),
        pytest.param(
            [W(0).serving("42"), W(1).paused("42"), W(2).paused("40")],
            "42",
            id="nor does one that is held and has something else",
        ),
        pytest.param([W(0).paused("40")], "41", id="nor one that is held and left over"),
        pytest.param([W(0).pausing("40").doing("fence")], "41", id="nor one that is set apart"),
        pytest.param(
            [W(0).pausing("7"), W(1).paused("41"), W(2).paused("41")],
            "41",
            id="one that generates what the others have not is a stray",
        ),
    ],
)
def test_where_versions_never_mix(workers, version):
    assert applied(*workers).version == version


@pytest.mark.parametrize(
    ("replicas", "history", "version"),
    [
        pytest.param(2, ["41", "40"], "41", id="one of two goes on with what came before"),
        pytest.param(2, ["40"], "41", id="the recorded one has not ended yet"),
        pytest.param(2, ["40", "41"], "40", id="the recorded one came before"),
        pytest.param(
            2, ["40", "41", "40"], "40", id="of what was served twice the last time counts"
        ),
        pytest.param(2, [], "40", id="nobody knows which one came first"),
        pytest.param(1, ["41", "40"], "40", id="it is the whole fleet"),
    ],
)
def test_one_that_comes_back_with_what_was_served_before_does_not_speak_for_the_fleet(
    replicas, history, version
):
    found = applied(W(0).serving("40"), replicas=replicas, history=history)

    assert found.version == version


def test_unless_that_is_what_is_wanted():
    found = applied(W(0).serving("40"), wants="40", replicas=2, history=["41", "40"])

    assert found.version == "40"


@pytest.mark.parametrize(
    ("workers", "replicas", "version"),
    [
        pytest.param([W(0).serving("42"), W(1).serving("42")], 2, "42", id="all serve the wanted"),
        pytest.param([W(0).serving("42")], 2, "41", id="one of two does"),
        pytest.param([W(0).serving("40")], 1, "41", id="one that is left over agrees with itself"),
    ],
)
def test_where_versions_mix_only_the_wanted_one_is_believed(workers, replicas, version):
    found = applied(*workers, one_voice=False, replicas=replicas)

    assert found.version == version


def test_before_anything_was_recorded_it_is_the_models_own_version():
    assert applied(recorded=None).version == "base"


def test_before_anything_was_recorded_one_voice_is_believed_also_where_versions_mix():
    found = applied(W(0).serving("7"), recorded=None, one_voice=False, replicas=3)

    assert (found.version, found.source.path) == ("7", path_of("7"))


def test_the_source_of_a_version_that_nobody_has_recorded_is_told_by_its_workers():
    found = applied(W(0).serving("7").from_source("/weights/elsewhere"))

    assert found.source.path == "/weights/elsewhere"


def test_a_version_whose_source_nobody_knows_cannot_be_the_applied_one():
    assert applied(W(0).serving("7").from_source(None)).version == "41"


class TestWhatIsServedFromNowOn:
    def step(self, *actions):
        return Step(goal=target("42"), phase=RolloutPhase.RESUMING, actions=actions)

    def opened(self, *workers, actions):
        return opened_by(self.step(*actions), make_view(*workers).members, target("41")).version

    def test_it_is_written_down_with_the_calls_that_open_workers(self):
        held = W(0).paused("42")
        resume = calls.resume(held.view(), reason="")

        assert self.opened(held, actions=[resume]) == "42"

    def test_also_with_an_admission(self):
        joiner = W(0).joining("42")
        admit = calls.admit(joiner.view(), reason="")

        assert self.opened(joiner, actions=[admit]) == "42"

    def test_not_while_some_member_is_elsewhere(self):
        resume = calls.resume(W(0).paused("42").view(), reason="")

        assert self.opened(W(0).paused("42"), W(1).paused("41"), actions=[resume]) == "41"

    def test_not_by_calls_that_open_nobody(self):
        pause = calls.pause(W(0).serving("42").view(), make_view().settings, reason="")

        assert self.opened(W(0).serving("42"), actions=[pause]) == "41"
        assert self.opened(W(0).serving("42"), actions=[]) == "41"


def test_weights_on_the_way_to_others_keep_the_name_that_their_workers_report():
    named = WeightsId("42", "a", "sha256:" + "4" * 64)

    assert WeightsId.of(Target.passing(named, target("42").source)) == named
