"""The External fleets whose workers are called here: an administrator names them, or their namespace grants it."""

from __future__ import annotations

from collections.abc import Collection

from fleet_api.admin_token import admin_token
from fleet_api.calls import externally_managed
from fleet_api.fleets import Fleet
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from fleet_operator.places import Places
from rlfleet.errors import Forbidden, NotFound


class Grants:
    """Reads admin tokens.

    Args:
        named: Namespace and name of the fleets that may be called. Empty: each fleet whose namespace lets this
            account read its admin token.
        places: Of reads at the API server.
    """

    def __init__(
        self, named: Collection[tuple[str, str]], cluster: Cluster, places: Places
    ) -> None:
        self._named = frozenset(named)
        self._cluster = cluster
        self._places = places

    async def admin_token(self, fleet: Fleet) -> str:
        """The token with which calls to the fleet's workers are signed.

        Errors: Problem 409 for a fleet that may not be called; those of `admin_token`.
        """
        if self._named and (fleet.namespace, fleet.name) not in self._named:
            raise externally_managed(fleet)
        try:
            return await self._read(fleet)
        except Forbidden as error:
            if self._named:
                raise  # a right of the chart is missing
            raise externally_managed(fleet) from error

    async def permit(self, fleet: Fleet) -> bool:
        """Whether calls to the workers of an External fleet pass through here."""
        if not fleet.is_external:
            return False
        if self._named:
            return (fleet.namespace, fleet.name) in self._named
        try:
            await self._read(fleet)
        except (Forbidden, NotFound, Problem):
            return False
        return True

    async def _read(self, fleet: Fleet) -> str:
        async with self._places.of(fleet.namespace):
            return await admin_token(self._cluster, fleet)
