"""Dynamo's engine routes, `POST /engine/*`, on the admin port: a table over vLLM's handlers.

Its clients read `status` first: a refusal is HTTP 200 with `{"status": "error", "message"}`, a
failure of the engine is 500. Only a wrong token or a malformed body is answered with a 4xx.
Source: documentation and package of ai-dynamo 1.6; the clients in prime-rl and NeMo-RL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, StrictStr

from fleet_worker.admin.api import (
    LARGE_BODY,
    Answer,
    Api,
    Call,
    Handler,
    Json,
    Lenient,
    explain_to_trainer,
    parsed,
)
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import ENGINE_ROUTES, Reason
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.vllm import Vllm
from fleet_worker.trainer.vllm_requests import EndTransfer, JoinId, Loading, Wake

_STEPS = ("start_weight_update", "update_weights", "finish_weight_update")


class Dynamo:
    """The handlers."""

    def __init__(self, driver: Driver, vllm: Vllm) -> None:
        self._driver = driver
        self._vllm = vllm
        self._table: dict[str, Handler] = {
            "pause_generation": _over(vllm.pause, _to_pause, _paused),
            "resume_generation": _over(vllm.resume),
            "sleep": _over(vllm.sleep, _in_query),
            "wake_up": _over(vllm.wake, _to_wake),
            "flush_cache": self.flush_cache,
            "abort_request": _over(vllm.abort_requests, _to_abort),
            "liveness_probe": self.liveness,
            "is_paused": vllm.is_paused,
            "control/get_weight_version": vllm.weight_info,
            "get_weight_version": _over(vllm.weight_info, answer=_versioned),
            "set_weight_version": _over(vllm.name_version, _to_name, _versioned),
            "update_weight_version": _over(vllm.name_version, _to_name, _versioned),
            "init_weights_update_group": _over(vllm.join_transfer, _to_join),
            "init_weight_transfer_engine": _over(vllm.join_transfer, _to_join),
            "destroy_weights_update_group": _over(vllm.leave_transfer),
            "start_weight_update": _over(vllm.begin_transfer),
            "update_weights": _over(vllm.receive),
            "finish_weight_update": _over(vllm.end_transfer, answer=_finished),
            "update_weights_from_disk": self.from_disk,
            "update_weights_from_distributed": self.from_distributed,
            "update_weights_from_tensor": self.from_tensor,
            "load_lora": _over(vllm.load_adapter, _to_load, self._loaded),
            "unload_lora": _over(vllm.unload_adapter, answer=_unloaded),
        }

    def api(self) -> Api:
        """The routes. A name means the same in every folder, unless the table has it with its folder."""
        table = self._table
        routes = {
            ("POST", f"/engine/{name}"): table.get(name) or table[name.rpartition("/")[2]]
            for name in ENGINE_ROUTES
        }
        routes["POST", "/v1/loras"] = table["load_lora"]
        return Api("dynamo", routes, _explain, body_limit=LARGE_BODY)

    async def flush_cache(self, call: Call) -> Answer:
        """`flush_cache`."""
        dropped = await self._vllm.drop_prefixes(replace(call, body=b"", query=()))
        if dropped.content != {"success": True}:
            raise Refusal(Reason.WRONG_PHASE, "running requests hold the cache")
        return Answer({"status": "ok"})

    async def liveness(self, call: Call) -> Answer:
        """`liveness_probe`."""
        alive = (await self._vllm.liveness(call)).status == 200
        return Answer({"status": "ok" if alive else "error", "alive": alive})

    async def from_disk(self, call: Call) -> Answer:
        """`update_weights_from_disk`: only while paused."""
        wanted = parsed(FromDisk, call)
        self._driver.seat.check_may_drive()
        self._check_paused()
        if wanted.engine_rpc != "reload_weights":
            raise Refusal(Reason.BAD_REQUEST, "files are loaded by reload_weights only")
        label = await self._driver.files.load(call.caller, wanted.model_path, wanted.version)
        return Answer(
            {"status": "ok", "version": label, "version_declared": wanted.version is not None}
        )

    async def from_distributed(self, call: Call) -> Answer:
        """`update_weights_from_distributed`: a step of vLLM's weight transfer."""
        wanted = parsed(FromDistributed, call)
        self._driver.seat.check_may_drive()
        if wanted.engine_rpc not in _STEPS:
            raise Refusal(
                Reason.NOT_AVAILABLE,
                f"weights over a collective come by {', '.join(_STEPS)}; publish them as files"
                " otherwise",
            )
        if wanted.allow_unpaused and wanted.reset_prefix_cache:
            raise Refusal(
                Reason.BAD_REQUEST, "the cache cannot be reset while requests are running"
            )
        if not wanted.allow_unpaused and not self._driver.seat.transfers.is_open:
            self._check_paused()
        return await self._table[wanted.engine_rpc](call)

    async def from_tensor(self, _: Call) -> Answer:
        """`update_weights_from_tensor`: tensors would come pickled."""
        raise Refusal(Reason.NOT_AVAILABLE, "not implemented: tensors would come pickled")

    def _loaded(self, call: Call, _: Json) -> Json:
        name = _body_of(call)["lora_name"]
        number = self._driver.seat.agent.adapters.number_of(name)
        return {"status": "success", "lora_name": name, "lora_id": number}

    def _check_paused(self) -> None:
        if not self._driver.seat.is_paused:
            raise Refusal(Reason.WRONG_PHASE, "pause generation first")


