"""Checks the weight versions that a request demands: 409 with Retry-After if they are not met.

The check runs when the request arrives, and again on the reply: a swap may come before its first
token, or in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.http.asgi import GO_ELSEWHERE, Headers, WireError, bad_request
from fleet_worker.protocol import HEADER_VERSION
from fleet_worker.provenance.changing import Json
from fleet_worker.provenance.demands import (
    IN_BODY,
    IN_HEADERS,
    Demand,
    DemandError,
    DemandNames,
    demand_of,
)
from fleet_worker.provenance.spans import Spans

_RETRY_AFTER_SECONDS = 1
_SHOWN_CHARACTERS = 60
_IS_DEMAND = re.compile(r"(?:x[-_])?weight", re.IGNORECASE)


def demand_in(headers: Headers) -> Demand:
    """Return the demand in the headers of a request.

    Errors:
        WireError: 400, the headers contradict each other, are malformed, or ask for something unknown.
    """
    found: dict[str, str] = {}
    for key, value in headers:
        if key[:8].lower() != b"x-weight":
            continue
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        _check_known(name, IN_HEADERS)
        if found.setdefault(name, text) != text:
            raise bad_request(f"{name} has two values; send one")
    return _demand_of(found, IN_HEADERS) if found else Demand()


def with_body(demand: Demand, content: Json | None) -> tuple[Demand, Json | None]:
    """Return the demand with that of a body, and the body without it, as vLLM knows no such fields.

    Args:
        demand: The demand in the headers.
        content: The body. The same object is returned if it has no demand.

    Errors:
        WireError: 400, a field is malformed or unknown, or differs from its header.
    """
    asked = {name: value for name, value in (content or {}).items() if _IS_DEMAND.match(name)}
    for name in asked:
        _check_known(name, IN_BODY)
    if content is None or not asked:
        return demand, content
    try:
        found = {name: _text_of(value) for name, value in asked.items()}
        demand = demand.joined_with(_demand_of(found, IN_BODY))
    except DemandError as error:
        raise bad_request(str(error)) from error
    return demand, {name: value for name, value in content.items() if name not in asked}


def _check_known(name: str, names: DemandNames) -> None:
    """Check a name that looks like a demand: ignored, it would give tokens of any weights."""
    known = (names.exact, names.minimum, names.run)
    if name not in known:
        shown = name[:_SHOWN_CHARACTERS]
        raise bad_request(f"{shown} is unknown; demands are {', '.join(known)}", shown)


def _demand_of(found: Mapping[str, str | None], names: DemandNames) -> Demand:
    exact, minimum, run = map(found.get, (names.exact, names.minimum, names.run))
    try:
        return demand_of(exact, minimum, run, names)
    except DemandError as error:
        raise bad_request(str(error)) from error


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
