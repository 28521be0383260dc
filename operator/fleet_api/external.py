"""The control root of a fleet that a trainer manages: each call goes to all of its workers.

Below `/workers/<pod>` a call goes to this one worker, for trainers that find workers and call each.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from aiohttp import web

from fleet_api.bodies import CONTENT
from fleet_api.calls import AUDITED, Call, path_of
from fleet_api.fan_out import (
    Room,
    Rule,
    failure,
    split_broadcaster,
    split_init_info,
    together,
)
from fleet_api.fleets import Fleet, Fleets
from fleet_api.grants import Grants
from fleet_api.lifecycle import Lifecycle
from fleet_api.limits import Waits
from fleet_api.ports import Target, WorkerReply, WorkerRequest, Workers
from fleet_api.problems import Problem, busy
from fleet_api.route import READING_METHODS
from fleet_api.targets import Targets
from fleet_api.workers import WORKER_PATH
from fleet_operator.counts import counted, counted_of
from fleet_worker.protocol import MAX_DRIVER_CHARACTERS
from rlfleet_resources import names

_ALL = Rule()
_RULES = {
    "/pause": Rule(first_alone=True),
    "/sleep": Rule(first_alone=True),
    "/start_weight_update": Rule(whole=True),
    "/init_weight_transfer_engine": Rule(whole=True, split=split_init_info),
    "/init_broadcaster": Rule(whole=True, split=split_broadcaster),
    "/server_info": Rule(one=True),
}
"""Routes that are not passed on to all workers unchanged."""


@dataclass(slots=True)
class _Driver:
    """The caller that drives a fleet through this replica, and the number of its calls in progress."""

    caller: str
    calls: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class External:
    """Passes calls on to the workers of External fleets. `grants`: the fleets that may be called."""

    def __init__(
        self,
        grants: Grants,
        *,
        reader: Fleets,
        workers: Workers,
        lifecycle: Lifecycle,
        waits: Waits,
    ) -> None:
        self._grants = grants
        self._targets = Targets(reader)
        self._workers = workers
        self._lifecycle = lifecycle
        self._waits = waits
        self._drivers: dict[tuple[str, str, str], _Driver] = {}

    async def pass_on(self, call: Call) -> web.StreamResponse:
        """Call all workers, or the one in the path, and answer like one.

        Errors: Problem 409 for a fleet that may not be called, and for a second caller.
        Problem 404 for a worker that the fleet cannot have, 503 if a worker cannot be called. Those of
        `fan_out.failure` and of `Cluster`.
        """
        return await self._lifecycle.until_ending(self._answer(call))

    async def _answer(self, call: Call) -> web.Response:
        rule = _rule_of(call)
        content = call.request[CONTENT]
        if call.request.method in READING_METHODS:
            return await self._fan_out(call, rule, content)
        with self._waits.of(call.request, call.fleet.namespace):
            async with self._as_driver(call):
                return await self._fan_out(call, rule, content)

    @asynccontextmanager
    async def _as_driver(self, call: Call) -> AsyncIterator[None]:
        """Allow one caller, and one call at a time. Other replicas see the caller in the workers' lease."""
        key = (call.fleet.namespace, call.fleet.name, _pod_of(call))
        driver = self._drivers.setdefault(key, _Driver(call.caller.name))
        if driver.caller != call.caller.name:
            raise Problem(
                HTTPStatus.CONFLICT,
                "HeldByAnother",
                f"{driver.caller} drives fleet {call.fleet.name!r}; send the request after its call",
            )
        driver.calls += 1
        try:
            async with driver.lock:
                yield
        finally:
            driver.calls -= 1
            if not driver.calls:
                del self._drivers[key]

    async def _fan_out(self, call: Call, rule: Rule, content: bytes) -> web.Response:
        token = await self._grants.admin_token(call.fleet)
        targets = await self._called(call, rule)
        requests = _requests(call, rule, content, targets)
        room = Room(len(targets))

        async def send(target: Target, request: WorkerRequest) -> WorkerReply:
            return room.take(await self._workers.send(target, token, request))

        sent = list(zip(targets, requests, strict=True))
        replies: list[WorkerReply] = []
        if rule.first_alone:
            replies.append(await send(*sent.pop(0)))
        if all(reply.is_good for reply in replies):
            replies += await asyncio.gather(*(send(*one) for one in sent))
        good = sum(reply.is_good for reply in replies)
        call.request[AUDITED].asked = {"workers": len(targets), "followed": good}
        problem = failure(targets, replies)
        if problem is not None:
            self._targets.forget(call.fleet)
            raise problem
        return web.json_response(together(replies))

    async def _called(self, call: Call, rule: Rule) -> Sequence[Target]:
        """The workers that get the call. Errors: Problem 503."""
        found = await self._targets.of(call.fleet)
        if pod := _pod_of(call):
            return _only(call.fleet, pod, found.targets)
        replicas = call.fleet.spec.replicas
        is_whole = len(found.targets) == found.pods == replicas
        if not found.targets or (rule.whole and not is_whole):
            started = counted_of(
                len(found.targets), replicas, "worker", "has started", "have started"
            )
            raise busy(
                "WorkersMissing",
                f"fleet {call.fleet.name!r} has {counted(found.pods, 'pod')}, and {started}; send the "
                "request again when all workers have started",
            )
        return found.targets[:1] if rule.one else found.targets


def driver_of(name: str) -> str:
    """The caller's name in a form that fits into a header. A name that does not fit gets a hash."""
    if name.isascii() and name.isprintable() and len(name) <= MAX_DRIVER_CHARACTERS:
        return name
    shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in name)
    return f"{shown[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _requests(
    call: Call, rule: Rule, content: bytes, targets: Sequence[Target]
) -> list[WorkerRequest]:
    """The request of each worker. Errors: Problem 400, 422."""
    method, path, driver = call.request.method, _query_of(call), driver_of(call.caller.name)
    if rule.split is None:
        return [WorkerRequest(method, path, content, driver)] * len(targets)
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "BadRequest", "the body is not a JSON object")
    # By the same text, all workers know that they join one group, and that it is a new one.
    parts = rule.split({**body, "join_id": secrets.token_hex(16)}, targets)
    return [WorkerRequest(method, path, json.dumps(part).encode(), driver) for part in parts]


def _rule_of(call: Call) -> Rule:
    return _ALL if _pod_of(call) else _RULES.get(_worker_path_of(call), _ALL)


def _pod_of(call: Call) -> str:
    """The worker in the path; empty if the call goes to all of them."""
    return call.request.match_info.get("pod", "")


def _only(fleet: Fleet, pod: str, targets: Sequence[Target]) -> Sequence[Target]:
    """The target of this pod. Errors: Problem 404, 503."""
    chosen = [target for target in targets if target.pod == pod]
    if not chosen:
        if pod not in {names.pod_name(fleet.name, n) for n in range(fleet.spec.replicas)}:
            message = f"fleet {fleet.name!r} has no worker {pod!r}; read /v1/rl/workers again"
            raise Problem(HTTPStatus.NOT_FOUND, "NotFound", message)
        message = f"worker {pod!r} has not started; send the request again when it has"
        raise busy("WorkersMissing", message)
    return chosen


def _worker_path_of(call: Call) -> str:
    pod = _pod_of(call)
    return path_of(call.request).removeprefix(WORKER_PATH.format(pod=pod) if pod else "")


def _query_of(call: Call) -> str:
    """Path and query as the workers know them."""
    query = call.request.rel_url.raw_query_string
    return _worker_path_of(call) + (f"?{query}" if query else "")
