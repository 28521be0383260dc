"""One log line for each request that may change something. It never holds a token."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fleet_worker.logs import fields

logger = logging.getLogger(__name__)


def write(
    *,
    request_id: str,
    caller: str,
    address: str,
    method: str,
    route: str,
    fleet: tuple[str, str],
    status: int,
    reason: str,
    seconds: float,
    asked: Mapping[str, Any],
) -> None:
    """Write the line.

    Args:
        request_id: Of this request, also in the reply's header `x-request-id`.
        caller: The authenticated account or key; empty if there was none.
        address: Of the client, as the connection has it.
        method: Of HTTP.
        route: The path with the placeholders of its parameters.
        fleet: Namespace and name.
        status: Of the reply; 499 if the client left before it.
        reason: Of the problem; empty without one.
        seconds: Until the reply.
        asked: Fields of the request that say what it is for.
    """
    logger.info(
        "%s %s by %s: %d",
        method,
        route,
        caller or "an unknown caller",
        status,
        extra=fields(
            "audit",
            request_id=request_id,
            caller=caller,
            address=address,
            namespace=fleet[0],
            fleet=fleet[1],
            status=status,
            reason=reason or None,
            seconds=round(seconds, 3),
            asked=dict(asked),
        ),
    )
