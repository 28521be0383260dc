"""The table of routes of a fleet. Every path begins with `/fleets/{namespace}/{name}`."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_api.calls import Access, Handler
from fleet_api.mutations import Mutations
from fleet_api.reads import Reads

PREFIX = "/fleets/{namespace}/{name}"
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `path`: below the prefix."""

    method: str
    path: str
    handler: Handler
    access: Access

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in READING_METHODS


def routes(reads: Reads, mutations: Mutations) -> tuple[Route, ...]:
    """All routes."""
    return (
        Route("GET", "/v1/rl/state", reads.state, Access.READ_WEIGHTS),
        Route("GET", "/v1/rl/workers", reads.workers, Access.FLEET),
        Route("PUT", "/v1/rl/weights", mutations.publish, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/rollback", mutations.rollback, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/retry", mutations.retry, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/suspend", mutations.suspend, Access.WRITE_WEIGHTS),
        Route("POST", "/v1/rl/resume", mutations.resume, Access.WRITE_WEIGHTS),
    )
