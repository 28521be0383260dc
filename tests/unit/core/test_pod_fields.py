"""Kubernetes' fields of a fleet reach the pod unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import NOW, build_pod, make_fleet

from fleet_operator.core.fleet_plan import plan_fleet
from fleet_operator.core.manifests import overlay
from fleet_operator.core.manifests.pod_fields import pod_fields
from rlfleet_resources import names

IMAGE = "rlfleet/worker:1"
CLAIM = {"name": "w", "mountPath": "/weights", "persistentVolumeClaim": {"claimName": "claim"}}


def fleet(**spec: Any):
    spec.setdefault("weights", {"roots": ["/weights"], "volumes": [CLAIM]})
    return make_fleet(**spec)


def pod(**spec: Any) -> dict[str, Any]:
    return build_pod(fleet(**spec), 0, IMAGE, revision="r")


def worker(**spec: Any) -> dict[str, Any]:
    (found,) = pod(**spec)["spec"]["containers"]
    return found


def options(**spec: Any) -> dict[str, str]:
    given = worker(**spec)["args"]
    given = given[1 : given.index("--")]
    return dict(zip(given[::2], given[1::2], strict=True))


# --- options of the worker ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "option", "value"),
    [
        (
            {"weights": {"management": "External", "transfer": {"backend": "nccl"}}},
            "--weight-transfer-backend",
            "nccl",
        ),
        ({"weights": {"stagingMemory": "64Gi"}}, "--staging-memory-bytes", "68719476736"),
        ({"weights": {"loading": "InPlace"}}, "--loading", "InPlace"),
        ({"weights": {"stagingMemory": 1000}}, "--staging-memory-bytes", "1000"),
        ({"weights": {"driverLeaseSeconds": 90}}, "--driver-lease-seconds", "90"),
        ({"engine": {"silenceTimeoutSeconds": 300}}, "--silence-seconds", "300"),
        ({"engine": {"loadTimeoutSeconds": 3600}}, "--load-seconds", "3600"),
        ({"engine": {"logLevel": "Warning"}}, "--log-level", "warning"),
        ({"engine": {"logFormat": "JSON"}}, "--log-format", "json"),
        ({"engine": {"logFormat": "Text"}}, "--log-format", "text"),
    ],
)
def test_a_limit_becomes_an_option_of_the_worker(spec, option, value):
    if "weights" in spec:
        spec["weights"]["roots"] = ["/weights"]

    assert options(**spec)[option] == value
    assert option not in options()


# --- environment --------------------------------------------------------------------------------


def test_the_fleets_variables_come_before_ours():
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    given = [
        {"name": "A", "value": "1"},
        secret,
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        {
            "name": "C",
            "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}},
        },
        {"name": "EMPTY"},
    ]
    sources = [
        {"prefix": "S3_", "secretRef": {"name": "s3"}},
        {"configMapRef": {"name": "nccl", "optional": True}},
    ]
    made = worker(engine={"env": given, "envFrom": sources})

    assert made["env"][: len(given)] == given
    assert made["env"][len(given)]["name"] == "RLFLEET_ADMIN_HOST"
    assert made["envFrom"] == sources
    assert "envFrom" not in worker()


# --- volumes ------------------------------------------------------------------------------------

TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local-nvme",
        "resources": {"requests": {"storage": "500Gi"}},
        "dataSourceRef": {
            "apiGroup": "snapshot.storage.k8s.io",
            "kind": "VolumeSnapshot",
            "name": "s",
        },
    },
}


PVC = {"claimName": "c"}
NFS = {"server": "nas", "path": "/export"}
CSI = {"driver": "d", "volumeAttributes": {"b": "c"}, "nodePublishSecretRef": {"name": "s"}}


@pytest.mark.parametrize(
    ("source", "read_only"),
    [
        ({"persistentVolumeClaim": PVC}, True),
        ({"persistentVolumeClaim": PVC, "readOnly": False}, False),
        ({"nfs": NFS}, True),
        ({"csi": CSI}, True),
        ({"hostPath": {"path": "/data", "type": "Directory"}}, None),
        ({"image": {"reference": "r/w@sha256:0", "pullPolicy": "IfNotPresent"}}, None),
        ({"ephemeral": {"volumeClaimTemplate": TEMPLATE}}, None),
        ({"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}, None),
    ],
    ids=lambda source: next(iter(source)) if isinstance(source, dict) else str(source),
)
def test_a_volume_has_the_source_that_the_fleet_sets(source, read_only):
    """Some kinds of sources say themselves that they are read-only."""
    (kind, fields), *_ = source.items()
    made = {kind: fields if read_only is None else fields | {"readOnly": read_only}}
    volume = {"name": "w", "mountPath": "/weights"} | source
    spec = pod(weights={"roots": ["/weights"], "volumes": [volume]})["spec"]
    mount = spec["containers"][0]["volumeMounts"][0]

    assert spec["volumes"][0] == {"name": "w"} | made
    assert mount == {
        "name": "w",
        "mountPath": "/weights",
        "readOnly": source.get("readOnly", True),
    }


# --- where pods run -----------------------------------------------------------------------------

PLACEMENT: dict[str, Any] = {
    "serviceAccountName": "trainer",
    "priorityClassName": "research",
    "schedulerName": "kai-scheduler",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h200"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"a": "b"}},
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {
                "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]
            },
        }
    ],
    "imagePullSecrets": [{"name": "registry"}],
    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four-gpus"}],
}


@pytest.mark.parametrize("field", sorted(PLACEMENT.keys() - {"tolerations"}))
def test_a_pod_field_is_set_and_no_other(field):
    made, plain = pod(pod={field: PLACEMENT[field]})["spec"], pod()["spec"]

    assert made.pop(field) == PLACEMENT[field]
    assert made == plain


def test_tolerations_are_added_to_those_for_lost_nodes():
    found = pod(pod={"tolerations": PLACEMENT["tolerations"]})["spec"]["tolerations"]

    assert [t["key"] for t in found] == [
        "nvidia.com/gpu",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


def test_pods_spread_by_the_fleets_workers_unless_a_selector_is_set():
    constraint = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    (made,) = pod(pod={"topologySpreadConstraints": [constraint]})["spec"][
        "topologySpreadConstraints"
    ]

    assert made == constraint | {"labelSelector": {"matchLabels": names.fleet_labels("policy")}}


def test_a_worker_uses_the_devices_that_the_pod_claims():
    claims = [{"name": "gpus", "request": "all"}]
    made = worker(
        resources={"limits": {"memory": "8Gi"}, "claims": claims},
        pod={"resourceClaims": PLACEMENT["resourceClaims"]},
    )

    assert made["resources"] == {"limits": {"memory": "8Gi"}, "requests": {}, "claims": claims}
    assert "claims" not in worker()["resources"]


@pytest.mark.parametrize("field", sorted(PLACEMENT))
def test_a_field_cannot_be_set_by_the_overlay_too(field):
    own = pod_fields(fleet(pod={field: PLACEMENT[field]}).spec, "policy")
    problem = overlay.problem_of({"spec": {field: PLACEMENT[field]}}, set_elsewhere=own)

    assert (
        problem
        == f"spec.podOverlay.spec.{field}: spec.pod.{field} is set, too; remove one of the two"
    )
    assert overlay.problem_of({"spec": {"hostNetwork": True}}, set_elsewhere=own) == ""
    assert overlay.problem_of({"spec": {field: PLACEMENT[field]}}) == ""


def test_a_fleet_that_sets_a_field_twice_keeps_its_workers_and_reports_it():
    twice = fleet(
        replicas=1,
        pod={"nodeSelector": {"gpu": "h200"}},
        podOverlay={"spec": {"nodeSelector": {"gpu": "h100"}}},
    )
    made = plan_fleet(twice, default_image=IMAGE, holds_requests=False, now=NOW)

    assert made.actions == ()
    assert "spec.pod.nodeSelector is set, too" in made.problem
