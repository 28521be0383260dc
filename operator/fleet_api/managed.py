"""The control root of a fleet whose weights the operator manages: an update is a change of its
WeightVersion.

The operator pauses and resumes workers during a rollout, and each load drops what older weights cached.
So the trainer's own calls for these steps are accepted, and change nothing. Other calls are refused.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import cast

from aiohttp import web

from fleet_api.bodies import Update, read
from fleet_api.calls import Call, right_on
from fleet_api.changes import Changes, publish
from fleet_api.fleets import Fleet, Fleets
from fleet_api.problems import Problem
from fleet_api.state import rollout_of
from fleet_api.trainer_bodies import (
    CollectiveRpc,
    LoadAdapter,
    Named,
    UnloadAdapter,
    UpdateWeights,
)
from fleet_worker.protocol import step_of
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Rollout

_NO_EFFECT = "the operator does this during each rollout; this call changes nothing"
_REMEDY = (
    "publish versions with /update_weights {weight_dir}, or set the fleet's spec.weights.management "
    "to External"
)

_WAIT_SECONDS = 600.0
_LONGEST_WAIT_SECONDS = 3600.0


class Managed:
    """The handlers."""

    def __init__(self, fleets: Fleets, changes: Changes) -> None:
        self._fleets = fleets
        self._changes = changes

    async def pause(self, _: Call) -> web.Response:
        """No effect: the operator pauses the workers when they have staged the version."""
        return web.json_response({"status": "paused", "message": _NO_EFFECT})

    async def resume(self, _: Call) -> web.Response:
        """No effect: the operator resumes the workers."""
        return web.json_response({"status": "resumed", "message": _NO_EFFECT})

    async def drop_prefixes(self, _: Call) -> web.Response:
        """No effect: every load drops the prefixes of older weights."""
        return web.json_response({"success": True, "message": _NO_EFFECT})

    async def is_paused(self, call: Call) -> web.Response:
        """Whether every worker has paused, as the operator has seen it last."""
        return web.json_response({"is_paused": await self._is_paused(call.fleet)})

    async def is_sleeping(self, call: Call) -> web.Response:
        """Whether the fleet sleeps; true while it is paused, as in vLLM."""
        return web.json_response({"is_sleeping": await self._is_paused(call.fleet)})

    async def weight_info(self, call: Call) -> web.Response:
        """The version that the fleet serves; null while workers serve several."""
        versions = call.fleet.status.versions
        served = versions[0].version if len(versions) == 1 else None
        return web.json_response({"weight_version": served})

    async def server_info(self, call: Call) -> web.Response:
        """The engine's configuration as the fleet's spec has it."""
        spec = call.fleet.spec
        config = {
            "model_config": {"model": spec.model.name, "served_model_name": spec.model.name},
            "parallel_config": {
                "tensor_parallel_size": spec.engine.tensor_parallel_size,
                "pipeline_parallel_size": spec.engine.pipeline_parallel_size,
            },
            "weight_transfer_config": None,
        }
        as_json = call.request.query.get("config_format") == "json"
        return web.json_response({"vllm_config": config if as_json else str(config)})

    async def update_weights(self, call: Call) -> web.Response:
        """`/update_weights {weight_dir}`: ask for this version, and wait for its outcome."""
        body = read(call.request, UpdateWeights)
        if body.update_info is not None:
            raise _not_for_trainers(call.fleet, "weights over a collective")
        rollout = await self._publish(call, call.present_weights, body.weight_dir, body)
        return web.json_response({"status": "ok", "weight_version": rollout.version} | _of(rollout))

    async def collective_rpc(self, call: Call) -> web.Response:
        """`/collective_rpc` with the method `reload_weights`: ask for a version, and wait for its outcome."""
        body = read(call.request, CollectiveRpc)
        if body.method != "reload_weights":
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "BadRequest",
                "the only method that may be called is reload_weights",
            )
        named = body.named
        seconds = min(body.timeout or _WAIT_SECONDS, _LONGEST_WAIT_SECONDS)
        await self._publish(call, call.present_weights, named.weights_path, named, seconds)
        # Clients compare the results: one of each process, and nothing else.
        processes = call.fleet.world_size * call.fleet.spec.replicas
        return web.json_response({"results": [None] * processes})

    async def load_adapter(self, call: Call) -> web.Response:
        """`/v1/load_lora_adapter`: ask for a version of an adapter that has a WeightVersion, and wait."""
        body = read(call.request, LoadAdapter)
        found = await self._fleets.weights(call.fleet, body.lora_name)
        if found is None:
            # Not 404, which trainers repeat, since they wait for the adapter's files.
            raise Problem(
                HTTPStatus.CONFLICT,
                "NoWeightVersion",
                f"no WeightVersion in namespace {call.fleet.namespace!r} has the adapter "
                f"{body.lora_name!r} of fleet {call.fleet.name!r}; create one",
            )
        await call.require(right_on(found, "patch", call.fleet))
        rollout = await self._publish(call, found, body.lora_path, body)
        return web.json_response({"status": "ok", "weight_version": rollout.version} | _of(rollout))

    async def unload_adapter(self, call: Call) -> web.Response:
        """`/v1/unload_lora_adapter`: refused, since the WeightVersion would load it again."""
        name = read(call.request, UnloadAdapter).lora_name
        raise Problem(
            HTTPStatus.CONFLICT,
            "OperatorManaged",
            f"the operator serves the adapter {name!r} as long as its WeightVersion exists; delete "
            "the WeightVersion",
        )

    async def refuse(self, call: Call) -> web.Response:
        """Refused: only fleets of management External have this call."""
        raise _not_for_trainers(call.fleet, "this call")

    async def _is_paused(self, fleet: Fleet) -> bool:
        # The fleet's status counts workers that still end their requests before a pause as paused.
        weights = await self._fleets.weights(fleet)
        return (
            weights is not None
            and 0 < weights.status.workers.total == weights.status.workers.paused
        )

    async def _publish(
        self,
        call: Call,
        seen: WeightVersion,
        path: str | None,
        named: Named,
        seconds: float = _WAIT_SECONDS,
    ) -> Rollout:
        """Ask for a version. Errors: Problem 400 without a directory, 422 without a version."""
        if path is None:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "BadRequest",
                "the body names no directory of weights; send its absolute path",
            )
        version = named.version or step_of(path)
        if version is None:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "NoVersion",
                "the name of the directory has no number; write each version to a directory of its "
                "own such as /weights/step_43, or send version",
            )
        body = Update.model_validate(
            {"version": version, "source": {"path": path}, "timeoutSeconds": seconds}
            | ({} if named.run_id is None else {"runID": named.run_id})
            | ({} if named.digest is None else {"digest": named.digest})
        )
        result, _ = await self._changes.carry_out(call, seen, body, publish)
        return cast("Rollout", result)  # as `publish` does, and its repetition, which waits too


def _of(rollout: Rollout) -> dict[str, object]:
    return {"rollout": rollout_of(rollout)}


def _not_for_trainers(fleet: Fleet, what: str) -> Problem:
    return Problem(
        HTTPStatus.CONFLICT,
        "OperatorManaged",
        f"the operator manages the weights of fleet {fleet.name!r}, so {what} cannot reach its "
        f"workers; {_REMEDY}",
    )
