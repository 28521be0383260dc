"""The outermost layer of the public port: what is served, to whom, when, and with which stamps.

vLLM adds this class itself (`--middleware`), whether or not our plugin was loaded; without a plugin
that put an agent beside it, it lets nothing pass. A latch that is missing is a latch that is shut.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from fleet_worker.core.demands import Demand
from fleet_worker.core.routes import Access, access_of, dialect_of, stamps_itself
from fleet_worker.core.spans import compact
from fleet_worker.core.weight_names import WeightName, short_digest
from fleet_worker.protocol import AdapterState
from fleet_worker.runtime.worker import Worker
from fleet_worker.wire.asgi import App, ClientGoneError, Headers, Receive, Scope, Send
from fleet_worker.wire.errors import WireError, answer_error
from fleet_worker.wire.probes import Probes
from fleet_worker.wire.public.body import (
    object_of,
    read_whole,
    replayed,
    rerouted,
)
from fleet_worker.wire.public.demanding import check_version, demand_in
from fleet_worker.wire.public.key import PublicKey
from fleet_worker.wire.public.stamping import CutShortError, Stamping
from fleet_worker.wire.public.surfaces import Surfaces
from fleet_worker.wire.public.tracking import collecting
from fleet_worker.wire.surface import Forward, Reply

_LOG = logging.getLogger(__name__)

STATE_ATTRIBUTE = "rlfleet"
"""Where the plugin leaves the gate's side of things on the application's state."""

_RETRY_AFTER_SECONDS = 1
_GO_ELSEWHERE = ((b"connection", b"close"),)
"""The client's next try goes over a connection of its own, which the Service gives to a worker that
is open; over this one it would come back to the worker that is closed.
"""


@dataclass(frozen=True, slots=True)
class GateKeeper:
    """What the plugin leaves for the gate.

    Fields:
        metrics: counts what was turned away, and replies without labels.
        surfaces: the routes that are ours, or that we change.
        key: who may ask.
    """

    agent: Worker
    probes: Probes
    metrics: Any
    surfaces: Surfaces
    key: PublicKey


class Gate:
    """ASGI middleware."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # web sockets: no route of them is served
            await send({"type": "websocket.close", "code": 1008})
            return
        keeper: GateKeeper | None = getattr(scope["app"].state, STATE_ATTRIBUTE, None)
        try:
            await self._serve(keeper, scope, receive, send)
        except WireError as error:
            await answer_error(send, error)
        except ClientGoneError:
            pass

    async def _serve(
        self, keeper: GateKeeper | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path = scope["path"]
        access = access_of(path)
        if keeper is not None:
            keeper.key.check(path, scope["headers"])
        if access is Access.ABSENT:
            raise WireError(404, "Not Found", kind="NotFoundError")
        if keeper is None:
            raise _unavailable("the worker's plugin is not loaded")
        if access is Access.PROBE:
            await keeper.probes.answer(path, send)
        elif access is Access.OPEN:
            body = await read_whole(receive)
            await self._forward(keeper, Demand(), scope, receive, send, body)
        else:
            await self._serve_data(keeper, scope, receive, send)

    async def _serve_data(
        self, keeper: GateKeeper, scope: Scope, receive: Receive, send: Send
    ) -> None:
        demand = demand_in(scope["headers"])
        # Read first: a refusal closes its connection, and on unread bytes that loses the answer.
        body = await read_whole(receive)
        _check_open(keeper)
        if not demand.is_any:
            name = _name_for(keeper, body)
            check_version(demand, name)
            demand = demand.bound_to(name) if name is not None else demand
        keeper.agent.quiescence.inside += 1
        try:
            await self._forward(keeper, demand, scope, receive, send, body)
        finally:
            keeper.agent.quiescence.inside -= 1

    async def _forward(
        self,
        keeper: GateKeeper,
        demand: Demand,
        scope: Scope,
        receive: Receive,
        send: Send,
        body: bytes,
    ) -> None:
        """Hand a request to vLLM, translated; change and stamp the reply."""
        agent = keeper.agent
        forward = _translated(keeper, scope, body)
        if forward.body is not None:
            body = compact(forward.body)
        if forward.body is not None or forward.path != scope["path"]:
            scope = rerouted(scope, forward.path, body)
        with collecting(agent.names, lambda: agent.name, agent.kept) as tokens:
            stamping = Stamping(
                send,
                tokens,
                forward.reply,
                demand=demand,
                order=agent.names.order,
                on_unlabelled=keeper.metrics.unlabelled,
            )
            try:
                await self._app(scope, replayed(body, receive), stamping)
            except CutShortError as error:
                _LOG.info("a reply was cut short: %s", error)


def _check_open(keeper: GateKeeper) -> None:
    if not keeper.agent.is_open:
        keeper.metrics.turned_away()
        raise _unavailable(f"this worker is {keeper.agent.standing.phase}", _GO_ELSEWHERE)


def _name_for(keeper: GateKeeper, body: bytes) -> WeightName | None:
    """The weights that a request would get now: the adapter that it names, or the model's."""
    name = (object_of(body) or {}).get("model")
    if isinstance(name, str):  # else vLLM says what is wrong with it
        for state in keeper.agent.adapters.states():
            if state.name == name:
                return _name_of(state)
    return keeper.agent.name


def _name_of(adapter: AdapterState) -> WeightName | None:
    if adapter.version is None:
        return None
    digest = short_digest(adapter.digest) if adapter.digest is not None else None
    return WeightName(adapter.version, adapter.run_id, digest)


def _translated(keeper: GateKeeper, scope: Scope, body: bytes) -> Forward:
    path = scope["path"]
    plain = Forward(path, reply=Reply(dialect_of(path), is_stamped=stamps_itself(path)))
    if scope["method"] != "POST" or path not in keeper.surfaces:
        return plain
    content = object_of(body)
    return plain if content is None else keeper.surfaces.translate(path, content)


def _unavailable(message: str, headers: Headers = ()) -> WireError:
    retry = [(b"retry-after", str(_RETRY_AFTER_SECONDS).encode()), *headers]
    return WireError(503, message, kind="ServiceUnavailableError", headers=retry)
