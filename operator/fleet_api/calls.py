"""A request to a fleet: how it is authenticated and authorized before its handler runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from aiohttp import web

from fleet_api.authentication import Authenticator, Caller
from fleet_api.authorization import Authorizer, Right
from fleet_api.bodies import CONTENT
from fleet_api.fleets import Fleet, Fleets, check_name, is_name
from fleet_api.limits import LARGE_BODY_BYTES, LIMITS, MAX_BODY_BYTES, SLOT, Rate, Slots
from fleet_api.loop_time import LoopTime, paced
from fleet_api.problems import Problem
from fleet_api.ttl_cache import TtlCache
from fleet_api.whole_body import whole_body
from rlfleet.ports import Kind
from rlfleet.resources import WeightVersion


class Access(StrEnum):
    """Rights that a route needs besides `get` on the fleet."""

    FLEET = "nothing more"
    PROXY = "nothing more; the fleet may be seconds old, since there are many such requests"
    READ_WEIGHTS = "get on the fleet's WeightVersion"
    WRITE_WEIGHTS = "patch on the fleet's WeightVersion"
    DRIVE = "patch on the fleet's WeightVersion, or update on the fleet's control if it is External"
    ADAPTER = "patch on the adapter's WeightVersion, or as DRIVE if it is External"

    @property
    def verb(self) -> str:
        """The verb that is required on the fleet's WeightVersion; empty without one."""
        return {"READ_WEIGHTS": "get", "WRITE_WEIGHTS": "patch", "DRIVE": "patch"}.get(
            self.name, ""
        )

    @property
    def drives(self) -> bool:
        """Whether the route calls workers, if a trainer manages the fleet."""
        return self in {Access.DRIVE, Access.ADAPTER}


@dataclass(slots=True)
class Audited:
    """Fields of the audit line of a request, filled in while the request is handled."""

    caller: str = ""
    reason: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    authorized: bool = False
    started: float = field(default_factory=time.monotonic)


AUDITED = web.RequestKey("audited", Audited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An authorized request.

    Fields:
        weights: None if the fleet has none, or the route needs none.
        require: checks that the caller has a right on an object of the fleet. Errors: Problem 403.
    """

    request: web.Request
    caller: Caller
    fleet: Fleet
    weights: WeightVersion | None
    require: Callable[[Right], Awaitable[None]]

    @property
    def present_weights(self) -> WeightVersion:
        """The fleet's WeightVersion. Errors: Problem 404, 409."""
        if self.weights is not None:
            return self.weights
        if self.fleet.is_external:
            raise externally_managed(self.fleet)
        name, namespace = self.fleet.name, self.fleet.namespace
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "NotFound",
            f"no WeightVersion in namespace {namespace!r} names fleet {name!r}; create one",
        )


