"""Honouring what a request demands of the weights: 409 with Retry-After otherwise.

Looked at when the request comes in, and again on what was made: a request may be held over a swap,
or go on over one.
"""

from __future__ import annotations

from fleet_worker.core.demands import Demand, DemandError, demand_of
from fleet_worker.core.spans import Spans
from fleet_worker.core.weight_names import WeightName
from fleet_worker.protocol import (
    HEADER_RUN,
    HEADER_VERSION,
    HEADER_VERSION_EXACT,
    HEADER_VERSION_MIN,
)
from fleet_worker.wire.asgi import Headers, header_of
from fleet_worker.wire.errors import WireError, bad_request

_RETRY_AFTER_SECONDS = 1


def demand_in(headers: Headers) -> Demand:
    """What a request's headers demand.

    Errors:
        WireError: 400, they make no sense.
    """
    exact = header_of(headers, HEADER_VERSION_EXACT.encode())
    minimum = header_of(headers, HEADER_VERSION_MIN.encode())
    run = header_of(headers, HEADER_RUN.encode())
    try:
        return demand_of(exact, minimum, run)
    except DemandError as error:
        raise bad_request(str(error)) from error


def check_version(demand: Demand, name: WeightName | None) -> None:
    """Make sure that the weights in the engine will do.

    Errors:
        WireError: 409, with the version that there is.
    """
    if not demand.is_met_by(name):
        raise _unmet(demand, f"this worker has {name or 'no version'}", name)


def check_spans(demand: Demand, spans: Spans) -> None:
    """Make sure that the weights that made the tokens will do."""
    if demand.is_any:
        return
    for each in spans.values():
        names = [None] if each is None else [span.policy for span in each]
        for name in names:
            if not demand.is_met_by(name):
                made = str(name) if name is not None else "weights that nobody has named"
                raise _unmet(demand, f"tokens were made by {made}", name)


def _unmet(demand: Demand, what: str, name: WeightName | None) -> WireError:
    headers = [(b"retry-after", str(_RETRY_AFTER_SECONDS).encode())]
    if name is not None:
        headers.append((HEADER_VERSION.encode(), name.version.encode()))
    message = f"the request wants {demand}; {what}"
    return WireError(409, message, kind="WeightVersionError", headers=headers)
