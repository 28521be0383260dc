"""Client of the worker protocol. Implements `ports.Workers`.

Keep-alive pools for all workers, since fan-out over fresh connections costs twice the time.
Proxies of the environment are not used: workers are reached by pod address.
"""

from __future__ import annotations

import asyncio
from typing import assert_never

import httpx
from pydantic import ValidationError

from fleet_operator.core.actions import (
    Admit,
    Apply,
    Fence,
    Load,
    Pause,
    Probe,
    PutAdapter,
    RemoveAdapter,
    Resume,
    Stage,
    WorkerCall,
)
from fleet_operator.ports import WorkerAnswer
from fleet_worker import protocol

CONNECT_SECONDS = 2.0
QUESTION_SECONDS = 3.0
SHORT_CALL_SECONDS = 10.0
MAX_CONNECTIONS = 4096


class WorkerClient:
    """Talks to workers' admin ports.

    Calls that last (staging takes minutes) have connections of their own, so that they leave room
    for questions and for pauses.
    """

    def __init__(self) -> None:
        self._quick = _pool(MAX_CONNECTIONS)
        self._lasting = _pool(None)

    async def close(self) -> None:
        """Close the pools."""
        await self._quick.aclose()
        await self._lasting.aclose()

    async def state(self, base_url: str, token: str) -> WorkerAnswer:
        """Ask a worker for its state."""
        url = base_url + protocol.STATE_PATH
        request = self._quick.build_request("GET", url, headers=_headers(token))
        return await _answer(self._quick, request, QUESTION_SECONDS)

    async def call(
        self, base_url: str, token: str, action: WorkerCall, epoch: protocol.Epoch
    ) -> WorkerAnswer:
        """Ask a worker to act, and wait for the end of it."""
        path, body, seconds = _request_of(action, epoch)
        pool = self._quick if seconds <= SHORT_CALL_SECONDS else self._lasting
        request = pool.build_request(
            "DELETE" if isinstance(action, RemoveAdapter) else "PUT",
            base_url + path,
            headers=_headers(token),
            json=body.model_dump(mode="json", by_alias=True, exclude_none=True),
        )
        return await _answer(pool, request, seconds)


def _pool(connections: int | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        trust_env=False,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        # The time-out of a request is `_answer`'s: these count from byte to byte.
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
    )


async def _answer(pool: httpx.AsyncClient, request: httpx.Request, seconds: float) -> WorkerAnswer:
    try:
        async with asyncio.timeout(seconds):
            response = await pool.send(request)
    except (httpx.HTTPError, TimeoutError) as error:
        told = str(error) or type(error).__name__
        return WorkerAnswer(silent=True, message=told)
    try:
        if response.is_success:
            return WorkerAnswer(state=protocol.WorkerState.model_validate_json(response.content))
        reply = protocol.ErrorReply.model_validate_json(response.content)
    except ValidationError:
        told = f"answers {response.status_code} with a body that is not of this protocol"
        return WorkerAnswer(silent=True, message=told)
    return WorkerAnswer(state=reply.state, reason=reply.error.reason, message=reply.error.message)


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _request_of(  # noqa: C901, PLR0911 - one case for each kind of call
    action: WorkerCall, epoch: protocol.Epoch
) -> tuple[str, protocol.Message, float]:
    """Path, body and longest duration in seconds of a call."""
    match action:
        case Stage():
            source = action.source.to_protocol()
            stage = protocol.StageRequest(
                version=action.version, source=source, digest=action.digest, epoch=epoch
            )
            return protocol.STAGE_PATH, stage, action.timeout_seconds
        case Pause():
            pause = protocol.PauseRequest(
                mode=protocol.PauseMode(action.mode),
                drain_timeout_seconds=action.drain_timeout_seconds,
                lease_seconds=action.lease_seconds,
                epoch=epoch,
            )
            drain_seconds = action.drain_timeout_seconds if action.mode == "wait" else 0
            return protocol.PAUSE_PATH, pause, drain_seconds + SHORT_CALL_SECONDS
        case Load():
            load = protocol.LoadRequest(version=action.version, epoch=epoch)
            return protocol.LOAD_PATH, load, action.timeout_seconds
        case Apply():
            swap = protocol.ApplyRequest(
                version=action.version,
                mode=protocol.PauseMode(action.mode),
                drain_timeout_seconds=action.drain_timeout_seconds,
                lease_seconds=action.lease_seconds,
                epoch=epoch,
            )
            seconds = action.drain_timeout_seconds + action.timeout_seconds
            return protocol.APPLY_PATH, swap, seconds
        case Resume():
            opened = protocol.OpenRequest(version=action.version, epoch=epoch)
            return protocol.RESUME_PATH, opened, SHORT_CALL_SECONDS
        case Admit():
            opened = protocol.OpenRequest(version=action.version, epoch=epoch)
            return protocol.ADMIT_PATH, opened, SHORT_CALL_SECONDS
        case Fence():
            fence = protocol.FenceRequest(
                reason=action.reason[:500],
                drain_timeout_seconds=action.drain_timeout_seconds,
                epoch=epoch,
            )
            seconds = action.drain_timeout_seconds + SHORT_CALL_SECONDS
            return protocol.FENCE_PATH, fence, seconds
        case Probe():
            probe = protocol.ProbeRequest(
                prompts=action.prompts, max_tokens=action.max_tokens, epoch=epoch
            )
            return protocol.PROBE_PATH, probe, action.timeout_seconds
        case PutAdapter():
            adapter = protocol.AdapterRequest(
                version=action.version,
                source=action.source.to_protocol(),
                digest=action.digest,
                epoch=epoch,
            )
            return protocol.ADAPTERS_PATH + action.adapter, adapter, action.timeout_seconds
        case RemoveAdapter():
            removal = protocol.AdapterRemoval(epoch=epoch)
            return protocol.ADAPTERS_PATH + action.adapter, removal, SHORT_CALL_SECONDS
        case _:
            assert_never(action)
