"""A route below a fleet's address."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_api.calls import Access, Handler

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
