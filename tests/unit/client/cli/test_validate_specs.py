"""`rlfleet validate`: mistakes in one object that cost hours of GPUs, and that the cluster takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.cli.test_validate import Cluster, fleet, validate, weights

from rlfleet.cli.checks import CHECKS_FAILED, Result
from rlfleet.cli.spec_rules import of_fleet, of_weights
from rlfleet.errors import Forbidden, NotFound, Refused, Unavailable

__all__ = ["validate"]
CORE = "/api/v1/namespaces/rl"
GPUS = "nvidia.com/gpu"


def resources(**limits: Any) -> dict[str, Any]:
    return {"limits": {"memory": "64Gi"} | limits}


def broken(spec: dict[str, Any], *sizes: int) -> list[tuple[str, str]]:
    return [(one.result.value, one.rule) for one in of_fleet(spec, *sizes)]


@pytest.mark.parametrize(
    ("engine", "gpus", "expected"),
    [
        ({"tensorParallelSize": 4}, 2, [("fail", "TooFewGPUs")]),
        ({"tensorParallelSize": 2, "pipelineParallelSize": 2}, 2, [("fail", "TooFewGPUs")]),
        ({"tensorParallelSize": 2, "pipelineParallelSize": 2}, "4", []),
        ({"tensorParallelSize": 2}, 4, [("warn", "IdleGPUs")]),
        ({}, 1, []),
        ({"args": ["--data-parallel-size", "2"]}, 2, []),
    ],
)
def test_gpus_are_counted_against_the_sizes_of_the_engine(engine, gpus, expected):
    assert broken({"engine": engine, "resources": resources(**{GPUS: gpus})}) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"resources": resources()}, [("warn", "NoGPU")]),
        ({}, [("warn", "NoGPU")]),
        ({"engine": {"image": "rlfleet/worker-cpu:0.1.0"}, "resources": resources()}, []),
        ({"engine": {"env": [{"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"}]}}, []),
        ({"resources": resources(**{"google.com/tpu": 4})}, []),
        ({"resources": resources(**{"nvidia.com/mig-3g.40gb": 1})}, []),
        ({"resources": resources(**{"amd.com/gpu": 1})}, []),
        ({"resources": {"claims": [{"name": "gpus"}]}}, []),
        ({"pod": {"resourceClaims": [{"name": "gpus"}]}}, []),
        (
            {
                "podOverlay": {
                    "spec": {
                        "containers": [{"name": "worker", "resources": resources(**{GPUS: 1})}]
                    }
                }
            },
            [],
        ),
    ],
)
def test_a_worker_without_a_gpu_is_a_warning_unless_it_has_another_device(spec, expected):
    assert broken(spec) == expected


@pytest.mark.parametrize(
    ("memory", "weights", "checkpoint", "expected"),
    [
        ("200Mi", {}, None, [("fail", "TooLittleMemory")]),
        ("2e8", {}, None, [("fail", "TooLittleMemory")]),
        ("64Gi", {}, None, []),
        ("64Gi", {}, 15 * 10**9, []),
        ("32Gi", {}, 15 * 10**9, [("warn", "TooLittleMemory")]),
        ("32Gi", {"stagingMemory": "16Gi"}, 15 * 10**9, []),
        ("32Gi", {"stagingMemory": 1000}, 15 * 10**9, [("warn", "TooLittleMemory")]),
    ],
)
def test_memory_is_compared_with_the_model(memory, weights, checkpoint, expected):
    spec = {"resources": resources(**{GPUS: 1, "memory": memory}), "weights": weights}
    sizes = [checkpoint] if checkpoint else []

    assert broken(spec, *sizes) == expected


def test_only_the_limit_of_the_memory_bounds_a_worker_and_the_overlay_may_set_another():
    gpu = {"limits": {GPUS: 1}}
    raised = [{"name": "worker", "resources": {"limits": {"memory": "64Gi"}}}]

    assert broken({"resources": gpu | {"requests": {"memory": "512Mi"}}}, 15 * 10**9) == []
    spec = {"resources": resources(**{GPUS: 1, "memory": "512Mi"})}
    assert broken(spec | {"podOverlay": {"spec": {"containers": raised}}}) == []


def test_the_size_of_a_model_is_read_where_this_machine_sees_it(validate, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(20 * 2**30)
    source = {"name": "m", "source": {"path": str(model)}}

    code, checks = validate(Cluster(), fleet(model=source))

    assert code == 0
    (warning,) = [one for one in checks if one["rule"] == "TooLittleMemory"]
    assert "21.5 GB" in warning["message"]
    assert warning["remedy"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"source": {"path": "/weights/step_{step}"}, "runID": "r"},
            [("fail", "UnknownPlaceholder")],
        ),
        ({"source": {"path": "/weights/step_{version}"}}, [("warn", "RunMissing")]),
        ({"source": {"path": "/weights/step_{version}"}, "runID": "r"}, []),
        ({"source": {"path": "/weights/step_7"}}, []),
        ({"source": {"uri": "s3://lab/{step}"}, "runID": "r"}, [("fail", "UnknownPlaceholder")]),
        ({"source": {"uri": "s3://lab/step_{version}"}}, [("warn", "RunMissing")]),
        (
            {"source": {"huggingFace": {"repo": "a/b", "revision": "{step}"}}},
            [("fail", "UnknownPlaceholder")],
        ),
    ],
)
def test_a_template_has_the_placeholder_of_the_version_and_a_run(spec, expected):
    assert [(one.result.value, one.rule) for one in of_weights(spec)] == expected


def test_every_rule_has_its_row_on_the_page_and_a_remedy():
    page = (Path(__file__).parents[4] / "docs/how-to/use-the-cli.md").read_text()
    found = [
        *of_fleet(
            {
                "engine": {"tensorParallelSize": 2},
                "resources": resources(**{GPUS: 1, "memory": "1Mi"}),
            }
        ),
        *of_fleet({"resources": resources(**{GPUS: 2})}),
        *of_fleet({}),
        *of_weights({"source": {"path": "/{step}"}}),
        *of_weights({"source": {"path": "/{version}"}}),
    ]

    assert len({one.rule for one in found}) == 6
    assert [one.rule for one in found if f"| `{one.rule}`" not in page or not one.remedy] == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["engine", "args", "resources", "limits", "memory", "weights", "podOverlay", "spec",
                 "containers", "name", "source", "path", "tensorParallelSize", GPUS]
            ),
            inner,
            max_size=4,
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_a_spec_of_any_shape_can_be_checked(spec):
    assert all(isinstance(one.result, Result) for one in (*of_fleet(spec), *of_weights(spec)))


# --- objects that a fleet names -------------------------------------------------------------------

NAMES = {
    "claim": (
        {"weights": {"roots": ["/weights"], "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "wieghts"}}]}},
        "PersistentVolumeClaimNotFound", "wieghts", "PersistentVolumeClaim",
    ),
    "Secret of a variable": (
        {"engine": {"env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}]}},
        "SecretNotFound", "hf", "Secret",
    ),
    "Secrets of variables": (
        {"engine": {"envFrom": [{"secretRef": {"name": "hf"}}]}}, "SecretNotFound", "hf", "Secret",
    ),
    "Secret of an object store": (
        {"weights": {"roots": ["/weights", "s3://lab"], "objectStore": {"secretName": "s3"}}},
        "SecretNotFound", "s3", "Secret",
    ),
    "pull Secret": (
        {"pod": {"imagePullSecrets": [{"name": "pull"}]}}, "SecretNotFound", "pull", "Secret",
    ),
    "service account": (
        {"pod": {"serviceAccountName": "gpu"}}, "ServiceAccountNotFound", "gpu", "ServiceAccount",
    ),
    "projected volume": (
        {"podOverlay": {"spec": {"volumes": [{"name": "a", "projected": {"sources": [{"secret": {"name": "keys"}}]}}]}}},
        "SecretNotFound", "keys", "Secret",
    ),
    "volume of the overlay": (
        {"podOverlay": {"spec": {"volumes": [{"name": "a", "configMap": {"name": "files"}}]}}},
        "ConfigMapNotFound", "files", "ConfigMap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_an_object_that_a_fleet_names_and_nothing_has_is_named(validate, case):
    spec, rule, name, _ = NAMES[case]

    code, checks = validate(Cluster(), fleet(**spec))

    assert code == CHECKS_FAILED
    (found,) = [one for one in checks if one["result"] == "fail"]
    assert found["rule"] == rule
    assert name in found["message"]
    assert "'rl'" in found["remedy"]


@pytest.mark.parametrize("case", NAMES)
def test_an_object_of_the_files_or_of_the_cluster_is_there(validate, case):
    spec, _, name, kind = NAMES[case]
    given = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
    assert validate(Cluster(), given, fleet(**spec))[0] == 0

    cluster = Cluster()
    plural = {"PersistentVolumeClaim": "persistentvolumeclaims"}.get(kind, f"{kind.lower()}s")
    cluster.answers[f"GET {CORE}/{plural}/{name}"] = {}
    assert validate(cluster, fleet(**spec))[0] == 0


@pytest.mark.parametrize(
    ("version", "kind", "spec", "secret"),
    [
        ("external-secrets.io/v1", "ExternalSecret", {"target": {"name": "hf"}}, "hf"),
        ("external-secrets.io/v1", "ExternalSecret", {}, "maker"),
        ("bitnami.com/v1alpha1", "SealedSecret", {"encryptedData": {}}, "maker"),
        ("cert-manager.io/v1", "Certificate", {"secretName": "hf"}, "hf"),
        ("onepassword.com/v1", "OnePasswordItem", {}, "maker"),
        ("secrets.hashicorp.com/v1beta1", "VaultStaticSecret", {"destination": {"name": "hf"}}, "hf"),
    ],
)  # fmt: skip
def test_a_secret_that_a_controller_makes_from_an_object_of_the_files_is_there(
    validate, version, kind, spec, secret
):
    maker = {"apiVersion": version, "kind": kind, "metadata": {"name": "maker"}, "spec": spec}
    pulls = fleet(pod={"imagePullSecrets": [{"name": secret}]})

    assert validate(Cluster(), maker, pulls)[0] == 0
    elsewhere = maker | {"metadata": {"name": "maker", "namespace": "other"}}
    assert validate(Cluster(), elsewhere, pulls)[0] == CHECKS_FAILED
    other_group = maker | {"apiVersion": "example.com/v1"}
    assert validate(Cluster(), other_group, pulls)[0] == CHECKS_FAILED


def test_an_object_that_may_be_missing_or_cannot_be_seen_fails_no_check(validate):
    optional = {
        "name": "A",
        "valueFrom": {"secretKeyRef": {"name": "a", "key": "k", "optional": True}},
    }
    assert validate(Cluster(), fleet(engine={"env": [optional]}))[0] == 0

    cluster = Cluster()
    cluster.answers[f"GET {CORE}/secrets/pull"] = Forbidden("secrets are forbidden; grant it")
    code, checks = validate(cluster, fleet(pod={"imagePullSecrets": [{"name": "pull"}]}))
    assert code == 0
    assert [one["rule"] for one in checks if one["result"] == "warn"] == ["Forbidden"]


# --- what the API server says ---------------------------------------------------------------------


def test_a_field_of_the_overlay_that_no_pod_has_is_named(validate):
    cluster = Cluster()
    said = 'Pod in version "v1" cannot be handled: strict decoding error: unknown field "spec.nodeSelectr"'
    cluster.answers[f"POST {CORE}/pods"] = Refused("?", "BadRequest", said)

    code, checks = validate(cluster, fleet(podOverlay={"spec": {"nodeSelectr": {"a": "b"}}}))

    assert code == CHECKS_FAILED
    (found,) = [one for one in checks if one["result"] == "fail"]
    assert found["rule"] == "UnknownField"
    assert "spec.podOverlay.spec.nodeSelectr" in found["message"]
    (sent,) = [body for request, body in cluster.requests if request == f"POST {CORE}/pods"]
    assert sent is not None
    assert sent["spec"] == {"nodeSelectr": {"a": "b"}}


@pytest.mark.parametrize(
    ("error", "results"),
    [
        (Refused("?", "Invalid", "spec.containers: Required value"), []),
        (NotFound("no such namespace"), []),
        (Forbidden("pods is forbidden; grant it"), ["warn"]),
    ],
)
def test_an_overlay_is_a_fragment_so_only_unknown_fields_count(validate, error, results):
    cluster = Cluster()
    cluster.answers[f"POST {CORE}/pods"] = error

    code, checks = validate(cluster, fleet(podOverlay={"spec": {"hostNetwork": True}}))

    assert code == 0
    assert [one["result"] for one in checks if one["rule"]] == results


def test_a_wrong_type_has_the_words_of_a_creation(validate):
    """Those of an apply are for programs: `expected string, got &value.valueUnstructured{Value:43}`."""
    cluster = Cluster()
    cluster.refusals["policy"] = Unavailable(
        "failed to create typed patch object (rl/policy; v1alpha1): .spec.version: expected string, got "
        "&value.valueUnstructured{Value:43}; try again"
    )
    said = 'spec.version: Invalid value: "integer": spec.version in body must be of type string'
    cluster.answers["POST /apis/rlfleet.dev/v1alpha1/namespaces/rl/weightversions"] = Refused(
        "?", "Invalid", said
    )

    code, checks = validate(cluster, weights(runID="r"))

    assert code == CHECKS_FAILED
    assert said in checks[0]["message"]
    assert "valueUnstructured" not in checks[0]["message"]
