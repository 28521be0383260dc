"""The stream of a WeightVersion's transitions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from tests.support.fake_cluster import READER, STRANGER, FakeCluster
from tests.support.fake_objects import FakeObjects, condition
from tests.unit.fleet_api.conftest import Api

from fleet_api import events, main
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings
from rlfleet.errors import Unavailable
from rlfleet.ports import Change, Kind

PATH = "/v1/rl/events"
URL = f"/fleets/rl/policy{PATH}"
HEADERS = {"Authorization": f"Bearer {READER}"}
WITHIN_SECONDS = 20


class SlowObjects(FakeObjects):
    """A watch without news lasts, as that of the API server does."""

    def __init__(self) -> None:
        super().__init__(obeys=False)
        self.news = asyncio.Event()

    async def watch(
        self, kind: Kind, name: str, resource_version: str, seconds: float
    ) -> AsyncGenerator[Change]:
        while True:
            self.news.clear()
            async for change in super().watch(kind, name, resource_version, seconds):
                resource_version = change.resource_version
                yield change
            self.now -= seconds
            await self.news.wait()


def parsed(text: str) -> list[dict[str, Any]]:
    """The events of a stream, without comments and `retry`."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and line[0] != ":")
        if "data" in fields:
            found.append(fields | {"data": json.loads(fields["data"])})
    return found


async def read(api: Api, **headers: str) -> list[dict[str, Any]]:
    """All events until the stream's time is over, which is at once with the fake's clock."""
    status, text = await api.get(PATH, headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert status == 200
    return parsed(text)


def phases(found: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["phase"] for event in found]


def roll_out(objects: FakeObjects) -> None:
    """Another writer asks for 43, and the operator applies it."""
    objects.desire(version="43")
    objects.look("Staging", workers={"total": 4, "staged": 2})
    objects.look("Loading", workers={"total": 4, "staged": 4})
    objects.apply()


async def test_a_stream_begins_with_the_present_state_and_has_every_transition(api):
    objects = api.cluster.objects
    objects.script.append(lambda: roll_out(objects))

    found = await read(api)
    assert phases(found) == ["Applied", "Applied", "Staging", "Loading", "Applied"]
    assert [e["data"]["desired"]["version"] for e in found] == ["42", *["43"] * 4]
    assert [e["data"]["workers"]["staged"] for e in found[2:]] == [2, 4, 4]
    assert [e["data"]["observed"] for e in found] == [True, False, True, True, True]
    assert {e["event"] for e in found} == {"weights"}
    ids = [int(e["id"]) for e in found]
    assert ids == sorted(set(ids))


async def test_any_replica_continues_after_the_last_event_that_a_client_has(api):
    roll_out(api.cluster.objects)
    whole = await read(api, Last_Event_ID="101")

    for index, event in enumerate(whole):
        assert await read(api, Last_Event_ID=event["id"]) == whole[index + 1 :]


async def test_events_that_the_api_server_has_dropped_are_replaced_by_the_present_state(api):
    before = api.cluster.objects.weights["metadata"]["resourceVersion"]
    roll_out(api.cluster.objects)
    api.cluster.objects.oldest = int(before) + 2

    (event,) = await read(api, Last_Event_ID=before)
    assert (event["data"]["phase"], event["data"]["appliedVersion"]) == ("Applied", "43")


async def test_an_id_of_another_store_begins_with_the_present_state(api):
    (event,) = await read(api, Last_Event_ID="99999999")

    assert event["data"]["appliedVersion"] == "42"


@pytest.mark.parametrize("last", ["x", "-1", "1 OR 1", "1" * 21])
async def test_an_id_that_no_event_has_is_400(api, last):
    status, problem = await api.get(PATH, headers={"Last-Event-ID": last})

    assert (status, problem["reason"]) == (400, "BadRequest")


async def test_a_write_without_a_visible_change_is_not_an_event(api):
    objects = api.cluster.objects
    objects.script.append(lambda: objects._merge({"metadata": {"annotations": {"a": "b"}}}))

    assert len(await read(api)) == 1


async def test_conditions_are_transitions(api):
    objects = api.cluster.objects
    objects.script.append(lambda: objects.look("Staging", condition("Stalled", "Refused", 1)))

    assert (await read(api))[-1]["data"]["conditions"][0]["reason"] == "Refused"


async def test_a_deletion_is_the_last_event(api):
    objects = api.cluster.objects
    objects.script.extend([objects.delete, lambda: objects.make({}, "uid-2")])

    assert [e["event"] for e in await read(api)] == ["weights", "deleted"]


async def test_an_api_server_that_fails_ends_the_stream_and_not_the_process(api, caplog):
    def fail() -> None:
        api.cluster.objects.script.append(fail)
        raise Unavailable("no answer")

    api.cluster.objects.script.append(fail)
    assert len(await read(api)) == 1
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == [
        "a stream of events has ended: no answer"
    ]
    assert (await api.get("/v1/rl/state"))[0] == 200


async def test_a_stream_needs_the_right_of_the_state(api):
    assert (await api.get(PATH, None))[0] == 401
    assert (await api.get(PATH, STRANGER))[0] == 403


async def test_a_fleet_without_weights_has_no_events(api):
    api.cluster.objects.delete()

    assert (await api.get(PATH))[0] == 404


# --- streams that last ----------------------------------------------------------------------------


@pytest.fixture
async def slow(
    lifecycle, monkeypatch
) -> AsyncIterator[tuple[TestClient[Any, Any], SlowObjects, Metrics]]:
    cluster, metrics = FakeCluster(), Metrics()
    objects = SlowObjects()
    objects.fleet, cluster.objects = cluster.fleet, objects
    monkeypatch.setitem(events.Events.__init__.__kwdefaults__, "heartbeat_seconds", 0.05)
    settings = parse_settings(["--requests-per-second=1000", "--event-streams=1"])
    app = main.build(settings, cluster, lifecycle, metrics)
    async with TestClient(TestServer(app, handler_cancellation=True)) as http:
        yield http, objects, metrics


async def test_a_quiet_stream_has_heartbeats_and_then_the_next_transition(slow):
    http, objects, _ = slow
    async with asyncio.timeout(WITHIN_SECONDS), http.get(URL, headers=HEADERS) as reply:
        assert reply.content_type == "text/event-stream"
        text = ""
        while ": no change" not in text:
            text += (await reply.content.readany()).decode()
        objects.desire(version="43")
        objects.news.set()
        while len(parsed(text)) < 2:
            text += (await reply.content.readany()).decode()
    assert parsed(text)[1]["data"]["desired"]["version"] == "43"


async def test_streams_are_bounded_and_a_client_that_leaves_makes_room(slow):
    http, _, _ = slow
    async with asyncio.timeout(WITHIN_SECONDS):
        async with http.get(URL, headers=HEADERS) as first:
            assert first.status == 200
            async with http.get(URL, headers=HEADERS) as second:
                assert (second.status, (await second.json())["reason"]) == (503, "Overloaded")
                assert "--event-streams" in (await second.json())["detail"]
        while True:
            async with http.get(URL, headers=HEADERS) as third:
                if third.status == 200:
                    break


async def test_the_end_of_the_process_ends_a_stream(slow, lifecycle):
    http, _, _ = slow
    async with asyncio.timeout(WITHIN_SECONDS), http.get(URL, headers=HEADERS) as reply:
        await reply.content.readany()
        lifecycle.ending.set()
        await reply.content.read()
    assert reply.status == 200
