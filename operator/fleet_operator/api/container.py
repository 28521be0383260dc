"""Fields of a fleet that are fields of a container or a pod in Kubernetes, in the same words.

Source: Kubernetes core/v1 EnvVar, EnvFromSource, Toleration, TopologySpreadConstraint,
PodResourceClaim. Absent fields stay absent: the defaults are those of Kubernetes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.depth import FreeMap
from rlfleet_resources.base import Resource

ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
ClassName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
DnsLabel = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
"""A prefix of up to 253 characters, a slash, and a name of up to 63."""
LabelValue = Annotated[str, Field(max_length=63)]
VariableName = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
]
Quantity = (
    int
    | Annotated[
        str,
        Field(
            max_length=64,
            pattern=r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        ),
    ]
)


class KeyReference(Resource):
    """A key of a ConfigMap or a Secret of the fleet's namespace."""

    name: ObjectName
    key: ObjectName
    optional: bool | None = None


class FieldReference(Resource):
    """A field of the worker's pod."""

    api_version: Annotated[str, Field(max_length=63)] | None = None
    field_path: Annotated[str, Field(min_length=1, max_length=300)]


class ResourceReference(Resource):
    """A resource of a container."""

    container_name: Annotated[str, Field(max_length=63)] | None = None
    resource: ObjectName
    divisor: Quantity | None = None


class VariableSource(Resource):
    """Where the value of a variable comes from. The CRD allows one source."""

    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceReference | None = None


class EnvironmentVariable(Resource):
    """One variable of the worker container."""

    name: VariableName
    value: Annotated[str, Field(max_length=4096)] | None = None
    value_from: VariableSource | None = None


class ObjectReference(Resource):
    """A ConfigMap or a Secret of the fleet's namespace."""

    name: ObjectName
    optional: bool | None = None


class EnvironmentSource(Resource):
    """A ConfigMap or a Secret whose keys become variables of the worker container."""

    prefix: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    config_map_ref: ObjectReference | None = None
    secret_ref: ObjectReference | None = None


class DeviceClaim(Resource):
    """A claim of the pod that the worker container uses."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    request: Annotated[str, Field(min_length=1, max_length=63)] | None = None


class ResourceRequirements(Resource):
    """Kubernetes resource quantities of the worker container."""

    limits: dict[str, int | str] = Field(default_factory=dict)
    requests: dict[str, int | str] = Field(default_factory=dict)
    claims: Annotated[tuple[DeviceClaim, ...], Field(max_length=30)] = ()


class Toleration(Resource):
    """A taint of nodes that the pods tolerate."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None


class Affinity(Resource):
    """As in a Pod; the API server checks the content when a pod is created."""

    node_affinity: FreeMap | None = None
    pod_affinity: FreeMap | None = None
    pod_anti_affinity: FreeMap | None = None


class LabelExpression(Resource):
    """One requirement of a label selector."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[LabelValue, ...], Field(max_length=50)] | None = None


class LabelSelector(Resource):
    """Which pods are counted."""

    match_labels: dict[str, str] | None = None
    match_expressions: Annotated[tuple[LabelExpression, ...], Field(max_length=50)] | None = None


class TopologySpreadConstraint(Resource):
    """How the pods spread over the values of a label of nodes."""

    max_skew: Annotated[int, Field(ge=1, le=10_000)]
    topology_key: LabelKey
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: Annotated[int, Field(ge=1, le=10_000)] | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=20)] | None = None
    label_selector: LabelSelector | None = None


class PullSecret(Resource):
    """A Secret with credentials for an image registry."""

    name: ObjectName


class PodResourceClaim(Resource):
    """Devices that each pod claims; exactly one of the two sources."""

    name: DnsLabel
    resource_claim_name: ObjectName | None = None
    resource_claim_template_name: ObjectName | None = None


class PodFields(Resource):
    """Where worker pods run, and with which rights."""

    service_account_name: ClassName | None = None
    priority_class_name: ClassName | None = None
    scheduler_name: ClassName | None = None
    runtime_class_name: ClassName | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=50)] = ()
    affinity: Affinity | None = None
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...], Field(max_length=20)
    ] = ()
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=20)] = ()
    resource_claims: Annotated[tuple[PodResourceClaim, ...], Field(max_length=30)] = ()
