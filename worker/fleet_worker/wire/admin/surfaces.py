"""All surfaces of the admin port, over one agent and one driver."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason, WorkerState
from fleet_worker.runtime.agent import Agent
from fleet_worker.runtime.driver import Driver
from fleet_worker.wire.admin.operator import operator_surface
from fleet_worker.wire.areal.reply import AReaL
from fleet_worker.wire.control import (
    LARGE_BODY,
    Answer,
    Call,
    Handler,
    Surface,
    explain_to_trainer,
)
from fleet_worker.wire.engine_routes.reply import EngineRoutes
from fleet_worker.wire.prime_rl.reply import PrimeRl
from fleet_worker.wire.vllm_rl.reply import VllmRl


def all_surfaces(
    agent: Agent,
    driver: Driver,
    *,
    state: Callable[[], WorkerState],
    drain: Callable[[], Awaitable[None]],
    metrics: Callable[[], bytes],
) -> list[Surface]:
    """Make them; the operator's is the first.

    Args:
        agent: What is driven.
        driver: How trainers drive it.
        state: Makes the state document.
        drain: Ends all requests and then the process.
        metrics: The text of `/metrics`.
    """
    vllm = VllmRl(driver, metrics)
    prime = PrimeRl(driver, vllm)
    # vLLM's clients and prime-rl's mean different things by one path; the body tells them apart.
    update = _by_key({"update_info": vllm.receive, "weight_dir": prime.update_weights})
    routes = {("POST", "/update_weights"): update}
    shared = Surface("shared", routes, explain_to_trainer, body_limit=LARGE_BODY)
    return [
        operator_surface(agent, state, drain),
        vllm.surface(),
        prime.surface(),
        shared,
        EngineRoutes(driver, vllm).surface(),
        AReaL(driver).surface(),
    ]


def _by_key(handlers: Mapping[str, Handler]) -> Handler:
    async def handle(call: Call) -> Answer:
        try:
            body = json.loads(call.body or b"{}")
        except (ValueError, RecursionError):
            body = None
        found = [h for key, h in handlers.items() if isinstance(body, dict) and key in body]
        if len(found) != 1:
            keys = " or ".join(handlers)
            raise Refusal(Reason.BAD_REQUEST, f"the body must be an object with {keys}, not both")
        return await found[0](call)

    return handle
