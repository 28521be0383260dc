"""AReaL's routes for weights from disk, on the admin port.

Every answer is `{"success", "message"}`, with status 200 or 400.
Source: `areal.engine.vllm_remote` and its vLLM server, AReaL 1.0.
"""

from __future__ import annotations

from pydantic import StrictStr

from fleet_worker.admin.api import Answer, Api, Call, parsed
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.vllm_requests import Loading


class UpdateWeights(Loading):
    """`/areal_update_weights`."""

    model_path: StrictStr | None = None


class AReaL:
    """The handlers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def api(self) -> Api:
        """The routes."""
        routes = {
            ("POST", "/areal_pause_generation"): self.pause,
            ("POST", "/areal_update_weights"): self.update_weights,
            ("POST", "/areal_continue_generation"): self.resume,
        }
        return Api("areal", routes, _explain)

    async def pause(self, call: Call) -> Answer:
        """`/areal_pause_generation`: its client sends what was aborted again, with what it got."""
        await self._driver.seat.pause(call.caller, PauseMode.ABORT)
        return _done("paused")

    async def update_weights(self, call: Call) -> Answer:
        """`/areal_update_weights`."""
        wanted = parsed(UpdateWeights, call)
        version = await self._driver.files.load(call.caller, wanted.model_path, wanted.version)
        return _done(f"{version} is loaded")

    async def resume(self, call: Call) -> Answer:
        """`/areal_continue_generation`."""
        await self._driver.seat.resume(call.caller)
        return _done("resumed")


def _done(message: str) -> Answer:
    return Answer({"success": True, "message": message})


def _explain(error: Refusal | EngineFailure, status: int) -> Answer:
    del status  # its client knows 400 only
    return Answer({"success": False, "message": error.message}, 400)
