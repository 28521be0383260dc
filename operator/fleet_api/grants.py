"""The External fleets whose workers are called here: an administrator names them, or their namespace grants it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from http import HTTPStatus

from fleet_api.calls import externally_managed
from fleet_api.fleets import Fleet
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from fleet_operator.places import Places
from rlfleet.errors import Forbidden, NotFound
from rlfleet_resources import names


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


async def admin_token(cluster: Cluster, fleet: Fleet) -> str:
    """The first line of the Secret, with which calls are signed.

    Errors: Problem 502 for a Secret without a usable token; those of `Cluster`.
    """
    name = names.admin_token_secret_name(fleet.name)
    secret = await cluster.call("GET", f"/api/v1/namespaces/{fleet.namespace}/secrets/{name}")
    owners = secret["metadata"].get("ownerReferences") or ()
    if not any(owner["uid"] == fleet.uid for owner in owners):
        raise _unusable(fleet, name, "belongs to another fleet")
    try:
        text = base64.b64decode(secret["data"][names.ADMIN_TOKEN_KEY], validate=True).decode()
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        text = ""
    token = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not (token.isascii() and token.isprintable() and token):
        raise _unusable(fleet, name, "holds no token")
    return token


def _unusable(fleet: Fleet, name: str, fact: str) -> Problem:
    return Problem(
        HTTPStatus.BAD_GATEWAY,
        "UnusableToken",
        f"Secret {name!r} in namespace {fleet.namespace!r} {fact}; delete the Secret, and the "
        "operator creates a new one",
    )
