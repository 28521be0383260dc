"""Client of the worker protocol. Implements `ports.Workers`.

Connections are kept, since new ones would double the time of a fan-out. Requests go to the pod's
address, and ignore proxies of the environment. A call may arrive twice (`HttpClient.send`). Its nonce
makes the worker accept it once.

Answers are not trusted: a fleet's image decides what answers, and another pod may have the address by
now. Every call is signed for one pod, and its answer must be signed by that pod. Answers have a limited
length. The client follows no redirects and decompresses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from time import monotonic

from pydantic_core import from_json

from fleet_operator.clients.answers_in_turn import AnswersInTurn
from fleet_operator.clients.http_client import Exchange, HttpClient
from fleet_operator.clients.http_response import HttpError, HttpResponse
from fleet_operator.clients.signed_request import Nonces, SignedRequest, is_signed
from fleet_operator.clients.worker_requests import Requests
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.answers import problem_of_answer
from fleet_operator.measured import held_seconds
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_worker import protocol

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
MAX_IDLE_CONNECTIONS = 12_000
"""One for each worker of the largest fleet, and some more."""


class WorkerClient:
    """Client of the workers' admin ports. Create it in the event loop that uses it."""

    def __init__(self) -> None:
        self._http = HttpClient(
            max_body_bytes=protocol.MAX_ANSWER_BYTES,
            max_idle=MAX_IDLE_CONNECTIONS,
            connect_timeout_seconds=CONNECT_SECONDS,
        )
        self._requests = Requests()
        self._nonces = Nonces()
        self._turns = AnswersInTurn()

    async def close(self) -> None:
        """End the connections."""
        self._http.close()

    def state(self, worker: Addressee) -> asyncio.Future[WorkerAnswer]:
        """Read a worker's state."""
        return self._ask(worker, self._requests.read_state)

    def tell(
        self, worker: Addressee, wanted: protocol.WantedRequest
    ) -> asyncio.Future[WorkerAnswer]:
        """Name the desired versions to a process, and read its state."""
        return self._ask(worker, self._requests.tell(wanted))

    def call(
        self, worker: Addressee, action: WorkerCall, epoch: protocol.Epoch
    ) -> asyncio.Future[WorkerAnswer]:
        """Send a worker call. The answer comes when the worker has acted."""
        return self._ask(worker, self._requests.call(action, epoch))

    def _ask(self, worker: Addressee, request: SignedRequest) -> asyncio.Future[WorkerAnswer]:
        """Send one request. Every outcome is an answer, never an exception."""
        asked = _Asked(worker, self._turns)
        try:
            address, asked.signature, sent = request.to(worker, self._nonces.next())
        except ValueError as error:
            asked.set_result(_silence(str(error)))
        else:
            asked.exchange = self._http.send(
                address, sent, asked.take, timeout_seconds=request.seconds
            )
        return asked


class _Asked(asyncio.Future[WorkerAnswer]):
    """The answer to one request. Cancelling it ends the connection."""

    __slots__ = ("exchange", "signature", "turns", "worker")

    def __init__(self, worker: Addressee, turns: AnswersInTurn) -> None:
        super().__init__()
        self.worker = worker
        self.turns = turns
        self.signature = ""
        self.exchange: Exchange | None = None

    def cancel(self, msg: object | None = None) -> bool:
        """Cancel the request."""
        if self.exchange is not None:
            self.exchange.give_up()
        return super().cancel(msg)

    def take(self, outcome: HttpResponse | Exception) -> None:
        """Take the outcome of the request."""
        size_bytes = len(outcome.body) if isinstance(outcome, HttpResponse) else 0
        read = partial(self._read, outcome)
        self.turns.add(self.worker.namespace, size_bytes, read, self._drop)

    def _drop(self) -> None:
        if not self.done():
            self.set_result(_silence("its answer was dropped: too many bytes wait to be read"))

    def _read(self, outcome: HttpResponse | Exception) -> None:
        if self.done():
            return
        began = monotonic()
        try:
            answer = _read(self.worker, self.signature, outcome)
        except Exception as error:  # an answer must not break its reader
            logger.exception("defect: an answer of %s cannot be read", self.worker.base_url)
            answer = _silence(f"its answer cannot be read: {type(error).__name__}")
        self.set_result(replace(answer, cost_seconds=held_seconds(began)))


def _read(worker: Addressee, call: str, outcome: HttpResponse | Exception) -> WorkerAnswer:
    """The answer of a worker. `call`: the signature of the answered call."""
    if isinstance(outcome, HttpError | OSError | ValueError):
        return _silence(str(outcome) or type(outcome).__name__)
    if isinstance(outcome, Exception):
        raise outcome
    if problem := _excess(outcome.body, worker.adapters):
        return _silence(problem)
    if not is_signed(outcome, worker.token, call):
        return _unproven(outcome.status)
    found = _parse(outcome.status, outcome.body)
    if found.silent:
        return found
    problem = problem_of_answer(worker.pod_uid, found.state, found.reason)
    return _silence(problem) if problem else found


def _excess(content: bytes, adapters: int) -> str:
    """Why an answer is not read, by its size alone; empty if it is."""
    most_bytes, most_parts = (
        protocol.max_answer_bytes(adapters),
        protocol.max_answer_parts(adapters),
    )
    if len(content) > most_bytes:
        return f"its answer has {len(content)} bytes, and a state of its fleet at most {most_bytes}"
    parts = content.count(b"[") + content.count(b"{")
    if parts > most_parts:
        return f"its answer has {parts} lists and objects, and a state of its fleet at most {most_parts}"
    return ""


def _parse(status: int, content: bytes) -> WorkerAnswer:
    try:
        # Parse before validating: each error of a combined step would hold a copy of all bytes.
        # Measured for the worst half MiB: 280 ms of CPU instead of 20.
        document = from_json(content, allow_inf_nan=False)
        if 200 <= status < 300:
            state = protocol.WorkerState.model_validate(document)
            return WorkerAnswer(state=state, size_bytes=len(content))
        reply = protocol.ErrorReply.model_validate(document)
    except ValueError:
        return _silence(f"answers {status} with a body that is not of this protocol")
    return WorkerAnswer(
        state=reply.state,
        reason=reply.error.reason,
        message=reply.error.message,
        size_bytes=len(content),
    )


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
