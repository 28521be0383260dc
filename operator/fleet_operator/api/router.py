"""The optional router between clients and workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.container import Quantities
from rlfleet_resources.base import Resource

RouterPolicy = Literal[
    "StickyLeastLoaded", "ConsistentHash", "CacheAware", "PowerOfTwo", "RoundRobin", "Random"
]


class Router(Resource):
    """`vllm-router` before the workers.

    Fields:
        image: holds the programs `vllm-router` and `python3`.
        replicas: each keeps sessions of its own.
    """

    image: Annotated[str, Field(min_length=1, max_length=500)]
    replicas: Annotated[int, Field(ge=1, le=20)] = 1
    policy: RouterPolicy = "StickyLeastLoaded"
    resources: Quantities = Quantities()
