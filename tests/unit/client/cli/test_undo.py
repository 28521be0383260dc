"""`rlfleet undo`: which version it goes back to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cli import run
from tests.support.fake_objects import TIME, FakeObjects


def entry(version: str, result: str = "Applied", run_id: str | None = None) -> dict[str, Any]:
    found = {"version": version, "result": result, "startedAt": TIME, "totalSeconds": 1.0}
    return found | ({"runID": run_id} if run_id else {})


def after_undo(
    monkeypatch: pytest.MonkeyPatch, *history: dict[str, Any], **spec: Any
) -> tuple[int, dict[str, Any], str]:
    """Exit code, the spec after `undo`, and standard error."""
    objects = FakeObjects(**spec)
    objects.write(history=list(history))
    code, _, err = run(monkeypatch, objects, "undo", "--wait")
    assert objects.weights is not None
    return code, objects.weights["spec"], err


def test_undo_returns_to_the_version_before(monkeypatch):
    code, spec, _ = after_undo(monkeypatch, entry("42"), entry("41"), entry("40"))

    assert code == 0
    assert (spec["version"], spec["rollbackTo"]) == ("41", "41")


def test_undo_leaves_a_version_that_is_not_applied(monkeypatch):
    _, spec, _ = after_undo(monkeypatch, entry("43", "Halted"), entry("42"), version="43")

    assert spec["version"] == "42"


def test_undo_takes_back_the_first_version_of_a_run(monkeypatch):
    objects = FakeObjects(obeys=False, runID="a")
    objects.desire(version="1", runID="b", source={"path": "/weights/none"})

    code, _, _ = run(monkeypatch, objects, "undo")

    assert code == 0
    assert (objects.weights["spec"]["version"], objects.weights["spec"]["runID"]) == ("42", "a")


def test_undo_stays_in_the_run(monkeypatch):
    history = entry("42", run_id="b"), entry("41", run_id="a"), entry("40", run_id="b")

    _, spec, _ = after_undo(monkeypatch, *history, runID="b")

    assert spec["version"] == "40"


def test_without_a_version_before_undo_names_rollback(monkeypatch):
    code, spec, err = after_undo(monkeypatch, entry("42"), entry("41", "Superseded"))

    assert code == 6
    assert spec["version"] == "42"
    assert "rlfleet rollback VERSION policy" in err
