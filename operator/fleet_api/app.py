"""The web application: health, the routes of fleets, and the audit, errors and limits of every request."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from fleet_api import request_log
from fleet_api.calls import AUDITED, PATH_KEY, PREFIX, Admission, Audited, address_of
from fleet_api.health import add_health
from fleet_api.limits import LIMITS, MAX_BODY_BYTES, SLOT, Limits, Slots
from fleet_api.metrics import Metrics
from fleet_api.openapi import document
from fleet_api.problems import Problem, invalid, of_error, of_http
from fleet_api.route import JSON, READING_METHODS, Route
from fleet_api.whole_body import held_back
from fleet_operator.command_line import release
from fleet_operator.places import Places
from rlfleet.errors import RlfleetError

logger = logging.getLogger(__name__)

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
REFUSED_SECONDS = 0.25
"""A request beyond a rate or a share, or without the right, is refused after this time at least. Clients that send it again at
once would keep the loop busy."""
STRANGERS_PER_SECOND = 200.0
"""Such refusals of the process, and answers of `/livez` and `/readyz`, in turns by address, and there by caller. With
2,000 connections of a stranger it could do nothing else."""
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS})
CLIENT_LEFT = 499
"""The status in the audit of a request whose client closed the connection, as nginx writes it."""
PROXIED = web.AppKey("proxied", set[str])
"""Paths of routes that are passed on, with the placeholders of their parameters."""
HEALTH_PATHS = frozenset({"/livez", "/readyz"})
OPENAPI_PATH = "/openapi.json"


def application(
    routes: Iterable[Route],
    admission: Admission,
    *,
    arriving: Slots,
    limits: Limits,
    proxied: Limits,
    not_ready: Callable[[], str],
    metrics: Metrics,
) -> web.Application:
    """Build the application.

    Args:
        routes: The routes of fleets.
        admission: Lets authorized requests through.
        arriving: Limits the requests that are not authorized yet.
        limits: Limits of the requests that the RL API answers.
        proxied: Limits of the requests that it passes on.
        not_ready: Returns why this replica is not ready; empty if it is.
        metrics: The metrics of the process.
    """
    table, strangers = tuple(routes), Places(1)
    described = json.dumps(document(table, release()))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(text=described, content_type=JSON)

    app = web.Application(
        client_max_size=MAX_BODY_BYTES,
        middlewares=[
            _audited(metrics),
            _explained(strangers),
            _limited(admission, arriving, limits, proxied, strangers),
        ],
    )
    add_health(app, not_ready)
    app[PROXIED] = set()
    app.router.add_route("GET", OPENAPI_PATH, openapi)
    for route in table:
        handle = admission.to(
            route.handler,
            route.access,
            reads_body=not route.is_proxied and route.method not in READING_METHODS,
            is_large=route.is_large,
        )
        for prefix in (PREFIX, PATH_KEY + PREFIX):
            app.router.add_route(route.method, prefix + route.path, handle)
            if route.is_proxied:
                app[PROXIED].add(prefix + route.path)
    return app


def _audited(metrics: Metrics) -> Middleware:
    @web.middleware
    async def audited(request: web.Request, handler: Handle) -> web.StreamResponse:
        """Number the request, count it, and write the audit line if it may change something."""
        request_id = uuid.uuid4().hex
        request[AUDITED] = Audited()
        status = CLIENT_LEFT
        try:
            response = await handler(request)
            status = response.status
            if not response.prepared:
                response.headers["x-request-id"] = request_id
                response.headers["Cache-Control"] = "no-store"
            return response
        finally:
            _record(request, request_id, status, metrics)

    return audited


def _record(request: web.Request, request_id: str, status: int, metrics: Metrics) -> None:
    """Write the metrics and the audit line of a request that has ended."""
    audited, found = request[AUDITED], request.match_info
    resource = found.route.resource
    seconds = time.monotonic() - audited.started
    route = resource.canonical if resource is not None else ""
    fleet = (found.get("namespace", ""), found.get("name", ""))
    may_change = request.method not in READING_METHODS and resource is not None
    changes = may_change and audited.authorized and not _is_proxied(request)
    metrics.observe(route, request.method, status, seconds, changes=changes)
    if may_change and (audited.reason or not _is_proxied(request)):
        request_log.write(
            request_id=request_id,
            caller=audited.caller,
            address=address_of(request),
            method=request.method,
            route=route,
            fleet=fleet,
            status=status,
            reason=audited.reason,
            seconds=seconds,
            asked=audited.asked,
        )


def _explained(strangers: Places) -> Middleware:
    @web.middleware
    async def explained(request: web.Request, handler: Handle) -> web.StreamResponse:
        """Answer every error as a problem."""
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001 - a client gets an answer, and the log the trace
            problem = _problem_of(error, request.method)
            request[AUDITED].reason = problem.reason
            if problem.status in _REFUSALS or problem.reason == "NamespaceOverloaded":
                await _wait_to_refuse(request, strangers)
            return problem.response()

    return explained


async def _wait_to_refuse(request: web.Request, strangers: Places) -> None:
    """Wait for the turn of a refusal. Nothing of the request's body is in memory meanwhile."""
    with held_back(request, drops=True):
        await asyncio.sleep(REFUSED_SECONDS)
        await _turn(request, strangers)


async def _turn(request: web.Request, strangers: Places) -> None:
    async with strangers.of(address_of(request), request[AUDITED].caller):
        await asyncio.sleep(1 / STRANGERS_PER_SECOND)


def _problem_of(error: Exception, method: str) -> Problem:
    match error:
        case Problem():
            return error
        case RlfleetError():
            return of_error(error)
        case web.HTTPException():
            return of_http(error)
        case web.RequestPayloadError():
            return invalid("the body cannot be read; send it whole, and in its Content-Encoding")
        case _:
            # The path may hold a token, so it is not logged.
            logger.error("defect: a %s request failed", method, exc_info=error)
            message = "the RL API has a defect; its log has the trace"
            return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", message)


def _is_proxied(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in request.app[PROXIED]


def _limited(
    admission: Admission, arriving: Slots, limits: Limits, proxied: Limits, strangers: Places
) -> Middleware:
    @web.middleware
    async def limited(request: web.Request, handler: Handle) -> web.StreamResponse:
        if request.path in HEALTH_PATHS:
            await _turn(request, strangers)
            return await handler(request)
        which = proxied if _is_proxied(request) else limits
        request[LIMITS] = which
        if request.match_info.get("namespace") is None:
            which.rate.take(address_of(request))  # no route of a fleet, so that it has no caller
        sender = await admission.turn(request)
        # The rights of the caller are not known yet, so the request takes nothing from the namespace of the fleet.
        with arriving.slot(sender) as request[SLOT]:
            return await handler(request)

    return limited
