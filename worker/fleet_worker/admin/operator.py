"""The operator's API, `/v1/worker/*`. Every call answers with the worker's whole state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet_worker.admin.api import LARGE_BODY, Answer, Api, Call, Handler, parsed
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.states import Event
from fleet_worker.protocol import (
    DRAIN_PATH,
    STATE_PATH,
    AdapterName,
    AdapterRemoval,
    AdapterRequest,
    AdmitRequest,
    ApplyRequest,
    ErrorDetail,
    ErrorReply,
    FenceRequest,
    LoadRequest,
    PauseRequest,
    PromptsRequest,
    Reason,
    Request,
    ResumeRequest,
    StageRequest,
    WantedRequest,
    WorkerState,
)

Routes = dict[tuple[str, str], Handler]
_NAMES: TypeAdapter[str] = TypeAdapter(AdapterName)


def operator_api(
    agent: Agent, state: Callable[[], WorkerState], drain: Callable[[], Awaitable[None]]
) -> Api:
    """Make the API. `drain` ends all requests and then the process."""

    def answer() -> Answer:
        return Answer(state().model_dump_json(by_alias=True).encode())

    def to_engine(model: type[Request], act: Callable[[Any], Awaitable[object]]) -> Routes:
        async def handle(call: Call) -> Answer:
            await act(parsed(model, call))
            return answer()

        return {(model.method, model.path): handle}

    def to_adapter(model: type[Request], act: Callable[[str, Any], Awaitable[None]]) -> Routes:
        async def handle(call: Call) -> Answer:
            await act(_adapter_name(call.rest), parsed(model, call))
            return answer()

        return {(model.method, model.path): handle}

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
        **to_engine(StageRequest, agent.stage),
        **to_engine(PauseRequest, agent.pause),
        **to_engine(LoadRequest, agent.load),
        **to_engine(ApplyRequest, agent.apply),
        **to_engine(ResumeRequest, lambda body: agent.open(body, Event.RESUME)),
        **to_engine(AdmitRequest, lambda body: agent.open(body, Event.ADMIT)),
        **to_engine(FenceRequest, agent.fence),
        **to_engine(WantedRequest, agent.hear),
        **to_engine(PromptsRequest, agent.run_prompts),
        **to_adapter(AdapterRequest, agent.put_adapter),
        **to_adapter(AdapterRemoval, agent.remove_adapter),
        ("POST", DRAIN_PATH): end,
    }
    # Canary prompts: 32 with 4,000 letters, each up to 12 bytes when escaped.
    return Api("operator", routes, explain, body_limit=LARGE_BODY)


def _adapter_name(text: str) -> str:
    try:
        return _NAMES.validate_python(text)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, "the path does not name a LoRA adapter") from error
