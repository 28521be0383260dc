"""Client of the worker protocol. Implements `ports.Workers`.

Connections are kept, since fan-out over fresh ones costs twice the time. Workers are reached by pod
address, past any proxy of the environment. A call may arrive twice (`HttpClient.ask`): it carries one
number, so that a worker takes it once.

What comes back is not trusted. A fleet's image chooses what answers, and an address may belong to
another pod by now. So every call is signed for one pod and counts only with a signed answer of that
pod, of bounded length, as it is: no redirect is followed and nothing is unpacked.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
from functools import lru_cache
from http import HTTPStatus
from typing import Any, assert_never
from urllib.parse import urlsplit

from pydantic_core import from_json

from fleet_operator.adapters.http_client import Address, HttpClient, HttpError
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
from fleet_operator.core.answers import problem_of_answer
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_worker import protocol

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
QUESTION_SECONDS = 3.0
SHORT_CALL_SECONDS = 10.0
MAX_IDLE_CONNECTIONS = 12_000
"""One for each worker of the largest fleet, and some more."""
_SIGNATURE_HEADER = protocol.HEADER_SIGNATURE.lower()
_HEAD_LINES = 11


class WorkerClient:
    """Talks to workers' admin ports; made inside of the event loop that it is used in."""

    def __init__(self) -> None:
        self._http = HttpClient(
            max_body_bytes=protocol.MAX_ANSWER_BYTES,
            max_idle=MAX_IDLE_CONNECTIONS,
            connect_timeout_seconds=CONNECT_SECONDS,
        )
        # A number grows from call to call, so that a worker takes each call once, and none late.
        self._session = secrets.token_hex(16)
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        """End the connections."""
        self._http.close()

    async def state(self, worker: Addressee) -> WorkerAnswer:
        """Ask a worker for its state."""
        return await self._ask(worker, "GET", protocol.STATE_PATH, b"", QUESTION_SECONDS)

    async def call(
        self, worker: Addressee, action: WorkerCall, epoch: protocol.Epoch
    ) -> WorkerAnswer:
        """Ask a worker to act, and wait for the end of it."""
        path, message, seconds = _request_of(action, epoch)
        method = "DELETE" if isinstance(action, RemoveAdapter) else "PUT"
        body = message.model_dump_json(by_alias=True, exclude_none=True).encode()
        return await self._ask(worker, method, path, body, seconds)

    async def _ask(
        self, worker: Addressee, method: str, path: str, body: bytes, seconds: float
    ) -> WorkerAnswer:
        """One request; whatever comes back, the outcome is an answer."""
        call = protocol.SignedCall(
            method=method,
            path=path,
            pod_uid=worker.pod_uid,
            instance=worker.instance,
            nonce=f"{self._session}-{next(self._numbers)}",
            body_digest=protocol.body_digest(body),
        )
        signature = protocol.call_signature(worker.token, call)
        try:
            address = _address_of(worker.base_url)
            request = _request_bytes(call, signature, address, body)
            async with asyncio.timeout(seconds):
                answer = await self._http.ask(address, request)
        except (HttpError, OSError, TimeoutError, ValueError) as error:
            return _silence(str(error) or type(error).__name__)
        except Exception as error:  # whatever an answer does to the code below
            logger.exception("an answer of %s cannot be read", worker.base_url)
            return _silence(f"its answer cannot be read: {type(error).__name__}")
        claimed = answer.headers.get(_SIGNATURE_HEADER, "")
        expected = protocol.answer_signature(
            worker.token, call=signature, status=answer.status, body=answer.body
        )
        if not hmac.compare_digest(expected.encode(), claimed.encode(errors="replace")):
            return _unproven(answer.status)
        found = _read(answer.status, answer.body)
        if found.silent:
            return found
        problem = problem_of_answer(worker.pod_uid, found.state, found.reason)
        return _silence(problem) if problem else found


@lru_cache(maxsize=20_000)
def _address_of(base_url: str) -> Address:
    """Host and port of `http://host:port`.

    Errors: ValueError, if it is no such URL.
    """
    parts = urlsplit(base_url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"{base_url} is not the URL of a worker")
    return parts.hostname, parts.port


