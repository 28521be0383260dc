"""Handlers that change the fleet's WeightVersion: the flow of the client, as the RL API's account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

from aiohttp import web

from fleet_api.bodies import Body, Nothing, Publication, Rollback, Waiting, read
from fleet_api.calls import AUDITED, Call
from fleet_api.idempotency import HEADER, Key, Marked
from fleet_api.lifecycle import Lifecycle
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from fleet_api.state import rollout_of, weights_of
from rlfleet.async_weights import AsyncWeights
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Rollout

B = TypeVar("B", bound=Body)
Act = Callable[[AsyncWeights, B], Awaitable[Rollout | WeightVersion]]


class Mutations:
    """The handlers."""

    def __init__(self, cluster: Cluster, lifecycle: Lifecycle) -> None:
        self._cluster = cluster
        self._lifecycle = lifecycle

    async def publish(self, call: Call) -> web.Response:
        """Ask for a version."""
        return await self._change(call, Publication, _publish)

    async def rollback(self, call: Call) -> web.Response:
        """Go back to an earlier version."""
        return await self._change(call, Rollback, _roll_back)

    async def retry(self, call: Call) -> web.Response:
        """Try a given-up version again."""
        return await self._change(call, Waiting, _retry)

    async def suspend(self, call: Call) -> web.Response:
        """Suspend the rollout; the applied version keeps serving."""
        return await self._change(call, Nothing, _suspend)

    async def resume(self, call: Call) -> web.Response:
        """Let a suspended rollout go on."""
        return await self._change(call, Nothing, _resume)

    async def _change(self, call: Call, model: type[B], act: Act[B]) -> web.Response:
        seen = call.present_weights
        body = await read(call.request, model)
        call.request[AUDITED].asked = body.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_unset=True
        )
        objects: Any = self._cluster.of(call.fleet.namespace)
        key = _key(call, body)
        replayed = key is not None and key.has_been_used(seen)
        if key is not None and not replayed:
            objects = Marked(objects, key.annotation(seen))
        # It is never closed: the connections belong to the process.
        weights = AsyncWeights(seen.metadata.name, objects=objects)
        work = _again(weights, seen, body) if replayed else act(weights, body)
        response = _response(await self._lifecycle.until_it_ends(_of(work)))
        if replayed:
            response.headers["Idempotency-Replayed"] = "true"
        return response


def _key(call: Call, body: Body) -> Key | None:
    text = call.request.headers.get(HEADER)
    if text is None:
        return None
    asked = f"{call.request.method} {call.request.path}\n{body.model_dump_json(exclude_unset=True)}"
    return Key(text, call.caller.name, asked)


async def _of(work: Awaitable[Rollout | WeightVersion]) -> Rollout | WeightVersion:
    return await work


async def _publish(weights: AsyncWeights, body: Publication) -> Rollout:
    return await weights.publish(
        body.version,
        path=body.source.path if body.source else None,
        digest=body.digest,
        run_id=body.run_id,
        wait=body.wait,
        timeout_seconds=body.timeout_seconds,
    )


async def _roll_back(weights: AsyncWeights, body: Rollback) -> Rollout:
    return await weights.rollback(
        body.version,
        path=body.source.path if body.source else None,
        wait=body.wait,
        timeout_seconds=body.timeout_seconds,
    )


async def _retry(weights: AsyncWeights, body: Waiting) -> Rollout:
    return await weights.retry(wait=body.wait, timeout_seconds=body.timeout_seconds)


async def _suspend(weights: AsyncWeights, _: Nothing) -> WeightVersion:
    return await weights.suspend()


async def _resume(weights: AsyncWeights, _: Nothing) -> WeightVersion:
    return await weights.resume()


async def _again(weights: AsyncWeights, seen: WeightVersion, body: Body) -> Rollout | WeightVersion:
    """The answer to a request that was carried out already: the outcome, without another change."""
    if isinstance(body, Publication | Rollback) and body.version != seen.spec.version:
        raise Problem(
            HTTPStatus.CONFLICT,
            "Superseded",
            f"version {body.version} was replaced by {seen.spec.version} since the first request",
        )
    if isinstance(body, Waiting) and body.wait:
        return await weights.wait(timeout_seconds=body.timeout_seconds)
    return seen


def _response(result: Rollout | WeightVersion) -> web.Response:
    """200 with the outcome; 202 while the rollout goes on."""
    if isinstance(result, WeightVersion):
        return web.json_response(weights_of(result))
    status = HTTPStatus.OK if result.applied else HTTPStatus.ACCEPTED
    return web.json_response(rollout_of(result), status=status)
