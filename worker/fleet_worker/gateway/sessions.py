"""The session that a request names."""

from __future__ import annotations

from fleet_worker.http.asgi import Headers
from fleet_worker.provenance.changing import Json


def session_of(headers: Headers, content: Json | None) -> bytes | None:
    """Return the session of a request, as routers read it; None without one.

    Source: `vllm-router` 0.1.17, the header `X-Session-ID`, or `session_params.session_id` in the body.
    """
    named = next((value for name, value in headers if name.lower() == b"x-session-id"), b"")
    if named:
        return named
    parameters = (content or {}).get("session_params")
    session = parameters.get("session_id") if isinstance(parameters, dict) else None
    return session.encode(errors="replace") if isinstance(session, str) and session else None
