"""Objects, changes and errors from answers of the RL API.

Source: docs/reference/rl-api.md. Its documents have the fields of the resources, so each becomes the
object that it was made of, as far as the client reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from pydantic import ConfigDict, ValidationError

from rlfleet.errors import Forbidden, NotFound, Refused, RlfleetError, Superseded, Unavailable
from rlfleet.ports import Change, GoneError, Json
from rlfleet_resources.base import Resource
from rlfleet_resources.names import ANNOTATION_RETRY

MEDIA_TYPE = "text/event-stream"
_MAX_BYTES = 4 * 1024 * 1024
"""Largest size of one event."""
_MAX_WORDS = 2000
"""Characters of an answer in a message."""
_KNOWN: dict[int | str, type[RlfleetError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    "AccountForbidden": Forbidden,
    "UnreadableFleet": RlfleetError,
}
"""HTTP status or reason → the error. None of these is retried."""


class _Document(Resource):
    """Base of documents, which keep fields that they do not declare."""

    model_config = ConfigDict(extra="allow")


class _Weights(_Document):
    """The WeightVersion in a document."""

    name: str
    uid: str
    generation: int
    resource_version: str
    retry: str = ""
    suspended: bool
    desired: dict[str, Any]


class _State(_Document):
    """The document of `GET state`."""

    generation: int
    management: str = "Operator"
    replicas: int
    pods: int
    weights: _Weights | None


def state_of(document: Json, namespace: str, fleet: str) -> tuple[Json, Json | None]:
    """The objects InferenceFleet and WeightVersion of a state; None without a WeightVersion.

    Errors: RlfleetError, if the document is of another release.
    """
    try:
        state = _State.model_validate(document)
    except ValidationError as error:
        raise _unknown(error) from error
    found = {
        "metadata": {"name": fleet, "namespace": namespace, "generation": state.generation},
        "spec": {"replicas": state.replicas, "weights": {"management": state.management}},
        "status": document | {"replicas": state.pods},
    }
    weights = document["weights"]
    return found, None if weights is None else weights_of(weights, namespace, fleet)


def weights_of(document: Json, namespace: str, fleet: str) -> Json:
    """The object WeightVersion of the answer to a change, or of the part `weights` of one."""
    shown = document.get("weights", document)
    try:
        weights = _Weights.model_validate(shown)
    except ValidationError as error:
        raise _unknown(error) from error
    return {
        "metadata": {
            "name": weights.name,
            "namespace": namespace,
            "uid": weights.uid,
            "generation": weights.generation,
            "resourceVersion": weights.resource_version,
            "annotations": {ANNOTATION_RETRY: weights.retry} if weights.retry else {},
        },
        "spec": {**weights.desired, "fleetRef": {"name": fleet}, "suspend": weights.suspended},
        "status": shown,
    }


def document_of(answer: httpx.Response, version: str) -> Json:
    """The document of an answer. `version`: the requested one. Errors: those of `Changes`."""
    if not answer.is_success:
        raise failure(answer, version)
    found = _json(answer)
    if found is None:
        raise RlfleetError("the answer is not a document of the RL API; check the address")
    return found


def failure(answer: httpx.Response, version: str) -> RlfleetError:
    """The error for an unsuccessful answer, which a proxy may have sent."""
    code, problem = answer.status_code, _json(answer) or {}
    reason = str(problem.get("reason") or "")
    message = str(problem.get("detail") or f"HTTP {code}")[:_MAX_WORDS]
    if reason == "Superseded":
        return Superseded(version, "another version")
    if code in {409, 422} and reason not in {"", "IdempotencyKeyReused"}:
        return Refused(version, "Invalid" if reason == "InvalidBody" else reason, message)
    if code == 404 and not reason:
        return NotFound(f"there is no RL API at this address ({message}); check the address")
    if code in {408, 429} or (code >= 500 and reason not in _KNOWN):
        return Unavailable(message, retry_after_seconds=_retry_after(answer))
    known = _KNOWN.get(reason) or _KNOWN.get(code)
    return known(message) if known else RlfleetError(f"the RL API answers {code}: {message}")


def _json(answer: httpx.Response) -> Json | None:
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _retry_after(answer: httpx.Response) -> float | None:
    wait = answer.headers.get("retry-after", "")
    return float(wait) if wait.isdecimal() else None


def _unknown(error: ValidationError) -> RlfleetError:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return RlfleetError(
        f"the client cannot read the document of the RL API ({where}: {first['msg']}); "
        "install the client and the RL API of one release"
    )


class NoStreamError(Exception):
    """The answer is not a stream of events. `status`: its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Events:
    """The changes in one stream of server-sent events. Only a newline ends a line there, as the RL API writes them.

    Source: HTML Living Standard, "Server-sent events"; docs/reference/rl-api.md, "Events".
    """

    def __init__(self, namespace: str, fleet: str) -> None:
        self._namespace = namespace
        self._fleet = fleet
        self._rest = b""
        self._name, self._data = "", b""

    def of(self, chunk: bytes) -> Iterator[Change]:
        """The changes that the chunk completes.

        Errors:
            GoneError: the WeightVersion was deleted.
            Unavailable: the stream is malformed, for example by a proxy.
            RlfleetError: the document is of another release.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield from self._of_line(line.removesuffix(b"\r"))
        if len(self._rest) + len(self._data) > _MAX_BYTES:
            raise Unavailable("an event of the RL API has no end")

    def _of_line(self, line: bytes) -> Iterator[Change]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"data":
            self._data += value + b"\n"
        elif not line:
            name, data = self._name, self._data
            self._name, self._data = "", b""
            if name == "deleted":
                raise GoneError("the WeightVersion was deleted")
            if name == "weights" and data:
                yield self._change(data)

    def _change(self, data: bytes) -> Change:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Unavailable("an event of the RL API is not a JSON object")
        return Change("MODIFIED", weights_of(document, self._namespace, self._fleet))
