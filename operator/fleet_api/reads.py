"""Handlers that change nothing."""

from __future__ import annotations

from aiohttp import web

from fleet_api.calls import Call, path_of
from fleet_api.fleets import Fleets
from fleet_api.grants import Grants
from fleet_api.state import state_of
from fleet_api.workers import workers_of


class Reads:
    """The handlers. `grants`: External fleets whose workers are called through this process."""

    def __init__(self, fleets: Fleets, grants: Grants) -> None:
        self._fleets = fleets
        self._grants = grants

    async def state(self, call: Call) -> web.Response:
        """The fleet's state and that of its weights."""
        return web.json_response(state_of(call.fleet, call.weights))

    async def workers(self, call: Call) -> web.Response:
        """Where the fleet's workers are, for clients of Dynamo's discovery."""
        fleet = call.fleet
        is_called = await self._grants.permit(fleet)
        address = _address_of(call.request) if is_called else None
        return web.json_response(workers_of(fleet, await self._fleets.pods(fleet), address))


def _address_of(request: web.Request) -> str:
    """The fleet's address as this client has it, also with a key in the path, and behind a proxy with TLS."""
    forwarded = request.headers.get("X-Forwarded-Proto")
    scheme = "https" if forwarded == "https" else request.scheme
    path = request.rel_url.raw_path.removesuffix(path_of(request))
    return f"{scheme}://{request.host}{path}"
