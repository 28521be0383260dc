"""Where the demo runs, and how it reaches what is inside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from devcluster import Cluster, DevclusterError
from free_ports import free_port

NAMESPACE = "rl"
FLEET = "policy"
WEIGHTS = "policy"
TRAINER = "trainer"
PORT = 8000


class CommandError(Exception):
    """A command failed; the message holds its words."""


class Place(Protocol):
    """A cluster with the operator's chart at hand."""

    environment: dict[str, str]

    def service_url(self) -> str:
        """The fleet's Service, from here."""

    def worker_url(self, pod: str) -> str:
        """A worker's public port, from here."""

    def kill_operator(self) -> str:
        """End the leading operator without a warning. Returns: what was done, in words."""

    def close(self) -> None:
        """End what was started."""


def kubectl(
    place: Place, *arguments: str, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run kubectl in the demo's namespace.

    Errors: CommandError with what kubectl said.
    """
    command = ["kubectl", "-n", NAMESPACE, *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=place.environment, check=False
    )
    if check and done.returncode:
        raise CommandError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def apply(place: Place, objects: Sequence[dict[str, Any]]) -> None:
    """Apply objects with `kubectl apply`."""
    together = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    kubectl(place, "apply", "-f", "-", stdin=json.dumps(together))


class OwnCluster:
    """The development cluster, gone when the demo ends, unless it is kept."""

    def __init__(self, cluster: Cluster, *, keep: bool) -> None:
        self.cluster = cluster
        self.environment = cluster.environment()
        self._keep = keep

    def service_url(self) -> str:
        """The fleet's Service, through the cluster's forwarder."""
        return f"http://127.0.0.1:{self.cluster.forward(NAMESPACE, f'service/{FLEET}', PORT)}"

    def worker_url(self, pod: str) -> str:
        """A worker's public port, through the cluster's forwarder."""
        return f"http://127.0.0.1:{self.cluster.forward(NAMESPACE, f'pod/{pod}', PORT)}"

    def kill_operator(self) -> str:
        """SIGKILL to the process, from outside of its container."""
        killed = self.cluster.exec(["pkill", "-KILL", "-f", "-e", LEADER_PATTERN], check=False)
        count = len(killed.stdout.splitlines())
        if not count:
            raise CommandError("no operator process was found to kill")
        return f"SIGKILL to {count} operator processes"

    def close(self) -> None:
        """End the cluster, or leave it."""
        if not self._keep:
            self.cluster.down()


LEADER_PATTERN = r"python3 -m fleet_operator"


class ExistingCluster:
    """The cluster of the current kubeconfig."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        if shutil.which("kubectl") is None or shutil.which("helm") is None:
            raise CommandError("kubectl and helm must be on the PATH for CLUSTER=existing")
        self.environment = dict(os.environ)
        port = free_port()
        self._proxy = subprocess.Popen(
            ["kubectl", "proxy", f"--port={port}"], stdout=subprocess.DEVNULL
        )
        self._root = f"http://127.0.0.1:{port}/api/v1/namespaces/{NAMESPACE}"

    def service_url(self) -> str:
        """The fleet's Service, through the API server."""
        return f"{self._root}/services/{FLEET}:{PORT}/proxy"

    def worker_url(self, pod: str) -> str:
        """A worker's public port, through the API server."""
        return f"{self._root}/pods/{pod}:{PORT}/proxy"

    def kill_operator(self) -> str:
        """Delete its pods without grace: from outside of the nodes there is no SIGKILL."""
        from stack.operator import NAMESPACE as SYSTEM  # noqa: PLC0415 - only needed here

        label = "app.kubernetes.io/name=rlfleet-operator"
        now = ("--grace-period=0", "--force")
        command = ["kubectl", "-n", SYSTEM, "delete", "pod", "-l", label, *now]
        subprocess.run(command, env=self.environment, capture_output=True, check=True)
        return "the operator's pods were deleted without grace"

    def close(self) -> None:
        """End the proxy, and delete what the demo has made, unless it is kept."""
        if not self._keep:
            kinds = ("pod", "configmap", "serviceaccount", "role", "rolebinding")
            ours = (f"ifl/{FLEET}", f"wv/{WEIGHTS}", *(f"{kind}/{TRAINER}" for kind in kinds))
            kubectl(self, "delete", *ours, "--ignore-not-found", "--wait=false", check=False)
            print(
                f"Left on your cluster: the release rlfleet, namespace {NAMESPACE} with its claim."
            )
        self._proxy.terminate()
        self._proxy.wait()


def shared_folder(run: Path) -> Path:
    """A folder that the development cluster's pods mount as their weights volume."""
    folder = run / "weights"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the trainer's pod writes as its own user
    return folder


def end_if_running(cluster_id: str) -> None:
    """End what an earlier demo has left."""
    with contextlib.suppress(DevclusterError):
        Cluster.attach(cluster_id).down()
