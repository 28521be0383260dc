"""`rlfleet doctor` on a healthy cluster, and on one fault at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import yaml
from tests.support.cli import NOW, Recorded, golden, run
from tests.support.pages import ROOT

from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.cli.diagnosis import OLDEST_KUBERNETES
from rlfleet.cli.first_fleet import MINIMAL
from rlfleet.cli.pods import OPERATOR
from rlfleet.errors import Forbidden, NotFound, Refused, Unauthorized, Unavailable

GROUP = "/apis/rlfleet.dev/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEPLOYMENTS = "/apis/apps/v1/deployments"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/rlfleet-system/leases/rlfleet"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CLAIM = "/api/v1/namespaces/rl/persistentvolumeclaims/weights"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
FLEETS = f"{GROUP}/namespaces/rl/inferencefleets"
IMAGE = "--default-image=rlfleet/worker:0.1.0"
EVENTS = "/api/v1/namespaces/rl/events"
Damage = Callable[[Recorded], None]


def healthy() -> Recorded:
    """A cluster with an operator, a fleet on a claim, and an account with every right."""
    found = Recorded("applied")
    found.moment = NOW
    assert found.fleet is not None
    claim = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}
    found.fleet["spec"]["weights"]["volumes"] = [claim]
    kinds = [{"name": "inferencefleets"}, {"name": "weightversions"}]
    for pod in found.pods:
        pod["metadata"]["uid"] = pod["metadata"]["name"]
    found.answers |= {
        "GET /version": {"gitVersion": "v1.34.2"},
        f"GET {GROUP}": {"resources": kinds},
        f"GET {DEPLOYMENTS}": {"items": [deployment(IMAGE)]},
        f"GET {LEASE}": lease(),
        f"POST {REVIEWS}": {"status": {"allowed": True}},
        f"GET {CLAIM}": {
            "spec": {"storageClassName": "nfs", "accessModes": ["ReadWriteMany"]},
            "status": {"phase": "Bound"},
        },
        f"GET {CLASSES}": {"items": [{"metadata": {"name": "nfs"}}]},
        f"GET {EVENTS}": {"items": []},
        f"POST {FLEETS}": dry_run,
    }
    for kind in kinds:
        path = f"GET {CRDS}/{kind['name']}.rlfleet.dev"
        found.answers[path] = {"spec": {"versions": [{"name": "v1alpha1", "served": True}]}}
    return found


def deployment(*arguments: str, ready: int = 2) -> dict[str, Any]:
    container = {"image": "rlfleet/operator:0.1.0", "args": ["--lease-name=rlfleet", *arguments]}
    return {
        "metadata": {"name": "rlfleet", "namespace": "rlfleet-system"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready},
    }


def lease(age_seconds: float = 2, **spec: Any) -> dict[str, Any]:
    renewed = (NOW - timedelta(seconds=age_seconds)).isoformat()
    return {
        "spec": {"holderIdentity": "rlfleet-abc", "renewTime": renewed, "leaseDurationSeconds": 15}
        | spec
    }


def claim(phase: str, mode: str, storage_class: str = "nfs") -> dict[str, Any]:
    return {
        "spec": {"storageClassName": storage_class, "accessModes": [mode]},
        "status": {"phase": phase},
    }


def answer(key: str, found: Any) -> Damage:
    """Another answer for one request."""
    return lambda objects: objects.answers.update({key: found})


def dry_run(params: dict[str, str], body: dict[str, Any] | None) -> dict[str, Any]:
    assert params == {"dryRun": "All"}
    assert body is not None
    return body


def may_not_patch(_: dict[str, str], review: dict[str, Any] | None) -> dict[str, Any]:
    assert review is not None
    attributes = review["spec"]["resourceAttributes"]
    assert attributes["namespace"] == "rl"
    return {"status": {"allowed": attributes["verb"] != "patch"}}


def cannot_pull(objects: Recorded) -> None:
    objects.pods[1]["status"]["conditions"] = []
    events = [
        {
            "involvedObject": {"uid": pod},
            "reason": "Failed",
            "message": 'Failed to pull image "nowhere/worker:1": not found',
        }
        for pod in ("policy-1", "policy-2", "another")
    ]
    objects.answers[f"GET {EVENTS}"] = {"items": events}


def stalled(objects: Recorded) -> None:
    assert objects.fleet is not None
    objects.fleet["status"]["conditions"] = [
        {"type": "Stalled", "status": "True", "reason": "NameTaken", "message": "policy is taken"}
    ]


def no_fleet(objects: Recorded) -> None:
    objects.fleet = None
    objects.pods = []
    objects.answers[f"GET {CLASSES}"] = {"items": []}


def test_a_healthy_cluster_has_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(monkeypatch, healthy(), "doctor")

    assert code == 0
    golden(out, "doctor.healthy.txt")


def test_checks_are_available_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(monkeypatch, healthy(), "doctor", "-o", "json")

    assert code == 0
    assert {one["result"] for one in json.loads(out)["items"]} == {"ok"}


FAULTS: dict[str, tuple[Damage, str, str, tuple[str, ...]]] = {
    "old Kubernetes": (
        answer("GET /version", {"gitVersion": "v1.29.3"}), "fail", "cluster", ("v1.29.3", "1.30"),
    ),
    "no CRDs": (answer(f"GET {GROUP}", NotFound("no")), "fail", "kinds", ("helm install",)),
    "one CRD": (
        answer(f"GET {GROUP}", {"resources": [{"name": "inferencefleets"}]}),
        "fail", "kinds", ("weightversions", "helm install"),
    ),
    "no operator": (answer(f"GET {DEPLOYMENTS}", {"items": []}), "fail", "operator", ("helm",)),
    "operator not ready": (
        answer(f"GET {DEPLOYMENTS}", {"items": [deployment(IMAGE, ready=0)]}),
        "fail", "operator", ("0 of 2", "describe deployment rlfleet"),
    ),
    "operator elsewhere": (
        answer(f"GET {DEPLOYMENTS}", {"items": [deployment("--namespaces=a,b", IMAGE)]}),
        "warn", "operator", ("'rl'", "a,b", "watchNamespaces"),
    ),
    "operators hidden": (
        answer(f"GET {DEPLOYMENTS}", Forbidden("deployments is forbidden; give list")),
        "warn", "operator", ("deployments is forbidden", "give list"),
    ),
    "no Lease": (
        answer(f"GET {LEASE}", NotFound("no")), "fail", "leader", ("has become the leader", f"logs -l {OPERATOR}"),
    ),
    "no leader": (answer(f"GET {LEASE}", lease(holderIdentity="")), "fail", "leader", ("no process",)),
    "an old leader": (answer(f"GET {LEASE}", lease(90)), "fail", "leader", ("90 s", "clocks")),
    "a missing right": (
        answer(f"POST {REVIEWS}", may_not_patch),
        "warn", "rights", ("may not patch weightversions", "publish"),
    ),
    "no rights": (
        answer(f"POST {REVIEWS}", {"status": {"allowed": False}}),
        "fail", "rights", ("may not list inferencefleets",),
    ),
    "no claim": (answer(f"GET {CLAIM}", NotFound("no")), "fail", "storage", ("weights", "create it")),
    "a claim that waits": (
        answer(f"GET {CLAIM}", claim("Pending", "ReadWriteMany")),
        "warn", "storage", ("Pending", "describe pvc weights"),
    ),
    "a lost claim": (
        answer(f"GET {CLAIM}", claim("Lost", "ReadWriteMany")), "fail", "storage", ("Lost",),
    ),
    "a wrong class": (
        answer(f"GET {CLAIM}", claim("Pending", "ReadWriteMany", "fast")),
        "fail", "storage", ("'fast'", "use one of: nfs"),
    ),
    "a claim of one node": (
        answer(f"GET {CLAIM}", claim("Bound", "ReadWriteOnce")),
        "warn", "storage", ("ReadWriteOnce", "ReadOnlyMany"),
    ),
    "no storage class": (no_fleet, "warn", "storage", ("no storage class",)),
    "a stalled fleet": (stalled, "fail", "fleets", ("NameTaken", "rlfleet explain NameTaken")),
    "no default image": (
        answer(f"GET {DEPLOYMENTS}", {"items": [deployment()]}),
        "warn", "image", ("no default image", "spec.engine.image"),
    ),
    "a policy": (
        answer(f"POST {FLEETS}", Refused("", "Denied", "label team is missing")),
        "fail", "fleet", ("label team is missing", "policy"),
    ),
    "no namespace": (
        answer(f"POST {FLEETS}", NotFound('namespaces "rl" not found')),
        "fail", "fleet", ("kubectl create namespace rl",),
    ),
    "fleets forbidden": (
        answer(f"POST {FLEETS}", Forbidden("inferencefleets is forbidden; give create")),
        "warn", "fleet", ("give create",),
    ),
    "an image": (cannot_pull, "fail", "workers", ("policy-1", "nowhere/worker:1", "imagePullSecrets")),
    "events hidden": (
        answer(f"GET {EVENTS}", Forbidden("events is forbidden")), "warn", "workers", ("forbidden",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    damage, result, subject, words = FAULTS[fault]
    objects = healthy()
    damage(objects)

    code, out, _ = run(monkeypatch, objects, "doctor", "-o", "json")

    found = [one for one in json.loads(out)["items"] if one["result"] != "ok"]
    assert {one["subject"] for one in found} == {subject}
    assert result in {one["result"] for one in found}
    assert code == (CHECKS_FAILED if any(one["result"] == "fail" for one in found) else 0)
    assert all(one["remedy"] for one in found)
    text = " ".join(f"{one['message']} {one['remedy']}" for one in found)
    assert [word for word in words if word not in text] == []


def test_a_pod_that_is_ready_again_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = healthy()
    cannot_pull(objects)

    _, out, _ = run(monkeypatch, objects, "doctor")

    assert "policy-2" not in out


def test_a_fault_is_printed_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = healthy()
    no_fleet(objects)
    objects.answers[f"GET {DEPLOYMENTS}"] = {"items": []}

    code, out, _ = run(monkeypatch, objects, "doctor")

    assert code == CHECKS_FAILED
    golden(out, "doctor.no-operator.txt")


def test_without_the_api_server_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = healthy()
    objects.answers["GET /version"] = Unavailable("https://server does not answer")

    assert run(monkeypatch, objects, "doctor")[0] == 9


def test_refused_credentials_are_the_only_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = healthy()
    objects.answers["GET /version"] = Unauthorized("the credentials are refused; renew the token")

    code, out, err = run(monkeypatch, objects, "doctor")

    assert (code, out) == (7, "")
    assert "renew the token" in err


def test_fleets_that_may_not_be_listed_are_not_said_to_be_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = healthy()

    async def all_(_: str) -> None:
        raise Forbidden("inferencefleets is forbidden; give list")

    monkeypatch.setattr(objects, "all", all_)
    _, out, _ = run(monkeypatch, objects, "doctor", "-o", "json")

    (found,) = [one for one in json.loads(out)["items"] if one["subject"] == "fleets"]
    assert (found["result"], found["remedy"]) == ("warn", "give list")


def test_the_fleet_that_is_tried_is_the_smallest_sample() -> None:
    sample = yaml.safe_load((ROOT / "crds/samples/valid/fleet-smallest.yaml").read_text())

    assert sample | {"metadata": MINIMAL["metadata"]} == MINIMAL


def test_versions_and_labels_equal_the_charts() -> None:
    chart = yaml.safe_load((ROOT / "charts/rlfleet/Chart.yaml").read_text())
    oldest = ".".join(map(str, OLDEST_KUBERNETES))

    assert chart["kubeVersion"] == f">={oldest}.0-0"
    helpers = (ROOT / "charts/rlfleet/templates/_helpers.tpl").read_text()
    assert OPERATOR.replace("=", ": ") in helpers
