"""The operator's surface, `/v1/worker/*`: every call answers with the worker's whole state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import (
    ADAPTERS_PATH,
    ADMIT_PATH,
    APPLY_PATH,
    DRAIN_PATH,
    FENCE_PATH,
    LOAD_PATH,
    PAUSE_PATH,
    PROBE_PATH,
    RESUME_PATH,
    STAGE_PATH,
    STATE_PATH,
    AdapterName,
    AdapterRemoval,
    AdapterRequest,
    ApplyRequest,
    ErrorDetail,
    ErrorReply,
    FenceRequest,
    LoadRequest,
    OpenRequest,
    PauseRequest,
    ProbeRequest,
    Reason,
    StageRequest,
    WorkerState,
)
from fleet_worker.runtime.agent import Agent
from fleet_worker.wire.control import LARGE_BODY, Answer, Call, Handler, Surface, parsed

_NAMES: TypeAdapter[str] = TypeAdapter(AdapterName)


def operator_surface(
    agent: Agent, state: Callable[[], WorkerState], drain: Callable[[], Awaitable[None]]
) -> Surface:
    """Make the surface.

    Args:
        agent: What is driven.
        state: Makes the state document.
        drain: Ends all requests and then the process.
    """

    def answer() -> Answer:
        return Answer(state().model_dump_json(by_alias=True).encode())

    def calls(model: type[BaseModel], act: Callable[[Any], Awaitable[object]]) -> Handler:
        async def handle(call: Call) -> Answer:
            await act(parsed(model, call))
            return answer()

        return handle

    def names(model: type[BaseModel], act: Callable[[str, Any], Awaitable[None]]) -> Handler:
        async def handle(call: Call) -> Answer:
            await act(_adapter_name(call.rest), parsed(model, call))
            return answer()

        return handle

    async def tell(_: Call) -> Answer:
        return answer()

    async def end(_: Call) -> Answer:
        await drain()
        return answer()

    def explain(error: Refusal | EngineFailure, status: int) -> Answer:
        retry_after = error.retry_after_seconds if isinstance(error, Refusal) else None
        detail = ErrorDetail(
            reason=error.reason, message=error.message, retry_after_seconds=retry_after
        )
        shown = None if error.reason is Reason.UNAUTHORIZED else state()
        reply = ErrorReply(error=detail, state=shown)
        return Answer(reply.model_dump_json(by_alias=True).encode(), status)

    routes = {
        ("GET", STATE_PATH): tell,
        ("PUT", STAGE_PATH): calls(StageRequest, agent.stage),
        ("PUT", PAUSE_PATH): calls(PauseRequest, agent.pause),
        ("PUT", LOAD_PATH): calls(LoadRequest, agent.load),
        ("PUT", APPLY_PATH): calls(ApplyRequest, agent.apply),
        ("PUT", RESUME_PATH): calls(OpenRequest, lambda body: agent.open(body, Event.RESUME)),
        ("PUT", ADMIT_PATH): calls(OpenRequest, lambda body: agent.open(body, Event.ADMIT)),
        ("PUT", FENCE_PATH): calls(FenceRequest, agent.fence),
        ("PUT", PROBE_PATH): calls(ProbeRequest, agent.probe),
        ("PUT", ADAPTERS_PATH): names(AdapterRequest, agent.put_adapter),
        ("DELETE", ADAPTERS_PATH): names(AdapterRemoval, agent.remove_adapter),
        ("POST", DRAIN_PATH): end,
    }
    # The prompts of a canary: 32 of 4,000 letters, of up to 12 bytes each where they are escaped.
    return Surface("operator", routes, explain, body_limit=LARGE_BODY)


def _adapter_name(text: str) -> str:
    try:
        return _NAMES.validate_python(text)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, "the path names no adapter") from error
