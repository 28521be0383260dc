"""Objects and errors from answers of the API server.

Source: Kubernetes API concepts, "Efficient detection of changes", and meta/v1 Status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx

from rlfleet.errors import (
    Forbidden,
    NotConfigured,
    NotFound,
    Refused,
    RlfleetError,
    Unauthorized,
    Unavailable,
)
from rlfleet.ports import Change, ConflictError, ExistsError, GoneError, Json
from rlfleet_resources.names import API_VERSION

_GRANT = "give the account this right"
_OF_TRAINERS = (
    "A trainer needs get, list, watch and patch on its WeightVersion, and get on its fleet"
)
_OTHER_CRDS = (
    "the CRDs of the cluster are of another release than this client: install those of its release"
)
_KNOWN: dict[int, tuple[type[Exception], str]] = {
    401: (Unauthorized, "renew the token, or name another context"),
    403: (Forbidden, f"{_GRANT}. {_OF_TRAINERS}"),
    404: (NotFound, "check the name and the namespace"),
    410: (GoneError, "list it again"),
}
"""HTTP status → the error, and the remedy."""
_KNOWN_ELSEWHERE = _KNOWN | {403: (Forbidden, _GRANT)}
"""As `_KNOWN`, for objects of other API groups."""


class Lines:
    """Splits a stream into lines. Only a newline ends a line: messages may hold other separators.

    `max_bytes`: largest line; None for any.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def of(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that the chunk completes, without empty ones. Errors: RlfleetError for one that is too long."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if self._max_bytes is not None and len(self._rest) > self._max_bytes:
            raise RlfleetError(
                f"a change that the API server reports has more than {self._max_bytes} bytes; make the "
                "object smaller, above all its annotations"
            )
        yield from filter(None, whole)


def change_of(line: bytes, read: Callable[[bytes], Json] = json.loads) -> Change:
    """The event in a line of a watch. Errors: those of the event `ERROR`."""
    event = read(line)
    if event["type"] == "ERROR":
        raise _error_of(int(event["object"].get("code") or 500), event["object"])
    return Change(event["type"], event["object"])


def object_of(
    answer: httpx.Response, sent: Json | None, read: Callable[[bytes], Json] = json.loads
) -> Json:
    """The object of an answer. Errors: those of `Objects`."""
    if not answer.is_success:
        version = (sent or {}).get("spec", {}).get("version", "?")
        raise failure(answer, version)
    return json_of(answer, read)


def json_of(answer: httpx.Response, read: Callable[[bytes], Json] = json.loads) -> Json:
    """The object of a success. Errors: NotConfigured for anything else, as for the page of a proxy."""
    try:
        found = read(answer.content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _no_object(answer)
    return found


def _no_object(answer: httpx.Response) -> NotConfigured:
    kind = answer.headers.get("content-type", "no type")
    return NotConfigured(
        f"{answer.url.host} answers HTTP {answer.status_code} ({kind}) and no object of Kubernetes; check the "
        "server in the kubeconfig, and sign in where a proxy is in front of it"
    )


def failure(answer: httpx.Response, version: str = "?", *, elsewhere: bool = False) -> Exception:
    """The error for an unsuccessful answer. Arguments: as for `_error_of`."""
    if answer.is_redirect:
        return _no_object(answer)
    try:
        status = answer.json()
    except ValueError:
        status = None  # a proxy has answered instead of the API server
    if status is None and answer.status_code == 400:
        return _no_object(answer)  # as of a server that expects https
    wait = answer.headers.get("retry-after", "")
    details = {"retryAfterSeconds": int(wait)} if wait.isdecimal() else {}
    status = status if isinstance(status, dict) else {}
    status = {"details": details} | status
    return _error_of(answer.status_code, status, version, elsewhere=elsewhere)


def _error_of(code: int, status: Json, version: str = "?", *, elsewhere: bool = False) -> Exception:
    """The error for an answer of the API server.

    Args:
        code: The HTTP status.
        status: The object `Status` of the answer, as far as there is one.
        version: The requested version.
        elsewhere: The object belongs to another API group than ours.
    """
    reason, message = status.get("reason") or str(code), status.get("message") or f"HTTP {code}"
    details = status.get("details") or {}
    if code == 401:
        message = f"the API server does not accept the credentials ({message})"
    known = _KNOWN_ELSEWHERE if elsewhere else _KNOWN
    if code == 404 and not details.get("name") and not elsewhere:
        return NotFound(f"there is no {API_VERSION} here ({message}); install rlfleet's chart")
    if code in known:
        error, remedy = known[code]
        return error(f"{message}; {remedy}")
    if reason == "AlreadyExists":
        return ExistsError(message)
    is_unknown = code == 400 and "unknown field" in message
    if code == 422 or is_unknown:
        is_ours = is_unknown and not elsewhere
        return Refused(version, reason, f"{message}; {_OTHER_CRDS}" if is_ours else message)
    if code >= 500 or code in {408, 409, 429}:
        if code != 409:
            message = f"the API server answers {code}: {message}; try again"
        kind = ConflictError if code == 409 else Unavailable
        return kind(message, retry_after_seconds=details.get("retryAfterSeconds"))
    return RlfleetError(f"the API server answers {code} {reason}: {message}")
