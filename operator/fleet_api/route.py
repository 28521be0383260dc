"""A route below a fleet's address."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_api.calls import Access, Handler
from fleet_api.contract import Contract

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
    contract: Contract
    is_proxied: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in READING_METHODS

    @property
    def title(self) -> str:
        """The first line of the handler's text."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]
