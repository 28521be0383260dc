"""Requests to workers: made once for all that get the same, and never mixed up with another one."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from tests.support.builders import make_worker, target

from fleet_operator.clients.worker_requests import MAX_KNOWN_REQUESTS, Requests
from fleet_operator.core.actions import (
    Admit,
    Apply,
    CanaryPrompts,
    CompareFiles,
    CompareLora,
    Fence,
    Load,
    Pause,
    PutLora,
    RemoveLora,
    Resume,
    Stage,
    StageLora,
    WorkerCall,
)
from fleet_operator.ports import Addressee
from fleet_worker.protocol import Epoch, PauseMode, Peer
from rlfleet_resources.source import WeightSource

EPOCH = Epoch(term=3, sequence=7)
WORKER: dict[str, Any] = {"pod_uid": "uid-0", "pod_name": "policy-0", "reason": "a"}
NAMED = WORKER | {"version": "42", "run_id": "r1", "digest": "sha256:" + "1" * 64}
PAUSE = {"mode": PauseMode.WAIT, "drain_timeout_seconds": 30, "lease_seconds": 60}
SOURCE = {"source": target("42").source, "timeout_seconds": 600}
ACTIONS: list[WorkerCall] = [
    Stage(**NAMED, **SOURCE),
    CompareFiles(**NAMED, **SOURCE),
    Pause(**NAMED, **PAUSE),
    Load(**NAMED, timeout_seconds=600),
    Apply(**NAMED, **PAUSE, timeout_seconds=600),
    Resume(**NAMED),
    Admit(**NAMED),
    Fence(**NAMED, drain_timeout_seconds=5),
    CanaryPrompts(**NAMED, prompts=("a", "b"), max_tokens=8, compare_with="41", timeout_seconds=60),
    PutLora(**NAMED, **SOURCE, adapter="sql"),
    StageLora(**NAMED, **SOURCE, adapter="sql"),
    CompareLora(**NAMED, **SOURCE, adapter="sql"),
    RemoveLora(**NAMED, adapter="sql"),
]
OTHER: dict[str, Any] = {
    "version": "43",
    "run_id": "r2",
    "digest": "sha256:" + "2" * 64,
    "source": WeightSource(path="/weights/other"),
    "peers": (Peer(host="10.0.0.7", port=8083, pod_uid="a"),),
    "mode": PauseMode.KEEP,
    "adapter": "chat",
    "prompts": ("a", "c"),
    "max_tokens": 9,
    "compare_with": "40",
    "compare_with_run_id": "r3",
    "compare_with_digest": "sha256:" + "3" * 64,
    "reason": "b",
    "stage_only": False,
}


def seen(action: WorkerCall, epoch: Epoch = EPOCH, requests: Requests | None = None) -> Any:
    """The request as a worker gets it, without the worker's own parts."""
    made = (requests or Requests()).call(action, epoch)
    return made.method, made.path, json.loads(made.body), made.seconds


def changed(action: WorkerCall, field: str) -> WorkerCall:
    other = OTHER[field] if field in OTHER else getattr(action, field) + 1
    return replace(action, **{field: other})


def test_every_kind_of_call_is_in_the_table():
    assert {type(a) for a in ACTIONS} == set(get_args(WorkerCall))


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.kind)
def test_all_workers_of_a_barrier_share_one_request(action):
    requests = Requests()
    other = replace(action, pod_uid="uid-1", pod_name="policy-1")

    assert requests.call(action, EPOCH) is requests.call(other, Epoch(term=3, sequence=7))


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.kind)
def test_other_content_is_another_request(action):
    requests = Requests()
    for field in [f.name for f in fields(action) if f.name not in {"pod_uid", "pod_name"}]:
        other = changed(action, field)
        requests.call(action, EPOCH)

        assert seen(other, requests=requests) == seen(other), field


@pytest.mark.parametrize("epoch", [Epoch(term=4, sequence=7), Epoch(term=3, sequence=8)])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.kind)
def test_another_epoch_is_another_request(action, epoch):
    requests = Requests()
    requests.call(action, EPOCH)
    sent = json.loads(requests.call(action, epoch).body)

    assert sent["epoch"] == epoch.model_dump()


def test_the_number_of_cached_requests_is_bounded():
    requests = Requests()
    first = requests.call(ACTIONS[0], EPOCH)
    for n in range(MAX_KNOWN_REQUESTS):
        requests.call(ACTIONS[0], Epoch(term=4, sequence=n))
    again = requests.call(ACTIONS[0], EPOCH)

    assert again == first
    assert again is not first


@pytest.mark.parametrize("field", ["pod_uid", "instance"])
def test_a_line_break_in_a_header_is_refused(field):
    broken: dict[str, Any] = {"pod_uid": "u", "instance": "i"} | {field: "a\r\nx: y"}
    worker = Addressee(base_url="http://h:1", token="t", **broken)
    with pytest.raises(ValueError, match="line break"):
        Requests().read_state.to(worker, "n-1")


def test_the_view_of_a_worker_is_not_part_of_a_request():
    """The cache holds no worker: it would keep a fleet of 10,000 in memory."""
    uid = make_worker(0).view().pod.uid
    made = Requests().call(replace(ACTIONS[0], pod_uid=uid), EPOCH)

    assert uid not in repr(made)
