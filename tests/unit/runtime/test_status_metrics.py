"""Series that are computed from statuses: what they show, and when they are absent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.builders import applied_status
from tests.support.rig import WEIGHTS_PATH, Rig

from fleet_operator.runtime.status_metrics import (
    STATES,
    STEPS,
    Shown,
    ShownFleet,
    ShownWeights,
    StatusMetrics,
)
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, WorkerCounts
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import (
    RolloutEffect,
    RolloutPhase,
    RolloutWorkers,
    WeightsStatus,
)

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
FLEET = {"namespace": "rl", "fleet": "policy"}
WEIGHTS = FLEET | {"weightversion": "policy", "adapter": ""}
AT = datetime(2026, 1, 2, tzinfo=UTC)


def page_of(shown: Sequence[Shown]) -> str:
    registry = CollectorRegistry()
    statuses = StatusMetrics(lambda: shown, {KEY: 4}.get)
    registry.register(statuses)
    statuses.take()
    return generate_latest(registry).decode()


def samples(name: str, *shown: Shown) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each sample of one metric, as Prometheus reads them."""
    families = text_string_to_metric_families(page_of(shown))
    return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


def fleet(**fields: object) -> ShownFleet:
    versions = {"desired_version": "2", "applied_version": "1"}
    return ShownFleet(KEY, FleetStatus.model_validate(versions | fields))


def weights(status: WeightsStatus, name: str = "policy", adapter: str = "") -> ShownWeights:
    return ShownWeights(KEY, name, adapter, status)


def record(
    run_id: str | None = None, *, version: str = "1", at: datetime | None = AT
) -> AppliedWeights:
    source = WeightSource(path="/weights/1")
    return AppliedWeights(version=version, source=source, run_id=run_id, applied_at=at)


def condition(kind: ConditionType, status: str, reason: ConditionReason) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message="",
        observed_generation=1,
        last_transition_time=AT,
    )


STALLED = condition(ConditionType.STALLED, "True", ConditionReason.CHECKPOINT_TRUNCATED)
READY = condition(ConditionType.READY, "False", ConditionReason.HALTED)


def test_a_condition_is_shown_with_its_status_and_its_reason():
    shown = (
        fleet(conditions=(STALLED, READY)),
        weights(applied_status("1", conditions=(STALLED,))),
    )
    stalled = {"type": "Stalled", "status": "True", "reason": "CheckpointTruncated"}
    ready = {"type": "Ready", "status": "False", "reason": "Halted"}

    assert samples("rlfleet_fleet_condition", *shown) == [
        (FLEET | stalled, 1),
        (FLEET | ready, 1),
    ]
    assert samples("rlfleet_weightversion_condition", *shown) == [(WEIGHTS | stalled, 1)]


def test_workers_are_shown_by_state_and_by_step_of_the_rollout():
    shown = (
        fleet(workers=WorkerCounts(serving=3, quarantined=1), ready_replicas=2),
        weights(applied_status("1", workers=RolloutWorkers(total=4, staged=3))),
    )
    replicas = {labels["state"]: n for labels, n in samples("rlfleet_fleet_replicas", *shown)}
    steps = {labels["step"]: n for labels, n in samples("rlfleet_weightversion_workers", *shown)}

    assert replicas == dict.fromkeys(STATES, 0) | {"serving": 3, "quarantined": 1}
    assert set(STATES) == set(WorkerCounts.model_fields) - {"total"}
    assert steps == dict.fromkeys(STEPS, 0) | {"total": 4, "staged": 3}
    assert samples("rlfleet_fleet_ready_replicas", *shown) == [(FLEET, 2)]


LAGS = pytest.mark.parametrize(
    ("desired", "applied", "desired_run", "applied_run", "lag"),
    [
        ("5", "2", None, None, [3]),
        ("step_5", "step_5", "a", "a", [0]),
        ("1", "5", "a", "a", [-4]),
        ("1", "5", "b", "a", []),
        ("main", "5", None, None, []),
        ("5", "main", None, None, []),
        ("5", None, None, None, []),
    ],
)


@LAGS
def test_the_lag_is_shown_where_versions_of_one_run_have_numbers(
    desired, applied, desired_run, applied_run, lag
):
    shown = fleet(
        desired_version=desired,
        applied_version=applied,
        desired_run_id=desired_run,
        applied=record(applied_run),
    )

    assert [n for _, n in samples("rlfleet_fleet_lag_versions", shown)] == lag


@LAGS
@pytest.mark.parametrize("adapter", ["", "tuned"])
def test_the_lag_of_a_weightversion_follows_the_same_rules(
    desired, applied, desired_run, applied_run, lag, adapter
):
    """Also while its workers differ: `applied` stays, `applied_version` is absent."""
    status = WeightsStatus(
        desired_version=desired,
        desired_run_id=desired_run,
        applied=record(applied_run, version=applied) if applied else None,
    )
    labels = WEIGHTS | {"weightversion": "tuned", "adapter": adapter}

    shown = samples("rlfleet_weightversion_lag_versions", weights(status, "tuned", adapter))
    assert shown == [(labels, n) for n in lag]


