"""All APIs of the admin port, over one agent and one driver."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from fleet_worker.admin.api import (
    LARGE_BODY,
    Answer,
    Api,
    Call,
    Handler,
    explain_to_trainer,
)
from fleet_worker.admin.operator import operator_api
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.protocol import Reason, WorkerState
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.dynamo import Dynamo
from fleet_worker.trainer.prime_rl import PrimeRl
from fleet_worker.trainer.vllm import Vllm


def all_apis(
    agent: Agent,
    driver: Driver,
    *,
    state: Callable[[], WorkerState],
    drain: Callable[[], Awaitable[None]],
    metrics: Callable[[], bytes],
) -> list[Api]:
    """Make all APIs. The operator's is the first. `drain` ends all requests and then the process."""
    vllm = Vllm(driver, metrics)
    prime = PrimeRl(driver, vllm)
    # Clients of vLLM and of prime-rl use one path for different calls. The body decides.
    update = _by_key({"update_info": vllm.receive, "weight_dir": prime.update_weights})
    routes = {("POST", "/update_weights"): update}
    shared = Api("shared", routes, explain_to_trainer, body_limit=LARGE_BODY)
    return [
        operator_api(agent, state, drain),
        vllm.api(),
        prime.api(),
        shared,
        Dynamo(driver, vllm).api(),
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
