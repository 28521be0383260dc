"""The metrics port: `GET /metrics` for a scraper, without a key, and nothing else.

The key of the public port guards its `/metrics`, too, since that port may be reached from outside of
the cluster. This one is a container port that no Service of the fleet leads to. What stands there
are counts, durations and labels out of fixed sets: no text of a request.
"""

from __future__ import annotations

from collections.abc import Callable

from fleet_worker.wire.asgi import Receive, Scope, Send, answer

PATH = "/metrics"
FRESH_SECONDS = 1.0
"""Rendering takes the event loop that tokens are streamed from: once a second is the limit, however
often and by whomever the port is asked."""

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class MetricsApp:
    """ASGI application."""

    def __init__(self, text: Callable[[], bytes], *, clock: Callable[[], float]) -> None:
        """Make it.

        Args:
            text: Renders all metrics in Prometheus' text format.
            clock: Monotonic seconds.
        """
        self._text = text
        self._clock = clock
        self._rendered: tuple[float, bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its query, headers and body are not read."""
        del receive
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] != PATH:
            await answer(send, 404, b"only GET /metrics is served here\n", b"text/plain")
        elif scope["method"] != "GET":
            headers = [(b"allow", b"GET")]
            await answer(send, 405, b"only GET is served here\n", b"text/plain", headers)
        else:
            await answer(send, 200, self._fresh(), _TEXT)

    def _fresh(self) -> bytes:
        now = self._clock()
        if self._rendered is None or now - self._rendered[0] >= FRESH_SECONDS:
            self._rendered = (now, self._text())
        return self._rendered[1]
