"""The control root of a fleet of management Operator: one address for trainers that know one vLLM."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.support.fake_cluster import READER, TRAINER
from tests.support.fake_objects import TIMINGS, condition, patches

from rlfleet.errors import Refused

UPDATE = "/update_weights"
STEP = {"weight_dir": "/weights/run-7/broadcasts/step_43"}
DRIVING = [
    "/pause",
    "/resume",
    UPDATE,
    "/collective_rpc",
    "/reset_prefix_cache",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/finish_weight_update",
    "/init_broadcaster",
    "/sleep",
    "/wake_up",
]


def rpc(path: str | None, method: str = "reload_weights") -> dict[str, Any]:
    return {"method": method, "args": [], "kwargs": {"weights_path": path}, "timeout": 1800}


async def test_prime_rls_update_is_a_rollout_between_calls_without_effect(api):
    objects = api.cluster.objects
    query = {"mode": "keep", "clear_cache": "false"}

    assert (await api.send("POST", "/pause", TRAINER, params=query))[0] == 200
    assert patches(objects) == []
    status, reply = await api.send("POST", UPDATE, TRAINER, json=STEP)
    assert (await api.send("POST", "/resume", TRAINER))[0] == 200

    assert (status, reply["status"], reply["weight_version"]) == (200, "ok", "43")
    assert reply["rollout"]["timings"] == TIMINGS
    assert patches(objects) == [
        {
            "metadata": {
                "annotations": {
                    "rlfleet.dev/traceparent": None,
                    "rlfleet.dev/source-template": '{"path":"/weights/step_{version}"}',
                }
            },
            "spec": {
                "version": "43",
                "runID": None,
                "digest": None,
                "source": {
                    "path": "/weights/run-7/broadcasts/step_43",
                    "uri": None,
                    "huggingFace": None,
                },
            },
        }
    ]


async def test_a_directory_with_needless_slashes_is_the_same_directory(api):
    sent = {"weight_dir": "/weights//run-7/broadcasts/step_43/"}
    assert (await api.send("POST", UPDATE, TRAINER, json=sent))[0] == 200

    source = patches(api.cluster.objects)[-1]["spec"]["source"]
    assert source["path"] == STEP["weight_dir"]


async def test_an_update_that_is_sent_again_makes_no_other_rollout(api):
    await api.send("POST", UPDATE, TRAINER, json=STEP)
    generation = api.cluster.objects.weights["metadata"]["generation"]

    assert (await api.send("POST", UPDATE, TRAINER, json=STEP))[0] == 200
    assert api.cluster.objects.weights["metadata"]["generation"] == generation


@pytest.mark.parametrize(("sent", "waited"), [(None, 600), (1800, 1800), (9999, 3600)])
async def test_a_reload_waits_as_long_as_its_client(api, caplog, sent, waited):
    caplog.set_level(logging.INFO)
    body = rpc("/weights/global_step_44/policy/") | {"timeout": sent}

    assert (await api.send("POST", "/collective_rpc", TRAINER, json=body))[0] == 200
    (line,) = [r for r in caplog.records if r.name == "fleet_api.request_log"]
    assert line.__dict__["asked"]["timeoutSeconds"] == waited


async def test_nemo_rls_reload_answers_once_for_each_process_of_the_fleet(api):
    path = "/weights/global_step_44/policy/"
    status, reply = await api.send("POST", "/collective_rpc", TRAINER, json=rpc(path))

    assert (status, reply) == (200, {"results": [None] * 8})
    assert api.cluster.objects.weights["spec"]["version"] == "44"


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        (UPDATE, {"weight_dir": None}, 400, "BadRequest"),
        (UPDATE, {}, 400, "BadRequest"),
        (UPDATE, {"weight_dir": "step_43"}, 422, "InvalidBody"),
        (UPDATE, {"weight_dir": "/weights/latest"}, 422, "NoVersion"),
        (UPDATE, {"update_info": {"names": []}}, 409, "OperatorManaged"),
        ("/collective_rpc", rpc("/weights/step_43", "shutdown"), 400, "BadRequest"),
        ("/collective_rpc", rpc(None), 400, "BadRequest"),
        ("/start_weight_update", {}, 409, "OperatorManaged"),
        ("/sleep", {}, 409, "OperatorManaged"),
        ("/v1/unload_lora_adapter", {"lora_name": "judge"}, 409, "OperatorManaged"),
    ],
)
async def test_a_body_that_cannot_become_a_rollout_is_a_final_refusal(
    api, path, body, status, reason
):
    answered, problem = await api.send("POST", path, TRAINER, json=body)

    assert (answered, problem["reason"]) == (status, reason)
    assert patches(api.cluster.objects) == []


async def test_a_directory_without_a_number_has_the_version_that_is_sent_with_it(api):
    body = {"weight_dir": "/weights/latest", "version": "refit-9"}

    assert (await api.send("POST", UPDATE, TRAINER, json=body))[1]["weight_version"] == "refit-9"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (UPDATE, {"weight_dir": "/weights/run-8/step_1", "run_id": "run-8"}),
        (
            "/collective_rpc",
            {
                "method": "reload_weights",
                "kwargs": {"weights_path": "/weights/run-8/step_1", "run_id": "run-8"},
            },
        ),
    ],
)
async def test_a_trainer_names_its_run_with_its_first_version(api, path, body):
    assert (await api.send("POST", path, TRAINER, json=body))[0] == 200

    spec = patches(api.cluster.objects)[-1]["spec"]
    assert (spec["version"], spec["runID"]) == ("1", "run-8")


STEP_50 = "/weights/run-8/step_50"
DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"runID": "run-8"}, ("50", "run-8", None)),
        ({"weight_version": "51", "run-id": "run-8"}, ("51", "run-8", None)),
        ({"Version": "51", "version": "51"}, ("51", None, None)),
        ({"digest": DIGEST}, ("50", None, DIGEST)),
        ({"weightDigest": DIGEST, "version": None}, ("50", None, DIGEST)),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [UPDATE, "/collective_rpc"])
async def test_a_trainers_names_of_weights_count_in_any_spelling(api, path, names, expected):
    body = {"weight_dir": STEP_50} | names
    if path != UPDATE:
        body = {"method": "reload_weights", "kwargs": {"weights_path": STEP_50} | names}

    assert (await api.send("POST", path, TRAINER, json=body))[0] == 200
    spec = api.cluster.objects.weights["spec"]
    assert (spec["version"], spec.get("runID"), spec.get("digest")) == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (UPDATE, {"weight_dir": STEP_50, "version": "51", "weight_version": "52"}),
        (UPDATE, {"weight_dir": STEP_50, "run_id": ""}),
        (UPDATE, {"weight_dir": STEP_50, "digest": "latest"}),
        ("/collective_rpc", rpc(STEP_50) | {"run_id": "run-8"}),
        ("/collective_rpc", rpc(STEP_50) | {"version": "51"}),
        ("/collective_rpc", rpc(STEP_50) | {"args": ["/weights/step_77"]}),
    ],
    ids=str,
)
async def test_a_name_of_weights_without_effect_is_refused(api, path, body):
    status, problem = await api.send("POST", path, TRAINER, json=body)

    assert (status, problem["reason"]) == (422, "InvalidBody")
    assert patches(api.cluster.objects) == []


async def test_a_trainer_that_starts_over_gets_a_final_refusal_with_both_ways_out(api):
    async def refuse(*_: Any) -> Any:
        raise Refused("1", "Invalid", "spec.version: within one spec.runID, or without one, …")

    api.cluster.objects.patch = refuse
    step = {"weight_dir": "/weights/run-7/broadcasts/step_1"}

    status, problem = await api.send("POST", UPDATE, TRAINER, json=step)

    assert (status, problem["reason"]) == (409, "RewindRefused")
    assert "rlfleet rollback 1" in problem["detail"]
    assert "run_id" in problem["detail"]


@pytest.mark.parametrize(
    ("reason", "status"), [("CheckpointTruncated", 422), ("FailureBudgetExceeded", 409)]
)
async def test_a_refused_version_is_4xx_so_that_the_trainer_ends(api, reason, status):
    api.cluster.objects._obeys = False
    api.cluster.objects.script.append(lambda: api.cluster.objects.stall(reason))

    assert (await api.send("POST", UPDATE, TRAINER, json=STEP))[0] == status


async def test_an_update_that_takes_too_long_is_5xx_so_that_the_trainer_asks_again(api):
    api.cluster.objects._obeys = False

    assert (await api.send("POST", UPDATE, TRAINER, json=STEP))[0] == 504


@pytest.mark.parametrize("key", ["", "sent-twice"])
@pytest.mark.parametrize("reason", ["WaitingForCheckpoint", "NoWorkers", "Suspended"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (UPDATE, STEP),
        ("/collective_rpc", rpc(STEP["weight_dir"])),
        ("/load_lora_adapter", {"lora_name": "judge", "lora_path": "/weights/lora/step_43"}),
    ],
)
async def test_a_trainer_waits_for_what_keeps_a_rollout_from_beginning_and_then_asks_again(
    api, path, body, reason, key
):
    """Its client repeats the call after 5xx, and ends on 409."""
    objects = api.cluster.objects
    objects._obeys = False
    if "lora" in path:
        objects.desire(adapter="judge")

    def report() -> None:
        generation = objects.weights["metadata"]["generation"]
        objects.look("Pending", condition("Ready", reason, generation, status="False"))

    objects.script.append(report)
    headers = {"Idempotency-Key": key} if key else {}
    for _ in range(2 if key else 1):
        began = objects.now
        status, problem = await api.send("POST", path, TRAINER, json=body, headers=headers)
        assert (status, problem["reason"]) == (504, "NotYetApplied")
        assert f"because of {reason}" in problem["detail"]
        assert objects.now - began >= body.get("timeout", 600)
    assert objects.weights["spec"]["version"] == "43"


@pytest.mark.parametrize("path", DRIVING)
async def test_a_right_to_read_drives_nothing(api, path):
    status, problem = await api.send("POST", path, READER, json=STEP)

    assert (status, problem["reason"]) == (403, "Forbidden")
    assert patches(api.cluster.objects) == []


async def test_without_a_weight_version_there_is_nothing_to_update(api):
    api.cluster.objects.delete()

    assert (await api.send("POST", UPDATE, TRAINER, json=STEP))[0] == 404


# --- adapters -------------------------------------------------------------------------------------

LORA = {"lora_name": "judge", "lora_path": "/weights/lora/step_5"}


@pytest.mark.parametrize("path", ["/load_lora_adapter", "/v1/load_lora_adapter"])
async def test_an_adapter_is_published_to_its_own_weight_version(api, path):
    api.cluster.objects.desire(adapter="judge")
    status, reply = await api.send("POST", path, TRAINER, json=LORA)

    assert (status, reply["weight_version"]) == (200, "5")
    assert api.cluster.objects.weights["spec"]["source"]["path"] == "/weights/lora/step_5"


async def test_an_adapter_needs_the_right_on_its_own_weight_version(api):
    api.cluster.objects.desire(adapter="judge")

    assert (await api.send("POST", "/load_lora_adapter", READER, json=LORA))[0] == 403
    assert patches(api.cluster.objects) == []


async def test_an_unknown_adapter_is_final_since_trainers_repeat_404(api):
    status, problem = await api.send("POST", "/load_lora_adapter", TRAINER, json=LORA)

    assert (status, problem["reason"]) == (409, "NoWeightVersion")


# --- reads ----------------------------------------------------------------------------------------


async def test_health_counts_the_workers_and_says_that_calls_reach_all_of_them(api):
    status, health = await api.get("/health")
    assert (status, health["status"]) == (503, "unavailable")

    api.cluster.fleet["status"]["conditions"] = [
        {
            "type": "Available",
            "status": "True",
            "reason": "AllWorkersServing",
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-22T10:00:00Z",
        }
    ]
    status, health = await api.get("/health")
    assert (status, health["status"]) == (200, "ok")
    assert (health["total_backends"], health["control_fanout"]) == (2, True)


async def test_the_world_is_every_process_of_every_worker(api):
    assert await api.get("/get_world_size") == (200, {"world_size": 8})


async def test_the_reads_of_a_managed_fleet_answer_from_its_status(api):
    assert await api.get("/is_paused") == (200, {"is_paused": False})
    assert await api.get("/weight_info") == (200, {"weight_version": "42"})
    status, info = await api.get("/server_info", params={"config_format": "json"})
    assert (status, info["vllm_config"]["model_config"]["model"]) == (200, "qwen")

    api.cluster.fleet["status"]["versions"].append({"version": "43", "workers": 1})
    assert await api.get("/weight_info") == (200, {"weight_version": None})


@pytest.mark.parametrize(
    ("paused", "total", "expected"), [(2, 2, True), (1, 2, False), (0, 2, False), (0, 0, False)]
)
async def test_a_managed_fleet_is_paused_when_each_worker_has_paused(api, paused, total, expected):
    # The fleet's own status has one count for workers that have paused and those that still pause.
    api.cluster.fleet["status"]["workers"] = {"total": total, "paused": total}
    api.cluster.objects.look("Pausing", workers={"total": total, "paused": paused})

    assert await api.get("/is_paused") == (200, {"is_paused": expected})
    assert await api.get("/is_sleeping") == (200, {"is_sleeping": expected})


async def test_a_managed_fleet_without_a_weight_version_is_not_paused(api):
    api.cluster.fleet["status"]["workers"] = {"total": 2, "paused": 2}
    api.cluster.objects.delete()

    assert await api.get("/is_paused") == (200, {"is_paused": False})
