"""How clients reach the workers of a fleet.

Sources: Kubernetes core/v1 ServiceSpec; Gateway API Inference Extension v1, InferencePoolSpec.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.depth import FreeMap
from rlfleet_resources.base import Resource


class EndpointPickerRef(Resource):
    """The Service of an endpoint picker, in the fleet's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    port: Annotated[int, Field(ge=1, le=65_535)] = 9002
    failure_mode: Literal["FailOpen", "FailClose"] = "FailClose"


class InferencePool(Resource):
    """The workers as a backend of a gateway."""

    endpoint_picker_ref: EndpointPickerRef


class Serving(Resource):
    """Ports of a worker, and the objects in front of it.

    Fields:
        service: options of the Service that clients send requests to, as the CRD lists them.
    """

    port: Annotated[int, Field(ge=1024, le=65_535)] = 8000
    admin_port: Annotated[int, Field(ge=1024, le=65_535)] = 8081
    metrics_port: Annotated[int, Field(ge=1024, le=65_535)] = 8082
    service: FreeMap | None = None
    inference_pool: InferencePool | None = None
