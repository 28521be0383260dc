"""Requests of rollout clients, passed on to the fleet's router, or to its Service.

The Service gets the requests of fleets without a router, and those whose headers a router would drop.
Only routes of the workers' public port are passed on: a router has admin routes without a key. Bodies
stream in both directions. Credentials for the RL API are not passed on.

A router sends each turn of a session to one worker, and a kept connection to the Service leads to one
worker, too. A request whose version demand this worker does not meet is sent again to the Service, over
new connections.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from fleet_api.calls import Access, Call, path_of
from fleet_api.connections import Connections
from fleet_api.destinations import Destinations
from fleet_api.fleets import Fleet
from fleet_api.keys import PublicKeys
from fleet_api.limits import Slots
from fleet_api.passed_body import PassedBody
from fleet_api.passed_headers import (
    ROUTED_PATHS,
    UPSTREAM_AUTHORIZATION,
    reply_headers,
    request_headers,
)
from fleet_api.passed_reply import PassedReplies
from fleet_api.problems import Problem, busy, unauthorized
from fleet_api.replies import AnyDocument
from fleet_api.route import BODY_ERRORS, Contract, Route
from fleet_worker.protocol import (
    DATA_ROUTES,
    HEADER_RUN,
    HEADER_VERSION_EXACT,
    HEADER_VERSION_MIN,
    READING_TEXT_ROUTES,
    TEXT_ROUTES,
)
from rlfleet.errors import RlfleetError

PAUSES_SECONDS = (0.0, 0.05, 0.1, 0.2)
"""The pauses before each repetition of a request with an unmet demand. Clients repeat it for longer."""
KEPT_BYTES = 32 * 1024 * 1024
"""Memory for the bodies with a demand that wait for the first byte of their reply. A body for which no
memory is left is not sent again."""
_DEMAND_HEADERS = (HEADER_VERSION_EXACT, HEADER_VERSION_MIN, HEADER_RUN)
_DEMAND_FIELDS = (b"weight_version_exact", b"weight_version_min", b"weight_run")
FINISH_PATH = "/finish_session"
_ROUTED_PATHS = ROUTED_PATHS | {FINISH_PATH}
_PROXIED = Contract({}, BODY_ERRORS, is_open=True)
_FINISHED = Contract({200: AnyDocument}, BODY_ERRORS, is_open=True)


class Proxy:
    """Passes requests on."""

    def __init__(self, destinations: Destinations, *, keys: PublicKeys, max_bytes: int) -> None:
        self._destinations = destinations
        self._keys = keys
        self._max_bytes = max_bytes
        self._memory = Slots(KEPT_BYTES)
        self._replies = PassedReplies()
        self._connections = Connections(destinations)

    async def close(self) -> None:
        """End the connections."""
        await self._connections.close()

    def routes(self) -> tuple[Route, ...]:
        """The routes whose requests are passed on."""
        passed = tuple(
            Route(
                "GET" if path in READING_TEXT_ROUTES else "POST",
                path,
                self.pass_on,
                Access.PROXY,
                _PROXIED,
                is_proxied=True,
            )
            for path in sorted(DATA_ROUTES | TEXT_ROUTES)
        )
        finish = self.finish_session, Access.PROXY, _FINISHED
        return (*passed, Route("POST", FINISH_PATH, *finish, is_proxied=True))

    async def finish_session(self, call: Call) -> web.StreamResponse:
        """The end of a session (`?session_id=`), for the router. Without a router it has no effect."""
        if call.fleet.spec.router is not None:
            return await self.pass_on(call)
        return web.json_response({"message": "the fleet has no router, so there are no sessions"})

    async def pass_on(self, call: Call) -> web.StreamResponse:
        """Send the request on, and each part of the reply as it comes.

        Errors: Problem 413 for a body that is too long, 408 for a slow one, 401 for a key that the
        workers refuse, 503 without a reply.
        """
        key = self._keys.of(call.fleet.namespace, call.fleet.name)
        headers = request_headers(call.request, key)
        body = PassedBody(
            call.request,
            self._max_bytes,
            memory=self._memory.open(call.fleet.namespace),
            may_need=lambda content: _has_demand(headers, content),
        )
        response: web.StreamResponse | None = None
        try:
            async with self._reply(call, headers, body) as reply:
                if reply.status < HTTPStatus.OK:
                    # A proxy in front of the RL API would take the connection for one of another protocol.
                    raise aiohttp.ClientPayloadError("the reply has no status")
                if reply.status == HTTPStatus.UNAUTHORIZED:
                    raise _key_refused(call.fleet)
                response = web.StreamResponse(
                    status=reply.status, headers=reply_headers(reply.headers)
                )
                await response.prepare(call.request)
                await self._replies.pass_on(call, reply, response)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError) as error:
            if response is not None and response.prepared:
                # A cut stream must not look like a whole one.
                if call.request.transport is not None:
                    call.request.transport.close()
                return response
            if body.fault is not None:
                raise body.fault from error
            self._destinations.forget(call.fleet)
            raise busy(
                "NoReply",
                f"the fleet {call.fleet.name!r} does not answer ({type(error).__name__}); send the "
                "request again, and check whether its workers are ready",
            ) from error
        finally:
            body.forget()

    @asynccontextmanager
    async def _reply(
        self, call: Call, headers: CIMultiDict[str], body: PassedBody
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The first reply of a worker that meets the request's demand, or else the last one."""
        async with self._connections.kept() as kept:
            parts = body if call.request.body_exists else None
            is_routed = path_of(call.request) in _ROUTED_PATHS
            find = self._destinations.of if is_routed else self._destinations.behind
            reply = await _send(kept, call, await find(call.fleet), headers, parts)
            try:
                for pause_seconds in PAUSES_SECONDS:
                    again = body.again
                    if again is None or not _is_unmet(reply):
                        break
                    await asyncio.sleep(pause_seconds)
                    content = io.BytesIO(again) if again else None
                    try:
                        service = await self._destinations.behind(call.fleet)
                        other = await _send(self._connections.new, call, service, headers, content)
                    except (aiohttp.ClientError, TimeoutError, Problem, RlfleetError):
                        break  # the first reply is still an answer
                    reply.release()
                    reply = other
                body.forget()
                yield reply
            finally:
                reply.release()


async def _send(
    session: aiohttp.ClientSession,
    call: Call,
    address: str,
    headers: CIMultiDict[str],
    content: Any,
) -> aiohttp.ClientResponse:
    query = call.request.rel_url.raw_query_string
    url = address + path_of(call.request) + (f"?{query}" if query else "")
    return await session.request(
        call.request.method,
        URL(url, encoded=True),
        data=content,
        headers=headers,
        allow_redirects=False,
    )


def _has_demand(headers: CIMultiDict[str], content: bytearray) -> bool:
    return any(name in headers for name in _DEMAND_HEADERS) or any(
        name in content for name in _DEMAND_FIELDS
    )


def _is_unmet(reply: aiohttp.ClientResponse) -> bool:
    """Whether it is the 409 for a version demand, by headers or by the body, that this worker does not meet."""
    return reply.status == HTTPStatus.CONFLICT and "Retry-After" in reply.headers


def _key_refused(fleet: Fleet) -> Problem:
    problem = unauthorized(
        f"the workers of fleet {fleet.name!r} refuse the key of their public port, or its absence; put it "
        f"into the entry {fleet.namespace}.{fleet.name} of api.publicKeysSecret (--public-keys-folder), "
        f"or send it as {UPSTREAM_AUTHORIZATION}"
    )
    problem.reason = "PublicKeyRefused"
    return problem
