"""Names of fleets: with a WeightVersion, without one, and of fleets that do not exist."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from tests.support.cli import PODS, Recorded, run

from rlfleet.cli import kubectl
from rlfleet.cli.kubectl import Ended


@pytest.mark.parametrize("name", [("policy",), ()], ids=["by its name", "the only one"])
@pytest.mark.parametrize("verb", ["workers", "explain", "logs", "report"])
def test_a_verb_that_looks_shows_a_fleet_that_a_trainer_drives(monkeypatch, verb, name):
    code, out, err = run(monkeypatch, Recorded("external"), verb, *name)

    assert code == 0, err
    assert "policy" in out


def test_watch_shows_a_fleet_that_a_trainer_drives(monkeypatch):
    objects = Recorded("external")

    def sleep(_: float) -> None:
        if objects.fleet == differing.fleet:
            raise KeyboardInterrupt
        objects.fleet = differing.fleet

    differing = Recorded("differing")
    monkeypatch.setattr(time, "sleep", sleep)

    code, out, _ = run(monkeypatch, objects, "watch", "policy")
    versions = "2 workers with version 2, 2 workers with version 3"

    assert code == 0
    assert out.splitlines() == [
        "policy: 4 workers with version 2, 4 serving",
        f"policy: {versions}, 4 serving, Stalled: VersionsDiffer",
    ]


def test_the_logs_of_such_a_fleet_are_those_of_its_pods(monkeypatch):
    objects = Recorded("external")
    objects.answers[f"GET {PODS}/policy-3/log"] = "2026-01-01T00:17:55Z INFO loaded step 2\n"

    _, out, _ = run(monkeypatch, objects, "logs", "policy", "-o", "json")

    assert [
        one["message"] for one in map(json.loads, out.splitlines()) if one["pod"] == "policy-3"
    ] == ["loaded step 2"]


@pytest.mark.parametrize(
    "command",
    [
        "publish 3 policy", "rollback 1 policy", "undo policy", "retry policy", "suspend policy",
        "resume policy", "history policy", "watch policy --until-applied",
    ],
)  # fmt: skip
def test_a_verb_that_needs_a_weightversion_names_the_driver_of_the_fleet(monkeypatch, command):
    code, _, err = run(monkeypatch, Recorded("external"), *command.split())

    assert code == 6
    assert "a trainer drives fleet 'policy'" in " ".join(err.split())


def test_a_managed_fleet_without_a_weightversion_asks_for_one(monkeypatch):
    objects = Recorded("applied")
    objects.weights = None

    code, _, err = run(monkeypatch, objects, "undo", "policy")

    assert code == 6
    assert "--create-for policy" in " ".join(err.split())
    assert run(monkeypatch, objects, "explain", "policy")[0] == 0


def test_the_name_of_an_adapters_weightversion_means_its_fleet(monkeypatch):
    objects = Recorded("applied")
    assert objects.weights is not None
    objects.weights["metadata"]["name"] = "math"
    objects.weights["spec"]["adapter"] = "math"

    _, of_adapter, _ = run(monkeypatch, objects, "workers", "math", "-o", "json")
    _, of_fleet, _ = run(monkeypatch, objects, "workers", "policy", "-o", "json")

    assert [one["name"] for one in json.loads(of_adapter)["rollouts"]] == ["math"]
    assert json.loads(of_fleet)["rollouts"] == []


def test_without_a_name_several_fleets_are_named(monkeypatch):
    objects = Recorded("external")
    second = copy.deepcopy(objects.fleet)
    assert second is not None
    second["metadata"]["name"] = "judge"

    async def all_(kind: str) -> list[Any]:
        return [objects.fleet, second] if kind == "inferencefleets" else []

    monkeypatch.setattr(objects, "all", all_)
    code, _, err = run(monkeypatch, objects, "explain")

    assert code == 6
    assert "2 fleets" in err
    assert "policy, judge" in " ".join(err.split())


def test_a_weightversion_whose_fleet_is_missing_is_in_the_status(monkeypatch):
    code, out, err = run(monkeypatch, Recorded("orphaned"), "status", "-o", "json")

    (found,) = json.loads(out)["items"]
    assert (code, found["name"], found["exists"]) == (0, "policy", False)
    assert [c["reason"] for c in found["rollouts"][0]["attention"]] == ["FleetNotFound"]
    assert "no fleets" not in err


def test_a_missing_fleet_is_named_by_the_verbs_that_need_it(monkeypatch):
    monkeypatch.setattr(kubectl, "run", lambda _: Ended(0, "", ""))
    for command in ("workers", "logs", "check /w/3"):
        code, _, err = run(monkeypatch, Recorded("orphaned"), *command.split())

        assert code == 6
        assert "the fleet 'policy', which does not exist" in " ".join(err.split())
