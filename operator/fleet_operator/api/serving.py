"""How clients reach the workers of a fleet.

Source: Kubernetes core/v1 ServiceSpec.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.base import Resource


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


class Serving(Resource):
    """Ports of a worker, and the Service before it."""

    port: Annotated[int, Field(ge=1024, le=65_535)] = 8000
    admin_port: Annotated[int, Field(ge=1024, le=65_535)] = 8081
    metrics_port: Annotated[int, Field(ge=1024, le=65_535)] = 8082
    service: ServiceOptions | None = None
