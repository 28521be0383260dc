"""Whole rollouts on a fake fleet: plain ones, named stories, and random ones under faults."""

from __future__ import annotations

import os

import pytest
from tests.model.simulator import Faults, Simulation

from fleet_operator.api.conditions import ConditionReason, ConditionType, condition_of
from fleet_operator.api.weights import RolloutPhase
from fleet_worker.protocol import Phase

RANDOM_SEEDS = range(int(os.environ.get("SEEDS", "40")))


@pytest.fixture
def fleet() -> Simulation:
    simulation = Simulation(seed=1)
    simulation.settle()
    return simulation


def actions(simulation: Simulation) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in simulation.log]


def until(simulation: Simulation, condition) -> None:
    for _ in range(200):
        if condition():
            return
        if not simulation.reconcile():
            simulation.tick()
    simulation.fail("the condition was never met")


def stalled(simulation: Simulation):
    status = simulation.weights_computed or simulation.weights_stored
    return condition_of(status.conditions, ConditionType.STALLED)


def test_a_new_fleet_starts_directly_on_the_wanted_version(fleet):
    assert fleet.converged()
    assert not any(line.startswith("admit base") for line in actions(fleet))


def test_a_rollout_stages_all_then_pauses_all_then_loads_all_then_resumes_all(fleet):
    fleet.log.clear()
    fleet.publish("2")
    fleet.settle()

    kinds = [line.split(" ")[0] for line in actions(fleet) if " on policy-" in line]

    assert kinds == ["stage"] * 3 + ["pause"] * 3 + ["load"] * 3 + ["resume"] * 3


def test_a_converged_fleet_writes_nothing(fleet):
    assert fleet.run_quietly() == 0


def test_a_newer_version_before_any_load_lets_everybody_go_on_at_once(fleet):
    fleet.publish("2")
    until(fleet, lambda: all(w.phase is Phase.PAUSED for w in fleet.workers.values()))
    fleet.publish("3")
    fleet.reconcile()

    assert all(w.generates and w.weights == "1" for w in fleet.workers.values())

    fleet.settle()
    assert "load 2 on policy-0" not in actions(fleet)


def test_a_newer_version_in_the_middle_of_loading_is_taken_after_the_shortest_way_out(fleet):
    fleet.publish("2")
    until(fleet, lambda: all(w.phase is Phase.PAUSED for w in fleet.workers.values()))
    fleet.faults = Faults(operator_dies_after=1)
    fleet.reconcile()
    assert sorted(w.weights for w in fleet.workers.values()) == ["1", "1", "2"]
    fleet.publish("3")
    until(fleet, lambda: all(w.generates for w in fleet.workers.values()))

    assert {w.weights for w in fleet.workers.values()} == {"2"}

    fleet.settle()


def test_a_refused_checkpoint_is_said_and_the_old_weights_keep_serving(fleet):
    for worker in fleet.workers.values():
        worker.bad_sources.add("/weights/step_2")
    fleet.publish("2")
    until(fleet, lambda: stalled(fleet) is not None)

    condition = stalled(fleet)
    assert condition.reason is ConditionReason.CHECKPOINT_TRUNCATED
    assert "policy-0" in condition.message
    assert all(w.generates and w.weights == "1" for w in fleet.workers.values())

    fleet.publish("3")
    fleet.settle()
    assert stalled(fleet) is None


def test_a_refused_checkpoint_that_is_repaired_is_taken_without_a_person(fleet):
    for worker in fleet.workers.values():
        worker.bad_sources.add("/weights/step_2")
    fleet.publish("2")
    until(fleet, lambda: stalled(fleet) is not None)
    for worker in fleet.workers.values():
        worker.bad_sources.clear()

    fleet.settle()

    assert fleet.converged()


