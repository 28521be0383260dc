"""A request to a fleet: how it is authenticated and authorized before its handler runs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from aiohttp import web

from fleet_api.authentication import Authenticator, Caller
from fleet_api.authorization import Authorizer, Right
from fleet_api.fleets import Fleet, Fleets, check_name
from fleet_api.problems import Problem
from rlfleet.ports import Kind
from rlfleet.resources import WeightVersion


class Access(StrEnum):
    """Rights that a route needs besides `get` on the fleet."""

    FLEET = "nothing more"
    READ_WEIGHTS = "get on the fleet's WeightVersion"
    WRITE_WEIGHTS = "patch on the fleet's WeightVersion"

    @property
    def verb(self) -> str:
        """On the WeightVersion; empty where none is needed."""
        return {"FLEET": "", "READ_WEIGHTS": "get", "WRITE_WEIGHTS": "patch"}[self.name]


@dataclass(slots=True)
class Audited:
    """Fields of the audit line of a request, filled in while the request is handled."""

    caller: str = ""
    reason: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


AUDITED = web.RequestKey("audited", Audited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An authorized request. `weights`: None if the fleet has none, or the route needs none."""

    request: web.Request
    caller: Caller
    fleet: Fleet
    weights: WeightVersion | None

    @property
    def present_weights(self) -> WeightVersion:
        """The fleet's WeightVersion. Errors: Problem 404, 409."""
        if self.weights is not None:
            return self.weights
        name, namespace = self.fleet.name, self.fleet.namespace
        if self.fleet.spec.weights.management == "External":
            raise Problem(
                HTTPStatus.CONFLICT,
                "ExternallyManaged",
                f"a trainer updates fleet {name!r} (spec.weights.management: External); call its "
                "workers, or set management of the fleet to Operator",
            )
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "NotFound",
            f"no WeightVersion in namespace {namespace!r} names fleet {name!r}; create one",
        )


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Gate:
    """Lets authorized requests through."""

    def __init__(
        self, fleets: Fleets, authenticator: Authenticator, authorizer: Authorizer
    ) -> None:
        self._fleets = fleets
        self._authenticator = authenticator
        self._authorizer = authorizer

    def to(self, handler: Handler, access: Access) -> Callable[[web.Request], Awaitable[Any]]:
        """A handler of aiohttp that runs this one for callers with this access."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(await self._call(request, access))

        return handle

    async def _call(self, request: web.Request, access: Access) -> Call:
        # Nothing about a fleet, not even its existence, is read for a caller without the right.
        namespace = check_name(request.match_info["namespace"], "namespace")
        name = check_name(request.match_info["name"], "fleet")
        authorization = request.headers.get("Authorization", "")
        caller = await self._authenticator.caller(authorization, namespace, name)
        request[AUDITED].caller = caller.name
        key = (namespace, name)
        of_fleet = Right("get", Kind.FLEETS, namespace, name)
        await self._authorizer.require(caller, of_fleet, key)
        fleet = await self._fleets.fleet(namespace, name)
        weights = None
        if access.verb:
            weights = await self._fleets.weights(fleet)
        if weights is not None:
            right = Right(access.verb, Kind.WEIGHTS, namespace, weights.metadata.name)
            await self._authorizer.require(caller, right, key)
        return Call(request=request, caller=caller, fleet=fleet, weights=weights)
