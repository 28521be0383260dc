"""Figures for dashboards."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.support.fake_objects import FakeObjects

from rlfleet.metrics import metrics
from rlfleet.resources import WeightVersion

NOW = datetime(2026, 11, 22, 10, 0, 30, tzinfo=UTC)


def seen(objects: FakeObjects) -> WeightVersion:
    return WeightVersion.model_validate(objects.weights)


def test_metrics_are_flat_numbers():
    found = metrics(seen(FakeObjects()), now=NOW)

    assert found == {
        "rlfleet/stage_seconds": 1.0,
        "rlfleet/pause_seconds": 0.2,
        "rlfleet/load_seconds": 0.4,
        "rlfleet/resume_seconds": 0.1,
        "rlfleet/total_seconds": 1.7,
        "rlfleet/max_worker_pause_seconds": 0.5,
        "rlfleet/lost_worker_seconds": 0.0,
        "rlfleet/held_requests": 0.0,
        "rlfleet/workers": 4.0,
        "rlfleet/workers_applied": 4.0,
        "rlfleet/workers_failed": 0.0,
        "rlfleet/superseded_versions": 0.0,
        "rlfleet/unchanged": 0.0,
        "rlfleet/applied_age_seconds": 30.0,
        "rlfleet/applied_version": 42.0,
        "rlfleet/lag_versions": 0.0,
    }
    assert all(isinstance(value, float) for value in found.values())


def test_the_lag_is_behind_the_desired_or_the_trained_version():
    objects = FakeObjects(obeys=False)
    objects.desire(version="step_45")

    assert metrics(seen(objects), now=NOW)["rlfleet/lag_versions"] == 3
    assert metrics(seen(objects), now=NOW, trained_version=47)["rlfleet/lag_versions"] == 5


def test_versions_of_two_runs_have_no_lag():
    objects = FakeObjects(obeys=False)
    objects.desire(version="1", runID="run-8")

    found = metrics(seen(objects), now=NOW, trained_version=2)
    assert found["rlfleet/applied_version"] == 42
    assert "rlfleet/lag_versions" not in found


def test_unknown_values_are_omitted():
    objects = FakeObjects(obeys=False)
    whole = metrics(seen(objects), now=NOW).keys()
    of_applied = {
        f"rlfleet/{n}" for n in ("applied_age_seconds", "applied_version", "lag_versions")
    }

    objects.write(applied=None)
    assert whole - metrics(seen(objects), now=NOW).keys() == of_applied
    applied = {"version": "base", "source": {"path": "/w"}}
    objects.write(applied=applied, effect={"version": "43"})
    assert whole - metrics(seen(objects), now=NOW).keys() == of_applied

    objects.write(effect={"version": "43", "minChangedShare": 0.25})
    assert metrics(seen(objects), now=NOW)["rlfleet/min_changed_share"] == 0.25
