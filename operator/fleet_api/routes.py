"""The table of routes of a fleet. Every path begins with `/fleets/{namespace}/{name}`."""

from __future__ import annotations

from fleet_api.calls import Access
from fleet_api.mutations import Mutations
from fleet_api.reads import Reads
from fleet_api.route import Route


def state_routes(reads: Reads, mutations: Mutations) -> tuple[Route, ...]:
    """The routes of `/v1/rl`."""
    return (
        Route("GET", "/v1/rl/state", reads.state, Access.READ_WEIGHTS),
        Route("GET", "/v1/rl/workers", reads.workers, Access.FLEET),
        Route("PUT", "/v1/rl/weights", mutations.publish, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/rollback", mutations.rollback, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/retry", mutations.retry, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/suspend", mutations.suspend, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/resume", mutations.resume, Access.WRITE_WEIGHTS),
    )