def _over(
    handler: Handler,
    translate: Callable[[Call], Call] = lambda call: call,
    answer: Callable[[Call, Any], Json] = lambda _, content: {**content, "status": "ok"},
) -> Handler:
    """Return a handler over one of vLLM's.

    Args:
        handler: vLLM's.
        translate: Makes its call.
        answer: Makes the answer from vLLM's call and vLLM's answer; by default that with `status: ok`.
    """

    async def handle(call: Call) -> Answer:
        call = translate(call)
        return Answer(answer(call, (await handler(call)).content))

    return handle


# --- vLLM's calls ---------------------------------------------------------------------------------


def _body_of(call: Call) -> Json:
    try:
        body = json.loads(call.body or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refusal(Reason.BAD_REQUEST, "the body must be a JSON object")
    return body


def _with_body(call: Call, **body: Any) -> Call:
    return replace(call, body=json.dumps(body).encode(), query=())


def _in_query(call: Call, **defaults: Any) -> Call:
    """Put the body where vLLM reads the parameters of this call. `null` is a parameter that is absent."""
    given = {**defaults, **{k: v for k, v in _body_of(call).items() if v is not None}}
    texts = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in given.items()]
    return replace(call, body=b"", query=tuple(texts))


def _to_wake(call: Call) -> Call:
    tags = parsed(Wake, call).tags or []
    return replace(call, body=b"", query=tuple(("tags", each) for each in tags))


def _to_pause(call: Call) -> Call:
    return _in_query(call, mode="keep", clear_cache=False)  # Dynamo's defaults


def _to_abort(call: Call) -> Call:
    return _with_body(call, request_ids=[_body_of(call).get("request_id")])


def _to_name(call: Call) -> Call:
    return _with_body(call, new_version=parsed(SetVersion, call).label)


def _to_join(call: Call) -> Call:
    wanted = parsed(JoinGroup, call)
    return _with_body(call, init_info=wanted.as_init_info(), join_id=wanted.join_id)


def _to_load(call: Call) -> Call:
    wanted = parsed(LoadAdapter, call)
    named = {"lora_name": wanted.lora_name, "lora_path": wanted.source.path}
    return _with_body(call, **named, version=wanted.version)


# --- Dynamo's answers -----------------------------------------------------------------------------


def _versioned(_: Call, content: Json) -> Json:
    version = content.get("weight_version", content.get("new_version"))
    return {"status": "ok", "version": version, "version_declared": version is not None}


def _finished(call: Call, content: Json) -> Json:
    """The worker names weights itself if the trainer does not."""
    named = {"version": content["weight_version"], "run_id": content["run_id"]}
    declared = parsed(EndTransfer, call).version is not None
    return {"status": "ok", **named, "version_declared": declared}


def _paused(call: Call, content: Json) -> Json:
    return {**content, **call.parameters, "status": "ok"}


def _unloaded(call: Call, _: Json) -> Json:
    return {"status": "success", "lora_name": _body_of(call)["lora_name"]}


def _explain(error: Refusal | EngineFailure, status: int) -> Answer:
    by_status = isinstance(error, EngineFailure) or error.reason is Reason.UNAUTHORIZED
    if by_status or status in (404, 405, 413):
        return explain_to_trainer(error, status)
    content = {"status": "error", "message": error.message, "reason": error.reason.value}
    return Answer(content)


class FromDisk(Loading):
    """`update_weights_from_disk`."""

    model_path: StrictStr | None = None
    engine_rpc: StrictStr = "reload_weights"


class FromDistributed(Lenient):
    """`update_weights_from_distributed`: one step of an update, named by `engine_rpc`."""

    engine_rpc: StrictStr = "update_weights_from_path"
    allow_unpaused: bool = False
    reset_prefix_cache: bool = True


class JoinGroup(Lenient):
    """`init_weights_update_group`. Other fields are for the weight transfer engine."""

    model_config = ConfigDict(frozen=True, extra="allow")

    host: StrictStr | None = None
    port: int | None = None
    rank_offset: int = 0
    inference_world_size: int | None = None
    init_info: dict[str, Any] | None = None
    join_id: JoinId | None = None

    def as_init_info(self) -> dict[str, Any]:
        """Return the arguments of the weight transfer engine."""
        if self.init_info is not None:
            return self.init_info
        if self.host is None or self.port is None or self.inference_world_size is None:
            raise Refusal(
                Reason.BAD_REQUEST, "host, port and inference_world_size, or init_info, are needed"
            )
        return {
            "master_address": self.host,
            "master_port": self.port,
            "rank_offset": self.rank_offset + 1,
            "world_size": self.inference_world_size + 1,
        }


class SetVersion(Lenient):
    """`set_weight_version`, and `update/update_weight_version` under another key."""

    weight_version: StrictStr | None = None
    new_version: StrictStr | None = None

    @property
    def label(self) -> str:
        """The one that is given."""
        found = self.weight_version or self.new_version
        if not found:
            raise Refusal(Reason.BAD_REQUEST, "no version is named")
        return found


class AdapterSource(Lenient):
    """Where an adapter is: `file://` and a path."""

    uri: StrictStr

    @property
    def path(self) -> str:
        """The path."""
        try:
            parts = urlsplit(self.uri)
        except ValueError as error:
            raise Refusal(
                Reason.BAD_REQUEST, "source.uri is not a valid URI; use file:///DIRECTORY"
            ) from error
        if parts.scheme not in ("file", "") or parts.netloc not in ("", "localhost"):
            raise Refusal(Reason.BAD_REQUEST, "adapters are read from file:// only")
        return unquote(parts.path)


class LoadAdapter(Loading):
    """`load_lora`, `POST /v1/loras`."""

    lora_name: StrictStr
    source: AdapterSource
