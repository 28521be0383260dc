"""`rlfleet explain` of a fleet that cannot start: the causes, each once, and the remedy of each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.cli import PODS, Recorded, run
from tests.support.present import present

from rlfleet.cli.causes import remedies_of
from rlfleet.cli.explanation import meaning_of
from rlfleet.errors import Forbidden, NotFound

CORE = "/api/v1/namespaces/rl"
GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def waiting(message: str = GPUS, **spec: Any) -> Recorded:
    """A fleet whose pods do not start, for the reason that their condition has."""
    found = Recorded("unschedulable")
    present(found.fleet)["spec"] |= spec
    for condition in present(found.fleet)["status"]["conditions"]:
        condition["message"] = condition["message"].replace(GPUS, message)
    for condition in present(found.weights)["status"]["conditions"]:
        condition["message"] = condition["message"].replace(GPUS, message)
    for one in (found.fleet, found.weights):
        for laggard in one["status"]["laggards"]:
            laggard["message"] = message
    for pod in found.pods:
        pod["metadata"]["uid"] = pod["metadata"]["name"]
    return found


def claim(name: str) -> dict[str, Any]:
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": name}}
    return {"roots": ["/weights"], "volumes": [volume]}


def explained(monkeypatch: pytest.MonkeyPatch, objects: Recorded) -> dict[str, Any]:
    code, out, _ = run(monkeypatch, objects, "explain", "policy", "-o", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_claim_that_does_not_exist_is_named_and_not_waited_for(monkeypatch):
    found = explained(monkeypatch, waiting(weights=claim("wieghts")))

    (cause,) = found["causes"]
    assert "wieghts" in cause["message"]
    assert "'rl'" in cause["remedy"]
    assert "Wait." not in found["remedies"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_claim_that_the_scheduler_names_too_comes_once(monkeypatch, is_there):
    words = "is being deleted" if is_there else "not found"
    message = f'0/3 nodes are available: persistentvolumeclaim "wieghts" {words}.'
    objects = waiting(message, weights=claim("wieghts"))
    if is_there:
        deleted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
        objects.answers[f"GET {CORE}/persistentvolumeclaims/wieghts"] = deleted

    found = explained(monkeypatch, objects)

    (remedy,) = (one for one in found["remedies"] if "'rl'" in one)
    assert "claim wieghts" in remedy
    assert found["causes"] == []
    assert [line.count("wieghts") for line in found["details"]] == [1, 0]


def test_an_event_that_repeats_the_condition_is_left_out(monkeypatch):
    objects = waiting()
    events = [
        {
            "involvedObject": {"uid": f"policy-{number}"},
            "reason": "FailedScheduling",
            "message": GPUS,
        }
        for number in (1, 2)
    ]
    for pod in objects.pods:
        pod["status"]["conditions"] = []
    objects.answers[f"GET {CORE}/events"] = {"items": events}

    code, out, _ = run(monkeypatch, objects, "explain", "policy")

    assert code == 0
    assert out.count(GPUS) == 1
    assert out.count("nvidia.com/gpu, or let a worker ask for less") == 1


def test_an_event_that_says_more_is_a_cause(monkeypatch):
    objects = waiting()
    said = 'secret "hf" not found'
    event = {"involvedObject": {"uid": "policy-1"}, "reason": "Failed", "message": said}
    for pod in objects.pods:
        pod["status"]["conditions"] = []
    objects.answers[f"GET {CORE}/events"] = {"items": [event]}

    (cause,) = explained(monkeypatch, objects)["causes"]

    assert said in cause["message"]
    assert "Create the Secret hf in namespace 'rl'" in cause["remedy"]


def test_checks_that_the_account_may_not_make_are_left_out(monkeypatch):
    objects = waiting(weights=claim("weights"))
    for path in (f"{CORE}/persistentvolumeclaims/weights", PODS, f"{CORE}/events"):
        objects.answers[f"GET {path}"] = Forbidden("no; grant it")

    found = explained(monkeypatch, objects)

    assert found["causes"] == []
    assert any("nvidia.com/gpu" in one for one in found["remedies"])


def test_without_a_cause_the_remedies_of_the_reason_stay(monkeypatch):
    found = explained(monkeypatch, waiting("Starting"))

    known = present(meaning_of(found["reason"]))
    assert (found["causes"], found["remedies"]) == ([], list(known.remedies))


def test_a_ready_fleet_costs_no_further_reads(monkeypatch):
    objects = Recorded("applied")
    objects.answers[f"GET {CORE}/serviceaccounts/default"] = NotFound("gone")

    assert explained(monkeypatch, objects)["causes"] == []
    assert f"GET {CORE}/events" not in [request for request, _ in objects.requests]


def test_workers_that_lag_alike_share_a_line(monkeypatch):
    details = explained(monkeypatch, waiting())["details"]

    assert details[1:] == ["policy-1, policy-2: Unschedulable"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (GPUS, "nodes with nvidia.com/gpu,"),
        (
            "0/2 nodes are available: 2 Insufficient cpu, 1 Insufficient memory.",
            "nodes with memory,",
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            "nodeSelector",
        ),
        (
            "1 node(s) had untolerated taint {nvidia.com/gpu: present}",
            "toleration for nvidia.com/gpu",
        ),
        ('persistentvolumeclaim "wieghts" not found', "claim wieghts in namespace 'rl'"),
        (
            'persistentvolumeclaim "weights" is being deleted. not found',
            "no pod uses the claim weights",
        ),
        ("container's runAsUser breaks non-root policy (pod: …)", "do not run as root"),
        ("CrashLoopBackOff: it last ended with exit code 137 OOMKilled", "resources.limits.memory"),
        ("pod has unbound immediate PersistentVolumeClaims", "describe pvc"),
        ('Error: secret "hf" not found', "Secret hf in"),
        ('configmap "engine" not found', "ConfigMap engine in"),
        ("Error: couldn't find key token in Secret rl/hf", "key token"),
        ("pods is forbidden: exceeded quota: gpus, requested: 8", "describe resourcequota"),
        ("cannot start: model /weights/bsae: the source does not exist", "model to /weights/bsae"),
    ],
)
def test_what_kubernetes_says_has_its_remedy(message, words):
    assert any(words in one for one in remedies_of(message, "rl"))


@pytest.mark.parametrize("message", ["", "Starting", "Back-off restarting failed container", "{0}"])
def test_other_messages_have_none(message):
    assert list(remedies_of(message, "rl")) == []
