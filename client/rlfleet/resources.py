"""WeightVersions and fleets as the API server shows them, with the field names of the CRDs.

`spec.runID` is `spec.run_id` here. Unknown fields and unreadable entries of a status are left out, and words
are plain strings, so an older client reads what a newer operator wrote. A test compares it with `crds/`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Literal

from pydantic import Field, OnErrorOmit

from rlfleet.parts import Resource

API_VERSION = "rlfleet.dev/v1alpha1"
GROUP = API_VERSION.partition("/")[0]
RETRY = "rlfleet.dev/retry"
"""Annotation of a WeightVersion: a new value makes the operator try an abandoned version again."""
_MAX_RETRY_CHARACTERS = 100
TRACEPARENT = "rlfleet.dev/traceparent"
"""Annotation of a WeightVersion: the rollout that begins next is a child of this span."""


class HuggingFaceSource(Resource):
    """A repository in the workers' local Hugging Face cache."""

    repo: str
    revision: str = "main"


class WeightSource(Resource):
    """Where weights are: a directory that workers see, or a cached repository."""

    path: str | None = None
    hugging_face: HuggingFaceSource | None = None

    @property
    def is_template(self) -> bool:
        """Whether it has the placeholder `{version}`."""
        where = self.path or (self.hugging_face.revision if self.hugging_face else "")
        return "{version}" in where


class AppliedWeights(Resource):
    """The weights that all workers with traffic served last. `source`: None if not from files."""

    version: str
    source: WeightSource | None = None
    digest: str | None = None
    run_id: str | None = None
    applied_at: datetime | None = None


class Condition(Resource):
    """One entry of `status.conditions`."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    observed_generation: int
    last_transition_time: datetime


class Laggard(Resource):
    """A worker that is not where it should be."""

    pod: str
    state: str
    reason: str
    version: str | None = None
    message: str = ""


class RolloutWorkers(Resource):
    """How many workers have reached each step."""

    total: int = 0
    staged: int = 0
    paused: int = 0
    applied: int = 0
    failed: int = 0


class RolloutTimings(Resource):
    """Durations of one rollout as the operator saw them."""

    stage_seconds: float = 0
    pause_seconds: float = 0
    load_seconds: float = 0
    resume_seconds: float = 0
    total_seconds: float = 0
    max_worker_pause_seconds: float = 0


class RolloutEffect(Resource):
    """The change of the model by the version, at the served precision.

    Fields:
        min_changed_share / max_changed_share: over the workers that could compare, 0 to 1.
        unchanged: not one bit has changed, though an update was made.
    """

    version: str
    compared_with: str = ""
    min_changed_share: float | None = None
    max_changed_share: float | None = None
    compared_workers: int = 0
    not_comparable_workers: int = 0
    unchanged: bool = False
    message: str = ""


class HistoryEntry(Resource):
    """One rollout that has ended: `Applied`, `Refused`, `Superseded` or `Halted`, and why."""

    version: str
    result: str
    started_at: datetime
    total_seconds: float
    run_id: str | None = None
    max_worker_pause_seconds: float = 0
    reason: str = ""
    message: str = ""
    requested_by: str = ""


class FleetReference(Resource):
    """An InferenceFleet of the same namespace."""

    name: str


class WeightsSpec(Resource):
    """Which weights the fleet should serve."""

    fleet_ref: FleetReference
    version: str
    source: WeightSource
    adapter: str = ""
    digest: str | None = None
    run_id: str | None = None
    rollback_to: str | None = None
    suspend: bool = False


class WeightsStatus(Resource):
    """The rollout as the operator observes it. `phase` and reasons: docs/reference."""

    observed_generation: int = -1
    desired_version: str | None = None
    desired_run_id: str | None = None
    applied_version: str | None = None
    applied: AppliedWeights | None = None
    phase: str = ""
    phase_started_at: datetime | None = None
    retried: str = ""
    requested_by: str = ""
    started_at: datetime | None = None
    workers: RolloutWorkers = RolloutWorkers()
    workers_applied: str = ""
    laggards: tuple[OnErrorOmit[Laggard], ...] = ()
    timings: RolloutTimings = RolloutTimings()
    effect: RolloutEffect | None = None
    superseded_versions: int = 0
    files_unread: bool = False
    history: tuple[OnErrorOmit[HistoryEntry], ...] = ()
    conditions: tuple[OnErrorOmit[Condition], ...] = ()


class Metadata(Resource):
    """Metadata of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)


