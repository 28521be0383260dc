"""Handlers that change the fleet's WeightVersion. Each is made of what it does with a body."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from fleet_api.bodies import Body, Nothing, Rollback, Undo, Waiting, read
from fleet_api.calls import Call, Handler
from fleet_api.changes import Act, Changes
from fleet_api.state import rollout_of, weights_of
from rlfleet.async_weights import AsyncWeights
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Rollout

B = TypeVar("B", bound=Body)


def handler_of(changes: Changes, model: type[B], act: Act[B]) -> Handler:
    """A handler that makes one change. Its docstring is that of `act`."""

    async def handle(call: Call) -> web.Response:
        seen = call.present_weights
        changed = await changes.carry_out(call, seen, read(call.request, model), act)
        response = _response(changed.result)
        if changed.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        return response

    handle.__doc__ = act.__doc__
    return handle


async def roll_back(weights: AsyncWeights, body: Rollback) -> Rollout:
    """Go back to an earlier version."""
    return await weights.rollback(
        body.version,
        path=body.source.path if body.source else None,
        digest=body.digest,
        wait=False,
        timeout_seconds=body.timeout_seconds,
    )


async def undo(weights: AsyncWeights, body: Undo) -> Rollout:
    """Go back to what was applied before the desired version."""
    return await weights.undo(wait=False, timeout_seconds=body.timeout_seconds)


async def retry(weights: AsyncWeights, body: Waiting) -> Rollout:
    """Try an abandoned version again."""
    return await weights.retry(wait=body.wait, timeout_seconds=body.timeout_seconds)


async def suspend(weights: AsyncWeights, _: Nothing) -> WeightVersion:
    """Suspend the rollout; the applied version keeps serving."""
    return await weights.suspend()


async def resume(weights: AsyncWeights, _: Nothing) -> WeightVersion:
    """Continue a suspended rollout."""
    return await weights.resume()


def _response(result: Rollout | WeightVersion) -> web.Response:
    """200 with the outcome; 202 while the rollout continues."""
    if isinstance(result, WeightVersion):
        return web.json_response(weights_of(result))
    status = HTTPStatus.OK if result.applied else HTTPStatus.ACCEPTED
    return web.json_response(rollout_of(result), status=status)