async def test_an_adapter_lags_and_ages_while_a_version_of_it_does_not_get_through():
    path = f"{WEIGHTS_PATH}-tuned"

    def shown(rig: Rig, name: str) -> float:
        families = text_string_to_metric_families(rig.operator.metrics.render().decode())
        found = [s for family in families for s in family.samples if s.name == name]
        (sample,) = [s for s in found if s.labels["adapter"] == "tuned"]
        return sample.value

    async with Rig(replicas=2, adapters={"max": 1}) as rig:
        await rig.applied("1")
        rig.add_adapter(path, "tuned", "9")
        await rig.until(lambda: rig.status(path).get("appliedVersion") == "9", what="version 9")
        rig.workers.hanging = {0, 1}
        rig.change(path, version="12")
        await rig.until(lambda: rig.status(path)["desiredVersion"] == "12", what="a rollout")
        assert "appliedVersion" not in rig.status(path)
        applied_at = datetime.fromisoformat(rig.status(path)["applied"]["appliedAt"])
        assert shown(rig, "rlfleet_weightversion_lag_versions") == 3
        since = shown(rig, "rlfleet_weightversion_applied_timestamp_seconds")
        assert since == applied_at.timestamp()


def test_the_age_of_an_adapter_is_absent_where_nothing_has_recorded_it():
    name = "rlfleet_weightversion_applied_timestamp_seconds"
    labels = WEIGHTS | {"weightversion": "tuned", "adapter": "tuned"}

    def shown(applied: AppliedWeights | None) -> list[tuple[dict[str, str], float]]:
        status = WeightsStatus(desired_version="2", applied=applied)
        return samples(name, weights(status, "tuned", "tuned"))

    assert shown(record()) == [(labels, AT.timestamp())]
    assert shown(record(at=None)) == []
    assert shown(None) == []


def test_versions_that_are_not_known_are_empty():
    ((labels, value),) = samples("rlfleet_fleet_version_info", ShownFleet(KEY, FleetStatus()))

    assert value == 1
    assert {v for k, v in labels.items() if k not in FLEET} == {""}


def test_the_age_of_the_applied_version_counts_from_when_all_workers_served_it():
    name = "rlfleet_fleet_applied_timestamp_seconds"

    assert samples(name, fleet(applied=record())) == [(FLEET, AT.timestamp())]
    assert samples(name, fleet()) == []
    assert samples(name, fleet(applied_version=None, applied=record())) == []


@pytest.mark.parametrize(
    ("phase", "begun"),
    [
        (RolloutPhase.STAGING, [(WEIGHTS, AT.timestamp())]),
        (RolloutPhase.HALTED, [(WEIGHTS, AT.timestamp())]),
        (RolloutPhase.APPLIED, []),
    ],
)
def test_the_start_of_a_rollout_is_shown_until_it_is_applied(phase, begun):
    shown = weights(applied_status("1", phase=phase, started_at=AT, phase_started_at=AT))
    name = "rlfleet_weightversion_rollout_start_timestamp_seconds"
    (phases,) = samples("rlfleet_weightversion_phase", shown)

    assert samples(name, shown) == begun
    assert phases == (WEIGHTS | {"phase": phase.value}, 1)


def test_the_share_that_a_version_changed_is_shown_if_a_worker_could_compare():
    effect = RolloutEffect(version="2", min_changed_share=0.25, max_changed_share=0.5)
    shown = samples("rlfleet_rollout_changed_share", weights(applied_status("2", effect=effect)))

    assert [(labels["bound"], share) for labels, share in shown] == [("min", 0.25), ("max", 0.5)]
    assert samples("rlfleet_rollout_changed_share", weights(applied_status("3"))) == []


def test_two_versions_of_one_fleet_never_make_the_same_series():
    """A refused version, and one of an adapter, next to the one that steers the base weights."""
    status = applied_status("2", effect=RolloutEffect(version="2", min_changed_share=0.5))
    shown = [weights(status), weights(status, "second"), weights(status, "tuned", "tuned")]
    lines = page_of(shown).splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]

    assert len(series) == len(set(series))
    assert len([s for s in series if s.startswith("rlfleet_rollout_changed_share")]) == 3


def test_registering_asks_for_no_status():
    def shown() -> list[Shown]:
        raise AssertionError

    CollectorRegistry(auto_describe=True).register(StatusMetrics(shown, {}.get))


def test_the_replicas_of_the_spec_are_shown_as_long_as_they_are_known():
    other = ShownFleet(("rl", "unreadable"), FleetStatus())

    assert samples("rlfleet_fleet_spec_replicas", fleet(), other) == [(FLEET, 4)]


def lag(*history: tuple[str, int], phase: RolloutPhase = RolloutPhase.STAGING) -> float:
    """The lag in a rollout that began 10 seconds ago. `history`: result and age of others, newest first."""
    now = datetime.now(UTC)
    ended = [
        {
            "version": str(n),
            "result": r,
            "started_at": now - timedelta(seconds=age),
            "total_seconds": 1,
        }
        for n, (r, age) in enumerate(history)
    ]
    begun = {"phase": phase, "started_at": now - timedelta(seconds=10), "history": ended}
    ((_, seconds),) = samples(
        "rlfleet_weightversion_lag_seconds", weights(WeightsStatus.model_validate(begun))
    )
    return round(seconds)


def test_a_rollout_lags_since_it_began_and_not_once_it_is_applied():
    assert lag(("Applied", 500)) == 10
    assert lag(("Applied", 500), phase=RolloutPhase.APPLIED) == 0


def test_a_trainer_that_overtakes_its_own_versions_makes_the_lag_grow():
    assert lag(("Superseded", 40), ("Halted", 70), ("Applied", 500), ("Superseded", 900)) == 70
