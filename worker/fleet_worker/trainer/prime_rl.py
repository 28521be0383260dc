"""prime-rl's own control routes, on the admin port. Its client also uses vLLM's `/pause` and `/resume`.

The client reads status codes only.
Source: `prime_rl.utils.client` and `prime_rl.inference`, main of August 2026.
"""

from __future__ import annotations

from pydantic import StrictStr

from fleet_worker.admin.api import Answer, Api, Call, Lenient, explain_to_trainer, parsed
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import Reason
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.vllm import Vllm
from fleet_worker.trainer.vllm_requests import JoinId, Loading


class UpdateWeights(Loading):
    """`/update_weights`. prime-rl names no version, so the folder does."""

    weight_dir: StrictStr | None = None


class InitBroadcaster(Lenient):
    """`/init_broadcaster`: the trainer is rank 0, the first process of this engine `rank_offset + 1`."""

    host: StrictStr
    port: int
    rank_offset: int
    inference_world_size: int
    join_id: JoinId | None = None

    def as_init_info(self) -> dict[str, object]:
        """The same for vLLM's weight transfer engine."""
        return {
            "master_address": self.host,
            "master_port": self.port,
            "rank_offset": self.rank_offset + 1,
            "world_size": self.inference_world_size + 1,
        }


# Its client tries these again, for files that a network file system does not show yet.
_NOT_THERE_YET = (Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND, Reason.SOURCE_NOT_READY)


class PrimeRl:
    """The handlers."""

    def __init__(self, driver: Driver, vllm: Vllm) -> None:
        self._driver = driver
        self._vllm = vllm

    def api(self) -> Api:
        """The routes."""
        routes = {
            ("POST", "/init_broadcaster"): self.init_broadcaster,
            # One name, a new directory each step.
            ("POST", "/load_lora_adapter"): self._vllm.load_adapter,
            ("GET", "/liveness"): self._vllm.liveness,
        }
        return Api("prime_rl", routes, _explain)

    async def update_weights(self, call: Call) -> Answer:
        """`POST /update_weights` with `weight_dir`."""
        wanted = parsed(UpdateWeights, call)
        version = await self._driver.files.load(call.caller, wanted.weight_dir, wanted.version)
        return Answer({"status": "ok", "weight_version": version})

    async def init_broadcaster(self, call: Call) -> Answer:
        """`POST /init_broadcaster`: its client continues after any answer; the state has the outcome."""
        wanted = parsed(InitBroadcaster, call)
        run = await self._driver.collective.join_transfer(
            call.caller, wanted.as_init_info(), wanted.join_id
        )
        return Answer({"status": "ok", "run_id": run})


def _explain(error: Refusal | EngineFailure, status: int) -> Answer:
    return explain_to_trainer(error, 404 if error.reason in _NOT_THERE_YET else status)
