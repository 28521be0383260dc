"""Signed calls to the admin ports of workers, over HTTP.

Answers are not trusted, as in the operator's client: a fleet's image decides what answers, and another
pod may have the address by now. An answer counts if it is signed for this call. Its length is limited, and
it stays bytes until it is needed: a document takes 25 times the memory.
No redirect is followed, and no answer is decompressed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from pydantic import ValidationError

from fleet_api.ports import MAX_REPLY_BYTES, Target, WorkerReply, WorkerRequest
from fleet_operator.clients.http_client import HttpClient
from fleet_operator.clients.http_response import HttpResponse
from fleet_operator.clients.signed_request import Nonces, SignedRequest, is_signed
from fleet_operator.ports import Addressee
from fleet_worker import protocol

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
CHANGE_SECONDS = 1800.0
"""As long as the most patient trainer waits for a load (NeMo-RL, TRL)."""
MAX_KNOWN = 12_000
"""Largest number of known processes and of idle connections: those of the largest fleet, and some more."""
MAX_BUFFERED_BYTES = 32 * 1024 * 1024
"""Limit for all unfinished answers together: an eighth of the chart's memory limit."""
_STATE = SignedRequest.of("GET", protocol.STATE_PATH, seconds=READ_SECONDS)


class _State(protocol.Message):
    """The part of a worker's state that the RL API reads."""

    instance: protocol.Label


class AdminPorts:
    """Implements `ports.Workers`."""

    def __init__(self) -> None:
        # No limit of calls: a transfer of weights needs its call at all workers at the same time.
        self._http = HttpClient(
            max_body_bytes=protocol.MAX_ANSWER_BYTES,
            max_idle=MAX_KNOWN,
            connect_timeout_seconds=CONNECT_SECONDS,
            max_buffered_bytes=MAX_BUFFERED_BYTES,
        )
        self._nonces = Nonces()
        self._instances: OrderedDict[Target, str] = OrderedDict()
        """Worker → the process that answered last."""

    async def close(self) -> None:
        """End the connections."""
        self._http.close()

    async def send(self, target: Target, token: str, request: WorkerRequest) -> WorkerReply:
        """See `ports.Workers`. Every outcome is a reply, never an exception."""
        if request.method == "GET":
            return await self._call(target, token, _signed(request, READ_SECONDS), "")
        known = self._instances.get(target)
        if known is not None:
            reply = await self._call(target, token, _signed(request, CHANGE_SECONDS), known)
            if not _is_stale(reply):
                return reply
        instance, silence = await self._instance(target, token)
        # A worker also answers "stale" to a call that it has accepted before, which has had its effect.
        if silence is not None or (known is not None and instance == known):
            return silence or reply
        return await self._call(target, token, _signed(request, CHANGE_SECONDS), instance)

    async def _call(
        self, target: Target, token: str, request: SignedRequest, instance: str
    ) -> WorkerReply:
        reply = await self._ask(target, token, request, instance)
        size = len(reply.content)
        if size > MAX_REPLY_BYTES:
            fact = f"its answer has {size} bytes; the limit is {MAX_REPLY_BYTES}"
            return WorkerReply(problem=f"{fact}; check the worker's image")
        if reply.status and reply.body is None:
            return WorkerReply(problem=f"its answer, {reply.status}, is not a JSON object")
        return reply

    async def _instance(self, target: Target, token: str) -> tuple[str, WorkerReply | None]:
        """Ask which process answers now. Returns: its instance; without one, empty and the failed reply."""
        state = await self._ask(target, token, _STATE, "")
        instance = _instance_in(state)
        if not instance:
            self._instances.pop(target, None)
            return "", WorkerReply(problem=state.problem or "it does not answer with its state")
        self._instances[target] = instance
        self._instances.move_to_end(target)
        if len(self._instances) > MAX_KNOWN:
            self._instances.popitem(last=False)
        return instance, None

    async def _ask(
        self, target: Target, token: str, request: SignedRequest, instance: str
    ) -> WorkerReply:
        worker = Addressee(
            base_url=target.url, token=token, pod_uid=target.pod_uid, instance=instance
        )
        done: asyncio.Future[HttpResponse | Exception] = asyncio.Future()
        try:
            address, signature, sent = request.to(worker, self._nonces.next())
        except ValueError as error:
            return WorkerReply(problem=str(error))

        def end(outcome: HttpResponse | Exception) -> None:
            if not done.done():
                done.set_result(outcome)

        exchange = self._http.send(address, sent, end, timeout_seconds=request.seconds)
        try:
            outcome = await done
        except asyncio.CancelledError:
            exchange.give_up()
            raise
        if isinstance(outcome, Exception):
            return WorkerReply(problem=f"it does not answer ({outcome})")
        return _read(token, signature, outcome)


def _signed(request: WorkerRequest, seconds: float) -> SignedRequest:
    return SignedRequest(
        method=request.method,
        path=request.path,
        body=request.body,
        body_digest=request.body_digest,
        seconds=seconds,
        driver=request.driver,
    )


def _read(token: str, signature: str, answer: HttpResponse) -> WorkerReply:
    """The answer to the call with this signature."""
    if not is_signed(answer, token, signature):
        return WorkerReply(problem=f"its answer, {answer.status}, is not signed for this call")
    return WorkerReply(status=answer.status, content=answer.body)


def _instance_in(state: WorkerReply) -> str:
    """The process that has answered; empty if the answer is not a worker's state."""
    try:
        return _State.model_validate_json(state.content).instance if state.is_good else ""
    except ValidationError:
        return ""


def _is_stale(reply: WorkerReply) -> bool:
    error = (reply.body or {}).get("error")
    return isinstance(error, dict) and error.get("reason") == protocol.Reason.STALE_CALL
