"""Handlers that change nothing."""

from __future__ import annotations

from aiohttp import web

from fleet_api.calls import Call
from fleet_api.fleets import Fleets
from fleet_api.state import state_of
from fleet_api.workers import workers_of


class Reads:
    """The handlers."""

    def __init__(self, fleets: Fleets) -> None:
        self._fleets = fleets

    async def state(self, call: Call) -> web.Response:
        """The fleet's state and that of its weights."""
        return web.json_response(state_of(call.fleet, call.weights))

    async def workers(self, call: Call) -> web.Response:
        """Where the fleet's workers are, for clients of Dynamo's discovery."""
        return web.json_response(workers_of(call.fleet, await self._fleets.pods(call.fleet)))
