"""The cluster of the benchmark: an API server with etcd, and nothing else of Kubernetes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import envs
from bench_scale.server import Server
from devcluster import Cluster

_CRDS = envs.REPOSITORY / "crds"
_ROOT = "/apis/rlfleet.dev/v1alpha1"
_OTHERS = ("kube-controller-manager", "kube-scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A namespace of its own in the cluster.

    Fields:
        run: folder of the cluster.
        folder: folder for logs.
    """

    kubeconfig: Path
    run: Path
    server: Server
    namespace: str
    folder: Path

    def path(self, plural: str, name: str = "") -> str:
        """The API path of objects of ours."""
        return f"{_ROOT}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def core(self, plural: str) -> str:
        """The API path of objects of core/v1."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}"


def prepare(cluster: Cluster, *, alone: bool) -> None:
    """Install the CRDs.

    Args:
        cluster: A control plane without nodes.
        alone: End the controllers and the scheduler. They would also work on 10,000 pods, and be measured
            with the operator.
    """
    for crd in sorted(_CRDS.glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    if alone:
        for component in _OTHERS:
            cluster.kill(component)


@contextmanager
def place(cluster: Cluster, folder: Path) -> Iterator[Place]:
    """A new namespace, emptied afterwards."""
    server = Server(cluster.kubeconfig)
    name = f"bench-{secrets.token_hex(4)}"
    made = Place(
        kubeconfig=cluster.kubeconfig,
        run=cluster.folder,
        server=server,
        namespace=name,
        folder=folder,
    )
    server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        # Pods need this account. A controller creates it too, if it still runs.
        account = {"metadata": {"name": "default"}}
        try:
            server.request("POST", made.core("serviceaccounts"), account)
        except RuntimeError as error:
            if ": 409 " not in str(error):
                raise
        yield made
    finally:
        for plural in ("inferencefleets", "weightversions"):
            server.request("DELETE", made.path(plural))
        server.request("DELETE", made.core("pods"), {"gracePeriodSeconds": 0})
        server.request("DELETE", f"/api/v1/namespaces/{name}")
        server.close()
