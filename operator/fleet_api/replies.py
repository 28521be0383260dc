"""Documents of replies, as OpenAPI describes them. Tests hold every reply against them.

`state` and `workers` build the documents. The parts are the resources' own models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rlfleet_resources.base import Resource
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import AppliedWeights, Laggard, ServedVersion, WorkerCounts
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import (
    RolloutEffect,
    RolloutTimings,
    RolloutWorkers,
    WeightsStatus,
)

AnyDocument = dict[str, Any]
"""A document that another program decides about."""


class ProblemDocument(BaseModel):
    """An error (RFC 9457). `reason`: one word for programs."""

    model_config = ConfigDict(extra="allow")

    type: Literal["about:blank"]
    title: str
    status: int
    reason: str
    detail: str


class DesiredVersion(Resource):
    """The version that the spec of the WeightVersion asks for."""

    version: str
    source: WeightSource
    digest: str | None = None
    run_id: str | None = None
    rollback_to: str | None = None


class WeightsDocument(WeightsStatus):
    """A WeightVersion: what is desired, and how far its rollout is."""

    name: str
    uid: str
    generation: int
    resource_version: str
    desired: DesiredVersion
    suspended: bool
    retry: str
    observed: bool


class RolloutDocument(Resource):
    """A requested version, as it was seen last."""

    version: str
    applied: bool
    timings: RolloutTimings
    workers: RolloutWorkers
    weights: WeightsDocument
    run_id: str | None = None
    effect: RolloutEffect | None = None
    unchanged: str | None = None
    remarks: str | None = None


class StateDocument(Resource):
    """A fleet and its weights."""

    namespace: str
    fleet: str
    model: str
    management: Literal["Operator", "External"]
    endpoint: str
    replicas: int
    generation: int
    pods: int
    ready_replicas: int
    observed_generation: int
    desired_version: str | None
    applied_version: str | None
    workers: WorkerCounts
    versions: tuple[ServedVersion, ...]
    laggards: tuple[Laggard, ...]
    observed: bool
    conditions: tuple[Condition, ...]
    weights: WeightsDocument | None
    applied: AppliedWeights | None = None


class WorkerRow(BaseModel):
    """One worker. `error`: why it cannot be driven yet."""

    namespace: str
    component: str
    endpoint: str
    instance_id: int
    transport: str
    model: str
    world_size: int
    routes: tuple[str, ...]
    pod: str
    pod_uid: str
    ready: bool
    request_plane_url: str = ""
    system_url: str = ""
    admin_base_url: str = ""
    weight_version: str = ""
    weight_run_id: str = ""
    weight_digest: str = ""
    lagging: str = ""
    error: str = ""


class WorkersDocument(BaseModel):
    """The workers of a fleet, in the order of ranks in a transfer."""

    protocol_version: int
    namespace: str
    workers: tuple[WorkerRow, ...]


class HealthDocument(BaseModel):
    """How many workers are ready."""

    status: Literal["ok", "unavailable"]
    total_backends: int
    ready_backends: int
    control_fanout: Literal[True]


class WorldSizeDocument(BaseModel):
    """The processes of all workers."""

    world_size: int
