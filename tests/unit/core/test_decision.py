"""Everything about a fleet at once: the parts do not get into each other's way."""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    fleet_at,
    make_fleet,
    make_transition,
    make_weights,
    make_worker,
    texts_of,
)

from fleet_operator.core import lora
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.observed import FleetObserved, Watched
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

IMAGE = "rlfleet/worker:1"
TODAY = decide(make_fleet(), default_image=IMAGE, now=NOW).pods.revision


def decision(fleet: FleetObserved) -> Decision:
    return decide(fleet, default_image=IMAGE, now=NOW)


def up(ordinal: int) -> WorkerBuilder:
    return make_worker(ordinal).serving("base").of_revision(TODAY)


def test_a_fleet_in_its_desired_state_gets_no_actions():
    made = decision(make_fleet(up(0), up(1)))

    assert (made.worker_calls, made.pod_actions) == ((), ())
    assert made.at_rest


@pytest.mark.parametrize("fails", ["", "calls"])
def test_a_worker_that_leaves_in_this_decision_gets_no_call(fails, monkeypatch):
    """The rollout was planned with it. The rule holds also where the calls for adapters cannot be planned."""
    if fails:
        monkeypatch.setattr(lora, fails, None)
    made = decision(make_fleet(up(0), up(1), wants=make_weights("2"), replicas=1))

    assert texts_of(made.pod_actions) == ["BeginDrain policy-1"]
    assert texts_of(made.worker_calls) == ["stage 2 on policy-0"]


def test_no_pod_is_replaced_while_the_rollout_pauses_the_fleet():
    """The pods' plan hears of the pause from the rollout's."""
    held = make_worker(0).paused("base").staged("2").of_revision("old")
    serving = make_worker(1).serving("base").staged("2").of_revision("old")
    begun = FleetStatus(transition=make_transition("2", "base"))
    update = {"maxUnavailable": 2}
    made = decision(make_fleet(held, serving, wants=make_weights("2"), update=update, status=begun))

    assert texts_of(made.worker_calls) == ["pause on policy-1"]
    assert made.pod_actions == ()


def test_no_worker_is_swapped_in_the_decision_that_drains_another():
    """The swap was planned while the other one counted as serving."""
    rolling = {"strategy": "Rolling", "maxUnavailable": 1}
    workers = [up(0).staged("2"), up(1).staged("2"), up(2).staged("2"), up(3).staged("2")]
    begun = FleetStatus(transition=make_transition("2", "base", strategy="Rolling"))

    def made(replicas: int) -> Decision:
        wants = make_weights("2")
        return decision(
            make_fleet(*workers, wants=wants, replicas=replicas, rollout=rolling, status=begun)
        )

    assert texts_of(made(4).worker_calls) == ["apply 2 on policy-0"]
    assert texts_of(made(3).pod_actions) == ["BeginDrain policy-3"]
    assert made(3).worker_calls == ()


def test_a_worker_that_is_quarantined_is_not_drained_too():
    """Both write the label that the Service selects."""
    long_ago = NOW - timedelta(hours=1)
    status = WeightsStatus(
        desired_version="1",
        phase=RolloutPhase.STAGING,
        started_at=long_ago,
        phase_started_at=long_ago,
    )
    weights = make_weights("1", status=status, watched=Watched(phase_seconds=3600))
    workers = [up(0).silent(3600), up(1).staged("1"), up(2).staged("1")]
    made = decision(make_fleet(*workers, replicas=2, rollout={"maxFailures": 1}, wants=weights))

    assert texts_of(made.pods.actions) == ["BeginDrain policy-0"]
    assert texts_of(made.pod_actions) == ["Quarantine policy-0"]


def test_a_decision_knows_whether_it_admits_and_what_workers_hear():
    joining = make_worker(0).joining("base").of_revision(TODAY)
    admitting = decision(make_fleet(joining, up(1), status=fleet_at("base")))
    quiet = decision(make_fleet(up(0), up(1)))

    assert (admitting.admits, quiet.admits) == (True, False)
    assert quiet.wanted is not None


def test_a_fleet_with_a_part_that_failed_is_not_at_rest(monkeypatch):
    def raising(*_: object, **__: object) -> NoReturn:
        raise KeyError

    monkeypatch.setattr("fleet_operator.core.decision.problems_of_calls", raising)

    assert not decision(make_fleet(up(0), up(1))).at_rest


def test_every_weightversion_gets_a_status():
    first, second = make_weights("1"), make_weights("2", name="second", uid="wv-2")
    made = decision(make_fleet(up(0), wants=[first, second]))

    assert made.weights.keys() == {"wv-1", "wv-2"}
    stalled = condition_of(made.weights["wv-2"].conditions, ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason is ConditionReason.SECOND_BASE_VERSION


def test_weights_are_ready_when_clients_reach_every_worker():
    weights = make_weights("base", source={"path": "/models/base"})

    def ready(*workers: WorkerBuilder) -> tuple[str, str, str]:
        made = decision(make_fleet(*workers, wants=weights))
        found = condition_of(made.weights["wv-1"].conditions, ConditionType.READY)
        assert found is not None
        return found.status, found.reason, found.message

    assert ready(up(0), up(1))[:2] == ("True", "AllWorkersServing")
    assert ready(up(0), up(1).unready()) == (
        "False",
        "WaitingForWorkers",
        "2 of 2 workers serve version base; 1 is not in the Service yet",
    )


def test_ready_of_weights_that_are_stalled_has_the_cause():
    """`kubectl get wv` shows the message of `Ready`."""
    workers = [up(i).refused("2", Reason.CHECKPOINT_TRUNCATED) for i in range(2)]
    begun = WeightsStatus(desired_version="2", phase=RolloutPhase.STAGING, started_at=NOW)
    weights = make_weights("2", status=begun, watched=Watched(attempt_seconds=10))
    made = decision(make_fleet(*workers, wants=weights)).weights["wv-1"]
    ready = condition_of(made.conditions, ConditionType.READY)
    stalled = condition_of(made.conditions, ConditionType.STALLED)

    assert ready is not None
    assert stalled is not None
    assert (ready.reason, ready.message) == (stalled.reason, stalled.message)
    assert ready.reason is ConditionReason.CHECKPOINT_TRUNCATED


def test_the_fleet_is_not_at_rest_before_its_lora_adapters_are():
    spec = make_weights("1").spec.model_copy(update={"adapter": "lora", "version": "3"})
    adapter = make_weights("1", name="lora", uid="wv-2")
    object.__setattr__(adapter, "spec", spec)
    made = decision(make_fleet(up(0), wants=[adapter], adapters={"max": 1}))

    assert made.rollout.step.phase == "Applied"
    assert not made.at_rest
