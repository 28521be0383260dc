"""Verbs of the command line whose answers only a real API server gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.selection import others_long

from devcluster import Cluster
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.cli.trainer_settings import Trainer

VERSION = "rlfleet.dev/v1alpha1"
CRDS = sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    for file in CRDS:
        devcluster_api.kubectl("apply", "--server-side", "-f", str(file))
    for file in CRDS:
        name = yaml.safe_load(file.read_text())["metadata"]["name"]
        devcluster_api.kubectl("wait", "--for=condition=Established", f"crd/{name}")
    return devcluster_api


def verb(cluster: Cluster, *words: str) -> tuple[int, str]:
    """Exit code and output of a command, in a process of its own, which closes its connections."""
    done = subprocess.run(
        [sys.executable, "-c", "from rlfleet.cli import main; main()", *words],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def validate(cluster: Cluster, folder: Path, *objects: Any) -> tuple[int, list[dict[str, Any]]]:
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    code, out = verb(cluster, "validate", str(file), "-n", "default", "-o", "json")
    return code, json.loads(out)["items"]


def failures(checks: list[dict[str, Any]]) -> list[str]:
    return [one["message"] for one in checks if one["result"] == "fail"]


def fleet(**spec: Any) -> dict[str, Any]:
    model = {"name": "m", "source": {"path": "/models/base"}}
    gpu = {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}}
    body = {"apiVersion": VERSION, "kind": "InferenceFleet", "metadata": {"name": "policy"}}
    volume = {"name": "weights", "mountPath": "/weights", "emptyDir": {}}
    weights = {"roots": ["/weights"], "volumes": [volume]}
    return body | {"spec": {"model": model, "weights": weights, "resources": gpu} | spec}


def weights(**spec: Any) -> dict[str, Any]:
    source = {"path": "/weights/step_{version}"}
    body = {"apiVersion": VERSION, "kind": "WeightVersion", "metadata": {"name": "policy"}}
    given = {"fleetRef": {"name": "policy"}, "version": "43", "runID": "r", "source": source}
    return body | {"spec": given | spec}


def test_a_number_as_version_is_refused_in_the_words_of_kubectl(
    cluster: Cluster, tmp_path: Path
) -> None:
    code, checks = validate(cluster, tmp_path, fleet(), weights(version=43))

    assert code == CHECKS_FAILED
    (message,) = failures(checks)
    assert "spec.version" in message
    assert "must be of type string" in message
    assert "valueUnstructured" not in message


def test_an_unknown_field_of_a_fleet_is_named(cluster: Cluster, tmp_path: Path) -> None:
    code, checks = validate(cluster, tmp_path, fleet(replica=3), weights())

    assert code == CHECKS_FAILED
    (message,) = failures(checks)
    assert 'unknown field "spec.replica"' in message


@pytest.mark.parametrize(
    ("overlay", "fields"),
    [
        ({"spec": {"nodeSelectr": {"a": "b"}}}, ["spec.podOverlay.spec.nodeSelectr"]),
        (
            {"spec": {"containers": [{"name": "worker", "securityContxt": {}}]}},
            ["spec.podOverlay.spec.containers[0].securityContxt"],
        ),
        ({"spec": {"containers": [{"name": "worker", "securityContext": {}}]}}, []),
        ({"metadata": {"labels": {"a": "b"}}}, []),
    ],
)
def test_a_field_of_an_overlay_that_no_pod_has_is_named(
    cluster: Cluster, tmp_path: Path, overlay: dict[str, Any], fields: list[str]
) -> None:
    code, checks = validate(cluster, tmp_path, fleet(podOverlay=overlay), weights())

    assert code == (CHECKS_FAILED if fields else 0), checks
    found = failures(checks)
    assert len(found) == len(fields), checks
    assert all(field in message for field, message in zip(fields, found, strict=True))


def test_a_claim_and_a_secret_of_the_cluster_are_found(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl("create", "secret", "generic", "hf", "--from-literal=token=t")
    variables = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}}
        for name, secret in (("A", "hf"), ("B", "other"))
    ]

    code, checks = validate(cluster, tmp_path, fleet(engine={"env": variables}), weights())

    assert code == CHECKS_FAILED
    (missing,) = failures(checks)
    assert "Secret other" in missing


def test_restart_writes_the_time_of_the_request(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet()))
    cluster.kubectl("apply", "-f", str(tmp_path / "fleet.yaml"))

    code, out = verb(cluster, "restart", "policy", "-n", "default")

    assert code == 0, out
    at = cluster.kubectl("get", "ifl", "policy", "-o", "jsonpath={.spec.update.restartedAt}").stdout
    assert at.endswith("Z")


def test_version_asks_the_cluster(cluster: Cluster) -> None:
    code, out = verb(cluster, "version")

    assert code == 0
    assert "kubernetes  v1." in out
    # Another test may have installed an operator in this cluster.
    assert [line.split()[0] for line in out.splitlines()] == ["client", "operator", "kubernetes"]


@pytest.mark.parametrize(
    "trainer", others_long({Trainer.PLAIN}, [pytest.param(each, id=each) for each in Trainer])
)
def test_the_folder_of_a_first_fleet_passes_a_strict_dry_run_and_validate(
    cluster: Cluster, tmp_path: Path, trainer: Trainer
) -> None:
    folder = tmp_path / "first"
    options = ("--model", "Qwen/Qwen3-8B", "--checkpoint-gb", "16.4", "--folder", str(folder))
    code, _ = verb(cluster, "init", "first", *options, "--trainer", trainer, "-n", "default")
    assert code == 0

    strict = ("--validate=strict", "--dry-run=server", "-f", str(folder))
    done = cluster.kubectl("apply", *strict)
    documents = [one for f in folder.glob("*.yaml") for one in yaml.safe_load_all(f.read_text())]
    assert done.stdout.count("(server dry run)") == len(documents)

    code, out = verb(cluster, "validate", str(folder), "-o", "json")
    assert (code, failures(json.loads(out)["items"])) == (0, [])
