"""A fake worker's admin port: the protocol's routes over HTTP, with `FakeWorker`'s rules behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from tests.model.fake_worker import FakeWorker

from fleet_operator.api.source import WeightSource
from fleet_operator.core import actions
from fleet_worker import protocol

TICK_SECONDS = 0.02

Make = Callable[[dict[str, Any]], actions.WorkerCall]
_WHO = {"pod_uid": "", "pod_name": "", "reason": "asked over HTTP"}
_LONG = {"timeout_seconds": 600.0}


def _pause_fields(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "mode": body["mode"],
        "drain_timeout_seconds": body["drain_timeout_seconds"],
        "lease_seconds": body["lease_seconds"],
    }


_CALLS: dict[str, tuple[type[protocol.Message], Make]] = {
    protocol.STAGE_PATH: (
        protocol.StageRequest,
        lambda b: actions.Stage(
            version=b["version"],
            source=WeightSource(path=b["source"]["path"]),
            digest=b.get("digest"),
            **_LONG,
            **_WHO,
        ),
    ),
    protocol.PAUSE_PATH: (
        protocol.PauseRequest,
        lambda b: actions.Pause(**_pause_fields(b), **_WHO),
    ),
    protocol.LOAD_PATH: (
        protocol.LoadRequest,
        lambda b: actions.Load(version=b["version"], **_LONG, **_WHO),
    ),
    protocol.APPLY_PATH: (
        protocol.ApplyRequest,
        lambda b: actions.Apply(version=b["version"], **_pause_fields(b), **_LONG, **_WHO),
    ),
    protocol.RESUME_PATH: (
        protocol.OpenRequest,
        lambda b: actions.Resume(version=b["version"], **_WHO),
    ),
    protocol.ADMIT_PATH: (
        protocol.OpenRequest,
        lambda b: actions.Admit(version=b["version"], **_WHO),
    ),
    protocol.FENCE_PATH: (
        protocol.FenceRequest,
        lambda b: actions.Fence(
            drain_timeout_seconds=b["drain_timeout_seconds"], **_WHO | {"reason": b["reason"]}
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it came in. `taken`: whether the worker did as it was told."""

    at: float
    action: actions.WorkerCall
    epoch: protocol.Epoch
    taken: bool


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
        app = web.Application()
        app.router.add_get(protocol.STATE_PATH, self._state)
        for path in _CALLS:
            app.router.add_put(path, self._call)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self._port).start()
        return self

    async def close(self) -> None:
        """Listen no more: connections are refused."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _state(self, request: web.Request) -> web.Response:
        if refusal := self._unauthorized(request):
            return refusal
        return _message(self._seen())

    async def _call(self, request: web.Request) -> web.Response:
        if refusal := self._unauthorized(request):
            return refusal
        kind, make = _CALLS[request.path]
        message = kind.model_validate_json(await request.read())
        body = message.model_dump(mode="json", by_alias=True)
        action, epoch = make(body), protocol.Epoch.model_validate(body["epoch"])
        state, reason = self.worker.call(action, epoch, _now())
        self.calls.append(Call(at=_now(), action=action, epoch=epoch, taken=reason is None))
        while reason is None and state.operation and state.operation.kind == action.kind:
            await asyncio.sleep(TICK_SECONDS)
            state = self._seen()
        if reason is None:
            return _message(state)
        refused = protocol.ErrorDetail(reason=reason, message="refused by the fake worker")
        return _message(protocol.ErrorReply(error=refused, state=state), status=409)

    def _seen(self) -> protocol.WorkerState:
        self.worker.tick(_now())
        return self.worker.state(_now())

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") == f"Bearer {self._token}":
            return None
        refused = protocol.ErrorDetail(reason=protocol.Reason.UNAUTHORIZED, message="wrong token")
        return _message(protocol.ErrorReply(error=refused), status=401)


def _message(message: protocol.Message, status: int = 200) -> web.Response:
    text = message.model_dump_json(by_alias=True)
    return web.Response(text=text, status=status, content_type="application/json")


def _now() -> float:
    return asyncio.get_running_loop().time()
