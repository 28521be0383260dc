"""Routes and answers of AReaL's surface: `{"success", "message"}`, with 200 or 400."""

from __future__ import annotations

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode
from fleet_worker.runtime.driver import Driver
from fleet_worker.wire.areal import request
from fleet_worker.wire.control import Answer, Call, Surface, parsed


class AReaL:
    """The handlers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def surface(self) -> Surface:
        """The routes."""
        routes = {
            ("POST", "/areal_pause_generation"): self.pause,
            ("POST", "/areal_update_weights"): self.update_weights,
            ("POST", "/areal_continue_generation"): self.resume,
        }
        return Surface("areal", routes, _explain)

    async def pause(self, call: Call) -> Answer:
        """`/areal_pause_generation`: its client sends what was aborted again, with what it got."""
        await self._driver.pause(call.who, PauseMode.ABORT)
        return _done("paused")

    async def update_weights(self, call: Call) -> Answer:
        """`/areal_update_weights`."""
        path = parsed(request.UpdateWeights, call).model_path
        version = await self._driver.load(call.who, path)
        return _done(f"{version} is loaded")

    async def resume(self, call: Call) -> Answer:
        """`/areal_continue_generation`."""
        await self._driver.resume(call.who)
        return _done("resumed")


def _done(message: str) -> Answer:
    return Answer({"success": True, "message": message})


def _explain(error: Refusal | EngineFailure, status: int) -> Answer:
    del status  # its client knows 400 only
    return Answer({"success": False, "message": error.message}, 400)
