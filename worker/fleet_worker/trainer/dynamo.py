"""Dynamo's engine routes, `POST /engine/*`, on the admin port: flat names, `control/*` and `update/*`.

Its clients read `status` first: a refusal is HTTP 200 with `{"status": "error", "message"}`, a
failure of the engine is 500. Only a wrong token or a malformed body is answered with a 4xx.
Source: documentation and package of ai-dynamo 1.6; the clients in prime-rl and NeMo-RL.
"""

from __future__ import annotations

from typing import Any

from fleet_worker.admin.api import (
    LARGE_BODY,
    Answer,
    Api,
    Call,
    Handler,
    explain_to_trainer,
    parsed,
)
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import Reason
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.dynamo_requests import (
    AbortRequest,
    FromDisk,
    FromDistributed,
    JoinGroup,
    LoadAdapter,
    Pause,
    SetVersion,
    Sleep,
    UnloadAdapter,
    Wake,
)
from fleet_worker.trainer.vllm import Vllm
from fleet_worker.trainer.vllm_requests import EndTransfer

_STEPS = ("start_weight_update", "update_weights", "finish_weight_update")
_BY_STATUS = (Reason.UNAUTHORIZED,)


class Dynamo:
    """The handlers."""

    def __init__(self, driver: Driver, vllm: Vllm) -> None:
        self._driver = driver
        self._vllm = vllm

    def api(self) -> Api:
        """The routes: every name alone, and those of the native family below their folder."""
        both: dict[str, Handler] = {
            "pause_generation": self.pause,
            "resume_generation": self.resume,
            "flush_cache": self.flush_cache,
            "abort_request": self.abort,
            "load_lora": self.load_adapter,
            "unload_lora": self.unload_adapter,
        }
        flat: dict[str, Handler] = {
            **both,
            "liveness_probe": self.liveness,
            "update_weights_from_disk": self.from_disk,
            "update_weights_from_distributed": self.from_distributed,
            "update_weights_from_tensor": self.from_tensor,
            "init_weights_update_group": self.join_group,
            "destroy_weights_update_group": self.leave_group,
            "get_weight_version": self.get_version,
            "set_weight_version": self.set_version,
        }
        control: dict[str, Handler] = {
            **both,
            "is_paused": self._vllm.is_paused,
            "get_weight_version": self._vllm.weight_info,
            "sleep": self.sleep,
            "wake_up": self.wake,
        }
        update: dict[str, Handler] = {
            "update_weight_version": self.set_version,
            "init_weight_transfer_engine": self.join_group,
            "start_weight_update": self.begin_transfer,
            "update_weights": self.receive,
            "finish_weight_update": self.end_transfer,
            "load_lora": self.load_adapter,
            "unload_lora": self.unload_adapter,
        }
        routes: dict[tuple[str, str], Handler] = {("POST", "/v1/loras"): self.load_adapter}
        for folder, handlers in (("", flat), ("control/", control), ("update/", update)):
            for name, handler in handlers.items():
                routes["POST", f"/engine/{folder}{name}"] = handler
        return Api("dynamo", routes, _explain, body_limit=LARGE_BODY)

    # --- pausing -------------------------------------------------------------------------------

    async def pause(self, call: Call) -> Answer:
        """`pause_generation`."""
        wanted = parsed(Pause, call)
        await self._driver.seat.pause(call.caller, wanted.mode, keep_cache=not wanted.clear_cache)
        return _ok("paused", mode=wanted.mode.value, clear_cache=wanted.clear_cache)

    async def resume(self, call: Call) -> Answer:
        """`resume_generation`."""
        await self._driver.seat.resume(call.caller)
        return _ok("resumed")

    async def sleep(self, call: Call) -> Answer:
        """`control/sleep`."""
        wanted = parsed(Sleep, call)
        await self._driver.seat.sleep(call.caller, wanted.level, wanted.mode)
        return _ok("asleep")

    async def wake(self, call: Call) -> Answer:
        """`control/wake_up`."""
        await self._driver.seat.wake(call.caller, parsed(Wake, call).tags)
        return _ok("awake")

    async def flush_cache(self, _: Call) -> Answer:
        """`flush_cache`."""
        if not await self._driver.seat.drop_prefixes(running=False):
            raise Refusal(Reason.WRONG_PHASE, "running requests hold the cache")
        return _ok("the cache was dropped")

    async def abort(self, call: Call) -> Answer:
        """`abort_request`."""
        await self._driver.seat.abort([parsed(AbortRequest, call).request_id])
        return _ok("aborted")

    async def liveness(self, call: Call) -> Answer:
        """`liveness_probe`."""
        alive = (await self._vllm.liveness(call)).status == 200
        return Answer({"status": "ok" if alive else "error", "alive": alive})

    # --- weights -------------------------------------------------------------------------------

    async def from_disk(self, call: Call) -> Answer:
        """`update_weights_from_disk`: only while paused."""
        wanted = parsed(FromDisk, call)
        self._driver.seat.check_may_drive()
        self._check_paused()
        if wanted.engine_rpc != "reload_weights":
            raise Refusal(Reason.BAD_REQUEST, "files are loaded by reload_weights only")
        label = await self._driver.files.load(call.caller, wanted.model_path, wanted.version)
        return _ok("loaded", version=label, version_declared=wanted.version is not None)

    async def from_distributed(self, call: Call) -> Answer:
        """`update_weights_from_distributed`: a step of vLLM's weight transfer."""
        wanted = parsed(FromDistributed, call)
        self._driver.seat.check_may_drive()
        if wanted.engine_rpc not in _STEPS:
            raise Refusal(
                Reason.NOT_AVAILABLE,
                f"weights over a collective come by {', '.join(_STEPS)}; publish them as files"
                " otherwise",
            )
        if wanted.allow_unpaused and wanted.reset_prefix_cache:
            raise Refusal(
                Reason.BAD_REQUEST, "the cache cannot be reset while requests are running"
            )
        if not wanted.allow_unpaused and not self._driver.seat.transfers.is_open:
            self._check_paused()
        if wanted.engine_rpc == "start_weight_update":
            return await self.begin_transfer(call)
        if wanted.engine_rpc == "finish_weight_update":
            return await self.end_transfer(call)
        return await self.receive(call)

    async def from_tensor(self, _: Call) -> Answer:
        """`update_weights_from_tensor`: tensors would come pickled."""
        raise Refusal(Reason.NOT_AVAILABLE, "not implemented: tensors would come pickled")

    async def join_group(self, call: Call) -> Answer:
        """`init_weights_update_group`, `init_weight_transfer_engine`."""
        wanted = parsed(JoinGroup, call)
        run = await self._driver.collective.join_transfer(
            call.caller, wanted.as_init_info(), wanted.join_id
        )
        return _ok("joined", run_id=run)

    async def leave_group(self, call: Call) -> Answer:
        """`destroy_weights_update_group`."""
        await self._driver.collective.leave_transfer(call.caller)
        return _ok("left")

    async def begin_transfer(self, call: Call) -> Answer:
        """`start_weight_update`."""
        await self._vllm.begin_transfer(call)
        return _ok("started")

    async def receive(self, call: Call) -> Answer:
        """`update_weights`."""
        info = parsed(FromDistributed, call).update_info
        if info is None:
            raise Refusal(Reason.BAD_REQUEST, "update_info is needed")
        await self._driver.collective.receive(call.caller, info)
        return _ok("received")

    async def end_transfer(self, call: Call) -> Answer:
        """`finish_weight_update`."""
        wanted = parsed(EndTransfer, call).version
        weights = await self._driver.collective.end_transfer(call.caller, wanted)
        named = {"version": weights.version, "run_id": weights.run_id}
        return _ok("finished", **named, version_declared=wanted is not None)

    async def get_version(self, _: Call) -> Answer:
        """`get_weight_version`."""
        version = self._driver.seat.agent.version
        return Answer({"status": "ok", "version": version, "version_declared": version is not None})

    async def set_version(self, call: Call) -> Answer:
        """`set_weight_version`, `update_weight_version`."""
        label = parsed(SetVersion, call).label
        await self._driver.files.name_version(call.caller, label)
        return _ok("named", version=label, version_declared=True)

    # --- adapters ------------------------------------------------------------------------------

    async def load_adapter(self, call: Call) -> Answer:
        """`load_lora`, `POST /v1/loras`."""
        wanted = parsed(LoadAdapter, call)
        await self._driver.files.put_adapter(
            call.caller, wanted.lora_name, wanted.source.path, wanted.version
        )
        number = self._driver.seat.agent.adapters.number_of(wanted.lora_name)
        return Answer({"status": "success", "lora_name": wanted.lora_name, "lora_id": number})

    async def unload_adapter(self, call: Call) -> Answer:
        """`unload_lora`."""
        name = parsed(UnloadAdapter, call).lora_name
        await self._driver.files.remove_adapter(call.caller, name)
        return Answer({"status": "success", "lora_name": name})

    def _check_paused(self) -> None:
        if not self._driver.seat.is_paused:
            raise Refusal(Reason.WRONG_PHASE, "pause generation first")


def _ok(message: str, **more: Any) -> Answer:
    return Answer({"status": "ok", "message": message, **more})


def _explain(error: Refusal | EngineFailure, status: int) -> Answer:
    if isinstance(error, EngineFailure) or error.reason in _BY_STATUS or status in (404, 405, 413):
        return explain_to_trainer(error, status)
    content = {"status": "error", "message": error.message, "reason": error.reason.value}
    return Answer(content)
