"""Fields of a fleet that are fields of a container or a pod in Kubernetes, in the same words.

A part that the operator only copies into pods is a `FreeMap`: the CRD alone says what it may hold.
Absent fields stay absent: the defaults are those of Kubernetes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fleet_operator.api.depth import FreeMap
from rlfleet_resources.base import Resource

ClassName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
DnsLabel = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]


class Quantities(Resource):
    """Kubernetes resource quantities of a container."""

    limits: dict[str, int | str] = Field(default_factory=dict)
    requests: dict[str, int | str] = Field(default_factory=dict)


class ResourceRequirements(Quantities):
    """Those of the worker container, and the claims that it uses."""

    claims: Annotated[tuple[FreeMap, ...], Field(max_length=30)] = ()


class PodFields(Resource):
    """Where worker pods run, and with which rights."""

    service_account_name: ClassName | None = None
    priority_class_name: ClassName | None = None
    scheduler_name: ClassName | None = None
    runtime_class_name: ClassName | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: Annotated[tuple[FreeMap, ...], Field(max_length=50)] = ()
    affinity: FreeMap | None = None
    topology_spread_constraints: Annotated[tuple[FreeMap, ...], Field(max_length=20)] = ()
    image_pull_secrets: Annotated[tuple[FreeMap, ...], Field(max_length=20)] = ()
    resource_claims: Annotated[tuple[FreeMap, ...], Field(max_length=30)] = ()
