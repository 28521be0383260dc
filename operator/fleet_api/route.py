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
        is_proxied: it is for rollout clients, which send many requests. These have limits of their own,
            and no audit line unless they are refused.
        is_large: its body may be large in an External fleet.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    contract: Contract
    is_proxied: bool = False
    is_large: bool = False

    @property
    def title(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]
