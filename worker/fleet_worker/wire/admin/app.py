"""The admin port: authenticate, read a small body, make one call, answer with the whole state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ValidationError

from fleet_worker.core.refusals import EngineFailure, Refusal, shorten, status_of
from fleet_worker.core.states import Event
from fleet_worker.protocol import (
    ADMIT_PATH,
    APPLY_PATH,
    DRAIN_PATH,
    FENCE_PATH,
    LIVE_PATH,
    LOAD_PATH,
    PAUSE_PATH,
    PROBE_PATH,
    READY_PATH,
    RESUME_PATH,
    STAGE_PATH,
    STATE_PATH,
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
from fleet_worker.runtime.logs import fields
from fleet_worker.wire.admin.bearer import BearerFile
from fleet_worker.wire.asgi import (
    BodyTooLargeError,
    Receive,
    Scope,
    Send,
    answer_json,
    header_of,
    read_body,
)
from fleet_worker.wire.probes import Probes

_LOG = logging.getLogger(__name__)
_BODY_LIMIT = 64 * 1024
_Call = Callable[[Any], Awaitable[None]]


class AdminApp:
    """The ASGI application of the admin port."""

    def __init__(
        self,
        agent: Agent,
        *,
        bearer: BearerFile,
        probes: Probes,
        state: Callable[[], WorkerState],
        drain: Callable[[], Awaitable[None]],
        on_refused: Callable[[Reason], None],
    ) -> None:
        """Make the application.

        Args:
            agent: What is driven.
            bearer: Who may drive.
            probes: Answers the open paths.
            state: Makes the state document.
            drain: Ends all requests and then the process.
            on_refused: Told about every answer that is not the state.
        """
        self._bearer = bearer
        self._probes = probes
        self._state = state
        self._on_refused = on_refused
        self._running: set[asyncio.Task[None]] = set()
        self._calls: dict[tuple[str, str], tuple[type[BaseModel] | None, _Call]] = {
            ("PUT", STAGE_PATH): (StageRequest, agent.stage),
            ("PUT", PAUSE_PATH): (PauseRequest, agent.pause),
            ("PUT", LOAD_PATH): (LoadRequest, agent.load),
            ("PUT", APPLY_PATH): (ApplyRequest, agent.apply),
            ("PUT", RESUME_PATH): (OpenRequest, lambda body: agent.open(body, Event.RESUME)),
            ("PUT", ADMIT_PATH): (OpenRequest, lambda body: agent.open(body, Event.ADMIT)),
            ("PUT", FENCE_PATH): (FenceRequest, agent.fence),
            ("PUT", PROBE_PATH): (ProbeRequest, agent.probe),
            ("POST", DRAIN_PATH): (None, lambda _: drain()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path in (LIVE_PATH, READY_PATH):
            await self._probes.answer(path, send)
            return
        if not self._bearer.accepts(header_of(scope["headers"], b"authorization")):
            await self._refuse(
                send, Refusal(Reason.UNAUTHORIZED, "a bearer token is needed, and this is none")
            )
            return
        if (method, path) == ("GET", STATE_PATH):
            await self._answer_state(send)
            return
        found = self._calls.get((method, path))
        if found is None:
            known = [m for m, p in [*self._calls, ("GET", STATE_PATH)] if p == path]
            message = f"use {known[0]} {path}" if known else "no such path"
            refusal = Refusal(Reason.BAD_REQUEST, message)
            await self._refuse(send, refusal, status=405 if known else 404)
            return
        model, call = found
        try:
            body = await read_body(receive, limit=_BODY_LIMIT)
            await self._perform(call, _parsed(model, body))
        except BodyTooLargeError:
            message = f"a body has at most {_BODY_LIMIT} bytes"
            await self._refuse(send, Refusal(Reason.BAD_REQUEST, message), status=413)
        except (Refusal, EngineFailure) as error:
            _LOG.info(
                "%s refused: %s",
                path.rpartition("/")[2],
                error.message,
                extra=fields("refused", call=path, reason=error.reason),
            )
            await self._refuse(send, error)
        except Exception:  # noqa: BLE001 - whoever drives must get an answer, also to our mistakes
            _LOG.exception("%s failed", path.rpartition("/")[2])
            broken = EngineFailure(
                "the worker failed at this call; its log says why", touched=False
            )
            await self._refuse(send, broken)
        else:
            await self._answer_state(send)

    async def _perform(self, call: _Call, body: BaseModel | None) -> None:
        """Make a call that goes on when its caller goes away."""
        task = asyncio.ensure_future(call(body))
        self._running.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, also when the caller went away

    async def _answer_state(self, send: Send) -> None:
        await answer_json(send, 200, self._state().model_dump_json(by_alias=True).encode())

    async def _refuse(
        self, send: Send, error: Refusal | EngineFailure, *, status: int | None = None
    ) -> None:
        self._on_refused(error.reason)
        retry_after = error.retry_after_seconds if isinstance(error, Refusal) else None
        detail = ErrorDetail(
            reason=error.reason, message=error.message, retry_after_seconds=retry_after
        )
        state = None if error.reason is Reason.UNAUTHORIZED else self._state()
        reply = ErrorReply(error=detail, state=state).model_dump_json(by_alias=True)
        await answer_json(send, status or status_of(error.reason), reply.encode())


def _parsed(model: type[BaseModel] | None, body: bytes) -> BaseModel | None:
    if model is None:
        return None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        # Which field and what is wrong with it, but not what was sent.
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False)
        )
        raise Refusal(Reason.BAD_REQUEST, shorten(problems)) from error
