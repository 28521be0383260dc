"""Sessions of fleets, with a fake API server unless another one is given."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.fake_kube import FakeCluster

from fleet_operator.ports import Kube
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import Problems
from fleet_operator.runtime.served_schemas import ServedSchemas
from fleet_operator.runtime.session import FleetSession, Sessions


def make_sessions(
    kube: Kube | None = None,
    *,
    metrics: Metrics | None = None,
    problems: Problems | None = None,
    term: Callable[[], int] = lambda: 3,
    requeue: Callable[[FleetKey, float], None] = lambda _key, _seconds: None,
    schemas: ServedSchemas | None = None,
) -> Sessions:
    """The sessions of an operator process."""
    return Sessions(
        kube or FakeCluster().client(),
        metrics or Metrics(),
        problems or Problems(),
        instance="test",
        term=term,
        requeue=requeue,
        schemas=schemas,
    )


def make_session(kube: Kube | None = None, *, schemas: ServedSchemas | None = None) -> FleetSession:
    """The session of fleet `policy` in namespace `rl`."""
    return make_sessions(kube, schemas=schemas).of(("rl", "policy"))
