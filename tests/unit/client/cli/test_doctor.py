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
from tests.support.present import present

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
NODES = "/api/v1/nodes"
OPERATOR_PODS = "/api/v1/namespaces/rlfleet-system/pods"
ACCOUNT = "/api/v1/namespaces/rl/serviceaccounts/default"
SECRET = "/api/v1/namespaces/rl/secrets/pull"
EVENTS = "/api/v1/namespaces/rl/events"
Damage = Callable[[Recorded], None]


def healthy() -> Recorded:
    """A cluster with an operator, a fleet on a claim, and an account with every right."""
    found = Recorded("applied")
    found.moment = NOW
    claim = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}
    present(found.fleet)["spec"]["weights"]["volumes"] = [claim]
    present(found.fleet)["spec"]["engine"] = {"args": ["--max-model-len", "4096"]}
    listed = [{"names": ["docker.io/rlfleet/worker:0.1.0"]}]
    kinds = [{"name": "inferencefleets"}, {"name": "weightversions"}]
    for pod in found.pods:
        pod["metadata"]["uid"] = pod["metadata"]["name"]
    found.answers |= {
        "GET /version": {"gitVersion": "v1.34.2"},
        f"GET {GROUP}": {"resources": kinds},
        f"GET {GROUP}/inferencefleets": {"items": []},
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
        f"GET {NODES}": {"items": [{"status": {"images": listed}}, {"status": {}}]},
        f"GET {OPERATOR_PODS}": {"items": []},
        f"GET {ACCOUNT}": {"metadata": {"name": "default"}},
        f"GET {SECRET}": {"metadata": {"name": "pull"}},
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


def of_outdated_crds(namespace: str) -> dict[str, Any]:
    """A fleet of another namespace, which reports the CRDs of the cluster."""
    found = {
        "type": "Stalled", "status": "True", "reason": "CRDOutdated",
        "message": "the CRDs of the cluster lack status.endpoint",
    }  # fmt: skip
    metadata = {"name": "policy", "namespace": namespace}
    return {"metadata": metadata, "status": {"conditions": [found]}}


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


def waits_for_image(
    pods: list[dict[str, Any]], reason: str, message: str, image: str, container: str = "worker"
) -> None:
    for pod in pods:
        pod["spec"] = {"containers": [{"name": container, "image": image}]}
        waiting = {"waiting": {"reason": reason, "message": message}}
        pod["status"] = {"containerStatuses": [{"name": container, "state": waiting}]}


def cannot_pull_by_status(objects: Recorded) -> None:
    """The Events say the same again."""
    cannot_pull(objects)
    message = f"nowhere/worker:1: \x1b[31mnot\nfound {'x' * 1000}"
    waits_for_image(objects.pods[:2], "ErrImagePull", message, "nowhere/worker:1")


def operator_cannot_pull(objects: Recorded) -> None:
    broken = deployment(IMAGE)
    broken["status"]["unavailableReplicas"] = 1
    pod: dict[str, Any] = {"metadata": {"name": "rlfleet-new"}}
    waits_for_image([pod], "InvalidImageName", "", "rlfleet/Operator", "operator")
    objects.answers[f"GET {DEPLOYMENTS}"] = {"items": [broken]}
    objects.answers[f"GET {OPERATOR_PODS}"] = {"items": [pod]}


def never_pulled(objects: Recorded) -> None:
    waits_for_image(objects.pods[:1], "ErrImageNeverPull", "not present", "w:1")


def spec_of(objects: Recorded) -> dict[str, Any]:
    found: dict[str, Any] = present(objects.fleet)["spec"]
    return found


def no_pull_secret(objects: Recorded) -> None:
    spec_of(objects)["pod"] = {"imagePullSecrets": [{"name": "pull"}]}
    del objects.answers[f"GET {SECRET}"]


def no_pull_secret_of_overlay(objects: Recorded) -> None:
    spec_of(objects)["podOverlay"] = {"spec": {"imagePullSecrets": [{"name": "pull"}]}}
    del objects.answers[f"GET {SECRET}"]


def no_pull_secret_of_account(objects: Recorded) -> None:
    objects.answers[f"GET {ACCOUNT}"] = {"imagePullSecrets": [{"name": "pull"}]}
    del objects.answers[f"GET {SECRET}"]


def hidden_pull_secret(objects: Recorded) -> None:
    no_pull_secret(objects)
    objects.answers[f"GET {SECRET}"] = Forbidden("secrets is forbidden; give get")


def no_account(objects: Recorded) -> None:
    spec_of(objects)["pod"] = {"serviceAccountName": "builder"}


def hidden_account(objects: Recorded) -> None:
    no_account(objects)
    path = f"GET {ACCOUNT.replace('default', 'builder')}"
    objects.answers[path] = Forbidden("serviceaccounts is forbidden; give get")


def misspelt_flag(objects: Recorded) -> None:
    spec_of(objects)["engine"] = {"args": ["--max-modl-len=4096", "--x\x1b[31m"]}


def refused_argument(objects: Recorded) -> None:
    """As vLLM ends: the kubelet keeps the last lines of its log."""
    said = "usage: vllm [-h]\n  [--model MODEL]\napi_server.py: error: unrecognized arguments: --max-modl-len 4\n"
    ended = {"terminated": {"exitCode": 2, "message": said}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    for pod in objects.pods[:2]:
        worker = {"name": "worker", "state": waiting, "lastState": ended, "ready": False}
        pod["status"] = {"containerStatuses": [worker]}
        pod["metadata"]["labels"]["rlfleet.dev/fleet"] = "policy"
    backing_off = {"involvedObject": {"uid": "policy-0"}, "reason": "Failed", "message": "Error"}
    objects.answers[f"GET {EVENTS}"] = {"items": [backing_off]}


def stalled(objects: Recorded) -> None:
    present(objects.fleet)["status"]["conditions"] = [
        {"type": "Stalled", "status": "True", "reason": "NameTaken", "message": "policy is taken"}
    ]


def refusing(objects: Recorded) -> None:
    present(objects.fleet)["status"]["conditions"] = [
        {
            "type": "Stale",
            "status": "True",
            "reason": "RequestsRefused",
            "message": "2 of 2 workers",
        }
    ]


def no_fleet(objects: Recorded) -> None:
    objects.fleet = None
    objects.pods = []
    objects.answers[f"GET {CLASSES}"] = {"items": []}


def test_a_healthy_cluster_has_no_findings(monkeypatch):
    code, out, _ = run(monkeypatch, healthy(), "doctor")

    assert code == 0
    golden(out, "doctor.healthy.txt")


def test_quiet_leaves_out_what_is_ok(monkeypatch):
    objects = healthy()
    assert run(monkeypatch, objects, "doctor", "--quiet") == (0, "", "")

    objects.answers[f"GET {CLAIM}"] = NotFound("gone")
    code, out, _ = run(monkeypatch, objects, "doctor", "-q")

    assert code == CHECKS_FAILED
    assert [line[:4] for line in out.splitlines()] == ["fail", "    "]


def test_checks_are_available_as_data(monkeypatch):
    code, out, _ = run(monkeypatch, healthy(), "doctor", "-o", "json")

    assert code == 0
    assert {one["result"] for one in json.loads(out)["items"]} == {"ok"}


def test_of_one_fleet_only_its_own_checks_are_made(monkeypatch):
    _, out, _ = run(monkeypatch, Recorded("stalled"), "doctor", "policy")

    subjects = [line.split()[1] for line in out.splitlines() if not line.startswith(" ")]
    assert "fleets:" in subjects
    assert {"cluster:", "kinds:", "operator:", "rights:"}.isdisjoint(subjects)


FAULTS: dict[str, tuple[Damage, str, str, tuple[str, ...]]] = {
    "old Kubernetes": (
        answer("GET /version", {"gitVersion": "v1.29.3"}), "fail", "cluster", ("v1.29.3", "1.30"),
    ),
    "no CRDs": (answer(f"GET {GROUP}", NotFound("no")), "fail", "kinds", ("helm install",)),
    "one CRD": (
        answer(f"GET {GROUP}", {"resources": [{"name": "inferencefleets"}]}),
        "fail", "kinds", ("weightversions", "helm install"),
    ),
    "CRDs of another release": (
        answer(f"GET {GROUP}/inferencefleets", {"items": [of_outdated_crds("train")]}),
        "fail", "kinds", ("train/policy", "status.endpoint", "rlfleet explain CRDOutdated"),
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
    "a claim that goes": (
        answer(
            f"GET {CLAIM}",
            claim("Bound", "ReadWriteMany") | {"metadata": {"deletionTimestamp": "2026-01-01"}},
        ),
        "fail", "storage", ("is being deleted", "create it again in namespace 'rl'"),
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
    "a fleet that refuses requests": (
        refusing, "warn", "fleets", ("stale, RequestsRefused", "rlfleet explain policy -n rl"),
    ),
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
    "an image that no registry has": (
        cannot_pull_by_status, "fail", "image",
        (
            "policy-0 and 1 more pod cannot get nowhere/worker:1, ErrImagePull: nowhere/worker:1:",
            "spec.engine.image", "spec.pod.imagePullSecrets", "kubectl -n rl describe pod policy-0",
        ),
    ),
    "an image without a pull": (
        never_pulled, "fail", "image", ("ErrImageNeverPull: not present", "IfNotPresent"),
    ),
    "an operator's image": (
        operator_cannot_pull, "fail", "image",
        ("rlfleet-new cannot get rlfleet/Operator, InvalidImageName", "correct image of the chart"),
    ),
    "a missing pull Secret": (
        no_pull_secret, "fail", "image",
        ("Secret pull of fleet policy does not exist", "docker-registry"),
    ),
    "a missing pull Secret of the overlay": (
        no_pull_secret_of_overlay, "fail", "image", ("Secret pull of fleet policy",),
    ),
    "a missing pull Secret of the account": (
        no_pull_secret_of_account, "fail", "image", ("service account default names it",),
    ),
    "a pull Secret that is hidden": (hidden_pull_secret, "warn", "image", ("give get",)),
    "a missing account": (no_account, "fail", "image", ("builder", "spec.pod.serviceAccountName")),
    "a hidden account": (hidden_account, "warn", "image", ("give get",)),
    "a misspelt flag": (
        misspelt_flag, "warn", "engine",
        (
            "vLLM 0.32 has no flag --max-modl-len, which fleet policy names", "use --max-model-len",
            "a plugin of it knows --max-modl-len",
        ),
    ),
    "a refused argument": (
        refused_argument, "fail", "engine",
        (
            "vLLM refuses to start policy-0 and 1 more worker of fleet policy",
            "unrecognized arguments: --max-modl-len 4", "spec.engine.args", "--max-model-len may be meant",
        ),
    ),
    "events hidden": (
        answer(f"GET {EVENTS}", Forbidden("events is forbidden")), "warn", "workers", ("forbidden",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_remedy(monkeypatch, fault):
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


@pytest.mark.parametrize("damage", [cannot_pull, cannot_pull_by_status, misspelt_flag])
def test_texts_of_the_cluster_are_short_and_printable(monkeypatch, damage):
    objects = healthy()
    damage(objects)
    for event in objects.answers[f"GET {EVENTS}"]["items"]:
        event["message"] = f"image \x1b]0;owned\x07 {'y' * 5000}"

    _, out, _ = run(monkeypatch, objects, "doctor", "-o", "json")

    for one in json.loads(out)["items"]:
        text = one["message"] + one["remedy"]
        assert text.isprintable()
        assert len(text) < 900


NOT_LISTED = {"items": [{"status": {"images": [{"names": ["docker.io/rlfleet/worker:0.2.0"]}]}}]}


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"items": [{"status": {"images": [{"names": ["rlfleet/worker:0.1.0"]}]}}]}, "1 of 1 node lists it"),
        (NOT_LISTED, "none of 1 node lists it, and its pull is untried"),
        (Forbidden("nodes is forbidden"), "its pull is untried, and this account may not see"),
    ],
)  # fmt: skip
def test_the_default_image_is_checked_on_the_nodes_and_never_pulled(monkeypatch, nodes, said):
    objects = healthy()
    objects.answers[f"GET {NODES}"] = nodes

    code, out, _ = run(monkeypatch, objects, "doctor", "-o", "json")

    (found,) = [one for one in json.loads(out)["items"] if one["subject"] == "image"]
    assert (code, found["result"]) == (0, "ok")
    assert said in found["message"]


def test_only_the_metadata_of_a_secret_is_requested(monkeypatch):
    objects, requested = healthy(), dict[str, str]()
    spec_of(objects)["pod"] = {"imagePullSecrets": [{"name": "pull"}]}
    call = objects.call

    def noted(method: str, path: str, *arguments: Any, media: str = "") -> Any:
        requested[path] = media
        return call(method, path, *arguments, media=media)

    monkeypatch.setattr(objects, "call", noted)

    assert run(monkeypatch, objects, "doctor")[0] == 0
    assert requested[SECRET] == "json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


def test_a_worker_that_is_ready_after_a_refusal_is_not_reported(monkeypatch):
    objects = healthy()
    refused_argument(objects)
    for pod in objects.pods[:2]:
        (worker,) = pod["status"]["containerStatuses"]
        worker |= {"state": {"running": {}}, "ready": True}
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]

    assert run(monkeypatch, objects, "doctor")[0] == 0


def test_a_pod_that_is_ready_again_is_not_reported(monkeypatch):
    objects = healthy()
    cannot_pull(objects)

    _, out, _ = run(monkeypatch, objects, "doctor")

    assert "policy-2" not in out


def test_a_fault_is_printed_with_its_remedy(monkeypatch):
    objects = healthy()
    no_fleet(objects)
    objects.answers[f"GET {DEPLOYMENTS}"] = {"items": []}

    code, out, _ = run(monkeypatch, objects, "doctor")

    assert code == CHECKS_FAILED
    golden(out, "doctor.no-operator.txt")


def test_without_the_api_server_nothing_is_checked(monkeypatch):
    objects = healthy()
    objects.answers["GET /version"] = Unavailable("https://server does not answer")

    assert run(monkeypatch, objects, "doctor")[0] == 9


def test_refused_credentials_are_the_only_finding(monkeypatch):
    objects = healthy()
    objects.answers["GET /version"] = Unauthorized("the credentials are refused; renew the token")

    code, out, err = run(monkeypatch, objects, "doctor")

    assert (code, out) == (7, "")
    assert "renew the token" in err


def test_fleets_that_may_not_be_listed_are_not_said_to_be_none(monkeypatch):
    objects = healthy()

    async def all_(_: str) -> None:
        raise Forbidden("inferencefleets is forbidden; give list")

    monkeypatch.setattr(objects, "all", all_)
    _, out, _ = run(monkeypatch, objects, "doctor", "-o", "json")

    (found,) = [one for one in json.loads(out)["items"] if one["subject"] == "fleets"]
    assert (found["result"], found["remedy"]) == ("warn", "give list")


@pytest.mark.parametrize(
    "found", [Forbidden("inferencefleets is forbidden"), {"items": [of_outdated_crds("rl")]}]
)
def test_fleets_of_other_namespaces_are_read_for_the_crds_alone(monkeypatch, found):
    """An account may be without the right, and a fleet of its own namespace is reported below."""
    objects = healthy()
    objects.answers[f"GET {GROUP}/inferencefleets"] = found

    assert run(monkeypatch, objects, "doctor")[0] == 0


def test_the_fleet_that_is_tried_is_the_smallest_sample():
    sample = yaml.safe_load((ROOT / "crds/samples/valid/fleet-smallest.yaml").read_text())

    assert sample | {"metadata": MINIMAL["metadata"]} == MINIMAL


def test_versions_and_labels_equal_the_charts():
    chart = yaml.safe_load((ROOT / "charts/rlfleet/Chart.yaml").read_text())
    oldest = ".".join(map(str, OLDEST_KUBERNETES))

    assert chart["kubeVersion"] == f">={oldest}.0-0"
    helpers = (ROOT / "charts/rlfleet/templates/_helpers.tpl").read_text()
    assert OPERATOR.replace("=", ": ") in helpers
