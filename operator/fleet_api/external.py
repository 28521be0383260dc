"""The control root of a fleet that a trainer manages."""

from __future__ import annotations

from aiohttp import web

from fleet_api.calls import Call, externally_managed


class External:
    """The handler."""

    async def pass_on(self, call: Call) -> web.StreamResponse:
        """Refuse: the RL API calls no workers."""
        raise externally_managed(call.fleet)
