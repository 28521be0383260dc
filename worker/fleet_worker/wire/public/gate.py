"""The outermost layer of the public port: what is served, when, and with which stamps.

vLLM adds this class itself (`--middleware`), whether or not our plugin was loaded; without a plugin
that put an agent beside it, it lets nothing pass. A latch that is missing is a latch that is shut.
"""

from __future__ import annotations

from typing import Any

from fleet_worker.core.routes import Access, access_of
from fleet_worker.protocol import HEADER_VERSION_END, HEADER_VERSION_START
from fleet_worker.runtime.worker import Worker
from fleet_worker.wire.asgi import App, Receive, Scope, Send, answer_json
from fleet_worker.wire.probes import Probes
from fleet_worker.wire.public.stamping import Stamping
from fleet_worker.wire.public.tracking import collecting

STATE_ATTRIBUTE = "rlfleet"
"""Where the plugin leaves the gate's side of things on the application's state."""

_RETRY_AFTER_SECONDS = 1
_TOKEN_ROUTE = "/inference/v1/generate"  # noqa: S105 - a path


class GateKeeper:
    """What the plugin leaves for the gate."""

    def __init__(self, agent: Worker, probes: Probes, metrics: Any) -> None:
        self.agent = agent
        self.probes = probes
        self.metrics = metrics


class Gate:
    """ASGI middleware."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        keeper: GateKeeper | None = getattr(scope["app"].state, STATE_ATTRIBUTE, None)
        if scope["type"] != "http":  # web sockets: no route of them is served
            await send({"type": "websocket.close", "code": 1008})
            return
        access = access_of(scope["path"])
        if access is Access.ABSENT:
            await _error(send, 404, "NotFoundError", "Not Found")
        elif keeper is None:
            await _unavailable(send, "the worker's plugin is not loaded")
        elif access is Access.PROBE:
            await keeper.probes.answer(scope["path"], send)
        elif access is Access.OPEN:
            await self._app(scope, receive, send)
        elif not keeper.agent.is_open:
            keeper.metrics.turned_away()
            await _unavailable(send, f"this worker is {keeper.agent.standing.phase}")
        else:
            await self._pass(keeper, scope, receive, send)

    async def _pass(self, keeper: GateKeeper, scope: Scope, receive: Receive, send: Send) -> None:
        agent = keeper.agent
        agent.quiescence.inside += 1
        try:
            with collecting(lambda: agent.version) as tokens:
                stamping = Stamping(
                    send,
                    tokens,
                    order=agent.labels.order,
                    has_spans=scope["path"] == _TOKEN_ROUTE,
                    on_unlabelled=keeper.metrics.unlabelled,
                )
                await self._app(scope, receive, stamping)
        finally:
            agent.quiescence.inside -= 1


async def _unavailable(send: Send, message: str) -> None:
    retry = [(b"retry-after", str(_RETRY_AFTER_SECONDS).encode())]
    await _error(send, 503, "ServiceUnavailableError", message, retry)


async def _error(
    send: Send,
    status: int,
    kind: str,
    message: str,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """An error as OpenAI's clients know it."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    await answer_json(send, status, body, headers or [])


__all__ = ["HEADER_VERSION_END", "HEADER_VERSION_START", "STATE_ATTRIBUTE", "Gate", "GateKeeper"]