def test_a_load_that_breaks_one_engine_halts_and_everybody_serves_the_old_version(fleet):
    fleet.workers["uid-1"].breaking_versions.add("2")
    fleet.publish("2")
    until(
        fleet,
        lambda: (
            stalled(fleet) is not None
            and all(w.generates and w.weights == "1" for w in fleet.workers.values())
        ),
    )

    status = fleet.weights_computed
    assert status.phase is RolloutPhase.HALTED
    assert stalled(fleet).reason is ConditionReason.FAILURE_BUDGET_EXCEEDED
    assert "EngineFailed" in stalled(fleet).message

    fleet.publish("3")
    fleet.settle()
    assert status.history[0].result == "Halted"


def test_a_halted_version_is_not_tried_again_after_an_operator_restart(fleet):
    fleet.workers["uid-1"].breaking_versions.add("2")
    fleet.publish("2")
    until(
        fleet,
        lambda: (
            stalled(fleet) is not None
            and all(w.generates and w.weights == "1" for w in fleet.workers.values())
        ),
    )
    fleet.start_operator()
    fleet.log.clear()
    for _ in range(50):
        fleet.reconcile()
        fleet.tick()

    assert not [line for line in actions(fleet) if line.startswith(("pause", "load", "stage"))]
    assert stalled(fleet).reason is ConditionReason.FAILURE_BUDGET_EXCEEDED


def test_a_halted_version_is_tried_again_when_somebody_asks_for_it(fleet):
    fleet.workers["uid-1"].breaking_versions.add("2")
    fleet.publish("2")
    until(fleet, lambda: fleet.weights_computed.phase is RolloutPhase.HALTED)
    fleet.workers["uid-1"].breaking_versions.clear()
    fleet.retry = "once more"

    fleet.settle()

    assert fleet.served == "2"


def test_suspend_begins_nothing_new_and_its_end_lets_the_version_through(fleet):
    fleet.control(suspend=True)
    fleet.publish("2")
    fleet.log.clear()
    for _ in range(20):
        fleet.reconcile()
        fleet.tick()

    assert not [line for line in actions(fleet) if line.startswith(("stage", "pause"))]
    assert fleet.weights_computed.phase is RolloutPhase.SUSPENDED

    fleet.control(suspend=False)
    fleet.settle()


def test_suspend_in_the_middle_of_a_pause_brings_it_to_its_end(fleet):
    fleet.publish("2")
    until(fleet, lambda: all(w.phase is Phase.PAUSED for w in fleet.workers.values()))
    fleet.control(suspend=True)
    until(fleet, lambda: all(w.generates for w in fleet.workers.values()))

    assert {w.weights for w in fleet.workers.values()} == {"2"}


def test_a_run_that_starts_again_is_refused_until_rollback_is_said():
    fleet = Simulation(seed=5)
    fleet.control(runId="run-7")
    fleet.settle()
    fleet.publish("2")
    fleet.settle()
    fleet.published = ["base", "2", "1"]
    fleet.publish("1")
    fleet.published = ["base", "2", "1"]
    for _ in range(20):
        fleet.reconcile()
        fleet.tick()

    assert {w.weights for w in fleet.workers.values() if w.generates} == {"2"}
    assert stalled(fleet).reason is ConditionReason.REWIND_REFUSED
    assert "rollback" in stalled(fleet).message

    fleet.control(rollback=True)
    fleet.settle()
    assert {w.weights for w in fleet.workers.values()} == {"1"}


@pytest.mark.parametrize(
    ("on_failure", "versions"),
    [
        pytest.param("Halt", {"1", "2"}, id="Halt leaves everybody where he is"),
        pytest.param("Rollback", {"1"}, id="Rollback takes everybody back"),
    ],
)
def test_a_rolling_rollout_that_fails_in_the_middle(on_failure, versions):
    rollout = {"strategy": "Rolling", "maxUnavailable": 1, "onFailure": on_failure}
    fleet = Simulation(seed=6, rollout=rollout)
    fleet.settle()
    fleet.workers["uid-3"].breaking_versions.add("2")
    fleet.publish("2")
    until(fleet, lambda: fleet.weights_computed.phase is RolloutPhase.HALTED)
    for _ in range(60):
        fleet.tick(0.5)
        fleet.reconcile()

    assert all(w.generates for w in fleet.workers.values())
    assert {w.weights for w in fleet.workers.values()} == versions


