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
        request_id: The id of this request, also in the reply's header `x-request-id`.
        caller: The authenticated account or key; empty if there was none.
        address: The client's address, as the connection has it.
        method: The HTTP method.
        route: The path with the placeholders of its parameters.
        fleet: Namespace and name.
        status: The HTTP status of the reply; 499 if the client left before it.
        reason: The reason of the problem; empty without one.
        seconds: The time until the reply.
        asked: The fields of the request's body.
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
