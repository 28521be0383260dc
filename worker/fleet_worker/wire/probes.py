"""`/livez` and `/readyz`, the same on both ports: open to everybody, one line of text."""

from __future__ import annotations

from collections.abc import Callable

from fleet_worker.protocol import LIVE_PATH
from fleet_worker.runtime.worker import Worker
from fleet_worker.wire.asgi import Send, answer


class Probes:
    """Answers the kubelet."""

    def __init__(self, agent: Worker, problem: Callable[[], str | None]) -> None:
        """Make probes.

        Args:
            agent: Tells whether the latch is open.
            problem: Why the process should be restarted, or None.
        """
        self._agent = agent
        self._problem = problem

    async def answer(self, path: str, send: Send) -> None:
        """Answer a probe's path."""
        if path == LIVE_PATH:
            problem = self._problem()
            good, text = problem is None, problem or "alive"
        else:
            # A pause holds requests and keeps the worker ready: its endpoints must not churn.
            good, text = self._agent.is_open, str(self._agent.standing.phase)
        await answer(send, 200 if good else 503, text.encode() + b"\n", b"text/plain")