def test_rolling_swaps_one_after_the_other():
    fleet = Simulation(seed=7, rollout={"strategy": "Rolling", "maxUnavailable": 1}, slow_seconds=2)
    fleet.settle()
    fleet.publish("2")
    away = []
    for _ in range(200):
        fleet.reconcile()
        fleet.tick(0.5)
        away.append(sum(not w.generates for w in fleet.workers.values()))

    assert max(away) == 1
    assert {w.weights for w in fleet.workers.values()} == {"2"}


def test_an_override_of_the_version_wins_over_the_fleets_settings(fleet):
    fleet.log.clear()
    fleet.control(rollout={"strategy": "InFlight"})
    fleet.publish("2")
    fleet.settle()

    assert "apply 2 on policy-0" in actions(fleet)


def test_one_failed_worker_is_left_behind_when_the_budget_allows():
    fleet = Simulation(seed=3, rollout={"maxFailures": 1})
    fleet.settle()
    fleet.workers["uid-1"].breaking_versions.add("2")
    fleet.publish("2")
    until(fleet, lambda: sum(w.generates and w.weights == "2" for w in fleet.workers.values()) == 2)

    assert not fleet.workers["uid-1"].admitted
    fleet.workers["uid-1"].breaking_versions.clear()
    fleet.settle()


def test_a_killed_worker_comes_back_closed_and_is_admitted_at_the_applied_version_only(fleet):
    fleet.workers["uid-1"].kill(fleet.now)

    assert not fleet.workers["uid-1"].admitted
    fleet.settle()
    assert fleet.workers["uid-1"].weights == "1"


def test_a_joiner_waits_for_a_barrier_and_opens_with_the_others(fleet):
    fleet.publish("2")
    until(fleet, lambda: all(w.phase is Phase.PAUSED for w in fleet.workers.values()))
    fleet.workers["uid-1"].kill(fleet.now)

    fleet.settle()

    assert fleet.workers["uid-1"].weights == "2"


def test_a_silent_worker_in_service_holds_the_barrier_until_it_is_quarantined():
    fleet = Simulation(seed=4, rollout={"maxFailures": 1})
    fleet.settle()
    fleet.publish("2")
    until(fleet, lambda: all(w.staged == "2" for w in fleet.workers.values()))
    fleet.workers["uid-1"].unreachable = True
    until(fleet, lambda: "uid-1" not in fleet.workers)

    assert any(line.startswith("Quarantine") for line in actions(fleet))
    fleet.settle()


def test_every_pause_ends_when_the_operator_never_comes_back(fleet):
    fleet.publish("2")
    until(fleet, lambda: all(w.phase is Phase.PAUSED for w in fleet.workers.values()))
    for _ in range(60):
        fleet.tick()

    assert all(w.generates and w.weights == "1" for w in fleet.workers.values())


def test_scaling_down_takes_the_highest_ordinal_first(fleet):
    fleet.replicas = 1
    fleet.settle()

    assert [w.ordinal for w in fleet.workers.values()] == [0]


