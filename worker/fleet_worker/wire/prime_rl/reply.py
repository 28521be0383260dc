"""Routes and answers of prime-rl's surface. Only status codes count for its client."""

from __future__ import annotations

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import Reason
from fleet_worker.runtime.driver import Driver
from fleet_worker.wire.control import Answer, Call, Surface, explain_to_trainer, parsed
from fleet_worker.wire.prime_rl import request
from fleet_worker.wire.vllm_rl.reply import VllmRl

# Its client tries these again, for files that a network file system does not show yet.
_NOT_THERE_YET = (Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND, Reason.SOURCE_NOT_READY)


class PrimeRl:
    """The handlers."""

    def __init__(self, driver: Driver, vllm: VllmRl) -> None:
        self._driver = driver
        self._vllm = vllm

    def surface(self) -> Surface:
        """The routes."""
        routes = {
            ("POST", "/init_broadcaster"): self.init_broadcaster,
            # One name, a new directory each step.
            ("POST", "/load_lora_adapter"): self._vllm.load_adapter,
            ("GET", "/liveness"): self._vllm.liveness,
        }
        return Surface("prime_rl", routes, _explain)

    async def update_weights(self, call: Call) -> Answer:
        """`POST /update_weights` with `weight_dir`."""
        wanted = parsed(request.UpdateWeights, call)
        version = await self._driver.load(call.who, wanted.weight_dir)
        return Answer({"status": "ok", "weight_version": version})

    async def init_broadcaster(self, call: Call) -> Answer:
        """`POST /init_broadcaster`: its client goes on whatever the answer; the state tells."""
        wanted = parsed(request.InitBroadcaster, call)
        await self._driver.join_transfer(call.who, wanted.as_init_info())
        return Answer({"status": "ok"})


def _explain(error: Refusal | EngineFailure, status: int) -> Answer:
    return explain_to_trainer(error, 404 if error.reason in _NOT_THERE_YET else status)
