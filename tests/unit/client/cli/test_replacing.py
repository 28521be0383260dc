"""`rlfleet restart`, `drain` and `version`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.cli import PODS, Recorded, golden, run

from rlfleet.errors import Forbidden, NotFound, Unavailable
from rlfleet.release import release

FLEET = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
EVICTION = f"{PODS}/policy-1/eviction"
DEPLOYMENTS = "/apis/apps/v1/deployments"


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({}, "will be replaced"),
        ({"paused": True}, "update.paused"),
        ({"type": "OnDelete"}, "OnDelete"),
    ],
)
def test_restart_marks_the_time_and_says_when_workers_are_replaced(monkeypatch, update, words):
    objects = Recorded("applied")
    sent = []

    def patched(_: dict[str, str], body: dict[str, Any] | None) -> dict[str, Any]:
        assert body is not None
        sent.append(body["spec"]["update"])
        return {"spec": {"update": update | body["spec"]["update"]}}

    objects.answers[f"PATCH {FLEET}"] = patched

    code, out, _ = run(monkeypatch, objects, "restart", "policy")

    assert (code, sent) == (0, [{"restartedAt": objects.moment.strftime("%Y-%m-%dT%H:%M:%SZ")}])
    assert words in out
    if not update:
        golden(out, "restart.txt")


def test_drain_evicts_a_worker(monkeypatch):
    objects = of_pod({"rlfleet.dev/fleet": "policy"})
    objects.answers[f"POST {EVICTION}"] = {}

    code, out, _ = run(monkeypatch, objects, "drain", "policy-1")

    assert code == 0
    assert [body for request, body in objects.requests if request == f"POST {EVICTION}"] == [
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "policy-1", "namespace": "rl"},
        }
    ]
    golden(out, "drain.txt")


def test_drain_evicts_no_pod_of_others(monkeypatch):
    objects = of_pod({"app": "database"})

    code, _, err = run(monkeypatch, objects, "drain", "policy-1")

    assert code == 6
    assert "not a worker" in err
    assert f"POST {EVICTION}" not in [request for request, _ in objects.requests]


def test_a_disruption_budget_holds_a_drain_back(monkeypatch):
    objects = of_pod({"rlfleet.dev/fleet": "policy"})
    objects.answers[f"POST {EVICTION}"] = Unavailable("the disruption budget needs 3 healthy pods")

    assert run(monkeypatch, objects, "drain", "policy-1")[0] == 9


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"items": []}, "there is none"),
        (Forbidden("no"), "may not list"),
        (NotFound("no"), "may not list"),
    ],
)
def test_version_says_which_operator_runs(monkeypatch, answer, words):
    objects = Recorded("applied")
    objects.answers |= {"GET /version": {"gitVersion": "v1.36.3"}, f"GET {DEPLOYMENTS}": answer}

    code, out, _ = run(monkeypatch, objects, "version")

    assert code == 0
    assert "v1.36.3" in out
    assert words in out


def test_without_a_cluster_version_has_that_of_the_program(monkeypatch):
    objects = Recorded("applied")
    objects.answers["GET /version"] = Forbidden("no")

    code, out, err = run(monkeypatch, objects, "version")

    assert code != 0
    assert out == f"client      {release()}\n"
    assert "no" in err


def test_version_names_images_of_operators(monkeypatch):
    objects = Recorded("applied")
    deployment = {
        "metadata": {"name": "rlfleet", "namespace": "rlfleet-system"},
        "spec": {"template": {"spec": {"containers": [{"image": "rlfleet/operator:0.1.0"}]}}},
        "status": {"readyReplicas": 2},
    }
    objects.answers |= {
        "GET /version": {"gitVersion": "v1.36.3"},
        f"GET {DEPLOYMENTS}": {"items": [deployment]},
    }

    code, out, _ = run(monkeypatch, objects, "version", "-o", "json")

    assert code == 0
    (operator,) = json.loads(out)["operators"]
    assert operator["image"] == "rlfleet/operator:0.1.0"
    assert operator["ready"] == 2


def of_pod(labels: dict[str, str]) -> Recorded:
    made = Recorded("applied")
    made.answers[f"GET {PODS}/policy-1"] = {"metadata": {"name": "policy-1", "labels": labels}}
    return made
