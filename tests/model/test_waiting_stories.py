"""Waits, played: for a checkpoint that does not exist yet, and of pods that a queue holds back."""

from __future__ import annotations

import pytest
from tests.model.simulator import Simulation

from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase

TIMEOUTS = {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40, "checkpointSeconds": 300}
STRATEGIES = ["Synchronized", "InFlight", "Rolling", "Canary"]


def reason(fleet: Simulation, kind: ConditionType) -> ConditionReason | None:
    found = condition_of(fleet.weights.conditions, kind)
    return found.reason if found is not None else None


def waits(fleet: Simulation, *, seconds: float) -> None:
    """Time passes, in which the version is neither served nor abandoned."""
    before = fleet.serving
    for _ in range(int(seconds / 10)):
        fleet.look(2, seconds=5.0)
        assert fleet.weights.phase is RolloutPhase.PENDING
        assert fleet.serving == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_version_is_served_when_its_checkpoint_appears_however_late(strategy):
    fleet = Simulation(seed=7, rollout={"strategy": strategy, "timeouts": TIMEOUTS})
    fleet.settle()
    fleet.files.absent.add("/weights/step_2")
    fleet.publish("2")
    fleet.look(20)
    waits(fleet, seconds=250)

    assert reason(fleet, ConditionType.PROGRESSING) is ConditionReason.WAITING_FOR_CHECKPOINT
    assert reason(fleet, ConditionType.STALLED) is None
    assert fleet.serving == ["1", "1", "1"]

    waits(fleet, seconds=1000)
    assert reason(fleet, ConditionType.STALLED) is ConditionReason.SOURCE_NOT_FOUND

    fleet.files.absent.clear()
    fleet.until(lambda: fleet.weights.phase is RolloutPhase.APPLIED)
    assert fleet.serving == ["2", "2", "2"]
    assert reason(fleet, ConditionType.STALLED) is None
    assert next((e.version, e.result) for e in fleet.weights.history) == ("2", "Applied")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_new_fleet_serves_its_model_until_the_first_checkpoint_exists(strategy):
    fleet = Simulation(seed=8, rollout={"strategy": strategy, "timeouts": TIMEOUTS})
    fleet.files.absent.add("/weights/step_1")
    fleet.until(lambda: fleet.serving == ["base", "base", "base"])
    waits(fleet, seconds=500)

    fleet.files.absent.clear()
    fleet.until(lambda: fleet.serving == ["1", "1", "1"])


def test_a_version_that_waits_is_overtaken_by_the_next_one():
    fleet = Simulation(seed=9)
    fleet.settle()
    fleet.files.absent.add("/weights/step_2")
    fleet.publish("2")
    fleet.look(20)
    fleet.publish("3")
    fleet.until(lambda: fleet.serving == ["3", "3", "3"])

    assert fleet.weights.superseded_versions == 1


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gated_pod_stops_no_rollout_of_the_others(strategy, replicas):
    there = replicas - 1
    rollout = {"strategy": strategy, "timeouts": TIMEOUTS, "canary": {"then": "Rolling"}}
    fleet = Simulation(seed=10, replicas=there, rollout=rollout, progressDeadlineSeconds=60)
    fleet.settle()
    fleet.hold_new_pods()
    fleet.scale(replicas)
    for version in ("2", "3"):
        fleet.publish(version)
        fleet.until(lambda v=version: fleet.serving == [v] * there)
        for _ in range(40):
            fleet.look(1, seconds=30.0)
            assert fleet.stalled is None
        assert fleet.weights.phase is RolloutPhase.APPLIED
        assert fleet.fleet.applied is not None
        assert fleet.fleet.applied.version == version
        assert reason(fleet, ConditionType.READY) is ConditionReason.WAITING_FOR_QUOTA
    assert fleet.run_quietly() == 0

    fleet.hold_new_pods(hold=False)
    fleet.settle()
    assert fleet.serving == ["3"] * replicas
