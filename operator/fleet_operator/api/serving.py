"""How clients reach the workers of a fleet.

Sources: Kubernetes core/v1 ServiceSpec; Gateway API Inference Extension v1, InferencePoolSpec.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlfleet_resources.base import Resource


class ServiceOptions(Resource):
    """The Service that clients send requests to. Absent fields have the defaults of Kubernetes."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    internal_traffic_policy: Literal["Cluster", "Local"] | None = None
    traffic_distribution: (
        Annotated[str, Field(min_length=1, max_length=63, pattern="^[A-Z][A-Za-z]*$")] | None
    ) = None
    session_affinity: Literal["None", "ClientIP"] | None = None
    session_affinity_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    load_balancer_class: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    load_balancer_source_ranges: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=50)], ...], Field(max_length=50)
        ]
        | None
    ) = None


class EndpointPickerRef(Resource):
    """The Service of an endpoint picker, in the fleet's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    port: Annotated[int, Field(ge=1, le=65_535)] = 9002
    failure_mode: Literal["FailOpen", "FailClose"] = "FailClose"


class InferencePool(Resource):
    """The workers as a backend of a gateway."""

    endpoint_picker_ref: EndpointPickerRef


class Serving(Resource):
    """Ports of a worker, and the objects in front of it."""

    port: Annotated[int, Field(ge=1024, le=65_535)] = 8000
    admin_port: Annotated[int, Field(ge=1024, le=65_535)] = 8081
    metrics_port: Annotated[int, Field(ge=1024, le=65_535)] = 8082
    service: ServiceOptions | None = None
    inference_pool: InferencePool | None = None
