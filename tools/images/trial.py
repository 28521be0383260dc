"""Run the images on the development cluster: the chart, a fleet, and two versions."""

from __future__ import annotations

import json
import time

import stack
from devcluster import Cluster
from devcluster.errors import CommandError
from images.build import name_of
from images.registry import registry
from stack.offline import write_checkpoints
from stack.operator import NAMESPACE as OPERATOR_NAMESPACE

NAMESPACE = "rl"
FLEET = "policy"
READY_SECONDS = 900  # the image for CPU workers has 6.7 GB, and its kubelet pulls it first


def try_out() -> None:
    """Push the images, install the chart with them, start 2 workers, and roll out a version.

    The kubelet pulls the images. Nothing of this machine is mounted into the containers but the
    weights.

    Errors: CommandError of the cluster, with what kubectl or helm printed.
    """
    with Cluster.start(nodes=1) as cluster, registry(cluster) as images:
        names = {}
        for target in ("operator", "worker-cpu"):
            _say(f"pushing {name_of(target)} to a registry on the node")
            names[target] = images.push(target)
        operator, tag = names["operator"].rsplit(":", 1)
        stack.install(
            cluster,
            f"image.repository={operator}",
            f"image.tag={tag}",
            f"worker.image={names['worker-cpu']}",
            "api.enabled=true",
        )
        _say("the operator is ready")
        _fleet(cluster)
        _wait(cluster, "inferencefleet")
        _say("2 workers serve version 1")
        patch = json.dumps({"spec": {"version": "2"}})
        cluster.kubectl("-n", NAMESPACE, "patch", "wv", FLEET, "--type=merge", "-p", patch)
        _wait(cluster, "weightversion")
        found = json.loads(_kubectl(cluster, "get", "ifl", FLEET, "-o", "json"))
        applied = found["status"]["applied"]["version"]
        if applied != "2":
            raise AssertionError(f"version 2 is Ready, but the fleet has applied {applied}")
        _say("2 workers serve version 2")
        _say(cluster.kubectl("-n", OPERATOR_NAMESPACE, "get", "pods").stdout.strip())
        _check_restarts(cluster)


def _check_restarts(cluster: Cluster) -> None:
    """A container that fails repeatedly may be ready in between, so a wait does not find it."""
    for namespace in (OPERATOR_NAMESPACE, NAMESPACE):
        pods = json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json").stdout)
        for pod in pods["items"]:
            restarts = [c["restartCount"] for c in pod["status"]["containerStatuses"]]
            if any(restarts):
                raise AssertionError(f"{pod['metadata']['name']} has restarted {restarts} times")


def _fleet(cluster: Cluster) -> None:
    folder = cluster.folder / "weights"
    folder.mkdir()
    named = {"base": {"seed": 0}, "step_1": {"seed": 1}, "step_2": {"seed": 2}}
    write_checkpoints({folder / name: options for name, options in named.items()})
    folder.chmod(0o755)
    fleet = stack.fleet_manifest(FLEET, replicas=2)
    # The cache that other development images are given is not there, and containers may not
    # write to their own file system.
    for variable in fleet["spec"]["engine"]["env"]:
        if variable["name"] == "VLLM_CACHE_ROOT":
            variable["value"] = "/tmp/vllm-cache"  # noqa: S108 - in the container
    objects = [
        *stack.weights_volume(folder, NAMESPACE),
        fleet,
        stack.weights_manifest(FLEET, fleet=FLEET, version="1"),
    ]
    cluster.kubectl("create", "namespace", NAMESPACE)
    together = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=together)


def _wait(cluster: Cluster, kind: str) -> None:
    limit = f"--timeout={READY_SECONDS}s"
    try:
        _kubectl(cluster, "wait", "--for=condition=Ready", f"{kind}/{FLEET}", limit)
    except CommandError:
        _say(_kubectl(cluster, "describe", f"{kind}/{FLEET}"))
        _say(_kubectl(cluster, "get", "events,pods", "-o", "wide"))
        raise


def _kubectl(cluster: Cluster, *arguments: str) -> str:
    return cluster.kubectl("-n", NAMESPACE, *arguments).stdout


_begun = time.monotonic()


def _say(text: str) -> None:
    print(f"{time.monotonic() - _begun:6.1f}s  {text}", flush=True)
