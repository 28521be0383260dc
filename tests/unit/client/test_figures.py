"""Figures for dashboards, and the callback of transformers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import fake_modules
from tests.support.fake_objects import FakeObjects

from rlfleet import Refused, Weights, publish_every
from rlfleet.metrics import metrics, number_of
from rlfleet.resources import WeightVersion

NOW = datetime(2026, 11, 22, 10, 0, 30, tzinfo=UTC)


def seen(objects: FakeObjects) -> WeightVersion:
    return WeightVersion.model_validate(objects.weights)


def test_metrics_are_flat_numbers() -> None:
    found = metrics(seen(FakeObjects()), now=NOW)

    assert found == {
        "rlfleet/stage_seconds": 1.0,
        "rlfleet/pause_seconds": 0.2,
        "rlfleet/load_seconds": 0.4,
        "rlfleet/resume_seconds": 0.1,
        "rlfleet/total_seconds": 1.7,
        "rlfleet/max_worker_pause_seconds": 0.5,
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


def test_the_lag_is_behind_the_desired_or_the_trained_version() -> None:
    objects = FakeObjects(obeys=False)
    objects.desire(version="step_45")

    assert metrics(seen(objects), now=NOW)["rlfleet/lag_versions"] == 3
    assert metrics(seen(objects), now=NOW, trained_version=47)["rlfleet/lag_versions"] == 5


def test_versions_of_two_runs_have_no_lag() -> None:
    objects = FakeObjects(obeys=False)
    objects.desire(version="1", runID="run-8")

    found = metrics(seen(objects), now=NOW, trained_version=2)
    assert found["rlfleet/applied_version"] == 42
    assert "rlfleet/lag_versions" not in found


def test_unknown_values_are_omitted() -> None:
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


@pytest.mark.parametrize(
    ("label", "number"),
    [
        ("43", 43),
        ("step_43", 43),
        ("step-007", 7),
        ("v43", None),
        ("step_", None),
        ("4" * 19, None),
    ],
)
def test_version_numbers_follow_the_crds_rule(label: str, number: int | None) -> None:
    assert number_of(label) == number


# --- the callback ---------------------------------------------------------------------------------


class FakeCallback:
    """The base class of callbacks in transformers."""


@pytest.fixture(autouse=True)
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules.install(monkeypatch, {"transformers": {"TrainerCallback": FakeCallback}})


def steps(callback: Any, *numbers: int, main: bool = True) -> list[str]:
    """Play optimizer steps. Returns: where the model was written to."""
    written: list[str] = []
    for number in numbers:
        state = SimpleNamespace(global_step=number, is_world_process_zero=main)
        model = SimpleNamespace(save_pretrained=written.append)
        callback.on_step_end(None, state, None, model=model)
    return written


def published(objects: FakeObjects) -> list[Any]:
    return [
        body["spec"] for request, body in objects.requests if request.startswith("patch") and body
    ]


def test_every_n_steps_the_model_is_saved_and_then_published(tmp_path: Path) -> None:
    objects, reports = FakeObjects(), []
    callback = publish_every(
        20,
        Weights("policy", objects=objects),
        tmp_path,
        worker_directory="/shared/",
        run_id="r",
        report=reports.append,
    )

    assert isinstance(callback, FakeCallback)
    assert steps(callback, 19, 20, 21, 60) == [f"{tmp_path}/step_20", f"{tmp_path}/step_60"]
    assert [(s["version"], s["source"]["path"], s["runID"]) for s in published(objects)] == [
        ("20", "/shared/step_20", "r"),
        ("60", "/shared/step_60", "r"),
    ]
    assert [r["rlfleet/applied_version"] for r in reports] == [20, 60]
    assert {r["rlfleet/lag_versions"] for r in reports} == {0}


def test_one_process_publishes_and_all_save_a_sharded_model(tmp_path: Path) -> None:
    objects, written = FakeObjects(), []
    weights = Weights("policy", objects=objects)

    assert steps(publish_every(1, weights, tmp_path), 1, main=False) == []
    assert steps(publish_every(1, weights, tmp_path, save=written.append), 1, main=False) == []
    assert published(objects) == []
    assert written == [f"{tmp_path}/step_1"]


def test_a_refusal_stops_the_training(tmp_path: Path) -> None:
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: objects.stall("CheckpointNotFinite"))

    with pytest.raises(Refused, match="CheckpointNotFinite"):
        steps(publish_every(1, Weights("policy", objects=objects), tmp_path), 50)


@pytest.mark.parametrize("with_save", [False, True])
def test_a_restarted_training_does_not_overwrite_a_published_version(
    tmp_path: Path, *, with_save: bool
) -> None:
    objects, written = FakeObjects(), []
    (tmp_path / "step_10").mkdir()
    (tmp_path / "step_10" / "model.safetensors").write_bytes(b"served")
    save = written.append if with_save else None
    callback = publish_every(10, Weights("policy", objects=objects), tmp_path, save=save)

    with pytest.raises(FileExistsError, match=r"model\.safetensors.*another directory"):
        steps(callback, 10)
    assert written == published(objects) == []
    assert steps(callback, 20) == ([] if with_save else [f"{tmp_path}/step_20"])


def test_steps_start_at_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        publish_every(0, Weights("policy", objects=FakeObjects()), tmp_path)
