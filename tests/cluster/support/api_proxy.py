"""A proxy between an operator and the real API server that records every request, and may spoil some.

It speaks plain HTTP to the operator and TLS to the server; tokens, bodies and streams pass as they
are. `faults.Faults` chooses the requests to spoil.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web
from tests.cluster.support.admin import Credentials, Json
from tests.cluster.support.client import Client
from tests.cluster.support.faults import Fault, Faults

_RESOURCE = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_HOP = {"transfer-encoding", "connection", "keep-alive", "content-length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it passed. `status`: 0 if the operator got no answer."""

    at: float
    method: str
    path: str
    watches: bool
    status: int
    fault: Fault | None = None

    @property
    def namespace(self) -> str:
        """Where it went to; empty for the whole cluster."""
        found = _RESOURCE.match(self.path)
        return (found and found["namespace"]) or ""

    @property
    def right(self) -> tuple[str, str, str] | None:
        """Group, resource and verb, as RBAC knows them; None for paths without a resource."""
        found = _RESOURCE.match(self.path)
        if found is None:
            return None
        resource = "/".join(filter(None, (found["resource"], found["part"])))
        verb = _VERBS.get(self.method) or ("get" if found["name"] else "list")
        return found["group"] or "", resource, "watch" if self.watches else verb

    @property
    def creates_by_patch(self) -> bool:
        """A server-side apply of what was not there wants the right to create it too."""
        return self.method == "PATCH" and self.status == 201

    @property
    def writes(self) -> bool:
        """Whether it changes something of a fleet: the Lease and questions about rights do not."""
        right = self.right
        return (
            right is not None
            and self.method != "GET"
            and right[1] not in {"leases", "selfsubjectaccessreviews"}
        )


class ApiProxy:
    """One operator's way to the API server."""

    def __init__(self, server: Credentials, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.renamed: dict[str, str] = {}
        """Parts of paths that the server gets otherwise, for it to answer what it does for them."""
        self._gone = False
        self.requests: list[Request] = []
        self.statuses: list[tuple[float, Json]] = []
        """Every status that the operator has sent, with the time on the event loop's clock."""
        self.port = 0
        self._server = server
        self._streams: dict[int, web.Request] = {}
        self._muted: set[int] = set()
        self._runner: web.AppRunner
        self._upstream: Client

    async def __aenter__(self) -> Self:
        self._upstream = Client(self._server.tls)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._upstream.close()

    def kubeconfig(self, folder: Path, token: str) -> Path:
        """A kubeconfig for this proxy, with the identity of the token."""
        server = {"server": f"http://127.0.0.1:{self.port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": server}],
            "users": [{"name": "operator", "user": {"token": token}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "operator"}}],
            "current-context": "proxy",
        }
        file = folder / f"kubeconfig-{self.port}"
        file.write_text(json.dumps(config))
        return file

    @property
    def writes(self) -> list[Request]:
        """Requests that changed, or would have changed, a part of a fleet."""
        return [r for r in self.requests if r.writes]

    def stalled(self, since: int = 0) -> list[tuple[float, Json]]:
        """`Stalled` in statuses that the operator has sent, with their times. `since`: number of the first
        statuses to leave out.
        """
        return [
            (at, condition)
            for at, sent in self.statuses[since:]
            for condition in sent["status"].get("conditions", ())
            if condition["type"] == "Stalled"
        ]

    def rights(self) -> set[tuple[str, str, str]]:
        """Every right that was made use of."""
        used = {right for r in self.requests if (right := r.right)}
        created = {
            (*right[:2], "create")
            for r in self.requests
            if r.creates_by_patch and (right := r.right)
        }
        return used | created

    def cut_watches(self) -> int:
        """Reset every stream that is open. Returns: how many."""
        streams = list(self._streams.values())
        for stream in streams:
            _reset(stream)
        return len(streams)

    def mute_watches(self) -> set[str]:
        """Let nothing through any more in the streams that are open, not even their ends. Returns: the paths."""
        self._muted |= self._streams.keys()
        return {stream.path for stream in self._streams.values()}

    def cut_off(self) -> None:
        """From now on nothing gets through, and what was open is cut: the network is gone."""
        self._gone = True
        self.cut_watches()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        watches = request.query.get("watch") in {"1", "true"}
        fault = self.faults.choose(request.method, request.path, watches=watches)
        noted = len(self.requests)
        self.requests.append(self._note(request, 0, fault, watches=watches))

        def note(status: int) -> None:
            self.requests[noted] = self._note(request, status, fault, watches=watches)

        if self._gone:
            return _reset(request)
        if fault is Fault.SLOW:
            await asyncio.sleep(self.faults.delay_seconds())
        if fault is not None and (refusal := fault.refusal(watches=watches)) is not None:
            note(refusal.status)
            return refusal
        path = request.raw_path
        for asked, sent in self.renamed.items():
            path = path.replace(asked, sent)
        url = f"{self._server.server}{path}"
        headers = {k: v for k, v in request.headers.items() if k.lower() not in {"host", *_HOP}}
        body = await request.read()
        if request.path.endswith("/status") and body:
            sent = (asyncio.get_running_loop().time(), json.loads(body))
            self.statuses.append(sent)
        try:
            answer = await self._upstream.request(
                request.method,
                url,
                headers=headers,
                data=body or None,
                timeout=aiohttp.ClientTimeout(total=None),
            )
            async with answer:
                if fault is Fault.LOST_ANSWER:
                    await answer.read()
                    return _reset(request)
                note(answer.status)
                return await self._hand_on(request, answer, fault, watches=watches)
        except aiohttp.ClientError:
            # The server is away: to the operator it looks as it would without us in between.
            return _reset(request)

    async def _hand_on(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        fault: Fault | None,
        *,
        watches: bool,
    ) -> web.StreamResponse:
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
        if not watches:
            return web.Response(status=answer.status, headers=kept, body=await answer.read())
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        self._streams[id(request)] = request
        limit = self.faults.stream_seconds() if fault is Fault.CUT_STREAM else None
        try:
            async with asyncio.timeout(limit):
                async for chunk in answer.content.iter_any():
                    if id(request) not in self._muted:
                        await response.write(chunk)
                if id(request) in self._muted:
                    await asyncio.Event().wait()  # until the operator closes the connection
        except TimeoutError:
            return _reset(request)
        except ConnectionError:
            pass  # The operator has gone, or the test cut the watches.
        finally:
            self._streams.pop(id(request), None)
            self._muted.discard(id(request))
        return response

    def _note(
        self, request: web.Request, status: int, fault: Fault | None, *, watches: bool
    ) -> Request:
        return Request(
            at=asyncio.get_running_loop().time(),
            method=request.method,
            path=request.path,
            watches=watches,
            status=status,
            fault=fault,
        )


def _reset(request: web.Request) -> web.Response:
    """Close the connection without a word."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
