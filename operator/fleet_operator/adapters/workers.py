"""Client of the worker protocol. Implements `ports.Workers`.

Keep-alive pools for all workers, since fan-out over fresh connections costs twice the time.
Proxies of the environment are not used: workers are reached by pod address.

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
from http import HTTPStatus
from typing import Any, assert_never

import aiohttp
from pydantic_core import from_json

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
MAX_CONNECTIONS = 4096
MAX_HEADERS = 32
MAX_HEADER_BYTES = 1024
"""Of one header, and of the status line."""
_READ_BYTES = 64 * 1024


class WorkerClient:
    """Talks to workers' admin ports; made inside of the event loop that it is used in.

    Calls that last (staging takes minutes) have connections of their own, so that they leave room
    for questions and for pauses.
    """

    def __init__(self) -> None:
        self._quick = _pool(MAX_CONNECTIONS)
        self._lasting = _pool(0)
        # A number grows from call to call, so that a worker takes each call once, and none late.
        self._session = secrets.token_hex(16)
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        """Close the pools."""
        await self._quick.close()
        await self._lasting.close()

    async def state(self, worker: Addressee) -> WorkerAnswer:
        """Ask a worker for its state."""
        return await self._ask(
            self._quick, worker, "GET", protocol.STATE_PATH, b"", QUESTION_SECONDS
        )

    async def call(
        self, worker: Addressee, action: WorkerCall, epoch: protocol.Epoch
    ) -> WorkerAnswer:
        """Ask a worker to act, and wait for the end of it."""
        path, message, seconds = _request_of(action, epoch)
        pool = self._quick if seconds <= SHORT_CALL_SECONDS else self._lasting
        method = "DELETE" if isinstance(action, RemoveAdapter) else "PUT"
        body = message.model_dump_json(by_alias=True, exclude_none=True).encode()
        return await self._ask(pool, worker, method, path, body, seconds)

    async def _ask(
        self,
        pool: aiohttp.ClientSession,
        worker: Addressee,
        method: str,
        path: str,
        body: bytes,
        seconds: float,
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
            async with (
                asyncio.timeout(seconds),
                pool.request(
                    method,
                    worker.base_url + path,
                    data=body or None,
                    headers=_headers(call, signature),
                    allow_redirects=False,
                ) as response,
            ):
                content = await _content_of(response)
        except (aiohttp.ClientError, OSError, EOFError, TimeoutError, ValueError) as error:
            return _silence(str(error) or type(error).__name__)
        except Exception as error:  # whatever an answer does to the libraries below
            logger.exception("an answer of %s cannot be read", worker.base_url)
            return _silence(f"its answer cannot be read: {type(error).__name__}")
        claimed = response.headers.get(protocol.HEADER_SIGNATURE, "")
        expected = protocol.answer_signature(
            worker.token, call=signature, status=response.status, body=content
        )
        if not hmac.compare_digest(expected.encode(), claimed.encode(errors="replace")):
            return _unproven(response.status)
        answer = _read(response.status, content)
        if answer.silent:
            return answer
        problem = problem_of_answer(worker.pod_uid, answer.state, answer.reason)
        return _silence(problem) if problem else answer


def _pool(connections: int) -> aiohttp.ClientSession:
    """A pool of connections; 0: as many as there are calls."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        # The time-out of a request is `_ask`'s: these count from byte to byte.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        trust_env=False,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BYTES,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
    )


def _headers(call: protocol.SignedCall, signature: str) -> dict[str, str]:
    return {
        "Authorization": f"{protocol.SIGNATURE_SCHEME} {signature}",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        protocol.HEADER_POD_UID: call.pod_uid,
        protocol.HEADER_INSTANCE: call.instance,
        protocol.HEADER_NONCE: call.nonce,
        protocol.HEADER_BODY_DIGEST: call.body_digest,
    }


async def _content_of(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer. A connection with an answer that was not read is not used again.

    Errors:
        ValueError: it is packed, or too long, or does not say how long it is.
    """
    if "Content-Encoding" in response.headers:
        raise ValueError("its answer is packed, which no worker does")
    length, most = response.content_length, protocol.MAX_ANSWER_BYTES
    if length is None or length > most:
        raise ValueError(f"its answer has {length or 'an unknown number of'} bytes, at most {most}")
    return await response.content.readexactly(length)


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
