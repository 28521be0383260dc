"""The operator reports once what workers ignore or cast in the files of a version."""

from __future__ import annotations

import itertools

from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_weights, make_worker

from fleet_operator.core.events import weights_events
from fleet_operator.core.lora import as_seen_by_lora
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.weights_status import weights_status
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

CAST = "2 tensors from F32 to BF16"
DEFAULTS = "Ignored: eos_token_id [7]"


def serving(ordinal: int, version: str, *remarks: str) -> WorkerBuilder:
    return make_worker(ordinal).serving(version).reporting(remarks=remarks)


def status_of(
    *workers: WorkerBuilder, version: str, before: WeightsStatus | None = None
) -> WeightsStatus:
    status = before or WeightsStatus(
        desired_version=version, phase=RolloutPhase.RESUMING, started_at=NOW
    )
    weights = make_weights(version, status=status)
    fleet = make_fleet(*workers, wants=weights)
    return weights_status(
        fleet, weights, plan_rollout(fleet, now=NOW), fleet=FleetStatus(), now=NOW
    )


def remarks_in(status: WeightsStatus) -> str | None:
    found = condition_of(status.conditions, ConditionType.REMARKS)
    return found.message if found is not None else None


def events(before: WeightsStatus, after: WeightsStatus) -> list[str]:
    return [e.message for e in weights_events(before, after) if e.reason == "Remarks"]


def test_the_remarks_of_the_served_version_are_a_condition_and_the_fleet_is_ready():
    workers = serving(0, "2", DEFAULTS), serving(1, "2", DEFAULTS, CAST), serving(2, "2")
    status = status_of(*workers, version="2")
    found = condition_of(status.conditions, ConditionType.REMARKS)
    ready = condition_of(status.conditions, ConditionType.READY)

    assert found is not None
    assert (found.status, found.reason) == ("True", ConditionReason.IGNORED_OR_CAST)
    assert DEFAULTS in found.message
    assert CAST in found.message
    assert ready is not None
    assert ready.status == "True"
    assert status.phase is RolloutPhase.APPLIED


def test_a_version_without_remarks_has_no_such_condition():
    assert remarks_in(status_of(serving(0, "2"), version="2")) is None


def test_the_versions_of_a_run_have_one_event():
    silent = status_of(serving(0, "1"), version="1")
    first = status_of(serving(0, "2", CAST), version="2", before=silent)
    between = status_of(serving(0, "2", CAST).staged("3"), version="3", before=first)
    second = status_of(serving(0, "3", CAST), version="3", before=between)
    other = status_of(serving(0, "4", CAST, DEFAULTS), version="4", before=second)
    none = status_of(serving(0, "5"), version="5", before=other)

    steps = [silent, first, between, second, other, none]
    found = [events(before, after) for before, after in itertools.pairwise(steps)]
    assert found == [[CAST], [], [], [f"{CAST}. {DEFAULTS}"], []]
    assert [remarks_in(step) is not None for step in steps] == [False, *[True] * 4, False]


def test_a_worker_of_an_earlier_release_says_nothing():
    assert remarks_in(status_of(serving(0, "2"), serving(1, "2", CAST), version="2")) == CAST


def test_remarks_on_base_weights_are_not_those_of_an_adapter():
    fleet = make_fleet(serving(0, "2", CAST), wants=make_weights("2"))
    (worker,) = as_seen_by_lora(fleet, "sql").workers

    assert worker.state is not None
    assert worker.state.remarks == ()
