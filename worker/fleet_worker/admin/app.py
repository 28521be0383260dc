"""The admin port: authenticate, read a small body, make one call of one API, answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import parse_qsl

from fleet_worker.admin.api import Answer, Api, Call, Handler
from fleet_worker.admin.guard import Caller, Guard
from fleet_worker.errors import EngineFailure, Refusal, status_of
from fleet_worker.http.asgi import (
    GO_ELSEWHERE,
    BodyTooLargeError,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    read_body,
)
from fleet_worker.http.asgi import answer as respond
from fleet_worker.http.strangers import turn_of
from fleet_worker.http.unauthenticated import Probes
from fleet_worker.logs import fields
from fleet_worker.protocol import LIVE_PATH, READY_PATH, Reason

_LOG = logging.getLogger(__name__)
_TOKEN_PATH = "/t/"  # noqa: S105 - the path of a token, not a token
_METHODS = ("GET", "PUT", "POST", "DELETE")


class AdminApp:
    """The ASGI application of the admin port."""

    def __init__(
        self,
        apis: Sequence[Api],
        *,
        guard: Guard,
        probes: Probes,
        on_refused: Callable[[Reason], None],
    ) -> None:
        """Make the application.

        Of the APIs the first one also answers for unknown paths. `probes` answers the paths without
        authentication, and `on_refused` gets the reason of every refusal and failure.
        """
        self._guard = guard
        self._probes = probes
        self._on_refused = on_refused
        self._running: set[asyncio.Task[Answer]] = set()
        self._default = apis[0]
        self._routes: dict[tuple[str, str], tuple[Api, Handler]] = {}
        for api in apis:
            for route, handler in api.routes.items():
                if route in self._routes:
                    raise ValueError(f"two APIs serve {route[0]} {route[1]}")
                self._routes[route] = (api, handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path in (LIVE_PATH, READY_PATH):
            await self._probes.answer(scope, send)
            return
        token, path = _token_in(path)
        try:
            caller = self._guard.authenticate(scope, token)
        except Refusal as refusal:
            await turn_of(scope)
            await self._refuse(send, self._default, refusal, headers=(GO_ELSEWHERE,))
            return
        sealed = caller.sealed(send)
        try:
            self._guard.check_pod(scope, caller)
            await self._serve(scope, receive, sealed, caller, path)
        except Refusal as refusal:
            await self._refuse(sealed, self._default, refusal)
        except ClientGoneError:
            return

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, caller: Caller, path: str
    ) -> None:
        method = scope["method"]
        found = self._find(method, path)
        if found is None:
            await self._refuse_unknown(send, path)
            return
        api, handler, rest = found
        try:
            body = await read_body(receive, limit=api.body_limit)
        except BodyTooLargeError:
            words = f"a body has at most {api.body_limit} bytes"
            refusal = Refusal(Reason.BAD_REQUEST, words)
            await self._refuse(send, api, refusal, status=413)
            return
        self._guard.take(caller, body)
        text = scope.get("query_string", b"").decode("latin-1")
        query = tuple(parse_qsl(text, keep_blank_values=True))
        client = (scope.get("client") or ("unknown",))[0]
        call = Call(method, path, body, query, client, rest, driver=caller.driver)
        await self._answer(send, api, handler, call)

    def _find(self, method: str, path: str) -> tuple[Api, Handler, str] | None:
        if (exact := self._routes.get((method, path))) is not None:
            return *exact, ""
        begin, slash, rest = path.rpartition("/")
        if rest and (prefix := self._routes.get((method, begin + slash))) is not None:
            return *prefix, rest
        return None

    async def _answer(self, send: Send, api: Api, handler: Handler, call: Call) -> None:
        try:
            answer = await self._perform(handler, call)
        except (Refusal, EngineFailure) as error:
            _LOG.info(
                "%s %s refused: %s",
                call.method,
                call.path,
                error.message,
                extra=fields("refused", call=call.path, reason=error.reason),
            )
            await self._refuse(send, api, error)
        except Exception:  # noqa: BLE001 - a caller must get an answer to any defect
            _LOG.exception("%s %s failed", call.method, call.path)
            words = "the worker failed at this call; its log has the error"
            await self._refuse(send, api, EngineFailure(words, touched=False))
        else:
            await _send(send, answer)

    async def _perform(self, handler: Handler, call: Call) -> Answer:
        """Make a call that continues when its caller disconnects."""
        task = asyncio.ensure_future(handler(call))
        self._running.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved even if the caller has disconnected

    async def _refuse(
        self,
        send: Send,
        api: Api,
        error: Refusal | EngineFailure,
        *,
        status: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self._on_refused(error.reason)
        answer = api.explain(error, status or status_of(error.reason))
        await _send(send, replace(answer, headers=answer.headers + headers))

    async def _refuse_unknown(self, send: Send, path: str) -> None:
        known = [method for method in _METHODS if self._find(method, path) is not None]
        message = f"use {' or '.join(known)} {path}" if known else "no such path"
        refusal = Refusal(Reason.BAD_REQUEST, message)
        await self._refuse(send, self._default, refusal, status=405 if known else 404)


def _token_in(path: str) -> tuple[str | None, str]:
    """Return the token in a path, for clients that send no headers, and the path without it.

    The form is `/t/TOKEN/…`. The rest of this module, and its log, see only the path without it.
    """
    if not path.startswith(_TOKEN_PATH):
        return None, path
    token, slash, rest = path.removeprefix(_TOKEN_PATH).partition("/")
    return token, slash + rest


async def _send(send: Send, answer: Answer) -> None:
    content = answer.content
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    await respond(send, answer.status, content, answer.media_type, answer.headers)
