"""A reader continues behind objects that it cannot read, and reports them; one that fails stops no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.unit.runtime.test_pod_informer import Watching, drop, pod, put

from fleet_operator.errors import Broken, Retryable, TooLarge
from fleet_operator.ports import UNREAD_BYTES, Json
from fleet_operator.runtime.list_watch import BREAKS_AT_MOST
from fleet_operator.runtime.reads import Read
from rlfleet_resources import names
from rlfleet_resources.reasons import ConditionReason

pytestmark = pytest.mark.virtual_time

PODS = "/api/v1/pods"
WATCH = Read("watch", "pods", None)


def unread(ordinal: int, **metadata: Any) -> Json:
    """A pod as the client reads it that has more bytes than are read."""
    body = pod(ordinal) | {UNREAD_BYTES: 7_800_000}
    return body | {"metadata": body["metadata"] | metadata}


UNREAD = [("pods policy-1", ConditionReason.OBJECT_UNREAD)]


@pytest.mark.parametrize("listed", [True, False], ids=["in a list", "in a watch"])
async def test_an_object_that_is_too_large_is_reported_on_its_fleet_until_it_is_smaller_or_gone(
    *, listed
):
    cluster = FakeCluster()
    if listed:
        put(cluster, unread(1))
    async with Watching(cluster.client()) as reading:
        if not listed:
            put(cluster, unread(1))
        put(cluster, pod(2))
        await asyncio.sleep(0.01)
        assert reading.ordinals() == [1, 2], "its names are known, and those behind it are read"
        assert reading.shown() == UNREAD
        assert reading.shown(("rl", "other")) == []
        reading.changes.clear()
        put(cluster, pod(1))
        await asyncio.sleep(0.01)
        assert reading.shown() == []
        assert reading.changes
        put(cluster, unread(1))
        await asyncio.sleep(0.01)
        drop(cluster, 1)
        await asyncio.sleep(0.01)
        assert reading.shown() == []


@pytest.mark.parametrize(
    ("name", "ordinal"),
    [("policy-20000", "20000"), ("policy-7", "8"), ("policy-x", "x"), ("policy-07", "07")],
)
async def test_a_pod_with_the_labels_of_a_worker_and_another_name_is_reported_on_its_fleet(
    name, ordinal
):
    cluster = FakeCluster()
    posing = pod(1)
    posing["metadata"] |= {"name": name, "uid": "posing"}
    posing["metadata"]["labels"][names.LABEL_ORDINAL] = ordinal
    put(cluster, posing)
    async with Watching(cluster.client()) as reading:
        put(cluster, pod(0))
        await asyncio.sleep(0.01)
        assert reading.ordinals() == [0]
        assert reading.shown() == [(f"pods {name}", ConditionReason.OBJECT_UNREAD)]
        del posing["metadata"]["labels"][names.LABEL_ORDINAL]
        put(cluster, posing)
        await asyncio.sleep(0.01)
        assert reading.shown() == []


async def test_an_unread_object_that_is_deleted_in_a_gap_is_reported_no_more():
    cluster = FakeCluster()
    # Its ordinal makes it no worker, so only the report knows it.
    foreign = unread(1)
    del foreign["metadata"]["labels"]["rlfleet.dev/ordinal"]
    put(cluster, foreign)
    client = cluster.client()
    async with Watching(client) as reading:
        assert reading.shown() == UNREAD
        client.events_per_watch, client.watch_error = 0, Retryable("connection reset")
        put(cluster, pod(2))
        await asyncio.sleep(5)
        drop(cluster, 1)
        cluster.compact()
        client.events_per_watch = None
        await asyncio.sleep(30)
        assert reading.shown() == []


async def test_an_object_that_cannot_be_taken_holds_back_no_other():
    cluster = FakeCluster()
    put(cluster, pod(0, conditions=[{"odd": "condition"}]))
    put(cluster, pod(1))
    async with Watching(cluster.client()) as reading:
        put(cluster, pod(2, conditions=[{"odd": "condition"}]))
        put(cluster, pod(3))
        await asyncio.sleep(0.01)
        assert reading.ordinals() == [1, 3]
        assert reading.shown() == [
            ("pods policy-0", ConditionReason.INTERNAL_ERROR),
            ("pods policy-2", ConditionReason.INTERNAL_ERROR),
        ]


class Breaking(FakeKube):
    """Its watches break before the next event, or fail with another error."""

    error_of_watch: Exception | None = None
    broken_namespace = ""

    async def watch(self, path: str, params: Mapping[str, str]) -> Any:
        if self.error_of_watch is not None and self.broken_namespace in path:
            self.requests.append(("WATCH", path))
            raise self.error_of_watch
        async for event in super().watch(path, params):
            yield event


async def test_after_several_breaks_at_one_version_the_objects_are_listed_and_it_is_reported(
    caplog,
):
    cluster = FakeCluster()
    kube = Breaking(cluster)
    kube.error_of_watch = Broken("a line cannot be read")
    async with Watching(kube) as reading:
        put(cluster, pod(1))
        await asyncio.sleep(60)
        assert reading.ordinals() == [1], "it is found by listing"
        await asyncio.sleep(60)
        assert reading.shown() == [(str(WATCH), ConditionReason.READ_REFUSED)]
        watches = kube.requests.count(("WATCH", PODS))
        lists = kube.requests.count(("GET", PODS))
        assert lists == watches - BREAKS_AT_MOST + 1, "not before, and each time from then on"
        kube.error_of_watch = None
        await asyncio.sleep(30)
        put(cluster, pod(2))
        await asyncio.sleep(1)
        assert reading.shown() == []
    assert any(one.levelno == logging.WARNING for one in caplog.records)


async def test_streams_that_break_between_events_resume_without_a_list_or_a_report(caplog):
    cluster = FakeCluster()
    kube = cluster.client()
    kube.events_per_watch, kube.watch_error = 1, Broken("connection reset")
    async with Watching(kube) as reading:
        for n in range(10):
            put(cluster, pod(n))
        await asyncio.sleep(120)
        assert reading.ordinals() == list(range(10))
        assert kube.requests.count(("GET", PODS)) == 1
        assert reading.shown() == []
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG] == []


@pytest.mark.parametrize(
    "error", [TooLarge("a line"), KeyError("metadata")], ids=["size", "defect"]
)
async def test_a_stream_that_fails_stops_no_other_and_is_begun_again(error):
    cluster = FakeCluster()
    kube = Breaking(cluster)
    kube.error_of_watch, kube.broken_namespace = error, "/lab/"
    async with Watching(kube, "rl", "lab") as reading:
        put(cluster, pod(1))
        put(cluster, pod(1, namespace="lab"))
        await asyncio.sleep(90)
        assert reading.ordinals() == [1]
        assert reading.shown() == []
        lab = ("lab", "policy")
        (problem,) = reading.problems.of(lab)
        assert (problem.part, problem.reason) == (
            "watch pods in namespace lab",
            ConditionReason.READ_REFUSED,
        )
        assert [p.ordinal for p in reading.informer.pods_of(lab)] == [1]
        kube.error_of_watch = None
        await asyncio.sleep(30)
        put(cluster, pod(2, namespace="lab"))
        await asyncio.sleep(1)
        assert reading.shown(lab) == []


class Heavy(FakeKube):
    """An API server whose pages have too many bytes with more than some objects."""

    fits = 3
    limits: list[int]

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        limit = int((params or {})["limit"])
        self.limits.append(limit)
        if limit > self.fits:
            raise TooLarge("a page")
        return await super().get(path, params)


async def test_after_a_page_that_is_too_large_the_next_request_is_for_fewer_objects():
    cluster = FakeCluster()
    for n in range(10):
        put(cluster, pod(n))
    kube = Heavy(cluster)
    kube.limits = []
    async with Watching(kube) as reading:
        assert reading.ordinals() == list(range(10))
        assert kube.limits[:9] == [500, 250, 125, 62, 31, 15, 7, 3, 6], "more again after a success"
        kube.fits = 0
    async with Watching(kube) as reading:
        await asyncio.sleep(30)
        assert not reading.informer.is_synced("rl")
        assert [r for _, r in reading.shown()] == [ConditionReason.READ_REFUSED]
