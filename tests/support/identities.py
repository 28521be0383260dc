"""Builds fleets whose workers and WeightVersions name runs, paths and digests."""

from __future__ import annotations

from typing import Any

from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_weights

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import FleetObserved
from fleet_worker.protocol import Source, Staged
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, PinnedWeights
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.source import WeightSource

D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64
RUN_7, RUN_8 = "/weights/run-7/step_40", "/weights/run-8/step_40"


def has(
    worker: WorkerBuilder, path: str, digest: str | None, run_id: str | None = None
) -> WorkerBuilder:
    return worker.reporting(source=Source(path=path), digest=digest, run_id=run_id)


def loaded(worker: WorkerBuilder, path: str | None, digest: str | None) -> WorkerBuilder:
    """A worker into which a trainer has loaded its version."""
    source = Source(path=path) if path else None
    return worker.changed(None).reporting(source=source, digest=digest)


def holds(
    worker: WorkerBuilder, version: str, path: str, digest: str, run: str | None
) -> WorkerBuilder:
    staged = Staged(
        version=version,
        run_id=run,
        source=Source(path=path),
        digest=digest,
        size_bytes=1,
        in_memory=True,
    )
    return worker.reporting(staged=staged)


def pin(version: str, path: str, digest: str, run: str | None = None) -> PinnedWeights:
    source = WeightSource(path=path)
    return PinnedWeights(version=version, run_id=run, digest=digest, source=source)


def served(version: str, path: str, digest: str | None, run: str | None = None) -> FleetStatus:
    """The status of a fleet that serves this."""
    source = WeightSource(path=path)
    applied = AppliedWeights(
        version=version, source=source, digest=digest, run_id=run, applied_at=NOW
    )
    pinned = (pin(version, path, digest, run),) if digest else ()
    return FleetStatus(applied=applied, pinned=pinned)


def asks(version: str, path: str, **fields: Any) -> Any:
    given = {"fleetRef": {"name": "policy"}, "version": version, "source": {"path": path}}
    return make_weights(version, uid="wv-2", spec=WeightsSpec.model_validate(given | fields))


def fleet_of(*workers: WorkerBuilder, **given: Any) -> FleetObserved:
    spec = {k: v for k, v in given.items() if k not in {"wants", "status"}}
    revision = revision_of(make_fleet(*workers, **spec))
    return make_fleet(*(w.of_revision(revision) for w in workers), **given)


def decided(observed: FleetObserved) -> Decision:
    return decide(observed, default_image="image", now=NOW)


def verdicts(decision: Decision) -> tuple[str, str | None]:
    """Reasons of Ready and of Stalled, by the WeightVersion's account."""
    (status,) = decision.weights.values()
    ready = condition_of(status.conditions, ConditionType.READY)
    stalled = condition_of(status.conditions, ConditionType.STALLED)
    assert ready is not None
    return str(ready.reason), str(stalled.reason) if stalled else None


def replaced(status: FleetStatus, pinned: tuple[PinnedWeights, ...]) -> FleetStatus:
    return status.model_copy(update={"pinned": pinned})
