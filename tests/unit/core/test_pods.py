"""The worker pod of a fleet: what is in it, what an overlay may change, when it is out of date."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import build_pod, make_fleet, make_weights

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.manifests import overlay, pods, revisions
from fleet_operator.core.manifests.templates import RecordedTemplate, update_available
from fleet_operator.core.observed import FleetObserved
from fleet_worker import protocol
from rlfleet_resources import names

IMAGE = "rlfleet/worker:1"
CLAIM = {"persistentVolumeClaim": {"claimName": "claim"}}
VOLUME = {"name": "weights", "mountPath": "/weights"} | CLAIM


def fleet(**spec: Any) -> FleetObserved:
    spec.setdefault("weights", {"roots": ["/weights"], "volumes": [VOLUME]})
    return make_fleet(**spec)


def pod(ordinal: int = 0, **spec: Any) -> dict[str, Any]:
    return build_pod(fleet(**spec), ordinal, IMAGE, revision="r")


def container(made: dict[str, Any]) -> dict[str, Any]:
    (found,) = (c for c in made["spec"]["containers"] if c["name"] == names.WORKER_CONTAINER)
    return found


def overlaid(**worker: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker"} | worker]}}


def arguments(made: dict[str, Any]) -> list[str]:
    return list(container(made)["args"])


def environment(made: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container(made)["env"]}


# --- names and labels ---------------------------------------------------------------------------


def test_a_pod_is_named_and_found_by_its_ordinal():
    made = pod(7)

    assert made["metadata"]["name"] == made["spec"]["hostname"] == "policy-7"
    assert made["spec"]["subdomain"] == "policy-workers"
    assert made["metadata"]["namespace"] == "rl"
    assert made["metadata"]["labels"] == names.fleet_labels("policy") | {
        names.LABEL_ORDINAL: "7",
        names.LABEL_REVISION: "r",
        names.LABEL_TRAFFIC: "allowed",
    }


def test_a_pod_is_owned_by_its_fleet():
    (owner,) = pod()["metadata"]["ownerReferences"]

    assert owner == {
        "apiVersion": "rlfleet.dev/v1alpha1",
        "kind": "InferenceFleet",
        "name": "policy",
        "uid": "fleet-1",
        "controller": True,
    }


# --- what it may do ---------------------------------------------------------------------------


def test_a_pod_meets_the_restricted_pod_security_standard():
    made = pod()
    spec, worker = made["spec"], container(made)["securityContext"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert worker["allowPrivilegeEscalation"] is False
    assert worker["readOnlyRootFilesystem"] is True
    assert worker["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("fields", [{}, {"pod": {"serviceAccountName": "trainer"}}], ids=str)
def test_a_worker_has_no_access_to_the_api_server(fields):
    assert pod(**fields)["spec"]["automountServiceAccountToken"] is False


def test_service_links_are_disabled():
    assert pod()["spec"]["enableServiceLinks"] is False


# --- image, arguments and environment -----------------------------------------------------------


def test_the_image_is_the_fleets_or_the_default():
    assert container(pod())["image"] == IMAGE
    assert container(pod(engine={"image": "mine:2"}))["image"] == "mine:2"


def test_a_model_directory_is_served_by_its_path():
    options = arguments(pod())

    assert options[: options.index("--")] == [
        *("serve", "--model", "/models/base", "--served-model-name", "m", "--version", "base"),
        *("--port", "8000", "--admin-host", "$(RLFLEET_ADMIN_HOST)", "--admin-port", "8081"),
        *("--metrics-host", "*", "--metrics-port", "8082"),
        *("--weights-root", "/weights"),
    ]


def test_a_repository_is_served_at_its_revision():
    source = {"huggingFace": {"repo": "lab/m", "revision": "v1"}}
    options = arguments(pod(model={"name": "m", "source": source, "version": "v1"}))

    assert options[1:5] == ["--model", "lab/m", "--revision", "v1"]


def test_with_peers_the_worker_has_a_port_for_them():
    peers = {"enabled": True, "port": 9100, "bytesPerSecond": "500M"}
    made = pod(weights={"roots": ["/a"], "peers": peers})

    assert {"name": "peers", "containerPort": 9100} in container(made)["ports"]
    given = arguments(made)
    assert given[given.index("--peer-port") + 1] == "9100"
    assert given[given.index("--peer-bytes-per-second") + 1] == "500000000"
    off = pod(weights={"roots": ["/a"], "peers": peers | {"enabled": False}})
    assert "--peer-port" not in arguments(off)
    assert "--peer-bytes-per-second" not in arguments(off)


def test_every_root_is_passed_to_the_worker():
    options = arguments(pod(weights={"roots": ["/a", "/b"]}))

    assert [options[i + 1] for i, word in enumerate(options) if word == "--weights-root"] == [
        "/a",
        "/b",
    ]


def test_a_worker_knows_when_a_trainer_drives_it():
    weights = {"roots": ["/weights"], "management": "External"}
    arguments = container(pod(weights=weights))["args"]

    assert arguments[arguments.index("--weights-management") + 1] == "External"
    assert "--weights-management" not in container(pod())["args"]


def test_an_engine_has_one_slot_more_than_adapters():
    arguments = container(pod(adapters={"max": 2, "maxRank": 32}))["args"]

    assert arguments[arguments.index("--max-loras") + 1] == "3"
    assert arguments[arguments.index("--max-lora-rank") + 1] == "32"
    assert "--max-loras" not in container(pod())["args"]


def test_engine_arguments_come_last_and_unchanged():
    engine = {"args": ["--dtype=bfloat16", "-x"], "tensorParallelSize": 4}
    options = arguments(pod(engine=engine))

    assert options[options.index("--") + 1 :] == [
        "--tensor-parallel-size=4",
        "--pipeline-parallel-size=1",
        "--dtype=bfloat16",
        "-x",
    ]


def test_a_restarted_worker_reads_the_applied_version_and_starts_without_it():
    for name, key in ((protocol.ENV_START_VERSION, "version"), (protocol.ENV_START_PATH, "path")):
        reference = environment(pod())[name]["configMapKeyRef"]

        assert reference == {"name": "policy-applied", "key": key, "optional": True}


def test_the_token_is_mounted_as_a_file():
    made = pod()
    (volume,) = (v for v in made["spec"]["volumes"] if v["name"] == "admin-token")
    (mount,) = (m for m in container(made)["volumeMounts"] if m["name"] == "admin-token")

    assert volume["secret"]["secretName"] == "policy-admin-token"
    assert environment(made)[protocol.ENV_ADMIN_TOKEN_FILE] == f"{mount['mountPath']}/token"


def test_our_variable_comes_after_another_one_of_its_name():
    engine = {"env": [{"name": "HOME", "value": "/root"}]}

    assert environment(pod(engine=engine))["HOME"] == "/tmp"  # noqa: S108 - the pod's own


def test_weight_volumes_are_mounted_as_configured():
    made = pod(weights={"roots": ["/weights"], "volumes": [VOLUME | {"readOnly": False}]})
    (mount,) = (m for m in container(made)["volumeMounts"] if m["name"] == "weights")
    (volume,) = (v for v in made["spec"]["volumes"] if v["name"] == "weights")

    assert mount == {"name": "weights", "mountPath": "/weights", "readOnly": False}
    assert volume["persistentVolumeClaim"] == {"claimName": "claim", "readOnly": False}


def test_the_keys_of_object_stores_are_a_mount_and_no_variable():
    store = {"secretName": "s3-keys", "endpoint": "https://minio.storage.svc:9000"}
    made = pod(weights={"roots": ["s3://weights/run"], "objectStore": store})

    assert [
        v["secret"]["secretName"] for v in made["spec"]["volumes"] if v["name"] == "store-keys"
    ] == ["s3-keys"]
    (mount,) = (m for m in container(made)["volumeMounts"] if m["name"] == "store-keys")
    assert mount["readOnly"]
    assert environment(made)[protocol.ENV_STORE_KEYS] == mount["mountPath"]
    assert environment(made)[protocol.ENV_STORE_ENDPOINT] == store["endpoint"]
    assert arguments(made)[arguments(made).index("--weights-root") + 1] == "s3://weights/run"


def test_a_fleet_that_names_no_secret_uses_the_identity_of_its_pods():
    made = pod(weights={"roots": ["s3://weights"], "objectStore": {"endpoint": ""}})

    assert (
        environment(made).keys().isdisjoint({protocol.ENV_STORE_KEYS, protocol.ENV_STORE_ENDPOINT})
    )
    assert "store-keys" not in {volume["name"] for volume in made["spec"]["volumes"]}


def test_probes_and_ports_come_from_the_fleet():
    worker = container(pod(serving={"port": 9000, "adminPort": 9001, "metricsPort": 9002}))

    assert {p["name"]: p["containerPort"] for p in worker["ports"]} == {
        "http": 9000,
        "admin": 9001,
        "metrics": 9002,
    }
    for probe in ("startup", "liveness"):
        assert worker[f"{probe}Probe"]["httpGet"] == {"path": "/livez", "port": 9001}


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ([], {}),
        (["--ssl-keyfile=/k", "--ssl-certfile=/c"], {"scheme": "HTTPS"}),
        (["--ssl_certfile=/c", "--ssl_cert_reqs=1"], {"scheme": "HTTPS"}),
        (["--ssl-certfile=/c", "--ssl-cert-reqs=2"], {"port": 9001}),
        (["--ssl_certfile=/c", "--ssl_cert_reqs=2"], {"port": 9001}),
    ],
    ids=["HTTP", "TLS", "underscores", "mutual TLS", "mutual TLS with underscores"],
)
def test_a_worker_is_ready_if_the_port_of_its_clients_answers(arguments, more):
    """The kubelet has no certificate, and the admin port knows whether the other one listens."""
    serving = {"port": 9000, "adminPort": 9001}
    worker = container(pod(serving=serving, engine={"args": arguments}))

    assert worker["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 9000} | more


def test_all_addresses_of_a_pod_serve_clients_and_metrics():
    """A pod has an address of each family. The operator and the kubelet use the first one."""
    given = container(pod())["args"]

    assert "--host" not in given, "the worker's own default is all addresses"
    assert given[given.index("--metrics-host") + 1] == "*"
    assert given[given.index("--admin-host") + 1] == "$(RLFLEET_ADMIN_HOST)"


# --- overlays ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.nodeSelector", {"gpu": "h200"}),
        ("spec.schedulerName", "kai"),
        ("metadata.annotations", {"a": "b"}),
        ("spec.securityContext.fsGroup", 7),
        ("spec.terminationGracePeriodSeconds", 5),
    ],
)
def test_an_overlay_sets(path, value):
    keys = path.split(".")
    overlay = functools.reduce(lambda inner, key: {key: inner}, reversed(keys), value)

    assert functools.reduce(lambda found, key: found[key], keys, pod(podOverlay=overlay)) == value


def test_an_overlay_adds_a_sidecar_and_changes_the_worker():
    fragment = {
        "spec": {
            "containers": [
                {"name": "worker", "imagePullPolicy": "Never"},
                {"name": "sidecar", "image": "x"},
            ]
        }
    }
    made = pod(podOverlay=fragment)

    assert [c["name"] for c in made["spec"]["containers"]] == ["worker", "sidecar"]
    assert container(made)["imagePullPolicy"] == "Never"
    assert container(made)["image"] == IMAGE


@pytest.mark.parametrize(
    "fragment",
    [
        pytest.param({"metadata": {"name": "x", "namespace": "y"}}, id="its name"),
        pytest.param({"metadata": {"labels": {names.LABEL_FLEET: "other"}}}, id="its fleet"),
        pytest.param({"metadata": {"labels": {names.LABEL_TRAFFIC: "fenced"}}}, id="its traffic"),
        pytest.param({"metadata": {"ownerReferences": []}}, id="its owner"),
        pytest.param({"spec": {"hostname": "x", "subdomain": "y"}}, id="its names in DNS"),
        pytest.param(overlaid(args=["serve"]), id="its arguments"),
        pytest.param(overlaid(ports=[]), id="its ports"),
        pytest.param(overlaid(readinessProbe=None), id="its readiness"),
        pytest.param(overlaid(lifecycle=None), id="its drain"),
        pytest.param(
            overlaid(env=[{"name": protocol.ENV_ADMIN_PORT, "value": "1"}]), id="its variables"
        ),
        pytest.param(
            overlaid(env=[{"name": protocol.ENV_START_PATH, "value": "/x"}]), id="its start"
        ),
    ],
)
def test_no_overlay_removes_an_operators_field(fragment):
    assert pod(podOverlay=fragment) == pod()


def nested(levels: int, kind: type[dict | list]) -> Any:
    """Maps or lists nested this deep, the innermost one empty."""
    found: Any = kind()
    for _ in range(levels):
        found = {"a": found} if kind is dict else [found]
    return found


@pytest.mark.parametrize(
    "fragment",
    [
        pytest.param({"metadata": None}, id="no metadata"),
        pytest.param({"metadata": "x"}, id="metadata that is not a map"),
        pytest.param({"metadata": {"labels": ["x"]}}, id="labels that are not a map"),
        pytest.param({"spec": None}, id="no spec"),
        pytest.param({"spec": {"containers": "x"}}, id="containers that are not a list"),
        pytest.param({"spec": {"containers": [{"image": "x"}]}}, id="a container without a name"),
        pytest.param({"spec": {"containers": [{"name": 5}]}}, id="a container named by a number"),
        pytest.param({"spec": {"containers": ["x"]}}, id="a container that is not a map"),
        pytest.param(overlaid(env="x"), id="variables that are not a list"),
        pytest.param(overlaid(env=[{"value": "x"}]), id="a variable without a name"),
        pytest.param({"spec": {"initContainers": {}}}, id="init containers that are not a list"),
        pytest.param({"spec": {"volumes": "x"}}, id="volumes that are not a list"),
        pytest.param({"kind": "Deployment"}, id="something else than metadata and spec"),
        pytest.param({"spec": nested(100, dict)}, id="maps without a bottom"),
        pytest.param({"spec": {"x": nested(99, list)}}, id="lists without a bottom"),
    ],
)
def test_an_overlay_that_is_not_a_pod_template_is_refused_with_a_reason(fragment):
    problem = overlay.problem_of(fragment)

    assert problem.startswith("spec.podOverlay")


@pytest.mark.parametrize(
    "fragment",
    [
        pytest.param({}, id="none"),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, id="annotations only"),
        pytest.param({"spec": {"containers": [{"name": "s", "image": "x"}]}}, id="a sidecar"),
        pytest.param(overlaid(env=[{"name": "A", "value": "b"}]), id="a variable"),
        pytest.param({"spec": {"tolerations": [{"operator": "Exists"}]}}, id="tolerations"),
        pytest.param({"spec": nested(98, dict)}, id="as deep as may be"),
    ],
)
def test_a_valid_overlay_is_accepted(fragment):
    assert overlay.problem_of(fragment) == ""


def _tolerations(**overlaid: Any) -> dict[str, dict[str, Any]]:
    made = pod(podOverlay={"spec": overlaid})["spec"]["tolerations"]
    return {t["key"]: t for t in made}


def test_a_lost_node_is_tolerated_for_a_minute():
    found = _tolerations(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])

    assert found["nvidia.com/gpu"] == {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert found["node.kubernetes.io/unreachable"]["tolerationSeconds"] == pods.LOST_NODE_SECONDS
    assert found["node.kubernetes.io/not-ready"]["tolerationSeconds"] == pods.LOST_NODE_SECONDS


def test_an_overlay_may_set_the_time_for_a_lost_node():
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 5}

    assert _tolerations(tolerations=[own])["node.kubernetes.io/unreachable"] == own


# --- revisions --------------------------------------------------------------------------------


BASE = revisions.revision_of(fleet())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(fleet(replicas=9), id="the number of replicas"),
        pytest.param(fleet(rollout={"maxFailures": 3}), id="how weights reach the workers"),
        pytest.param(fleet(update={"maxUnavailable": 3}), id="how templates reach the workers"),
        pytest.param(fleet(wants=make_weights("42")), id="the wanted version"),
        pytest.param(replace(fleet(), generation=9), id="the generation"),
        pytest.param(replace(fleet(), uid="recreated"), id="a recreated owner"),
    ],
)
def test_a_pod_stays_up_to_date_for(other):
    assert revisions.revision_of(other) == BASE


def test_every_field_of_the_spec_that_changes_a_pod_is_in_its_revision():
    """Checks every field that is not listed as one without effect on pods, and `restartedAt`."""
    assert revisions.revision_of(fleet(update={"restartedAt": "now"})) != BASE
    assert {*FleetSpec.model_fields} - {*revisions._NOT_OF_PODS} == {
        *("model", "engine", "resources", "pod", "weights", "adapters", "pod_overlay")
    }


def test_a_default_that_is_written_out_does_not_change_the_revision():
    written = fleet(serving={"port": 8000, "service": {"type": "LoadBalancer"}}, update={})

    assert revisions.revision_of(written) == BASE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
            id="a number and its text",
        ),
        pytest.param(
            {"resources": {"requests": {"memory": "1Gi", "cpu": "500m"}}},
            {"resources": {"requests": {"memory": "1024Mi", "cpu": "0.5"}}},
            id="units",
        ),
        pytest.param(
            {"weights": {"roots": ["/weights"], "stagingMemory": "64Gi"}},
            {"weights": {"roots": ["/weights"], "stagingMemory": 64 * 1024**3}},
            id="staging memory",
        ),
        pytest.param({}, {"adapters": {"max": 0, "maxRank": 64}}, id="the rank of no adapters"),
    ],
)
def test_another_spelling_of_the_same_pod_replaces_no_worker(one, other):
    before, after = fleet(**one), fleet(**other)
    template = RecordedTemplate(revision="", pod=pods.template_of(before, IMAGE), release="0.1")

    assert revisions.revision_of(before) == revisions.revision_of(after)
    assert update_available(template, pods.template_of(after, IMAGE), "0.1") == ""


FIRST, SECOND = {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}


def memory(limit: str) -> dict[str, Any]:
    return {"resources": {"limits": {"memory": limit}}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(memory("1Gi"), memory("1G"), id="another amount"),
        pytest.param(memory("some"), memory("more"), id="texts that are not quantities"),
        pytest.param(
            {"engine": {"env": [FIRST, SECOND]}},
            {"engine": {"env": [SECOND, FIRST]}},
            id="variables in another order: a later one may refer to an earlier one",
        ),
        pytest.param({"adapters": {"max": 1}}, {"adapters": {"max": 1, "maxRank": 64}}, id="rank"),
    ],
)
def test_a_different_pod_has_another_revision(one, other):
    assert revisions.revision_of(fleet(**one)) != revisions.revision_of(fleet(**other))


def test_the_revision_does_not_depend_on_the_order_of_keys():
    one = fleet(podOverlay={"spec": {"a": 1, "b": {"c": 2, "d": 3}}})
    two = fleet(podOverlay={"spec": {"b": {"d": 3, "c": 2}, "a": 1}})

    assert revisions.revision_of(one) == revisions.revision_of(two)


def test_the_revision_is_the_same_in_every_process():
    """A release that changes this value replaces every worker of every fleet: do so on purpose."""
    assert BASE == "cc4540939f"
