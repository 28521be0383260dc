"""vLLM's own routes for online RL, on the admin port. vLLM serves them in development mode only.

Clients: TRL, SkyRL, NeMo-RL and vLLM's client for weight transfer.
Source: `vllm.entrypoints.rl.online.api_router`, `vllm.entrypoints.serve` of vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fleet_worker.admin.api import (
    Answer,
    Api,
    Call,
    asked,
    explain_to_trainer,
    parsed,
)
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import Reason
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.vllm_requests import (
    AbortRequests,
    BeginTransfer,
    CollectiveRpc,
    DropPrefixes,
    EndTransfer,
    JoinTransfer,
    LoadAdapter,
    NameVersion,
    Pause,
    Receive,
    Sleep,
    UnloadAdapter,
    Wake,
)

_PING_SECONDS = 30.0


class Vllm:
    """The handlers. Other APIs share some of them."""

    def __init__(self, driver: Driver, metrics: Callable[[], bytes]) -> None:
        self._driver = driver
        self._metrics = metrics

    def api(self) -> Api:
        """The routes."""
        routes = {
            ("POST", "/pause"): self.pause,
            ("POST", "/resume"): self.resume,
            ("GET", "/is_paused"): self.is_paused,
            ("GET", "/get_world_size"): self.world_size,
            ("POST", "/init_weight_transfer_engine"): self.join_transfer,
            ("POST", "/shutdown_weight_transfer_engine"): self.leave_transfer,
            ("POST", "/start_weight_update"): self.begin_transfer,
            ("POST", "/finish_weight_update"): self.end_transfer,
            ("POST", "/update_weight_version"): self.name_version,
            ("GET", "/weight_info"): self.weight_info,
            ("POST", "/collective_rpc"): self.collective_rpc,
            ("POST", "/reset_prefix_cache"): self.drop_prefixes,
            ("POST", "/abort_requests"): self.abort_requests,
            ("GET", "/server_info"): self.server_info,
            ("POST", "/sleep"): self.sleep,
            ("POST", "/wake_up"): self.wake,
            ("GET", "/is_sleeping"): self.is_sleeping,
            ("POST", "/v1/load_lora_adapter"): self.load_adapter,
            ("POST", "/v1/unload_lora_adapter"): self.unload_adapter,
            ("GET", "/health"): self.health,
            ("GET", "/v1/models"): self.models,
            ("GET", "/metrics"): self.metrics,
        }
        return Api("vllm", routes, explain_to_trainer)

    # --- pausing -------------------------------------------------------------------------------

    async def pause(self, call: Call) -> Answer:
        """`POST /pause`: answers when nothing generates any more."""
        wanted = asked(Pause, call)
        held = await self._driver.seat.pause(
            call.caller, wanted.mode, keep_cache=not wanted.clear_cache
        )
        return Answer({"status": "paused", "inflight_requests": held})

    async def resume(self, call: Call) -> Answer:
        """`POST /resume`."""
        await self._driver.seat.resume(call.caller)
        return Answer({"status": "resumed"})

    async def is_paused(self, _: Call) -> Answer:
        """`GET /is_paused`."""
        return Answer({"is_paused": self._driver.seat.is_paused})

    async def sleep(self, call: Call) -> Answer:
        """`POST /sleep`."""
        wanted = asked(Sleep, call)
        await self._driver.seat.sleep(call.caller, wanted.level, wanted.mode)
        return Answer({"status": "asleep"})

    async def wake(self, call: Call) -> Answer:
        """`POST /wake_up`."""
        tags = [value for name, value in call.query if name == "tags"] or None
        await self._driver.seat.wake(call.caller, asked(Wake, call, tags=tags).tags)
        return Answer({"status": "awake"})

    async def is_sleeping(self, _: Call) -> Answer:
        """`GET /is_sleeping`: as vLLM does, also true while paused."""
        return Answer({"is_sleeping": self._driver.seat.is_paused})

    async def abort_requests(self, call: Call) -> Answer:
        """`POST /abort_requests`."""
        ids = parsed(AbortRequests, call).request_ids
        return Answer({"status": "aborted", "aborted": await self._driver.seat.abort(ids or None)})

    # --- weights -------------------------------------------------------------------------------

    async def collective_rpc(self, call: Call) -> Answer:
        """`POST /collective_rpc`: one method, which loads a directory."""
        wanted = parsed(CollectiveRpc, call)
        if not wanted.is_allowed:
            raise Refusal(
                Reason.BAD_REQUEST, "the only method that may be called is reload_weights"
            )
        named = wanted.named
        await self._driver.files.load(call.caller, named.weights_path, named.version)
        return Answer({"results": [None] * self._driver.seat.agent.engine.info.world_size})

    async def join_transfer(self, call: Call) -> Answer:
        """`POST /init_weight_transfer_engine`."""
        wanted = parsed(JoinTransfer, call)
        run = await self._driver.collective.join_transfer(
            call.caller, wanted.init_info, wanted.join_id
        )
        return Answer({"message": "Weight transfer initialized", "run_id": run})

    async def leave_transfer(self, call: Call) -> Answer:
        """`POST /shutdown_weight_transfer_engine`."""
        await self._driver.collective.leave_transfer(call.caller)
        return Answer({"message": "Weight transfer shut down"})

    async def begin_transfer(self, call: Call) -> Answer:
        """`POST /start_weight_update`."""
        label = parsed(BeginTransfer, call).version
        await self._driver.collective.begin_transfer(call.caller, label)
        return Answer({"message": "Weight update started"})

    async def receive(self, call: Call) -> Answer:
        """`POST /update_weights` with `update_info`."""
        await self._driver.collective.receive(call.caller, parsed(Receive, call).update_info)
        return Answer({"message": "Weights updated"})

    async def end_transfer(self, call: Call) -> Answer:
        """`POST /finish_weight_update`."""
        wanted = parsed(EndTransfer, call).version
        weights = await self._driver.collective.end_transfer(call.caller, wanted)
        named = {"weight_version": weights.version, "run_id": weights.run_id}
        return Answer({"message": "Weight update finished", **named})

    async def name_version(self, call: Call) -> Answer:
        """`POST /update_weight_version`."""
        label = parsed(NameVersion, call).new_version
        await self._driver.files.name_version(call.caller, label)
        return Answer({"success": True, "new_version": label})

    async def weight_info(self, _: Call) -> Answer:
        """`GET /weight_info`."""
        return Answer({"weight_version": self._driver.seat.agent.version})

    async def drop_prefixes(self, call: Call) -> Answer:
        """`POST /reset_prefix_cache`."""
        wanted = asked(DropPrefixes, call) if call.query else parsed(DropPrefixes, call)
        done = await self._driver.seat.drop_prefixes(running=wanted.reset_running_requests)
        return Answer({"success": done})

    # --- adapters ------------------------------------------------------------------------------

    async def load_adapter(self, call: Call) -> Answer:
        """`POST /v1/load_lora_adapter`."""
        wanted = parsed(LoadAdapter, call)
        await self._driver.files.put_adapter(
            call.caller, wanted.lora_name, wanted.lora_path, wanted.version
        )
        return Answer({"status": "ok"})

    async def unload_adapter(self, call: Call) -> Answer:
        """`POST /v1/unload_lora_adapter`."""
        await self._driver.files.remove_adapter(call.caller, parsed(UnloadAdapter, call).lora_name)
        return Answer({"status": "ok"})

    # --- asking --------------------------------------------------------------------------------

    async def world_size(self, _: Call) -> Answer:
        """`GET /get_world_size`."""
        return Answer({"world_size": self._driver.seat.agent.engine.info.world_size})

    async def server_info(self, call: Call) -> Answer:
        """`GET /server_info?config_format=text|json`."""
        config = self._driver.seat.agent.engine.describe()
        as_json = call.parameters.get("config_format") == "json"
        return Answer({"vllm_config": config if as_json else str(config)})

    async def health(self, _: Call) -> Answer:
        """`GET /health`: 200 once a trainer may begin."""
        agent = self._driver.seat.agent
        content = {"status": "ok", "phase": agent.phase.value, "total_backends": 1}
        if self._driver.seat.is_healthy:
            return Answer(content)
        return Answer({**content, "status": "unavailable"}, 503)

    async def liveness(self, _: Call) -> Answer:
        """`GET /liveness`: a round trip to the engine."""
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self._driver.seat.agent.engine.ping()
        except (TimeoutError, EngineFailure):
            return Answer({"status": "engine_unresponsive"}, 503)
        return Answer({"status": "ok"})

    async def models(self, _: Call) -> Answer:
        """`GET /v1/models`."""
        return Answer({"object": "list", "data": await self._driver.seat.agent.engine.models()})

    async def metrics(self, _: Call) -> Answer:
        """`GET /metrics`."""
        return Answer(self._metrics(), media_type=b"text/plain; version=0.0.4; charset=utf-8")
