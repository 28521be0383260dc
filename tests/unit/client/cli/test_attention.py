"""Operators that have gone, versions of two runs, and large fleets, as the verbs show them."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from tests.support.cli import LEASE, Recorded, run
from tests.support.present import present

from rlfleet.cli.screen import FleetScreen
from rlfleet.cli.view import fleet_view
from rlfleet.errors import Forbidden, NotFound
from rlfleet.resources import InferenceFleet, WeightVersion


def left_alone(**lease: Any) -> Recorded:
    """Workers stage a version, and the operator has renewed its Lease 640 s ago for the last time."""
    objects = Recorded("staging")
    renewed = objects.moment.isoformat()
    objects.moment += timedelta(seconds=640)
    spec = {"holderIdentity": "rlfleet-abc", "renewTime": renewed, "leaseDurationSeconds": 15}
    objects.answers[f"GET {LEASE}"] = {"spec": spec | lease}
    return objects


def views(objects: Recorded) -> Any:
    weights = [WeightVersion.model_validate(objects.weights)] if objects.weights else []
    return fleet_view(InferenceFleet.model_validate(objects.fleet), weights, objects.moment)


# --- an operator that has gone --------------------------------------------------------------------


def test_explain_says_that_no_operator_drives_the_fleet(monkeypatch):
    code, out, _ = run(monkeypatch, left_alone(), "explain", "-o", "json")

    found = json.loads(out)
    assert code == 0
    assert "rlfleet-abc has not renewed its Lease for 640 s" in found["summary"]
    assert "Staging" in " ".join(found["details"])
    remedies = " ".join(found["remedies"])
    assert "kubectl -n rl get pods,leases" in remedies
    assert "rlfleet doctor -n rl" in remedies


@pytest.mark.parametrize("command", ["status", "workers", "watch"])
def test_a_verb_that_looks_warns_of_an_operator_that_has_gone(monkeypatch, command):
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", stop)
    code, _, err = run(monkeypatch, left_alone(), command)

    assert code == 0
    assert "1 fleet of rl/operator" in err
    assert "for 640 s" in err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (NotFound("no"), "its Lease does not exist"),
        ({"spec": {"holderIdentity": ""}}, "no process is the leader"),
        (Forbidden("leases is forbidden"), ""),
    ],
    ids=["no Lease", "no holder", "hidden"],
)
def test_a_lease_that_cannot_be_read_says_nothing_about_the_operator(monkeypatch, answer, said):
    objects = Recorded("staging")
    objects.answers[f"GET {LEASE}"] = answer

    _, _, err = run(monkeypatch, objects, "status")
    _, out, _ = run(monkeypatch, objects, "explain")

    assert bool(err) == bool(said)
    assert said in err
    assert out.startswith("No operator drives fleet policy" if said else "Version 3")


@pytest.mark.parametrize("followed", ["eval", "eval,rl", ""])
def test_a_fleet_in_a_namespace_that_its_operator_has_left_is_driven_by_none(monkeypatch, followed):
    objects = Recorded("applied")
    lease = {"holderIdentity": "rlfleet-abc", "renewTime": objects.moment.isoformat()}
    objects.answers[f"GET {LEASE}"] = {"spec": lease}
    container = {"args": [f"--namespaces={followed}"] if followed else []}
    objects.answers["GET /apis/apps/v1/namespaces/rl/deployments/operator"] = {
        "metadata": {"namespace": "rl", "name": "operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }

    _, _, err = run(monkeypatch, objects, "status")
    _, out, _ = run(monkeypatch, objects, "explain")

    said = "does not follow namespace 'rl', only eval"
    assert (said in err, said in out) == (followed == "eval",) * 2


# --- weights that are too old ---------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "explain"])
def test_a_fleet_with_too_old_weights_says_so(monkeypatch, command):
    objects = Recorded("applied")
    conditions = present(objects.fleet)["status"]["conditions"]
    stale = {"type": "Stale", "status": "True", "reason": "RequestsRefused", "message": "3 behind"}
    conditions.append(conditions[0] | stale)

    _, out, _ = run(monkeypatch, objects, command)

    assert "RequestsRefused" in out
    assert "3 behind" in out


# --- versions of two runs -------------------------------------------------------------------------


def test_versions_of_two_runs_have_no_lag(monkeypatch):
    objects = Recorded("staging")
    present(objects.weights)["spec"] |= {"runID": "run-8", "version": "0"}

    _, out, _ = run(monkeypatch, objects, "status", "-o", "json")

    (fleet,) = json.loads(out)["items"]
    assert fleet["rollouts"][0]["lag"] is None


def test_a_version_that_goes_back_is_not_behind(monkeypatch):
    objects = Recorded("staging")
    present(objects.weights)["spec"]["version"] = "1"
    console = Console(record=True, file=io.StringIO())
    console.print(FleetScreen(views(objects)))

    assert views(objects).rollouts[0].lag == -1
    shown = console.export_text()
    assert "behind" not in shown
    assert "1 version to go back" in shown
    _, out, _ = run(monkeypatch, objects, "status")
    assert "1 back" in out


# --- a terminal -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [4, 1000, 100_000])
def test_a_terminal_shows_what_needs_attention_below_a_large_grid(workers):
    objects = Recorded("stalled")
    counts = {"total": workers, "serving": workers - 1, "broken": 1}
    present(objects.fleet)["status"]["workers"] = counts
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=80, height=24, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        live.update(FleetScreen(views(objects)), refresh=True)
        shown = drawn.getvalue()

    assert "✗ 1 broken" in shown
    assert "Stalled, CheckpointTruncated" in shown
    assert "repair the source" in shown
    assert shown.count("✗") == 3  # the cell, the legend and the condition
