"""Honouring what a request demands of the weights: 409 with Retry-After otherwise.

Looked at when the request comes in, and again on what was made: a request may be held over a swap,
or go on over one.
"""

from __future__ import annotations

from fleet_worker.core.demands import Demand, DemandError, demand_of
from fleet_worker.core.spans import Spans
from fleet_worker.protocol import HEADER_VERSION, HEADER_VERSION_EXACT, HEADER_VERSION_MIN
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
    try:
        return demand_of(exact, minimum)
    except DemandError as error:
        raise bad_request(str(error)) from error


def check_version(demand: Demand, version: str | None) -> None:
    """Make sure that the weights in the engine will do.

    Errors:
        WireError: 409, with the version that there is.
    """
    if not demand.is_met_by(version):
        raise _unmet(demand, f"this worker has {version or 'no version'}", version)


def check_spans(demand: Demand, spans: Spans) -> None:
    """Make sure that the weights that made the tokens will do."""
    if demand.is_any:
        return
    for each in spans.values():
        versions = [None] if each is None else [span.policy for span in each]
        for version in versions:
            if not demand.is_met_by(version):
                made = f"version {version}" if version else "weights that nobody has named"
                raise _unmet(demand, f"tokens were made by {made}", version)


def _unmet(demand: Demand, what: str, version: str | None) -> WireError:
    headers = [(b"retry-after", str(_RETRY_AFTER_SECONDS).encode())]
    if version is not None:
        headers.append((HEADER_VERSION.encode(), version.encode()))
    message = f"the request wants {demand}; {what}"
    return WireError(409, message, kind="WeightVersionError", headers=headers)
