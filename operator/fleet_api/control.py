"""The control root: a fleet answers like one vLLM, so that a trainer needs one address.

A fleet of management Operator answers by its WeightVersion (`managed`), one of External by all of its
workers (`external`).

Source: prime-rl's `utils.client`, TRL's `VLLMClient`, NeMo-RL's `remote_vllm`, vLLM's RL routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from fleet_api.calls import Access, Call, Handler
from fleet_api.external import External
from fleet_api.idempotency import HEADER, MEANING_OF_CALLS, check
from fleet_api.managed import Managed
from fleet_api.problems import Problem, of_error
from fleet_api.replies import AnyDocument, HealthDocument, WorldSizeDocument
from fleet_api.route import CHANGE_ERRORS, Contract, Route
from fleet_api.trainer_bodies import CollectiveRpc, LoadAdapter, UnloadAdapter, UpdateWeights
from fleet_api.workers import WORKER_PATH
from fleet_worker.protocol import ENGINE_ROUTES
from rlfleet.errors import RlfleetError
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType

_HEALTH = Contract({200: HealthDocument, 503: HealthDocument})
_WORLD_SIZE = Contract({200: WorldSizeDocument})
_PAUSE = {"mode": "abort, wait or keep.", "clear_cache": "Whether cached prefixes are dropped."}
_FORMAT = {"config_format": "json for an object, else text."}
_EXTERNAL_ONLY = {
    "/init_weight_transfer_engine": "Every worker joins the trainer's group.",
    "/shutdown_weight_transfer_engine": "Every worker leaves the trainer's group.",
    "/start_weight_update": "Every worker begins to receive weights, and has no version meanwhile.",
    "/finish_weight_update": "Every worker labels the weights that it has received.",
    "/update_weight_version": "Every worker labels the weights that it has loaded and not served.",
    "/init_broadcaster": "Every worker joins the trainer's group.",
    "/abort_requests": "Every worker ends these requests, or all of them.",
    "/sleep": "Every worker sleeps.",
    "/wake_up": "Every worker wakes up.",
}
"""Calls that fleets of management Operator refuse, and the effect on the workers of External ones."""
_ONE_WORKER = "The worker in the path gets the call."

LOAD_ADAPTER_PATHS = frozenset({"/load_lora_adapter", "/v1/load_lora_adapter"})


@dataclass(frozen=True, slots=True)
class Row:
    """One route.

    Fields:
        managed: its handler for a fleet of management Operator.
        external: one sentence on what the workers of an External fleet do with the call.
        repeatable: whether it takes an idempotency key.
    """

    method: str
    path: str
    managed: Handler
    external: str
    access: Access = Access.DRIVE
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False

    @property
    def contract(self) -> Contract:
        """The declaration. Workers of an External fleet decide the document, and may refuse any call."""
        headers = {HEADER: MEANING_OF_CALLS} if self.repeatable else {}
        return Contract({200: AnyDocument}, CHANGE_ERRORS, self.body, headers, self.query)


def control_routes(managed: Managed, external: External) -> tuple[Route, ...]:
    """The routes of the control root."""
    rows = (
        Row("POST", "/pause", managed.pause, "Every worker pauses, as mode says.", query=_PAUSE),
        Row("POST", "/resume", managed.resume, "Every worker generates again."),
        Row(
            "GET",
            "/is_paused",
            managed.is_paused,
            "Whether every worker has paused.",
            Access.FLEET,
        ),
        Row(
            "POST",
            "/update_weights",
            managed.update_weights,
            "Every worker loads the directory, or receives the tensors over its group.",
            body=UpdateWeights,
            repeatable=True,
        ),
        Row(
            "POST",
            "/collective_rpc",
            managed.collective_rpc,
            "Every worker loads the directory.",
            body=CollectiveRpc,
            repeatable=True,
        ),
        Row(
            "POST",
            "/reset_prefix_cache",
            managed.drop_prefixes,
            "Every worker drops its cached prefixes.",
        ),
        Row(
            "GET",
            "/weight_info",
            managed.weight_info,
            "The version of all workers; null while they have several.",
            Access.FLEET,
        ),
        Row(
            "GET",
            "/server_info",
            managed.server_info,
            "The engine's configuration of one worker.",
            Access.FLEET,
            query=_FORMAT,
        ),
        # The handler requires the right, on the WeightVersion that the body names.
        *(
            Row(
                "POST",
                path,
                managed.load_adapter,
                "Every worker loads the adapter.",
                Access.ADAPTER,
                LoadAdapter,
                repeatable=True,
            )
            for path in sorted(LOAD_ADAPTER_PATHS)
        ),
        Row(
            "POST",
            "/v1/unload_lora_adapter",
            managed.unload_adapter,
            "Every worker unloads the adapter.",
            Access.ADAPTER,
            UnloadAdapter,
        ),
        Row(
            "GET",
            "/is_sleeping",
            managed.is_sleeping,
            "Whether every worker sleeps.",
            Access.FLEET,
        ),
        *(
            Row("POST", path, managed.refuse, meaning, body=AnyDocument)
            for path, meaning in _EXTERNAL_ONLY.items()
        ),
        *(
            Row("POST", WORKER_PATH + path, managed.refuse, _ONE_WORKER, body=AnyDocument)
            for path in (
                "/collective_rpc",
                "/v1/loras",
                *(f"/engine/{name}" for name in sorted(ENGINE_ROUTES)),
            )
        ),
    )
    return (
        Route("GET", "/health", health, Access.FLEET, _HEALTH),
        Route("GET", "/get_world_size", world_size, Access.FLEET, _WORLD_SIZE),
        *(
            Route(
                r.method,
                r.path,
                _handler_of(r, external),
                r.access,
                r.contract,
                is_large="update_weights" in r.path,
            )
            for r in rows
        ),
    )


async def health(call: Call) -> web.Response:
    """200 once the fleet serves. `control_fanout`: a call to this address reaches every worker."""
    fleet = call.fleet
    found = condition_of(fleet.status.conditions, ConditionType.AVAILABLE)
    available = found is not None and found.status == "True"
    document = {
        "status": "ok" if available else "unavailable",
        "total_backends": fleet.spec.replicas,
        "ready_backends": fleet.status.ready_replicas,
        "control_fanout": True,
    }
    return web.json_response(document, status=200 if available else 503)


async def world_size(call: Call) -> web.Response:
    """The processes of all workers that the fleet should have."""
    return web.json_response({"world_size": call.fleet.world_size * call.fleet.spec.replicas})


def _handler_of(row: Row, external: External) -> Handler:
    handle = _either(row, external)
    return _with_500_for_503(handle) if row.path in LOAD_ADAPTER_PATHS else handle


def _with_500_for_503(handler: Handler) -> Handler:
    """The handler, with 500 instead of 503: prime-rl repeats a load of an adapter after 404 and 500 only."""

    async def handle(call: Call) -> web.StreamResponse:
        try:
            return await handler(call)
        except (Problem, RlfleetError) as error:
            problem = error if isinstance(error, Problem) else of_error(error)
            if problem.status is HTTPStatus.SERVICE_UNAVAILABLE:
                problem.status = HTTPStatus.INTERNAL_SERVER_ERROR
            raise problem from error

    handle.__doc__ = handler.__doc__
    return handle


def _either(row: Row, external: External) -> Handler:
    async def handle(call: Call) -> web.StreamResponse:
        if not call.fleet.is_external:
            return await row.managed(call)
        if row.repeatable and (key := call.request.headers.get(HEADER)) is not None:
            check(key)
        return await external.pass_on(call)

    meaning = (row.managed.__doc__ or "").strip()
    handle.__doc__ = f"{row.external} With management Operator: {meaning}"
    return handle
