"""Handlers that change the fleet's WeightVersion."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from fleet_api.bodies import Body, Nothing, Publication, Rollback, Undo, Waiting, read
from fleet_api.calls import Call
from fleet_api.changes import Act, Changes, publish
from fleet_api.state import rollout_of, weights_of
from rlfleet.async_weights import AsyncWeights
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Rollout

B = TypeVar("B", bound=Body)


class Mutations:
    """The handlers."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def publish(self, call: Call) -> web.Response:
        """Ask for a version."""
        return await self._change(call, Publication, publish)

    async def rollback(self, call: Call) -> web.Response:
        """Go back to an earlier version."""
        return await self._change(call, Rollback, _roll_back)

    async def undo(self, call: Call) -> web.Response:
        """Go back to what was applied before the desired version."""
        return await self._change(call, Undo, _undo)

    async def retry(self, call: Call) -> web.Response:
        """Try an abandoned version again."""
        return await self._change(call, Waiting, _retry)

    async def suspend(self, call: Call) -> web.Response:
        """Suspend the rollout; the applied version keeps serving."""
        return await self._change(call, Nothing, _suspend)

    async def resume(self, call: Call) -> web.Response:
        """Continue a suspended rollout."""
        return await self._change(call, Nothing, _resume)

    async def _change(self, call: Call, model: type[B], act: Act[B]) -> web.Response:
        seen = call.present_weights
        body = read(call.request, model)
        changed = await self._changes.carry_out(call, seen, body, act)
        response = _response(changed.result)
        if changed.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        return response


async def _roll_back(weights: AsyncWeights, body: Rollback) -> Rollout:
    return await weights.rollback(
        body.version,
        path=body.source.path if body.source else None,
        digest=body.digest,
        wait=False,
        timeout_seconds=body.timeout_seconds,
    )


async def _undo(weights: AsyncWeights, body: Undo) -> Rollout:
    return await weights.undo(wait=False, timeout_seconds=body.timeout_seconds)


async def _retry(weights: AsyncWeights, body: Waiting) -> Rollout:
    return await weights.retry(wait=body.wait, timeout_seconds=body.timeout_seconds)


async def _suspend(weights: AsyncWeights, _: Nothing) -> WeightVersion:
    return await weights.suspend()


async def _resume(weights: AsyncWeights, _: Nothing) -> WeightVersion:
    return await weights.resume()


def _response(result: Rollout | WeightVersion) -> web.Response:
    """200 with the outcome; 202 while the rollout continues."""
    if isinstance(result, WeightVersion):
        return web.json_response(weights_of(result))
    status = HTTPStatus.OK if result.applied else HTTPStatus.ACCEPTED
    return web.json_response(rollout_of(result), status=status)