def _request_bytes(
    call: protocol.SignedCall, signature: str, address: Address, body: bytes
) -> bytes:
    """The request as it is sent.

    Errors: ValueError, if a header would hold a line break.
    """
    host, port = address
    named = f"[{host}]" if ":" in host else host
    head = (
        f"{call.method} {call.path} HTTP/1.1\r\n"
        f"Host: {named}:{port}\r\n"
        f"Authorization: {protocol.SIGNATURE_SCHEME} {signature}\r\n"
        "Accept-Encoding: identity\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"{protocol.HEADER_POD_UID}: {call.pod_uid}\r\n"
        f"{protocol.HEADER_INSTANCE}: {call.instance}\r\n"
        f"{protocol.HEADER_NONCE}: {call.nonce}\r\n"
        f"{protocol.HEADER_BODY_DIGEST}: {call.body_digest}\r\n"
        "\r\n"
    )
    if head.count("\n") != _HEAD_LINES or head.count("\r") != _HEAD_LINES:
        raise ValueError("a line break in a header of a call")
    return head.encode("latin-1") + body


def _read(status: int, content: bytes) -> WorkerAnswer:
    try:
        # Read first and judged then: an error about bytes holds a copy of all of them, for each of
        # its complaints (measured: 280 ms of CPU for the worst half MiB, so 20).
        document = from_json(content, allow_inf_nan=False)
        if 200 <= status < 300:
            return WorkerAnswer(state=protocol.WorkerState.model_validate(document))
        reply = protocol.ErrorReply.model_validate(document)
    except ValueError:
        return _silence(f"answers {status} with a body that is not of this protocol")
    return WorkerAnswer(state=reply.state, reason=reply.error.reason, message=reply.error.message)


def _unproven(status: int) -> WorkerAnswer:
    if status == HTTPStatus.UNAUTHORIZED:
        message = (
            "it does not accept this fleet's admin token: it has read another one, or another "
            "process has its address"
        )
        return _silence(message, reason=protocol.Reason.UNAUTHORIZED)
    return _silence(
        f"its answer, {status}, is not signed with this fleet's admin token: another process has "
        "its address, or the worker is of another release"
    )


def _silence(message: str, *, reason: protocol.Reason | None = None) -> WorkerAnswer:
    return WorkerAnswer(silent=True, message=message, reason=reason)


def _request_of(  # noqa: C901, PLR0911 - one case for each kind of call
    action: WorkerCall, epoch: protocol.Epoch
) -> tuple[str, protocol.Message, float]:
    """Path, body and longest duration in seconds of a call."""
    match action:
        case Stage():
            source = action.source.to_protocol()
            stage = protocol.StageRequest(**_named(action), source=source, epoch=epoch)
            return protocol.STAGE_PATH, stage, action.timeout_seconds
        case Pause():
            pause = protocol.PauseRequest(
                mode=action.mode,
                drain_timeout_seconds=action.drain_timeout_seconds,
                lease_seconds=action.lease_seconds,
                epoch=epoch,
            )
            drain_seconds = (
                action.drain_timeout_seconds if action.mode is protocol.PauseMode.WAIT else 0
            )
            return protocol.PAUSE_PATH, pause, drain_seconds + SHORT_CALL_SECONDS
        case Load():
            load = protocol.LoadRequest(**_named(action), epoch=epoch)
            return protocol.LOAD_PATH, load, action.timeout_seconds
        case Apply():
            swap = protocol.ApplyRequest(
                **_named(action),
                mode=action.mode,
                drain_timeout_seconds=action.drain_timeout_seconds,
                lease_seconds=action.lease_seconds,
                epoch=epoch,
            )
            seconds = action.drain_timeout_seconds + action.timeout_seconds
            return protocol.APPLY_PATH, swap, seconds
        case Resume():
            opened = protocol.OpenRequest(**_named(action), epoch=epoch)
            return protocol.RESUME_PATH, opened, SHORT_CALL_SECONDS
        case Admit():
            opened = protocol.OpenRequest(**_named(action), epoch=epoch)
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
                run_id=action.run_id,
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


def _named(action: WorkerCall) -> dict[str, Any]:
    """The fields that name weights in a request."""
    return {"version": action.version, "run_id": action.run_id, "digest": action.digest}
