"""WeightVersions and fleets as the API server shows them: of their specs, the part that a client needs.

The statuses are those of `rlfleet_resources`. A client reads what a newer operator wrote: unknown fields and
unreadable entries of a status are left out, and so is a source of an unknown kind. A test compares the specs
with `crds/`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from rlfleet_resources.base import Resource
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.names import ANNOTATION_RETRY, retry_mark, writer_of_version
from rlfleet_resources.source import UNREADABLE, WeightSource
from rlfleet_resources.unread import NOTHING
from rlfleet_resources.weights_status import WeightsStatus


def _known(value: Any, read: ValidatorFunctionWrapHandler) -> WeightSource:
    try:
        source: WeightSource = read(value)
    except ValidationError:
        return UNREADABLE
    return source


def _read(kind: type[FleetStatus | WeightsStatus]) -> BeforeValidator:
    """A client writes no status, so what it cannot read is gone."""

    def read(stored: Any) -> Any:
        if not isinstance(stored, dict):
            return stored
        return kind.read(stored).model_copy(update={"unread": NOTHING})

    return BeforeValidator(read)


class FleetReference(Resource):
    """An InferenceFleet of the same namespace."""

    name: str


class WeightsSpec(Resource):
    """Which weights the fleet should serve."""

    fleet_ref: FleetReference
    version: str
    source: Annotated[WeightSource, WrapValidator(_known)]
    adapter: str = ""
    digest: str | None = None
    run_id: str | None = None
    rollback_to: str | None = None
    suspend: bool = False


class Metadata(Resource):
    """Metadata of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)
    managed_fields: Annotated[tuple[dict[str, Any], ...], Field(repr=False)] = ()


class WeightVersion(Resource):
    """The pointer that a trainer moves."""

    metadata: Metadata
    spec: WeightsSpec
    status: Annotated[WeightsStatus, _read(WeightsStatus)] = WeightsStatus()

    def __repr__(self) -> str:
        name, seen = f"{self.metadata.namespace}/{self.metadata.name}", self.status
        return (
            f"<WeightVersion {name}: version {self.spec.version}, applied {seen.applied_version}, "
            f"phase {seen.phase if self.is_observed else None}>"
        )

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type, if it is there; it may be about an older generation."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    @property
    def writer(self) -> str:
        """The field manager that has written the version; empty if it is not known, or several have."""
        if self.metadata.managed_fields:
            return writer_of_version(self.metadata.managed_fields)
        spec, status = self.spec, self.status
        return status.requested_by if status.is_about(spec.version, spec.run_id) else ""

    @property
    def retry(self) -> str:
        """The value of the retry annotation as the status repeats it: a long one by its digest."""
        return retry_mark(self.metadata.annotations.get(ANNOTATION_RETRY, ""))

    @property
    def is_observed(self) -> bool:
        """Whether the status is about this generation of the spec."""
        return self.status.observed_generation >= self.metadata.generation


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
    status: Annotated[FleetStatus, _read(FleetStatus)] = FleetStatus()

    @property
    def is_external(self) -> bool:
        """Whether a trainer drives the workers, so that a WeightVersion has no effect."""
        return self.spec.weights.management == "External"
