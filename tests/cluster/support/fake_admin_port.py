"""A fake worker's admin port: the protocol's routes over HTTP, with `FakeWorker`'s rules behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

from aiohttp import web
from tests.model.fake_state import Ticket
from tests.model.fake_worker import FakeWorker

from fleet_operator.api.source import WeightSource
from fleet_operator.core import actions
from fleet_worker import protocol

TICK_SECONDS = 0.02

_WHO = {"pod_uid": "", "pod_name": "", "reason": "asked over HTTP"}
_LONG = {"timeout_seconds": 600.0}

Make = Callable[[Any], actions.WorkerCall]
_CALLS: dict[str, tuple[type[protocol.Message], Make]] = {
    protocol.STAGE_PATH: (
        protocol.StageRequest,
        lambda r: actions.Stage(
            version=r.version, source=_source(r.source), digest=r.digest, **_LONG, **_WHO
        ),
    ),
    protocol.PAUSE_PATH: (
        protocol.PauseRequest,
        lambda r: actions.Pause(**_pause(r), **_WHO),
    ),
    protocol.LOAD_PATH: (
        protocol.LoadRequest,
        lambda r: actions.Load(version=r.version, **_LONG, **_WHO),
    ),
    protocol.APPLY_PATH: (
        protocol.ApplyRequest,
        lambda r: actions.Apply(version=r.version, **_pause(r), **_LONG, **_WHO),
    ),
    protocol.RESUME_PATH: (
        protocol.OpenRequest,
        lambda r: actions.Resume(version=r.version, **_WHO),
    ),
    protocol.ADMIT_PATH: (
        protocol.OpenRequest,
        lambda r: actions.Admit(version=r.version, **_WHO),
    ),
    protocol.FENCE_PATH: (
        protocol.FenceRequest,
        lambda r: actions.Fence(drain_timeout_seconds=r.drain_timeout_seconds, **_WHO),
    ),
    protocol.PROBE_PATH: (
        protocol.PromptsRequest,
        lambda r: actions.CanaryPrompts(
            prompts=r.prompts,
            max_tokens=r.max_tokens,
            compare_with=r.compare_with,
            compare_with_run_id=r.compare_with_run_id,
            compare_with_digest=r.compare_with_digest,
            **_LONG,
            **_WHO,
        ),
    ),
}


def _pause(request: protocol.PauseRequest | protocol.ApplyRequest) -> dict[str, Any]:
    return {
        "mode": str(request.mode),
        "drain_timeout_seconds": request.drain_timeout_seconds,
        "lease_seconds": request.lease_seconds,
    }


def _source(source: protocol.Source) -> WeightSource:
    return WeightSource(path=source.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it came in."""

    at: float
    action: actions.WorkerCall
    epoch: protocol.Epoch
    ticket: Ticket

    @property
    def taken(self) -> bool:
        """Whether the worker followed, or follows, the call."""
        return self.ticket.reason is None


class FakeAdminPort:
    """One worker's port at an address of its own."""

    def __init__(self, worker: FakeWorker, address: str, port: int, token: str) -> None:
        self.worker = worker
        self.address = address
        self.calls: list[Call] = []
        self._port = port
        self._token = token
        self._runner: web.AppRunner | None = None

    async def open(self) -> Self:
        """Listen."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(protocol.STATE_PATH, self._state)
        for path in _CALLS:
            app.router.add_put(path, self._call)
        app.router.add_put(f"{protocol.ADAPTERS_PATH}{{name}}", self._put_adapter)
        app.router.add_delete(f"{protocol.ADAPTERS_PATH}{{name}}", self._remove_adapter)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self._port).start()
        return self

    async def close(self) -> None:
        """Listen no more: connections are refused."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Signed calls for this pod alone, and signed answers, as the protocol has them."""
        call = protocol.SignedCall(
            method=request.method,
            path=request.path,
            pod_uid=request.headers.get(protocol.HEADER_POD_UID, ""),
            instance=request.headers.get(protocol.HEADER_INSTANCE, ""),
            nonce=request.headers.get(protocol.HEADER_NONCE, ""),
            body_digest=protocol.body_digest(await request.read()),
        )
        signature = protocol.call_signature(self._token, call)
        if request.headers.get("Authorization") != f"{protocol.SIGNATURE_SCHEME} {signature}":
            return _refusal(protocol.Reason.UNAUTHORIZED, status=401)
        if call.pod_uid == self.worker.uid:
            response = await handler(request)
        else:
            response = _refusal(protocol.Reason.WRONG_POD, status=421)
        response.headers[protocol.HEADER_SIGNATURE] = protocol.answer_signature(
            self._token, call=signature, status=response.status, body=response.body
        )
        return cast("web.StreamResponse", response)

    async def _state(self, _: web.Request) -> web.Response:
        return _message(self.worker.state(_now()))

    async def _call(self, request: web.Request) -> web.Response:
        kind, make = _CALLS[request.path]
        return await self._take(request, kind, make)

    async def _put_adapter(self, request: web.Request) -> web.Response:
        def make(put: protocol.AdapterRequest) -> actions.WorkerCall:
            kind = actions.StageLora if put.stage_only else actions.PutLora
            return kind(
                adapter=request.match_info["name"],
                version=put.version,
                run_id=put.run_id,
                digest=put.digest,
                source=_source(put.source),
                **_LONG,
                **_WHO,
            )

        return await self._take(request, protocol.AdapterRequest, make)

    async def _remove_adapter(self, request: web.Request) -> web.Response:
        def make(_: protocol.AdapterRemoval) -> actions.WorkerCall:
            return actions.RemoveLora(adapter=request.match_info["name"], **_WHO)

        return await self._take(request, protocol.AdapterRemoval, make)

    async def _take(
        self, request: web.Request, kind: type[protocol.Message], make: Make
    ) -> web.Response:
        body = kind.model_validate_json(await request.read())
        action, epoch = make(body), body.epoch
        ticket = self.worker.take(action, epoch, _now())
        self.calls.append(Call(at=_now(), action=action, epoch=epoch, ticket=ticket))
        while not ticket.done:
            await asyncio.sleep(TICK_SECONDS)
            self.worker.tick(_now())
        state = self.worker.state(_now())
        if ticket.reason is None:
            return _message(state)
        refused = protocol.ErrorDetail(reason=ticket.reason, message="refused by the fake worker")
        return _message(protocol.ErrorReply(error=refused, state=state), status=409)


def _refusal(reason: protocol.Reason, *, status: int) -> web.Response:
    refused = protocol.ErrorDetail(reason=reason, message="refused by the fake worker")
    return _message(protocol.ErrorReply(error=refused), status=status)


def _message(message: protocol.Message, status: int = 200) -> web.Response:
    text = message.model_dump_json(by_alias=True)
    return web.Response(text=text, status=status, content_type="application/json")


def _now() -> float:
    return asyncio.get_running_loop().time()
