"""Checks the weight versions that a request demands: 409 with Retry-After if they are not met.

The check runs when the request arrives, and again on the reply: a swap may come before its first
token, or in the middle.
"""

from __future__ import annotations

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.http.asgi import GO_ELSEWHERE, Headers, WireError, bad_request, header_of
from fleet_worker.protocol import (
    HEADER_RUN,
    HEADER_VERSION,
    HEADER_VERSION_EXACT,
    HEADER_VERSION_MIN,
)
from fleet_worker.provenance.changing import object_of
from fleet_worker.provenance.demands import IN_BODY, Demand, DemandError, demand_of
from fleet_worker.provenance.spans import Spans, compact

_RETRY_AFTER_SECONDS = 1


def demand_in(headers: Headers) -> Demand:
    """Return the demand in the headers of a request.

    Errors:
        WireError: 400, the headers contradict each other or are malformed.
    """
    exact = header_of(headers, HEADER_VERSION_EXACT.encode())
    minimum = header_of(headers, HEADER_VERSION_MIN.encode())
    run = header_of(headers, HEADER_RUN.encode())
    try:
        return demand_of(exact, minimum, run)
    except DemandError as error:
        raise bad_request(str(error)) from error


def with_body(demand: Demand, body: bytes) -> tuple[Demand, bytes]:
    """Return the demand with that of the body, and the body without it, as vLLM knows no such fields.

    Errors:
        WireError: 400, a field is malformed, or differs from its header.
    """
    # Nearly no body has a demand, and parsing one takes time.
    if b'"weight_' not in body or (content := object_of(body)) is None:
        return demand, body
    found = [content.pop(name, None) for name in (IN_BODY.exact, IN_BODY.minimum, IN_BODY.run)]
    if found == [None, None, None]:
        return demand, body
    try:
        exact, minimum, run = (_text_of(value) for value in found)
        demand = demand.joined_with(demand_of(exact, minimum, run, IN_BODY))
    except DemandError as error:
        raise bad_request(str(error)) from error
    return demand, compact(content)


def _text_of(value: object) -> str | None:
    """Return a field of a body as a header would hold it: versions may be numbers."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DemandError("a weight version in the body must be a text or a whole number")


def check_version(demand: Demand, name: WeightName | None) -> None:
    """Check that the weights in the engine meet the demand.

    Errors:
        WireError: 409, with the version in the engine.
    """
    if not demand.is_met_by(name):
        raise _unmet(demand, f"this worker has {name or 'no version'}", name)


def check_spans(demand: Demand, spans: Spans) -> None:
    """Check that the weights that made the tokens meet the demand."""
    if demand.is_any:
        return
    for each in spans.values():
        names = [None] if each is None else [span.policy for span in each]
        for name in names:
            if not demand.is_met_by(name):
                made = str(name) if name is not None else "weights without a version"
                raise _unmet(demand, f"tokens were made by {made}", name)


def _unmet(demand: Demand, what: str, name: WeightName | None) -> WireError:
    headers = [(b"retry-after", str(_RETRY_AFTER_SECONDS).encode()), GO_ELSEWHERE]
    if name is not None:
        headers.append((HEADER_VERSION.encode(), name.version.encode()))
    message = f"the request wants {demand}; {what}"
    return WireError(409, message, kind="WeightVersionError", headers=headers)
