"""One part of a decision that fails becomes a condition; the others go on, and so do pauses."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    applied_status,
    make_condition,
    make_fleet,
    make_weights,
    make_worker,
    texts_of,
)
from tests.support.present import present

from fleet_operator.core import decision
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.observed import FleetObserved, UnreadWeights
from fleet_operator.core.problems import Problem
from fleet_worker.protocol import AdapterSlots, AdapterState
from rlfleet_resources.conditions import MAX_MESSAGE_CHARACTERS, Condition, condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

IMAGE = "rlfleet/worker:1"
RUNNING_OUT = 5.0
"""Seconds that are left of a lease."""
BEGUN = WeightsStatus(
    observed_generation=1,
    desired_version="2",
    phase=RolloutPhase.LOADING,
    started_at=NOW,
    phase_started_at=NOW,
)


def decided(fleet: FleetObserved) -> Decision:
    return decide(fleet, default_image=IMAGE, now=NOW + timedelta(seconds=5))


def stalled(made: Decision, uid: str = "") -> Condition:
    status = made.weights[uid] if uid else made.fleet
    return present(condition_of(status.conditions, ConditionType.STALLED))


def paused(ordinal: int) -> WorkerBuilder:
    return make_worker(ordinal).paused("1", lease_seconds=RUNNING_OUT).staged("2")


def raising(*_: Any, **__: Any) -> NoReturn:
    secret = "s3cret"
    raise KeyError(secret)


def in_a_pause(**spec: Any) -> FleetObserved:
    return make_fleet(paused(0), paused(1), wants=make_weights("2", status=BEGUN), **spec)


PARTS = ["plan_rollout", "plan_fleet", "fleet_status", "weights_status"]


@pytest.mark.parametrize("part", PARTS)
def test_pauses_are_renewed_when_a_part_fails_and_the_bug_is_reported(part, monkeypatch):
    monkeypatch.setattr(decision, part, raising)
    made = decided(in_a_pause())

    renewed = [c for c in texts_of(made.worker_calls) if c.startswith(("pause", "load"))]
    assert [c.rpartition(" ")[2] for c in renewed] == ["policy-0", "policy-1"]
    assert stalled(made).reason is ConditionReason.INTERNAL_ERROR
    assert stalled(made, "wv-1").reason is ConditionReason.INTERNAL_ERROR
    assert "KeyError" in stalled(made).message
    assert "s3cret" not in stalled(made).message
    assert not made.at_rest


@pytest.mark.parametrize("part", ["plan_lora", "calls"])
def test_an_adapters_failed_plan_does_not_affect_the_base_weights(part, monkeypatch):
    spec = make_weights("1").spec.model_copy(update={"adapter": "lora", "version": "3"})
    adapter = replace(make_weights("1", name="lora", uid="wv-2"), spec=spec)
    base = make_weights("2", status=BEGUN)
    fleet = make_fleet(paused(0), paused(1), wants=[base, adapter], adapters={"max": 1})
    expected = texts_of(decided(fleet).worker_calls)
    monkeypatch.setattr(decision.lora, part, raising)
    made = decided(fleet)

    assert texts_of(made.worker_calls) == expected
    assert stalled(made).reason is ConditionReason.INTERNAL_ERROR


def test_without_a_plan_only_pauses_are_renewed(monkeypatch):
    fleet = make_fleet(make_worker(0).serving("1"), paused(1), replicas=3, wants="2")
    monkeypatch.setattr(decision, "plan_rollout", raising)
    made = decided(fleet)

    assert texts_of(made.worker_calls) == ["pause on policy-1"]
    assert not made.is_planned


def test_without_a_plan_a_pause_is_renewed_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(decision, "plan_rollout", raising)
    fleet = in_a_pause(rollout={"timeouts": {"pauseSeconds": 10, "loadSeconds": 10}})
    long = tuple(replace(w, state_age_seconds=300.0) for w in fleet.workers)

    assert decided(replace(fleet, workers=long)).worker_calls == ()


def test_without_a_plan_the_phase_and_its_times_are_kept(monkeypatch):
    monkeypatch.setattr(decision, "plan_rollout", raising)
    status = decided(in_a_pause()).weights["wv-1"]

    assert (status.phase, status.phase_started_at) == (RolloutPhase.LOADING, NOW)


def test_an_abandoned_version_does_not_affect_a_later_generation(monkeypatch):
    monkeypatch.setattr(decision, "plan_rollout", raising)
    halted = BEGUN.model_copy(update={"phase": RolloutPhase.HALTED})
    weights = make_weights("3", status=halted, generation=2)
    status = decided(make_fleet(paused(0), wants=weights)).weights["wv-1"]

    assert (status.observed_generation, status.phase) == (2, RolloutPhase.PENDING)


def test_pauses_of_an_external_fleet_belong_to_its_trainer(monkeypatch):
    monkeypatch.setattr(decision, "plan_rollout", raising)
    management = {"roots": ["/weights"], "management": "External"}

    assert decided(make_fleet(paused(0), weights=management)).worker_calls == ()


UNREADABLE = {"unreadable": "replicas: wrong type"}
REFUSED = {
    "problems": (
        Problem(
            part="list of pods",
            reason=ConditionReason.READ_REFUSED,
            message="403",
            concerns_weights=True,
        ),
    )
}


@pytest.mark.parametrize(
    ("trouble", "part"), [(UNREADABLE, ""), (REFUSED, ""), ({}, "plan_rollout")]
)
def test_a_problem_that_passes_leaves_the_reason_of_a_halt(trouble, part, monkeypatch):
    workers = [make_worker(n).serving("1") for n in range(2)]
    refused = make_condition(ConditionType.STALLED, reason=ConditionReason.CANARY_REFUSED)
    status = WeightsStatus(
        observed_generation=1,
        desired_version="2",
        phase=RolloutPhase.HALTED,
        conditions=(refused,),
    )
    with monkeypatch.context() as patched:
        if part:
            patched.setattr(decision, part, raising)
        lengths = []
        for _ in range(3):
            wants = make_weights("2", status=status)
            made = decided(replace(make_fleet(*workers, wants=wants), **trouble))
            assert stalled(made, "wv-1").reason is ConditionReason.CANARY_REFUSED
            status = made.weights["wv-1"]
            lengths.append(len(stalled(made, "wv-1").message))
        assert lengths[0] > len(refused.message)
        assert lengths == lengths[:1] * 3

    made = decided(make_fleet(*workers, wants=make_weights("2", status=status)))
    after = stalled(made, "wv-1")
    assert (after.reason, after.message) == (refused.reason, refused.message)


def test_several_problems_are_all_reported_and_ready_is_false():
    one = Problem(part="a", reason=ConditionReason.NAME_TAKEN, message="Service a is taken")
    two = Problem(part="b", reason=ConditionReason.WRITE_REFUSED, message="b is refused")
    fleet = make_fleet(make_worker(0).serving("base"), replicas=1)
    made = decided(replace(fleet, problems=(one, two)))

    assert stalled(made).reason is ConditionReason.NAME_TAKEN
    assert stalled(made).message == "Service a is taken Also: b is refused"
    ready = present(condition_of(made.fleet.conditions, ConditionType.READY))
    assert ready.status == "False"


def test_a_long_message_hides_no_other_problem():
    """An admission policy may refuse a write with thousands of characters."""
    long = f"Service a is refused: {'x' * 3000}. Check admission policies"
    found = [
        Problem(part=part, reason=ConditionReason.WRITE_REFUSED, message=message)
        for part, message in (("Service a", long), ("pods", "pods exceed a quota"), ("z", long))
    ]
    message = stalled(decided(replace(make_fleet(), problems=tuple(found)))).message

    assert len(message) == MAX_MESSAGE_CHARACTERS
    assert "pods exceed a quota" in message
    assert message.count("Check admission policies") == 2


@pytest.mark.parametrize("characters", [600, 900])
def test_the_reason_of_a_halt_is_shortened_once_at_most(characters):
    """It is only in the condition, which later decisions read again."""
    refused = make_condition(
        ConditionType.STALLED, reason=ConditionReason.CANARY_REFUSED, message="x" * characters
    )
    status = BEGUN.model_copy(update={"phase": RolloutPhase.HALTED, "conditions": (refused,)})
    trouble = [
        Problem(
            part=f"part {n}",
            reason=ConditionReason.WRITE_REFUSED,
            message="y" * 900,
            concerns_weights=True,
        )
        for n in range(9)
    ]
    lengths = []
    for problems in (trouble, [], trouble, []):
        fleet = make_fleet(make_worker(0).serving("1"), wants=make_weights("2", status=status))
        made = decided(replace(fleet, problems=tuple(problems)))
        status = made.weights["wv-1"]
        lengths.append(len(stalled(made, "wv-1").message))

    assert lengths == [MAX_MESSAGE_CHARACTERS, 600] * 2


def test_of_many_problems_the_first_are_named_and_the_others_counted():
    found = [
        Problem(part=f"part {n}", reason=ConditionReason.WRITE_REFUSED, message=f"{n}" * 3000)
        for n in range(9)
    ]
    message = stalled(decided(replace(make_fleet(), problems=tuple(found)))).message

    assert len(message) <= MAX_MESSAGE_CHARACTERS
    assert all(f"{n}" * 50 in message for n in range(5))
    assert message.endswith("4 more problems.")


def test_a_problem_that_does_not_affect_the_spec_leaves_ready_unchanged():
    events = Problem(
        part="Events", reason=ConditionReason.WRITE_REFUSED, message="403", leaves_ready=True
    )
    revision = decided(make_fleet()).pods.revision
    fleet = make_fleet(make_worker(0).serving("base").of_revision(revision))
    made = decided(replace(fleet, problems=(events,)))

    ready = present(condition_of(made.fleet.conditions, ConditionType.READY))
    assert ready.status == "True"
    assert stalled(made).reason is ConditionReason.WRITE_REFUSED


# --- objects that cannot be read ------------------------------------------------------------------


def test_an_unreadable_fleet_finishes_its_rollout_and_changes_no_pod():
    fleet = replace(in_a_pause(), unreadable="spec.replicas: too many", generation=2)
    made = decided(replace(fleet, spec=fleet.spec.model_copy(update={"replicas": 5})))

    assert texts_of(made.worker_calls) == texts_of(decided(in_a_pause()).worker_calls)
    assert made.pod_actions == ()
    assert (made.fleet.observed_generation, stalled(made).reason) == (
        2,
        ConditionReason.INVALID_SPEC,
    )
    assert stalled(made).observed_generation == 2
    assert stalled(made, "wv-1").reason is ConditionReason.INVALID_SPEC


def test_an_unreadable_fleet_starts_no_rollout():
    fleet = make_fleet(of_today(0).serving("1"), wants="2")

    assert decided(fleet).worker_calls != ()
    assert decided(replace(fleet, unreadable="spec: odd")).worker_calls == ()


def of_today(ordinal: int) -> WorkerBuilder:
    """A worker whose template is not out of date: it is called, and not deleted."""
    return make_worker(ordinal).of_revision(decided(make_fleet()).pods.revision)


def test_an_unreadable_weightversion_starts_no_rollout_and_is_reported():
    weights = replace(make_weights("2", generation=2), unreadable="spec.version: too long")
    made = decided(make_fleet(of_today(0).serving("1"), wants=weights))

    assert made.worker_calls == ()
    assert made.weights["wv-1"].observed_generation == 2
    assert stalled(made, "wv-1").reason is ConditionReason.INVALID_SPEC
    assert "spec.version: too long" in stalled(made, "wv-1").message


def unread(**fields: Any) -> UnreadWeights:
    given: dict[str, Any] = {
        "name": "policy",
        "namespace": "rl",
        "uid": "wv-0",
        "generation": 3,
        "created_at": NOW - timedelta(days=1),
        "fleet": "policy",
        "unreadable": "spec.source: odd",
        "adapter": "",
    }
    return UnreadWeights(**given | fields)


def test_an_unreadable_weightversion_is_not_replaced_by_a_younger_one():
    applied = FleetStatus(applied=None)
    fleet = make_fleet(of_today(0).serving("1"), wants="2", status=applied)
    made = decided(replace(fleet, unread=(unread(),)))

    assert made.worker_calls == ()
    assert made.weights["wv-0"].observed_generation == 3
    assert stalled(made, "wv-0").reason is ConditionReason.INVALID_SPEC
    assert "WeightVersion policy" in stalled(made).message


def test_an_adapter_is_not_removed_while_an_object_is_unreadable():
    slots = AdapterSlots(total=2, used=1, max_rank=16)
    held = (AdapterState(name="lora", version="3"),)
    revision = decided(make_fleet(adapters={"max": 1})).pods.revision
    worker = make_worker(0).serving("base").of_revision(revision)
    worker = worker.reporting(adapters=held, adapter_slots=slots)
    fleet = make_fleet(worker, adapters={"max": 1})

    assert texts_of(decided(fleet).worker_calls) == ["remove-adapter lora on policy-0"]
    assert decided(replace(fleet, unread=(unread(adapter=None),))).worker_calls == ()


def test_a_condition_keeps_its_transition_time_while_a_problem_lasts():
    since = NOW - timedelta(hours=1)
    known = make_condition(ConditionType.STALLED, reason=ConditionReason.NAME_TAKEN, since=since)
    fleet = make_fleet(
        make_worker(0).serving("1"),
        wants=make_weights("1", status=applied_status("1")),
        status=FleetStatus(conditions=(known,)),
    )
    problem = Problem(part="x", reason=ConditionReason.NAME_TAKEN, message="Service x is taken")

    made = decided(replace(fleet, problems=(problem,)))
    assert stalled(made).last_transition_time == since
