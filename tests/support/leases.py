"""The Lease of the operator on a fake API server."""

from __future__ import annotations

from typing import Any

from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.virtual_time import now

from fleet_operator.runtime.lease import Lease

PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/operator"


def lease_of(kube: FakeKube, identity: str = "me") -> Lease:
    """A candidate with the clock of the event loop."""
    return Lease(kube, namespace="system", name="operator", identity=identity, clock=now)


def stored(cluster: FakeCluster) -> dict[str, Any]:
    """The spec of the Lease."""
    spec: dict[str, Any] = cluster.objects[PATH]["spec"]
    return spec


def held_by_another(cluster: FakeCluster, **spec: Any) -> None:
    """Store a Lease that another process holds."""
    given = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 4}
    cluster.put(PATH, {"metadata": {"name": "operator"}, "spec": given | spec})


async def seconds_of(work: Any) -> float:
    """The duration of a coroutine on the event loop's clock."""
    started = now()
    await work
    return now() - started
