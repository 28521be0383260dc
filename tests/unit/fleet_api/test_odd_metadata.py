"""No label and no annotation that a user can change raises in the RL API."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from hypothesis import example, given, settings
from tests.support.fake_cluster import READER, TRAINER, FakeCluster, pod
from tests.support.odd_metadata import POD_ANNOTATIONS, TEXTS, marked

from fleet_api.fleets import Fleets
from fleet_api.idempotency import ANNOTATION
from fleet_api.targets import Targets
from fleet_api.workers import metrics_addresses, workers_of
from fleet_operator.places import Places
from rlfleet_resources import names
from rlfleet_resources.names import ANNOTATION_RETRY, ANNOTATION_TRACEPARENT


def without_ordinal() -> dict[str, Any]:
    found = pod(1)
    del found["metadata"]["labels"][names.LABEL_ORDINAL]
    return found


@settings(max_examples=200, print_blob=True)
@example(odd=without_ordinal())
@given(odd=marked(pod(1), POD_ANNOTATIONS))
def test_a_pod_with_any_labels_does_not_hide_the_others(odd):
    async def read() -> None:
        cluster = FakeCluster()
        cluster.pods = [odd, pod(0)]
        fleets = Fleets(cluster, Places(8))
        fleet = await fleets.fleet("rl", "policy")
        pods = await fleets.pods(fleet)

        rows = workers_of(fleet, pods, None)["workers"]
        assert [row["instance_id"] for row in rows] == [*pods]
        assert rows[0]["pod"] == "policy-0"
        assert "policy-0" in metrics_addresses(fleet, pods)
        found = await Targets(fleets).of(fleet)
        assert found.targets[0].pod == "policy-0"
        assert found.pods == len(pods)

    asyncio.run(read())


async def test_a_worker_without_its_ordinal_is_left_out_of_the_fleets_workers(api):
    api.cluster.pods = [pod(0), without_ordinal()]

    status, found = await api.get("/v1/rl/workers", READER)

    assert status == 200
    assert [row["pod"] for row in found["workers"]] == ["policy-0"]


async def test_annotations_of_other_writers_raise_nothing(api):
    texts: list[str] = []

    @settings(max_examples=40, database=None)
    @given(text=TEXTS)
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    weights = api.cluster.objects.weights
    assert weights is not None
    for text in texts:
        marks = {ANNOTATION: text, ANNOTATION_RETRY: text, ANNOTATION_TRACEPARENT: text}
        weights["metadata"]["annotations"] = copy.deepcopy(marks)
        status, _ = await api.get("/v1/rl/state", READER)
        assert status == 200, text
        body = {"version": "42", "wait": False}
        headers = {"Idempotency-Key": "k"}
        status, _ = await api.send("PUT", "/v1/rl/weights", TRAINER, json=body, headers=headers)
        assert status < 500, text
