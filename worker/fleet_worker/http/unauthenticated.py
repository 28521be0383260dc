"""The pages that need no key: `/livez` and `/readyz` on both ports, and the metrics port.

The key of the public port guards its `/metrics`, because clients outside of the cluster may reach that
port. No Service of the fleet leads to the metrics port. It shows counts, durations and labels from
fixed sets, and no text of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fleet_worker.http.asgi import GO_ELSEWHERE, Receive, Scope, Send, answer
from fleet_worker.http.strangers import turn_of
from fleet_worker.protocol import LIVE_PATH, Phase


class Latched(Protocol):
    """A worker, as far as the probes show it."""

    @property
    def phase(self) -> Phase:
        """Phase of the worker."""

    @property
    def is_open(self) -> bool:
        """Whether the latch lets data requests in."""


class Probes:
    """Answers the kubelet."""

    def __init__(
        self,
        agent: Latched,
        problem: Callable[[], str | None],
        *,
        listens: Callable[[], bool] = lambda: True,
    ) -> None:
        """`problem`: why the process should be restarted, or None. `listens`: whether the public port does."""
        self._agent = agent
        self._problem = problem
        self._listens = listens

    @property
    def problem(self) -> str | None:
        """Why the process should be restarted, or None."""
        return self._problem()

    async def answer(self, scope: Scope, send: Send) -> None:
        """Answer a probe."""
        await turn_of(scope)
        if scope["path"] == LIVE_PATH:
            problem = self._problem()
            good, text = problem is None, problem or "alive"
        else:
            # A pause holds requests and keeps the worker ready: its endpoints must not churn.
            good, text = self._agent.is_open, str(self._agent.phase)
            if good and not self._listens():
                good, text = False, "the public port does not listen yet"
        await answer(
            send, 200 if good else 503, text.encode() + b"\n", b"text/plain", [GO_ELSEWHERE]
        )


PATH = "/metrics"
FRESH_SECONDS = 1.0
"""Age in seconds at which the text is rendered again. Rendering blocks the event loop that streams
tokens."""

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class MetricsApp:
    """ASGI application."""

    def __init__(self, text: Callable[[], bytes], *, clock: Callable[[], float]) -> None:
        self._text = text
        self._clock = clock
        self._rendered: tuple[float, bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its query, headers and body are not read."""
        del receive
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        await turn_of(scope)
        if scope["path"] != PATH:
            await answer(
                send, 404, b"only GET /metrics is served here\n", b"text/plain", [GO_ELSEWHERE]
            )
        elif scope["method"] != "GET":
            headers = [(b"allow", b"GET"), GO_ELSEWHERE]
            await answer(send, 405, b"only GET is served here\n", b"text/plain", headers)
        else:
            await answer(send, 200, self._fresh(), _TEXT, [GO_ELSEWHERE])

    def _fresh(self) -> bytes:
        now = self._clock()
        if self._rendered is None or now - self._rendered[0] >= FRESH_SECONDS:
            self._rendered = (now, self._text())
        return self._rendered[1]
