"""Builds requests to workers as bytes.

One call goes to thousands of workers. Their common part is built once. Only the head differs, by
address, pod, nonce and signature.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, get_args

from fleet_operator.core.actions import OnPod, WorkerAction, WorkerCall
from fleet_operator.ports import Addressee
from fleet_worker import protocol

QUESTION_SECONDS = 3.0
MAX_KNOWN_REQUESTS = 64
_HEAD_LINES = 11


def _content(kind: type[WorkerAction]) -> attrgetter[Any]:
    """Reads the fields of an action that its request depends on."""
    of_one_worker = {f.name for f in fields(OnPod)} - kind.request.model_fields.keys()
    return attrgetter(*(f.name for f in fields(kind) if f.name not in of_one_worker))


_CONTENTS = {kind: _content(kind) for kind in get_args(WorkerCall)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The part of a request that is the same for all workers.

    Fields:
        body_digest: SHA-256 of the body in hex digits.
        seconds: timeout of the answer.
    """

    method: str
    path: str
    body: bytes
    body_digest: str
    seconds: float

    def signed(self, worker: Addressee, host: str, nonce: str) -> tuple[str, bytes]:
        """The signature for one worker, and the request's bytes.

        Args:
            worker: The worker.
            host: The worker's host and port, as in a URL.
            nonce: A value that was never used before.

        Errors: ValueError if a header would contain a line break.
        """
        call = protocol.SignedCall(
            method=self.method,
            path=self.path,
            pod_uid=worker.pod_uid,
            instance=worker.instance,
            nonce=nonce,
            body_digest=self.body_digest,
        )
        signature = protocol.call_signature(worker.token, call)
        head = (
            f"{self.method} {self.path} HTTP/1.1\r\n"
            f"Host: {host}\r\n"
            f"Authorization: {protocol.SIGNATURE_SCHEME} {signature}\r\n"
            "Accept-Encoding: identity\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            f"{protocol.HEADER_POD_UID}: {worker.pod_uid}\r\n"
            f"{protocol.HEADER_INSTANCE}: {worker.instance}\r\n"
            f"{protocol.HEADER_NONCE}: {nonce}\r\n"
            f"{protocol.HEADER_BODY_DIGEST}: {self.body_digest}\r\n"
            "\r\n"
        )
        if head.count("\n") != _HEAD_LINES or head.count("\r") != _HEAD_LINES:
            raise ValueError("a line break in a header of a call")
        return signature, head.encode("latin-1") + self.body


class Requests:
    """Builds requests and caches the last ones. `question` reads a worker's state."""

    def __init__(self) -> None:
        self.question = _request("GET", protocol.STATE_PATH, b"", QUESTION_SECONDS)
        self._known: dict[tuple[Any, ...], Request] = {}

    def call(self, action: WorkerCall, epoch: protocol.Epoch) -> Request:
        """The request of a worker call.

        Errors: ValueError if the action does not fit into the protocol.
        """
        kind = type(action)
        key = (kind, _CONTENTS[kind](action), epoch.term, epoch.sequence)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN_REQUESTS:
                self._known.clear()
            known = self._known[key] = _request_of(action, epoch)
        return known


def _request_of(action: WorkerCall, epoch: protocol.Epoch) -> Request:
    message = action.to_request(epoch)
    body = message.model_dump_json(by_alias=True, exclude_none=True).encode()
    return _request(message.method, action.path, body, action.answer_seconds)


def _request(method: str, path: str, body: bytes, seconds: float) -> Request:
    digest = protocol.body_digest(body)
    return Request(method=method, path=path, body=body, body_digest=digest, seconds=seconds)
