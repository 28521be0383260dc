"""The outermost layer of the public port: access, API key, latch, translation and stamps.

vLLM adds this class itself (`--middleware`), even if our plugin was not loaded. Without the plugin's
agent the gate lets no request pass: a missing latch counts as closed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.gateway.routes import Access, access_of, dialect_of, stamps_itself
from fleet_worker.gateway.table import Translations
from fleet_worker.gateway.translation import Reply
from fleet_worker.gateway.waiting import aborted_in, note_arrival, wait_out_pause
from fleet_worker.http.asgi import (
    GO_ELSEWHERE,
    RETRY_SOON,
    App,
    BodyTooLargeError,
    ClientGoneError,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    WireError,
    answer_error,
    header_of,
    read_body,
)
from fleet_worker.http.strangers import turn_of
from fleet_worker.http.unauthenticated import Probes
from fleet_worker.lifecycle.freshness import UNKNOWN
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import ABORT_ROUTE
from fleet_worker.provenance.changing import Json, object_of
from fleet_worker.provenance.demanding import check_version, demand_in, with_body
from fleet_worker.provenance.demands import Demand
from fleet_worker.provenance.spans import compact
from fleet_worker.provenance.stamping import CutShortError, Stamping
from fleet_worker.provenance.tracking import Tokens, collecting

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})


class PublicKey:
    """The valid keys of the public port. Without keys the port is open to every client."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys if key]

    def check(self, path: str, headers: Headers) -> None:
        """Refuse a request without a valid key.

        Errors:
            WireError: 401.
        """
        if not self._digests or path in OPEN_PATHS:
            return
        scheme, _, key = (header_of(headers, b"authorization") or "").partition(" ")
        offered = _digest(key.strip())
        # Always compares every key, so that the time reveals nothing.
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, offered)
        if not (found and scheme.lower() == "bearer"):
            raise WireError(
                401,
                "an API key is needed: Authorization: Bearer <key>",
                kind="AuthenticationError",
                headers=[(b"www-authenticate", b"Bearer")],
            )


def keys_of(arguments: Any, environment: Mapping[str, str]) -> list[str]:
    """Return the keys from vLLM's command line, or else from its environment."""
    return list(getattr(arguments, "api_key", None) or [environment.get("VLLM_API_KEY", "")])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


_LOG = logging.getLogger(__name__)

STATE_ATTRIBUTE = "rlfleet"
"""Attribute of the application's state that holds the `GateKeeper`."""


@dataclass(frozen=True, slots=True)
class GateKeeper:
    """Parts of the worker that the gate needs.

    Fields:
        metrics: counts rejected requests, and replies without labels.
        translations: the routes that rlfleet adds or changes.
        key: the optional API key.
        names_no_runs: the trainer of an External fleet names directories and no runs.
    """

    agent: Worker
    probes: Probes
    metrics: Any
    translations: Translations
    key: PublicKey
    names_no_runs: bool = False


class Passed(NamedTuple):
    """A request as vLLM gets it, and the changes of its reply."""

    scope: Scope
    body: bytes
    reply: Reply