class WeightVersion(Resource):
    """The pointer that a trainer moves."""

    metadata: Metadata
    spec: WeightsSpec
    status: WeightsStatus = WeightsStatus()

    def __repr__(self) -> str:
        name, seen = f"{self.metadata.namespace}/{self.metadata.name}", self.status
        return (
            f"<WeightVersion {name}: version {self.spec.version}, applied {seen.applied_version}, "
            f"phase {seen.phase or None}>"
        )

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type, if it is there; it may be about an older generation."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    @property
    def retry(self) -> str:
        """The value of the retry annotation as the status repeats it: a long one by its digest."""
        value = self.metadata.annotations.get(RETRY, "")
        digest = f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"
        return value if len(value) <= _MAX_RETRY_CHARACTERS else digest

    @property
    def is_observed(self) -> bool:
        """Whether the status is about this generation of the spec."""
        return self.status.observed_generation >= self.metadata.generation


class WorkerCounts(Resource):
    """Workers of a fleet by what they do now."""

    total: int = 0
    serving: int = 0
    joining: int = 0
    staging: int = 0
    paused: int = 0
    loading: int = 0
    broken: int = 0
    quarantined: int = 0


class ServedVersion(Resource):
    """Weights that admitted workers hold, and how many do."""

    version: str
    workers: int
    run_id: str | None = None
    digest: str | None = None


class PinnedWeights(Resource):
    """The files that a version of a run names."""

    version: str
    digest: str
    source: WeightSource
    run_id: str | None = None
    commit: str = ""


class PinnedAdapter(PinnedWeights):
    """The files that a version of a LoRA adapter names."""

    adapter: str


class FleetStatus(Resource):
    """A fleet as the operator observes it. `operator`: the Lease of its leader, as `ns/name`."""

    observed_generation: int = -1
    replicas: int = 0
    ready_replicas: int = 0
    desired_version: str | None = None
    applied_version: str | None = None
    versions: tuple[OnErrorOmit[ServedVersion], ...] = ()
    pinned: tuple[OnErrorOmit[PinnedWeights], ...] = ()
    pinned_adapters: tuple[OnErrorOmit[PinnedAdapter], ...] = ()
    workers: WorkerCounts = WorkerCounts()
    laggards: tuple[OnErrorOmit[Laggard], ...] = ()
    endpoint: str = ""
    operator: str = ""
    conditions: tuple[OnErrorOmit[Condition], ...] = ()

    def __repr__(self) -> str:
        served = ", ".join(f"{one.version} by {one.workers}" for one in self.versions)
        return f"<FleetStatus: {self.ready_replicas} of {self.replicas} workers ready, serve {served or None}>"


class FleetWeights(Resource):
    """Where a fleet's weights come from. `management`: `Operator`, or `External` for a trainer."""

    management: str = "Operator"


class FleetSpec(Resource):
    """The part of a fleet's spec that a client needs."""

    replicas: int = 1
    weights: FleetWeights = FleetWeights()


class InferenceFleet(Resource):
    """A fleet."""

    metadata: Metadata
    spec: FleetSpec = FleetSpec()
    status: FleetStatus = FleetStatus()

    @property
    def is_external(self) -> bool:
        """Whether a trainer drives the workers, so that a WeightVersion has no effect."""
        return self.spec.weights.management == "External"
