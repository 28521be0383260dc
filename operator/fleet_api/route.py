"""A route below a fleet's address."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_api.calls import Access, Handler

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Fields:
        path: below the prefix.
        is_proxied: it is one of many requests of rollout clients: with limits of its own, and without an
            audit line unless it is refused.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    is_proxied: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in READING_METHODS
