"""Samples of `crds/samples/valid`, run with real workers.

Their paths and their claim are those of the volume here. Added is what tiny models on a CPU need:
arguments and variables of the engine, and less memory.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import Fleet

import stack
from devcluster import Cluster

pytestmark = pytest.mark.long
VALID = Path(__file__).parents[2] / "crds" / "samples" / "valid"
NAMESPACE = "samples"
NAME = "policy"
"""Name of the samples' fleet."""
KEY = "a-key-of-the-sample"
STARTS_SECONDS = 240


def sample(file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((VALID / file).read_text())
    assert found["metadata"]["name"] == NAME
    return found


@pytest.fixture
def samples(fleet: Fleet) -> Iterator[Fleet]:
    """A fleet of another namespace, on the same volume."""
    found = json.loads(
        fleet.kubectl("get", "pv", f"weights-{fleet.namespace}", "-o", "json").stdout
    )
    directory = Path(found["spec"]["hostPath"]["path"])
    fleet.cluster.kubectl("create", "namespace", NAMESPACE)
    made = Fleet(fleet.cluster, fleet.weights, iter(()), name=NAME, namespace=NAMESPACE)
    made.apply(*stack.weights_volume(directory, NAMESPACE))
    yield made
    fleet.cluster.kubectl("delete", "namespace", NAMESPACE)
    fleet.cluster.kubectl("delete", "pv", f"weights-{NAMESPACE}")


def status_of(cluster: Cluster, *options: str) -> str:
    address = f"http://{NAME}.{NAMESPACE}.svc:8000/v1/models"
    words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *options, address]
    return cluster.exec(words, check=False).stdout


def test_the_smallest_fleet_the_path_template_and_the_environment_run(samples: Fleet) -> None:
    wanted = sample("weights-path-template.yaml")
    samples.apply(stack.for_a_cpu(sample("fleet-smallest.yaml")), wanted)
    samples.wait_ready(f"wv/{NAME}", seconds=STARTS_SECONDS)
    version = wanted["spec"]["version"]
    path = wanted["spec"]["source"]["path"].format(version=version)

    def has_applied() -> bool:
        applied = samples.get(f"ifl/{NAME}")["status"].get("applied") or {}
        return (applied.get("version"), applied.get("source")) == (version, {"path": path})

    samples.eventually(has_applied, f"the fleet has applied {path}")
    # kube-proxy writes its rules a moment after a worker is ready.
    samples.eventually(lambda: status_of(samples.cluster) == "200", "the Service leads there")

    before = samples.get(f"pod/{NAME}-0")["metadata"]["uid"]
    samples.kubectl("create", "secret", "generic", "vllm", f"--from-literal=api-key={KEY}")
    samples.kubectl("create", "configmap", "nccl", "--from-literal=debug=WARN")
    samples.kubectl("create", "secret", "generic", "bucket", "--from-literal=REGION=here")
    samples.apply(stack.for_a_cpu(sample("fleet-environment.yaml")))
    samples.eventually(
        lambda: before not in {p["metadata"]["uid"] for p in samples.pods().values()},
        "the worker is replaced",
        seconds=120,
    )
    samples.wait_ready(f"ifl/{NAME}", seconds=STARTS_SECONDS)
    assert environment(samples) >= {
        f"VLLM_API_KEY={KEY}",
        f"NODE_NAME={samples.get(f'pod/{NAME}-0')['spec']['nodeName']}",
        "MEMORY_MEBIBYTES=2048",
        "NCCL_DEBUG=WARN",
        "debug=WARN",
        "S3_REGION=here",
    }
    samples.eventually(lambda: status_of(samples.cluster) == "401", "the Service leads there")
    assert status_of(samples.cluster, "-H", f"Authorization: Bearer {KEY}") == "200"


def environment(fleet: Fleet) -> set[str]:
    """Variables that the worker's process was started with."""
    script = "import os; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"
    done: subprocess.CompletedProcess[str] = fleet.kubectl(
        "exec", f"{NAME}-0", "--", "python3", "-c", script
    )
    return set(done.stdout.splitlines())
