"""The effect of a version: over all workers, and when it is worth a warning."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.support.builders import (
    A_DIGEST,
    ANOTHER_DIGEST,
    NOW,
    WorkerBuilder,
    make_fleet,
    make_weights,
    make_worker,
)
from tests.support.present import present

from fleet_operator.core.effect import effect_of
from fleet_operator.core.events import weights_events
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.weights_status import weights_status
from fleet_worker.protocol import SwapTimings
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus


def status_of(
    *workers: WorkerBuilder, weights: WeightsView | None = None, now: datetime = NOW
) -> WeightsStatus:
    wanted = weights if weights is not None else make_weights("2")
    fleet = make_fleet(*workers, wants=wanted)
    return weights_status(fleet, wanted, plan_rollout(fleet, now=now), fleet=FleetStatus(), now=now)


def up(ordinal: int, version: str = "2") -> WorkerBuilder:
    return make_worker(ordinal).serving(version)


def test_the_status_has_the_smallest_and_largest_changed_share():
    effect = status_of(up(0).changed(0.25), up(1).changed(0.125), up(2).changed(0.5)).effect

    assert effect is not None
    assert (effect.version, effect.compared_with) == ("2", "1")
    assert (effect.min_changed_share, effect.max_changed_share) == (0.125, 0.5)
    assert (effect.compared_workers, effect.not_comparable_workers) == (3, 0)
    assert not effect.unchanged


def test_the_status_has_the_way_of_each_load():
    def loaded(ordinal: int, version: str = "2", **way: Any) -> WorkerBuilder:
        timings = SwapTimings(version=version, **way)
        return up(ordinal).changed(0.01).reporting(timings=timings)

    workers = [loaded(0, in_place=True), loaded(1, in_place=False)]
    workers += [loaded(2, in_place=False, why_full="the version is not in memory")]
    workers += [loaded(3, "1", in_place=True), loaded(4)]
    effect = present(status_of(*workers).effect)

    assert (effect.in_place_workers, effect.full_workers) == (1, 2)
    assert effect.why_full == "policy-2: the version is not in memory"


def test_a_version_that_changes_nothing_gets_a_warning_and_serves():
    before = WeightsStatus(desired_version="2", phase=RolloutPhase.RESUMING, started_at=NOW)
    weights = make_weights("2", status=before)
    status = status_of(*(up(n).changed(0.0) for n in range(3)), weights=weights)
    warning = present(condition_of(status.conditions, ConditionType.WEIGHTS_UNCHANGED))

    assert (warning.status, warning.reason) == ("True", ConditionReason.NO_PARAMETER_CHANGED)
    assert "version 2" in warning.message
    assert "version 1" in warning.message
    assert "3 workers" in warning.message
    assert status.phase is RolloutPhase.APPLIED
    assert condition_of(status.conditions, ConditionType.STALLED) is None
    ready = present(condition_of(status.conditions, ConditionType.READY))
    assert ready.status == "True"


def test_the_warning_is_one_event_per_version():
    silent = status_of(up(0, "1"))
    warned = status_of(up(0).changed(0.0))

    events = [(t.type, t.reason) for t in weights_events(silent, warned)]
    assert ("Warning", "WeightsUnchanged") in events
    assert "WeightsUnchanged" not in [t.reason for t in weights_events(warned, warned)]
    next_one = status_of(up(0, "3").changed(0.0, since="2"), weights=make_weights("3"))
    assert "WeightsUnchanged" in [t.reason for t in weights_events(warned, next_one)]


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([up(0).changed(0.0), up(1).changed(0.1)], id="one has changed"),
        pytest.param([up(0).changed(0.0, unchanged=False)], id="fewer than the sample shows"),
        pytest.param([up(0).changed(None, why_not="padded experts")], id="not comparable"),
        pytest.param([up(0)], id="nothing was loaded"),
        pytest.param(
            [up(0).changed(0.0, since="2", digest=ANOTHER_DIGEST)], id="the same version again"
        ),
    ],
)
def test_there_is_no_warning_for_an_effective_update(workers):
    status = status_of(*workers)

    assert condition_of(status.conditions, ConditionType.WEIGHTS_UNCHANGED) is None
    assert status.effect is None or not status.effect.unchanged


def test_the_same_files_under_the_next_version_of_a_run_get_a_warning():
    effect = present(status_of(up(0).changed(0.0, digest=ANOTHER_DIGEST)).effect)

    assert effect.unchanged


@pytest.mark.parametrize(
    ("digest", "warned"),
    [
        pytest.param(ANOTHER_DIGEST, False, id="it begins with the very files"),
        pytest.param(A_DIGEST, True, id="its files are others"),
    ],
)
def test_a_run_may_start_with_the_weights_of_another(digest, warned):
    spec = make_weights("0").spec.model_copy(update={"run_id": "b"})
    worker = up(0, "0").changed(0.0, digest=digest, run_id="b", compared_with_run_id="a")
    effect = status_of(worker.reporting(run_id="b"), weights=make_weights("0", spec=spec)).effect

    assert effect is not None
    assert effect.unchanged is warned


def test_the_effect_in_another_run_is_ignored():
    assert status_of(up(0).changed(0.25, run_id="b")).effect is None


def test_workers_that_could_not_compare_are_counted_with_the_reason():
    effect = status_of(up(0).changed(0.25), up(1).changed(None, why_not="padded experts")).effect

    assert effect is not None
    assert (effect.compared_workers, effect.not_comparable_workers) == (1, 1)
    assert effect.message == "padded experts"
    assert effect.min_changed_share == 0.25


def test_the_effect_of_a_version_outlives_its_workers():
    known = status_of(up(0).changed(0.25)).effect
    fleet = make_fleet(up(0), wants=make_weights("2"))
    desired = plan_rollout(fleet, now=NOW).desired

    assert effect_of(fleet, desired, known) == known
    assert known is not None
    another = known.model_copy(update={"version": "1"})
    assert effect_of(fleet, desired, another) is None


def test_a_worker_on_the_previous_version_has_no_effect_of_the_next():
    assert status_of(up(0, "1").changed(0.25, since="0")).effect is None