class Gate:
    """ASGI middleware."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the worker has no route for web sockets
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
            try:
                keeper.key.check(path, scope["headers"])
            except WireError:
                await turn_of(scope)
                raise
        if access is Access.ABSENT:
            await turn_of(scope)
            raise WireError(404, "Not Found", kind="NotFoundError")
        if keeper is None:
            raise _unavailable("the worker's plugin is not loaded")
        if access is Access.PROBE:
            await keeper.probes.answer(scope, send)
        elif access is Access.OPEN:
            body = await read_whole(receive)
            passed = _for_vllm(keeper, scope, body, object_of(body))
            await self._forward(keeper, Demand(), receive, send, passed)
        else:
            await self._serve_data(keeper, scope, receive, send)

    async def _serve_data(
        self, keeper: GateKeeper, scope: Scope, receive: Receive, send: Send
    ) -> None:
        demand = demand_in(scope["headers"])
        # Read first: a refusal closes the connection. With unread bytes the client would lose the answer.
        body = await read_whole(receive)
        _check_open(keeper)
        content = object_of(body)  # parsed once, for all that follows
        demand, kept = with_body(demand, content)
        if kept is not None and kept is not content:
            content, body = kept, compact(kept)
            scope = rerouted(scope, scope["path"], body)
        if not demand.is_any:
            name = _name_for(keeper, content)
            check_version(demand, name)
            if name is not None:
                demand = demand.bound_to(name, by_scope=keeper.names_no_runs)
        if (session := session_of(scope["headers"], content)) is not None:
            keeper.agent.sessions.note(session)
        agent = keeper.agent
        agent.quiescence.inside += 1
        try:
            if scope["path"] == ABORT_ROUTE:
                agent.held.abort(aborted_in(content))
            elif scope["method"] == "POST":
                note_arrival(agent, scope, content)
                if agent.holds:
                    keeper.metrics.held.inc()
                    if not await wait_out_pause(agent, scope, content, receive):
                        _check_open(keeper)
                    if not demand.is_any:
                        check_version(demand, _name_for(keeper, content))
                _check_fresh(keeper)
            passed = _for_vllm(keeper, scope, body, content)
            del body, content, kept  # a stream may last long
            await self._forward(keeper, demand, receive, send, passed)
        finally:
            agent.quiescence.inside -= 1

    async def _forward(
        self, keeper: GateKeeper, demand: Demand, receive: Receive, send: Send, passed: Passed
    ) -> None:
        """Pass a request to vLLM, and stamp the reply."""
        agent = keeper.agent
        with collecting(
            agent.names,
            lambda: agent.name,
            agent.kept,
            agent.adapters.weights_of,
            follows=not demand.is_any,
        ) as tokens:
            stamping = Stamping(
                send,
                tokens,
                passed.reply,
                demand=demand,
                order=agent.names.order,
                on_unlabelled=keeper.metrics.unlabelled.inc,
                is_aborted=agent.held.is_aborted,
            )
            try:
                await self._app(passed.scope, replayed(passed.body, receive), stamping.send)
            except CutShortError as error:
                _LOG.info("a reply was cut short: %s", error)
            finally:
                _count(keeper, tokens)


def _check_open(keeper: GateKeeper) -> None:
    """Check that the latch is open.

    Routers count a 503 as a failure of the worker, and keep it out for a minute after it is good again.
    A 429 is retried like a 503, and counts as nothing.
    Source: `vllm-router` 0.1.17, circuit breaker of 10 failures and 60 s.

    Errors:
        WireError: 429 if the latch is closed for now, 503 if the engine is dead.
    """
    agent = keeper.agent
    if agent.is_open:
        return
    keeper.metrics.turned_away.inc()
    if (problem := keeper.probes.problem) is not None:
        raise _unavailable(problem, [GO_ELSEWHERE])
    headers = [RETRY_SOON, GO_ELSEWHERE]
    message = f"this worker is {agent.phase}"
    raise WireError(429, message, kind="WorkerClosedError", headers=headers)


def _check_fresh(keeper: GateKeeper) -> None:
    """Check that the weights are not older than `spec.staleness` permits. Running requests stay.

    Errors:
        WireError: 429, since a rollout or the operator's next word makes the worker fresh again.
    """
    agent = keeper.agent
    if not agent.freshness.limits:
        return
    if excess := agent.freshness.excess(agent.version, agent.good.run_id):
        keeper.metrics.stale.inc()
        headers = [RETRY_SOON, GO_ELSEWHERE]
        raise WireError(429, excess, kind="StaleWeightsError", headers=headers)


def _count(keeper: GateKeeper, tokens: Tokens) -> None:
    """Count the tokens of a reply, once for each of its spans."""
    for spans in tokens.spans.values():
        for span in spans or ():
            is_base = span.adapter is None
            label = (
                keeper.agent.freshness.label_of(span.version, span.run_id) if is_base else UNKNOWN
            )
            keeper.metrics.made(span.end - span.start, label)


def _name_for(keeper: GateKeeper, content: Json | None) -> WeightName | None:
    """Return the weights that a request would get now: of its LoRA adapter, or of the model."""
    name = (content or {}).get("model")
    adapters = keeper.agent.adapters
    if isinstance(name, str) and adapters.has(name):  # otherwise vLLM reports the error
        return adapters.served_weights(name)
    return keeper.agent.name


def _for_vllm(keeper: GateKeeper, scope: Scope, body: bytes, content: Json | None) -> Passed:
    """Translate a request. `content` is the object in its body."""
    path = scope["path"]
    if scope["method"] != "POST" or path not in keeper.translations or content is None:
        return Passed(scope, body, Reply(dialect_of(path), is_stamped=stamps_itself(path)))
    forward = keeper.translations.translate(path, content)
    if forward.body is not None:
        body = compact(forward.body)
    if forward.body is not None or forward.path != path:
        scope = rerouted(scope, forward.path, body)
    return Passed(scope, body, forward.reply)


def _unavailable(message: str, headers: Headers = ()) -> WireError:
    return WireError(503, message, kind="ServiceUnavailableError", headers=[RETRY_SOON, *headers])


BODY_LIMIT = 64 * 1024 * 1024
"""Bytes. A million token ids are 7 MB; the rest is for images, which come as base64."""


async def read_whole(receive: Receive, *, limit: int = BODY_LIMIT) -> bytes:
    """The body of a request.

    Errors:
        WireError: 413, it is longer than `limit` bytes.
        ClientGoneError: the client closed the connection.
    """
    try:
        return await read_body(receive, limit=limit, patience=2)
    except BodyTooLargeError as error:
        raise WireError(413, f"a request's body has at most {limit} bytes") from error


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body again that was read, then the messages after it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def rerouted(scope: Scope, path: str, body: bytes) -> Scope:
    """Return the scope of a request for another path, with another body."""
    headers = [(k, v) for k, v in scope["headers"] if k.lower() != b"content-length"]
    headers = [(k, v) for k, v in headers if k.lower() != b"transfer-encoding"]
    headers.append((b"content-length", str(len(body)).encode()))
    return {**scope, "path": path, "raw_path": path.encode(), "headers": headers}


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
