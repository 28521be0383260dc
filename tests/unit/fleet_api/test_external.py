"""The control root of an External fleet: one call reaches all workers. They are real, on fake engines."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.admin_servers import TOKEN, AdminServer, admin_servers
from tests.support.dynamo_clients import Dynamo
from tests.support.fake_cluster import FLEET_UID, READER, TRAINER, FakeCluster, account, pod
from tests.support.fake_engine import touched
from tests.support.present import present
from tests.support.tiny import write_tiny
from tests.support.waiting import eventually_async, soon
from tests.unit.fleet_api.conftest import Api

from fleet_api.external import driver_of
from fleet_api.fan_out import failure, split_broadcaster, split_init_info, together
from fleet_api.ports import MAX_REPLY_BYTES, Target, WorkerReply
from fleet_api.problems import Problem
from fleet_worker.protocol import STATE_PATH, Phase
from fleet_worker.trainer.transfers import TransferRoom

SECRET = "/api/v1/namespaces/rl/secrets/policy-admin-token"
NUMBER = 3
GPU = TransferRoom("nccl", has_accelerator=True)


@pytest.fixture
def flags() -> list[str]:
    return ["--external-fleets=rl/other,rl/policy"]


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_worker.checkpoint.completeness._POLL_SECONDS", 0.0)


@pytest.fixture
async def workers(tmp_path: Path, cluster: FakeCluster) -> AsyncIterator[list[AdminServer]]:
    async with admin_servers(tmp_path, NUMBER, room=GPU) as (made, port):
        spec = cluster.fleet["spec"]
        spec |= {"replicas": NUMBER, "serving": {"adminPort": port}}
        spec["weights"]["management"] = "External"
        cluster.objects.delete()
        cluster.pods = [pod(ordinal, podIP=one.address) for ordinal, one in enumerate(made)]
        for each in cluster.pods:
            each["metadata"]["uid"] = "uid-0"
        token = base64.b64encode(f"{TOKEN}\nan-older-one\n".encode()).decode()
        owners = [{"kind": "InferenceFleet", "uid": FLEET_UID}]
        cluster.secrets[SECRET] = {
            "metadata": {"ownerReferences": owners},
            "data": {"token": token},
        }
        cluster.rights["system:serviceaccount:rl:trainer"].add(
            ("update", "inferencefleets/control", "rl", "policy")
        )
        yield made


def phases(workers: list[AdminServer]) -> list[Phase]:
    return [one.admin.harness.state.phase for one in workers]


def versions(workers: list[AdminServer]) -> list[str | None]:
    return [one.admin.harness.state.version for one in workers]


async def post(api: Api, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
    return await api.send("POST", path, TRAINER, json=body, **options)


async def test_prime_rls_update_reaches_every_worker(api, workers, tmp_path):
    folder = write_tiny(tmp_path / "step_43")
    status, reply = await post(api, "/pause?mode=keep&clear_cache=false")
    assert (status, reply) == (200, {"status": "paused", "inflight_requests": 0})
    assert phases(workers) == [Phase.PAUSED] * NUMBER
    assert await api.get("/is_paused", TRAINER) == (200, {"is_paused": True})

    status, reply = await post(api, "/update_weights", {"weight_dir": str(folder)})
    assert (status, reply) == (200, {"status": "ok", "weight_version": "43"})
    assert await post(api, "/resume") == (200, {"status": "resumed"})

    assert phases(workers) == [Phase.SERVING] * NUMBER
    assert versions(workers) == ["43"] * NUMBER
    assert await api.get("/weight_info", TRAINER) == (200, {"weight_version": "43"})


async def test_nemo_rls_reload_has_the_results_of_all_workers(api, workers, tmp_path):
    path = str(write_tiny(tmp_path / "step_44"))
    body = {"method": "reload_weights", "args": [], "kwargs": {"weights_path": path}}

    assert await post(api, "/collective_rpc", body) == (200, {"results": [None] * NUMBER})
    body["method"] = "shutdown"
    assert (await post(api, "/collective_rpc", body))[0] == 400
    assert await post(api, "/reset_prefix_cache") == (200, {"success": True})


async def test_the_token_signs_and_never_leaves(api, workers, caplog):
    caplog.set_level(logging.DEBUG)
    answers = [await post(api, "/pause?mode=keep")]
    workers[0].admin.harness.engine.failures["resume"] = [touched()]
    answers.append(await post(api, "/resume"))
    cluster_secret = api.cluster.secrets[SECRET]["data"]
    cluster_secret["token"] = base64.b64encode(b"another-token-of-it").decode()
    answers.append(await post(api, "/resume"))

    sent = [headers for one in workers for headers in one.headers]
    assert sent
    for text in (json.dumps(sent), json.dumps(answers), caplog.text):
        assert TOKEN not in text
        assert "another-token-of-it" not in text


@pytest.mark.parametrize("name", ["Jürgen@example.org", "x" * 300, "a\nb"])
async def test_a_caller_whose_name_fits_no_header_drives_under_a_mark(api, workers, name):
    api.cluster.users[TRAINER]["username"] = name
    api.cluster.rights[name] = api.cluster.rights["system:serviceaccount:rl:trainer"]

    assert (await post(api, "/pause?mode=keep"))[0] == 200
    drivers = {one.admin.harness.agent.lease.holder for one in workers}
    assert drivers == {driver_of(name)}
    assert driver_of(name) != driver_of(f"{name}2")


async def test_every_worker_has_the_caller_as_its_driver(api, workers):
    await post(api, "/pause?mode=keep")

    drivers = {one.admin.harness.agent.lease.holder for one in workers}
    assert drivers == {"system:serviceaccount:rl:trainer"}


# --- trainers that call each worker ---------------------------------------------------------------


async def dynamo(api: Api, key: str, path: str = "/fleets/rl/policy") -> Dynamo:
    (api.keys / "rl.policy").write_text(f"{key}\n")
    return Dynamo(str(api.http.make_url(path)), key, reach=lambda url: url)


@pytest.mark.parametrize("path", ["/fleets/rl/policy/v1", "/t/{key}/fleets/rl/policy"])
async def test_both_of_dynamos_clients_update_each_worker_without_the_workers_token(
    api, workers, tmp_path, path
):
    key = "key-of-the-trainer-0"
    trainer = await dynamo(api, key, path.format(key=key))
    native, flat = (str(write_tiny(tmp_path / f"step_{step}")) for step in (43, 44))
    api.cluster.fleet["spec"]["engine"] = {"tensorParallelSize": 1}
    rows = await asyncio.to_thread(trainer.workers, "qwen", NUMBER)
    root = f"{trainer.discovery_url.removesuffix('/v1')}/workers"
    assert [row["system_url"] for row in rows] == [f"{root}/policy-{n}" for n in range(NUMBER)]

    await asyncio.to_thread(trainer.update_natively, rows, native, "43")
    assert versions(workers) == ["43"] * NUMBER
    await asyncio.to_thread(trainer.update_flat, rows, flat, "step_44")
    assert versions(workers) == ["step_44"] * NUMBER
    assert phases(workers) == [Phase.SERVING] * NUMBER
    assert TOKEN not in json.dumps([one.headers for one in workers])


async def test_a_call_to_one_worker_reaches_no_other_and_needs_the_same_right(api, workers):
    pause = "/workers/policy-1/engine/pause_generation"
    assert (await api.send("POST", pause, READER, json={}))[0] == 403
    status, reply = await post(api, pause, {"mode": "keep"})

    assert (status, reply["status"]) == (200, "ok")
    assert [bool(one.calls) for one in workers] == [False, True, False]
    api.cluster.users["second"] = account("rl", "second")
    api.cluster.rights["system:serviceaccount:rl:second"] = api.cluster.rights[
        "system:serviceaccount:rl:trainer"
    ]
    status, reply = await api.send("POST", pause, "second", json={})
    assert (status, reply["status"]) == (200, "error"), "as Dynamo's clients read a refusal"
    assert "system:serviceaccount:rl:trainer" in reply["message"]


@pytest.mark.parametrize(
    ("pod_name", "status", "reason"),
    [
        ("policy-9", 404, "NotFound"),
        ("other-0", 404, "NotFound"),
        ("policy-2", 503, "WorkersMissing"),
    ],
)
async def test_a_worker_that_cannot_be_called_is_named(api, workers, pod_name, status, reason):
    api.cluster.pods[2]["status"]["containerStatuses"] = []
    answered, problem = await post(api, f"/workers/{pod_name}/engine/resume_generation", {})

    assert (answered, problem["reason"]) == (status, reason)
    assert pod_name in problem["detail"]


# --- rights ---------------------------------------------------------------------------------------


async def test_a_right_to_read_drives_no_worker(api, workers):
    status, problem = await api.send("POST", "/pause", READER)

    assert (status, problem["reason"]) == (403, "Forbidden")
    assert "update inferencefleets/control 'policy'" in problem["detail"]
    assert [one.calls for one in workers] == [[]] * NUMBER


async def test_a_fleet_that_is_not_named_is_409_and_its_secret_is_not_read(api, workers):
    api.cluster.objects.fleet["metadata"]["name"] = "another"
    api.cluster.rights["system:serviceaccount:rl:trainer"] |= {
        ("get", "inferencefleets", "rl", "another"),
        ("update", "inferencefleets/control", "rl", "another"),
    }
    status, problem = await api.send("POST", "//fleets/rl/another/pause", TRAINER)

    assert (status, problem["reason"]) == (409, "ExternallyManaged")
    assert "api.externalFleets" in problem["detail"]
    assert not any("secrets" in path for _, path, _ in api.cluster.calls)


async def test_a_second_trainer_is_409_with_the_name_of_the_first(api, workers):
    api.cluster.users["second"] = account("rl", "second")
    api.cluster.rights["system:serviceaccount:rl:second"] = api.cluster.rights[
        "system:serviceaccount:rl:trainer"
    ]
    await post(api, "/pause?mode=keep")
    status, problem = await api.send("POST", "/pause?mode=keep", "second")

    assert (status, problem["reason"]) == (409, "WorkersRefused")
    assert "system:serviceaccount:rl:trainer" in problem["detail"]
    # The first worker decides. The others were not called, so neither trainer has a part of the fleet.
    assert [one["status"] for one in problem["workers"]] == [409, None, None]


async def test_two_static_keys_are_two_trainers(api, workers):
    keys = ("key-of-trainer-one-0", "key-of-trainer-two-0")
    (api.keys / "rl.policy").write_text("\n".join(keys))
    assert (await api.send("POST", "/pause?mode=keep", keys[0]))[0] == 200
    status, problem = await api.send("POST", "/resume", keys[1])

    assert (status, problem["reason"]) == (409, "WorkersRefused")
    holders = {one.admin.harness.agent.lease.holder for one in workers}
    assert (await api.send("POST", f"//t/{keys[0]}/fleets/rl/policy/resume", None))[0] == 200
    assert len(holders) == 1
    assert not any(key in json.dumps([problem, list(holders)]) for key in keys)


async def test_two_trainers_at_the_same_moment_are_one_and_a_409(api, workers):
    api.cluster.users["second"] = account("rl", "second")
    api.cluster.rights["system:serviceaccount:rl:second"] = api.cluster.rights[
        "system:serviceaccount:rl:trainer"
    ]
    gate = workers[0].admin.harness.engine.gates["pause keep"] = asyncio.Event()
    first = asyncio.create_task(post(api, "/pause?mode=keep"))

    async def is_waiting() -> bool:
        return ("POST", "/pause?mode=keep") in workers[0].calls

    await eventually_async(is_waiting)
    status, problem = await api.send("POST", "/resume", "second")
    gate.set()

    assert (status, problem["reason"]) == (409, "HeldByAnother")
    assert (await first)[0] == 200


@pytest.mark.parametrize("flags", [["--external-fleets=rl/policy", "--concurrent-requests=1"]])
async def test_a_call_that_waits_for_workers_holds_no_place_of_others(api, workers):
    gate = workers[0].admin.harness.engine.gates["pause keep"] = asyncio.Event()
    first = asyncio.create_task(post(api, "/pause?mode=keep"))
    await soon(lambda: ("POST", "/pause?mode=keep") in workers[0].calls)

    assert (await api.get("/v1/rl/workers"))[0] == 200
    gate.set()
    assert (await first)[0] == 200


async def test_only_the_first_call_to_a_worker_needs_its_state(api, workers):
    assert (await post(api, "/pause"))[0] == 200
    assert (await post(api, "/resume"))[0] == 200

    expected = [("GET", STATE_PATH), ("POST", "/pause"), ("POST", "/resume")]
    assert [one.calls for one in workers] == [expected] * NUMBER


async def test_a_worker_that_has_started_again_gets_the_call_as_well(api, workers):
    assert (await post(api, "/pause"))[0] == 200
    workers[1].calls.clear()
    workers[1].admin.start_again("i-2")

    assert (await post(api, "/resume"))[0] == 200
    assert workers[1].calls == [("POST", "/resume"), ("GET", STATE_PATH), ("POST", "/resume")]


async def test_a_call_that_a_worker_has_accepted_is_not_sent_again(api, workers):
    assert (await post(api, "/pause"))[0] == 200
    workers[1].calls.clear()
    workers[1].gets_everything_twice = True
    status, problem = await post(api, "/resume")

    assert (status, problem["workers"][1]["reason"]) == (503, "StaleCall")
    assert workers[1].calls == [("POST", "/resume"), ("GET", STATE_PATH)]


async def test_pods_that_have_not_changed_are_read_once(api, workers):
    for path in ("/pause", "/resume"):
        assert (await post(api, path))[0] == 200

    assert api.cluster.times_all_pods_were_read == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pods: pods.pop(), id="one is gone"),
        pytest.param(lambda pods: pods.append(pod(3, podIP="127.0.0.9")), id="one is new"),
        pytest.param(
            lambda pods: pods[0]["metadata"].update(deletionTimestamp="now"), id="one goes"
        ),
        pytest.param(
            lambda pods: pods[0]["status"]["containerStatuses"][0].update(restartCount=1),
            id="one has started again",
        ),
        pytest.param(
            lambda pods: pods[0]["status"].update(podIP="127.0.0.9"), id="another address"
        ),
    ],
)
async def test_pods_that_have_changed_are_read_again(api, workers, change):
    assert (await post(api, "/pause"))[0] == 200
    change(api.cluster.pods)
    await post(api, "/resume")

    assert api.cluster.times_all_pods_were_read == 2


async def test_all_pods_are_read_while_one_starts_and_after_a_failure(api, workers):
    started = api.cluster.pods[2]["status"].pop("containerStatuses")
    api.cluster.pods[2]["status"]["containerStatuses"] = []
    assert (await post(api, "/pause"))[0] == 200
    api.cluster.pods[2]["status"]["containerStatuses"] = started
    assert (await post(api, "/resume"))[0] == 200
    assert workers[2].calls[-1] == ("POST", "/resume")

    await workers[1].close()
    for _ in range(2):
        assert (await post(api, "/pause"))[0] == 503
    assert api.cluster.times_all_pods_were_read == 3


async def test_without_the_columns_of_the_table_all_pods_are_read(api, workers):
    api.cluster.columns.remove("IP")
    for path in ("/pause", "/resume"):
        assert (await post(api, path))[0] == 200

    assert api.cluster.times_all_pods_were_read == 2


# --- failures -------------------------------------------------------------------------------------


async def test_a_worker_that_is_silent_is_503_with_the_outcome_of_each(api, workers, tmp_path):
    folder = write_tiny(tmp_path / "step_43")
    await workers[1].close()
    status, problem = await post(api, "/update_weights", {"weight_dir": str(folder)})

    assert (status, problem["reason"]) == (503, "WorkersUnavailable")
    assert [one["status"] for one in problem["workers"]] == [200, None, 200]
    assert problem["workers"][1]["reason"] == "Silent"
    assert problem["detail"].startswith("2 of 3 workers succeeded. policy-1:")


async def test_a_worker_whose_answer_is_too_long_counts_as_silent(api, workers):
    objects = b'{"is_paused": [' + b"{}," * MAX_REPLY_BYTES + b"{}]}"
    workers[1].says = {"/is_paused": objects}
    status, problem = await api.get("/is_paused")

    assert (status, problem["reason"]) == (503, "WorkersUnavailable")
    assert [one["status"] for one in problem["workers"]] == [200, None, 200]
    assert problem["workers"][1]["reason"] == "Silent"
    assert f"the limit is {MAX_REPLY_BYTES}" in problem["workers"][1]["message"]


async def test_workers_whose_answers_are_too_long_together_count_as_silent(api, workers):
    text = json.dumps({"is_paused": "x" * (MAX_REPLY_BYTES * 2 // 3)}).encode()
    for one in workers:
        one.says = {"/is_paused": text}
    status, problem = await api.get("/is_paused")

    assert status == 503
    assert sorted(one.get("reason", "") for one in problem["workers"]) == ["", "Silent", "Silent"]


@pytest.mark.parametrize("content", [b"[]", b"{", b""])
async def test_a_worker_that_answers_with_no_object_counts_as_silent(api, workers, content):
    workers[1].says = {"/is_paused": content}
    status, problem = await api.get("/is_paused")

    assert (status, problem["workers"][1]["reason"]) == (503, "Silent")


@pytest.mark.parametrize(
    "state", [{"instance": "i" * 129}, {"instance": ["i"]}, {"instance": ""}, {}]
)
async def test_a_worker_whose_state_names_no_valid_process_gets_no_call(api, workers, state):
    workers[1].says = {STATE_PATH: json.dumps(state).encode()}
    status, problem = await post(api, "/resume")

    assert (status, problem["workers"][1]["reason"]) == (503, "Silent")
    assert workers[1].calls == [("GET", STATE_PATH)]


@pytest.mark.parametrize("path", ["/load_lora_adapter", "/v1/load_lora_adapter"])
async def test_a_silent_worker_is_500_for_an_adapter_which_prime_rl_repeats(api, workers, path):
    await workers[1].close()
    body = {"lora_name": "judge", "lora_path": "/weights/judge/step_1"}
    for one in (workers[0], workers[2]):
        await one.close()
    status, problem = await post(api, path, body)

    assert (status, problem["reason"]) == (500, "WorkersUnavailable")


async def test_a_refusal_is_final_also_when_another_worker_is_silent(api, workers):
    await workers[1].close()
    status, problem = await post(api, "/update_weights", {"weight_dir": "/etc"})

    assert (status, problem["reason"]) == (422, "WorkersRefused")
    assert versions(workers) == ["base"] * NUMBER


async def test_an_engine_that_fails_is_5xx_and_its_repetition_is_final(api, workers, tmp_path):
    folder = write_tiny(tmp_path / "step_43")
    workers[2].admin.harness.engine.failures["load"] = [touched()]
    body = {"weight_dir": str(folder)}

    status, problem = await post(api, "/update_weights", body)
    assert (status, problem["reason"]) == (503, "WorkersUnavailable")
    assert [one["status"] for one in problem["workers"]] == [200, 200, 500]


async def test_a_transfer_that_fails_at_one_worker_is_started_over_at_all(api, workers, tmp_path):
    # Weights from files can be restored, so the worker that fails keeps serving.
    files = {"weight_dir": str(write_tiny(tmp_path / "step_6"))}
    assert (await post(api, "/update_weights", files))[0] == 200
    ranks = {"init_info": {"rank_offset": 1, "world_size": 1 + 4 * NUMBER}}
    workers[1].admin.harness.engine.failures["receive"] = [touched()]

    async def transfer() -> tuple[int, Any]:
        for path, body in (
            ("/init_weight_transfer_engine", ranks),
            ("/start_weight_update", {}),
            ("/update_weights", {"update_info": {"names": ["all"]}}),
        ):
            status, reply = await post(api, path, body)
            if status != 200:
                return status, reply
        return await post(api, "/finish_weight_update", {"weight_version": "7"})

    status, problem = await transfer()
    assert (status, [one["status"] for one in problem["workers"]]) == (503, [200, 500, 200])
    second = await transfer()
    assert second[0] == 200, second[1]["workers"]
    assert versions(workers) == ["7"] * NUMBER
    assert phases(workers) == [Phase.SERVING, Phase.JOINING, Phase.SERVING]


async def test_a_worker_that_has_not_started_gets_no_call(api, workers, tmp_path):
    api.cluster.pods[2]["status"]["containerStatuses"] = []
    folder = write_tiny(tmp_path / "step_43")

    assert (await post(api, "/update_weights", {"weight_dir": str(folder)}))[0] == 200
    assert workers[2].calls == []


async def test_a_fleet_without_a_started_worker_is_503(api, workers):
    api.cluster.pods = []

    assert (await post(api, "/pause"))[0] == 503


async def test_a_pod_that_has_taken_the_address_is_not_believed(api, workers):
    api.cluster.pods[1]["metadata"]["uid"] = "uid-of-the-pod-before"
    status, problem = await post(api, "/resume")

    assert (status, problem["workers"][1]["status"]) == (503, None)


@pytest.mark.parametrize(("key", "status"), [("a b", 400), ("", 400), ("step-43", 200)])
async def test_an_idempotency_key_must_be_well_formed_and_repeats_the_call(
    api, workers, tmp_path, key, status
):
    body = {"weight_dir": str(write_tiny(tmp_path / "step_43"))}
    for _ in range(2):
        answered, _ = await post(api, "/update_weights", body, headers={"Idempotency-Key": key})
        assert answered == status

    calls = [("POST", "/update_weights")] * 2 if status == 200 else []
    assert [[c for c in one.calls if c[0] == "POST"] for one in workers] == [calls] * NUMBER


async def test_a_body_beyond_the_limit_of_its_route_is_413(api, workers):
    large = {"weight_dir": "/weights/step_43", "padding": "x" * (64 * 1024)}

    assert (await post(api, "/pause", large))[0] == 413
    assert (await post(api, "/update_weights", large))[0] == 422


@pytest.mark.parametrize(
    "data",
    [{}, {"token": "%"}, {"token": ""}, {"token": base64.b64encode(b"\xff").decode()}],
)
async def test_a_secret_without_a_token_is_502(api, workers, data):
    api.cluster.secrets[SECRET]["data"] = data

    assert (await post(api, "/pause"))[0] == 502


async def test_the_secret_of_an_earlier_fleet_signs_nothing(api, workers):
    api.cluster.secrets[SECRET]["metadata"]["ownerReferences"] = [{"uid": "before"}]

    assert (await post(api, "/pause"))[0] == 502
    assert [one.calls for one in workers] == [[]] * NUMBER


# --- ranks ----------------------------------------------------------------------------------------

INIT = {"master_address": "10.1.1.1", "master_port": 51216, "rank_offset": 1, "world_size": 13}


def target(ordinal: int) -> Target:
    return Target(f"policy-{ordinal}", f"uid-{ordinal}", "http://10.0.0.1:8081", 4)


def test_the_ranks_of_workers_follow_another_in_the_order_of_their_numbers():
    parts = split_init_info({"init_info": INIT}, [target(n) for n in range(3)])

    assert [part["init_info"]["rank_offset"] for part in parts] == [1, 5, 9]
    assert {part["init_info"]["master_port"] for part in parts} == {51216}


def test_the_ranks_of_prime_rl_begin_where_it_wants_them():
    asked = {"host": "h", "port": 1, "rank_offset": 0, "inference_world_size": 12}

    parts = split_broadcaster(asked, [target(n) for n in range(3)])
    assert [part["rank_offset"] for part in parts] == [0, 4, 8]


@pytest.mark.parametrize(
    "info", [{}, {"rank_offset": True, "world_size": 13}, INIT | {"world_size": 12}, "text"]
)
def test_ranks_that_do_not_fit_are_422(info):
    with pytest.raises(Problem) as refused:
        split_init_info({"init_info": info}, [target(n) for n in range(3)])
    assert refused.value.status == 422


async def test_all_workers_know_that_they_join_one_new_group(api, workers):
    """A trainer that resumes joins again, and sends the same versions with other weights."""
    prime_rl = {"host": "h", "port": 1, "rank_offset": 0, "inference_world_size": 4 * NUMBER}
    init = {**INIT, "world_size": 4 * NUMBER + 1}
    joins = (
        ("/init_weight_transfer_engine", {"init_info": init}),
        ("/init_weight_transfer_engine", {"init_info": init, "join_id": "one for all groups"}),
        ("/init_weight_transfer_engine", {"init_info": init, "join_id": "one for all groups"}),
        ("/init_broadcaster", prime_rl),
    )
    answers = [(await post(api, path, body))[1] for path, body in joins]
    runs = [answer.get("run_id") for answer in answers]

    assert None not in runs, answers
    assert len(set(runs)) == len(runs)


async def test_a_transfer_needs_every_worker(api, workers):
    api.cluster.pods.pop()
    status, problem = await post(api, "/init_weight_transfer_engine", {"init_info": INIT})

    assert (status, problem["reason"]) == (503, "WorkersMissing")


# --- what replies are together --------------------------------------------------------------------


def reply(status: int, document: Any) -> WorkerReply:
    return WorkerReply(status, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("bodies", "merged"),
    [
        ([{"is_paused": True}, {"is_paused": False}], {"is_paused": False}),
        ([{"aborted": 2}, {"aborted": 3}], {"aborted": 5}),
        ([{"results": [None]}, {"results": [None]}], {"results": [None, None]}),
        ([{"weight_version": "1"}, {"weight_version": "1"}], {"weight_version": "1"}),
        ([{"weight_version": "1"}, {"weight_version": "2"}], {"weight_version": None}),
        ([{"a": 1}, {"a": "1"}], {"a": None}),
        ([{"a": 1}, {}], {"a": None}),
    ],
)
def test_replies_together_have_the_fields_of_one(bodies, merged):
    assert together([reply(200, body) for body in bodies]) == merged


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ((200, 404, 404), 404),  # prime-rl waits for the files of an adapter
        ((200, 409, 500), 409),
        ((200, 500, 0), 503),
        ((200, 401, 200), 409),
        ((200, 413, 200), 409),
    ],
)
def test_a_refusal_of_one_worker_is_that_of_the_fleet(statuses, status):
    replies = [reply(status, {}) for status in statuses]
    problem = present(failure([target(n) for n in range(3)], replies))

    assert problem.status == status
    assert ("Retry-After" in problem.headers) == (status == 503)


@pytest.mark.parametrize("reason", ["StaleCall", "WrongPod"])
def test_a_worker_that_was_replaced_in_the_meantime_does_not_count_as_a_refusal(reason):
    problem = present(failure([target(0)], [reply(409, {"error": {"type": reason}})]))

    assert problem.status == 503


def test_a_long_message_of_a_worker_is_cut():
    error = {"error": {"type": "X" * 1000, "message": "y" * 10_000}}
    problem = present(failure([target(0)], [reply(409, error)]))

    assert len(json.dumps(problem.more)) < 1000