def test_scaling_to_zero_and_back_comes_up_on_the_applied_version(fleet):
    fleet.replicas = 0
    for _ in range(5):
        fleet.reconcile()
        fleet.tick()
    assert not fleet.workers
    fleet.replicas = 2
    fleet.settle()

    assert {w.start_version for w in fleet.workers.values()} == {"1"}


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_good_canary_is_followed_by_the_others(replicas):
    fleet = Simulation(seed=8, replicas=replicas, rollout={"strategy": "Canary"})
    fleet.settle()
    assert "probe base on policy-0" in actions(fleet)  # the model's own weights are judged against
    fleet.log.clear()
    fleet.publish("2")
    fleet.settle()

    kinds = [line.split(" ")[0] for line in actions(fleet) if " on policy-0" in line]
    assert kinds == ["stage", "fence", "load", "probe", "admit"]
    assert fleet.weights_computed.canary.passed


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_refused_canary_goes_back_by_itself_and_nobody_else_ever_had_the_version(replicas):
    fleet = Simulation(seed=9, replicas=replicas, rollout={"strategy": "Canary"})
    fleet.settle()
    fleet.odd_versions.add("2")
    fleet.publish("2")
    until(
        fleet,
        lambda: (
            stalled(fleet) is not None
            and all(w.generates and w.weights == "1" for w in fleet.workers.values())
        ),
    )

    verdict = fleet.weights_computed.canary
    assert not verdict.passed
    assert verdict.kl == 9.0
    assert stalled(fleet).reason is ConditionReason.CANARY_REFUSED
    assert "KL 9.000" in stalled(fleet).message
    assert not [line for line in actions(fleet) if line.startswith("load 2 on policy-1")]

    fleet.publish("3")
    fleet.settle()


def test_a_canary_that_dies_is_replaced_by_the_next(fleet):
    fleet.control(rollout={"strategy": "Canary"})
    fleet.publish("2")
    until(fleet, lambda: fleet.workers["uid-1"].weights == "2")
    fleet.workers["uid-1"].unreachable = True
    until(fleet, lambda: fleet.weights_computed.canary is not None)

    fleet.settle()
    assert fleet.weights_computed.canary.passed


STRATEGIES = [
    pytest.param({"strategy": "Canary"}, id="Canary"),
    pytest.param(
        {"strategy": "Canary", "canary": {"workers": 2, "then": "Rolling"}}, id="Canary, Rolling"
    ),
    pytest.param({}, id="Synchronized"),
    pytest.param({"strategy": "InFlight"}, id="InFlight"),
    pytest.param({"strategy": "Rolling", "maxUnavailable": 1}, id="Rolling"),
    pytest.param({"strategy": "Rolling", "onFailure": "Rollback"}, id="Rolling, Rollback"),
]


@pytest.mark.parametrize("rollout", STRATEGIES)
@pytest.mark.parametrize("seed", RANDOM_SEEDS)
def test_under_random_faults_no_promise_breaks_and_the_fleet_converges(  # noqa: C901 - one chance after the other
    seed, rollout
):
    slow = [0.0, 0.0, 2.5, 12.0][seed % 4]
    fleet = Simulation(seed=seed, replicas=1 + seed // 4 % 4, rollout=rollout, slow_seconds=slow)
    fleet.settle()
    chance = fleet.random
    fleet.faults = Faults(
        answer_lost=0.1, call_lost=0.1, operator_dies=0.05, stale_view=0.2, status_unwritten=0.3
    )
    newest = 1
    for _ in range(150):
        fleet.reconcile()
        fleet.tick(chance.choice([0.0, 0.1, 1.0, 5.0, 20.0]))
        if chance.random() < 0.15:
            newest += 1
            if "Canary" in rollout.values() and chance.random() < 0.3:
                fleet.odd_versions.add(str(newest))
            fleet.publish(str(newest))
        worker = chance.choice(list(fleet.workers.values()) or [None])
        if worker is None:
            continue
        if chance.random() < 0.05:
            fleet.note(f"{worker.name} is killed")
            worker.kill(fleet.now)
        if chance.random() < 0.05:
            worker.unreachable = not worker.unreachable
            fleet.note(f"{worker.name} unreachable={worker.unreachable}")
        if chance.random() < 0.05:
            worker.breaking_versions.add(fleet.version)
        if chance.random() < 0.05:
            worker.bad_sources.add(f"/weights/step_{fleet.version}")
        if chance.random() < 0.03:
            fleet.replicas = chance.randint(1, 5)
            fleet.note(f"scaled to {fleet.replicas}")
    for worker in fleet.workers.values():
        worker.breaking_versions.clear()
        worker.bad_sources.clear()
    fleet.publish(str(newest + 1))
    fleet.settle()

    assert fleet.run_quietly() == 0
