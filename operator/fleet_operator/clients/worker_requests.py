"""Builds the operator's requests to workers."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, get_args

from fleet_operator.clients.signed_request import SignedRequest
from fleet_operator.core.actions import WorkerAction, WorkerCall
from fleet_operator.core.pod_actions import OnPod
from fleet_worker import protocol

READ_SECONDS = 3.0
MAX_KNOWN_REQUESTS = 64


def _content(kind: type[WorkerAction]) -> attrgetter[Any]:
    """Reads the fields of an action that its request depends on."""
    of_one_worker = {f.name for f in fields(OnPod)} - kind.request.model_fields.keys()
    return attrgetter(*(f.name for f in fields(kind) if f.name not in of_one_worker))


_CONTENTS = {kind: _content(kind) for kind in get_args(WorkerCall)}


class Requests:
    """Builds requests and caches the last ones. `read_state` reads a worker's state."""

    def __init__(self) -> None:
        self.read_state = SignedRequest.of("GET", protocol.STATE_PATH, seconds=READ_SECONDS)
        self._told: tuple[protocol.WantedRequest, SignedRequest] | None = None
        self._known: dict[tuple[Any, ...], SignedRequest] = {}

    def tell(self, wanted: protocol.WantedRequest) -> SignedRequest:
        """The request that names the desired versions, built once for all workers that hear it."""
        if self._told is None or self._told[0] is not wanted:
            body = wanted.model_dump_json(by_alias=True, exclude_none=True).encode()
            request = SignedRequest.of(wanted.method, wanted.path, body, seconds=READ_SECONDS)
            self._told = wanted, request
        return self._told[1]

    def call(self, action: WorkerCall, epoch: protocol.Epoch) -> SignedRequest:
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


def _request_of(action: WorkerCall, epoch: protocol.Epoch) -> SignedRequest:
    message = action.to_request(epoch)
    body = message.model_dump_json(by_alias=True, exclude_none=True).encode()
    return SignedRequest.of(message.method, action.path, body, seconds=action.answer_seconds)
