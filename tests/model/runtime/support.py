"""Shared by the tests of the whole runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.rig import Rig

from fleet_operator.errors import FleetError

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/operator"


def only(verb: str, part: str, error: FleetError) -> Callable[[str, str], FleetError | None]:
    """Refuses the requests of one kind."""
    return lambda v, path: error if v == verb and part in path else None


def lease_of(rig: Rig) -> dict[str, Any]:
    """The spec of the Lease."""
    spec: dict[str, Any] = rig.cluster.objects[LEASE_PATH]["spec"]
    return spec