FLEET_SECONDS = 5.0
MAX_FLEETS = 256
PATH_KEY = "/t/{key}"
"""A static key in front of the prefix, for clients that cannot send headers."""
PREFIX = "/fleets/{namespace}/{name}"
Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Admission:
    """Lets authorized requests through."""

    def __init__(
        self,
        fleets: Fleets,
        authenticator: Authenticator,
        authorizer: Authorizer,
        *,
        bodies: Slots,
        refused: Rate,
        loop_time: LoopTime,
        monotonic: Callable[[], float],
    ) -> None:
        """Build it.

        `bodies`: the memory for bodies that are read whole, in bytes. `refused`: the rate of requests without a caller, by
        address and credential.
        """
        self._bodies = bodies
        self._loop_time = loop_time
        self._fleets = fleets
        self._seen: TtlCache[tuple[str, str], Fleet] = TtlCache(MAX_FLEETS, monotonic)
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._refused = refused

    def to(
        self, handler: Handler, access: Access, *, reads_body: bool, is_large: bool
    ) -> Callable[[web.Request], Awaitable[Any]]:
        """A handler of aiohttp that runs this one for callers with this access.

        From the authorization on, everything that the request takes is taken from the fleet's namespace.
        """

        async def handle(request: web.Request) -> web.StreamResponse:
            caller = await self._authorized(request)
            work = handled(request, caller)
            if access is Access.PROXY:
                return await work
            return await self._loop_time.share(request.match_info["namespace"], work)

        async def handled(request: web.Request, caller: Caller) -> web.StreamResponse:
            call = await self._call(request, caller, access)
            await paced()
            request[SLOT].release()
            limits, tenant = request[LIMITS], call.fleet.namespace
            limits.tenants.take(tenant)
            async with AsyncExitStack() as held:
                request[CONTENT] = b""
                if reads_body:
                    most = (
                        LARGE_BODY_BYTES if is_large and call.fleet.is_external else MAX_BODY_BYTES
                    )
                    await held.enter_async_context(whole_body(request, most, self._bodies, tenant))
                request[SLOT] = held.enter_context(limits.slots.slot(tenant))
                return await handler(call)

        return handle

    async def turn(self, request: web.Request) -> str:
        """Wait until a request may begin. Returns: whose it is while it is not authorized."""
        sender = self._sender(request)
        await self._loop_time.pace.turn(sender)
        return sender

    def _sender(self, request: web.Request) -> str:
        found = request.match_info
        sent = request.headers.get("Authorization", "").partition(" ")[2].strip()
        token, fleet = found.get("key", sent), (found.get("namespace", ""), found.get("name", ""))
        if all(map(is_name, fleet)) and (holder := self._authenticator.key_holder(token, *fleet)):
            return holder.tenant  # strangers of its address take none of its places
        return self._authenticator.sender(token, address_of(request))

    async def _authorized(self, request: web.Request) -> Caller:
        """The caller, if it may read the fleet. Errors: Problem 401, 403, 404, 429; those of `Cluster`."""
        # Nothing about a fleet, not even its existence, is read for a caller without the right.
        key = namespace, name = request.match_info["namespace"], request.match_info["name"]
        caller = await self._caller(request, namespace, name)
        request[AUDITED].caller = caller.name
        request[LIMITS].rate.take(caller.credential)
        right = Right("get", Kind.FLEETS, namespace, name)
        await self._authorizer.require(caller, right, key)
        return caller

    async def _call(self, request: web.Request, caller: Caller, access: Access) -> Call:
        key = namespace, name = request.match_info["namespace"], request.match_info["name"]

        async def require(right: Right) -> None:
            await self._authorizer.require(caller, right, key)

        fleet = await self._fleet(namespace, name, access)
        weights = None
        if access.drives and fleet.is_external:
            await require(right_to_drive(fleet))
        elif access.verb:
            weights = await self._fleets.weights(fleet)
        if weights is not None:
            await require(right_on(weights, access.verb, fleet))
        request[AUDITED].authorized = True
        return Call(request=request, caller=caller, fleet=fleet, weights=weights, require=require)

    async def _caller(self, request: web.Request, namespace: str, name: str) -> Caller:
        """The caller. Errors: Problem 401, 404, 429; those of `Cluster`."""
        path_key = request.match_info.get("key")
        authorization = request.headers.get("Authorization", "")
        try:
            check_name(namespace, "namespace")
            check_name(name, "fleet")
            if path_key is not None:
                return self._authenticator.holder(path_key, namespace, name)
            address = address_of(request)
            return await self._authenticator.caller(authorization, namespace, name, address)
        except Problem:
            # One client that repeats a refused request must not stop the others behind its proxy.
            sent = hashlib.sha256((path_key or authorization).encode(errors="replace"))
            self._refused.take(f"{address_of(request)} {sent.hexdigest()}")
            raise

    async def _fleet(self, namespace: str, name: str, access: Access) -> Fleet:
        key = (namespace, name)
        fleet = self._seen.get(key) if access is Access.PROXY else None
        if fleet is None:
            fleet = await self._fleets.fleet(namespace, name)
            self._seen.put(key, fleet, FLEET_SECONDS)
        return fleet


def address_of(request: web.Request) -> str:
    """The address of the client, or of the proxy in front of it; empty if it is gone."""
    return request.remote or ""


def externally_managed(fleet: Fleet) -> Problem:
    """409: the fleet has no rollouts."""
    return Problem(
        HTTPStatus.CONFLICT,
        "ExternallyManaged",
        f"a trainer updates fleet {fleet.name!r} (spec.weights.management: External); call its "
        "workers, let the account of the RL API read its admin token (a Role and RoleBinding in its namespace, as "
        "`rlfleet init --trainer trl` writes them; or api.externalFleets, if that names fleets), or set management of the "
        "fleet to Operator",
    )


def right_on(weights: WeightVersion, verb: str, fleet: Fleet) -> Right:
    """A right on a WeightVersion of the fleet."""
    return Right(verb, Kind.WEIGHTS, fleet.namespace, weights.metadata.name)


def right_to_drive(fleet: Fleet) -> Right:
    """The right to call the workers of an External fleet, and nothing else: `patch` would allow more."""
    return Right("update", Kind.FLEETS, fleet.namespace, fleet.name, subresource="control")


def path_of(request: web.Request) -> str:
    """The path below the fleet."""
    return request.path.partition(PREFIX.format_map(request.match_info))[2]
