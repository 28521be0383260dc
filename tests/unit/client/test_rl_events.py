"""The client by URL follows the stream of events, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import TRAINER
from tests.support.fake_objects import FakeObjects
from tests.support.waiting import soon

from fleet_api.state import weights_of
from rlfleet import AsyncWeights, RlfleetError, TimedOut, Weights
from rlfleet.resources import WeightVersion

PATH = "/fleets/rl/policy/v1/rl"
Stream = Callable[[web.StreamResponse], Awaitable[None]]


class Scripted:
    """A server that plays one script for each stream, and answers looks at the state."""

    def __init__(self, *streams: Stream) -> None:
        self.objects = FakeObjects(obeys=False)
        self.streams = list(streams)
        self.since: list[str | None] = []
        self.looks = 0
        self.url = ""

    def document(self) -> dict[str, Any]:
        return weights_of(WeightVersion.model_validate(self.objects.weights))

    def event(self) -> bytes:
        """The present state, as an event."""
        shown = self.document()
        return f"id: {shown['resourceVersion']}\nevent: weights\ndata: {json.dumps(shown)}\n\n".encode()

    async def state(self, _: web.Request) -> web.Response:
        self.looks += 1
        counts = {"generation": 1, "replicas": 4, "pods": 4}
        return web.json_response({**counts, "weights": self.document()})

    async def events(self, request: web.Request) -> web.StreamResponse:
        self.since.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.streams:
            await self.streams.pop(0)(response)
        else:
            await response.write(b"retry: 1000\n\n")
            await asyncio.Event().wait()
        return response


@asynccontextmanager
async def serving(server: Scripted, *, events: bool = True) -> AsyncIterator[AsyncWeights]:
    app = web.Application()
    app.router.add_get(f"{PATH}/state", server.state)
    if events:
        app.router.add_get(f"{PATH}/events", server.events)
    async with TestServer(app, shutdown_timeout=0) as made:
        server.url = str(made.make_url("/"))
        async with AsyncWeights("policy", namespace="rl", url=server.url, token=TRAINER) as weights:
            yield weights


async def seen(weights: AsyncWeights, number: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        async for event in weights.watch():
            found.append((event.type, event.weights.spec.version))
            if len(found) == number:
                return found
    raise AssertionError("the watch has ended")


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_a_wait_follows_the_stream_without_further_reads(api, kind):
    given: dict[str, Any] = {"namespace": "rl", "url": api.url, "token": TRAINER}

    def publish() -> bool:
        with Weights("policy", **given) as weights:
            return weights.publish("43", path="/weights/step_43").applied

    if kind == "blocking":
        assert await asyncio.to_thread(publish)
    else:
        async with AsyncWeights("policy", **given) as weights:
            assert (await weights.publish("43", path="/weights/step_43")).applied

    assert f"GET {PATH}/events" in api.requests
    assert f"GET {PATH}/state" not in api.requests


async def test_a_broken_stream_is_resumed_after_the_last_event_and_none_is_lost():
    server = Scripted()

    async def breaks(response: web.StreamResponse) -> None:
        for version in ("43", "44"):
            server.objects.desire(version=version)
            await response.write(server.event())
        server.objects.desire(version="45")
        missed.append(server.event())
        await response.write(missed[0][:40])  # the rest is lost with the connection
        assert response._req is not None
        assert response._req.transport is not None
        response._req.transport.abort()

    async def goes_on(response: web.StreamResponse) -> None:
        await response.write(missed[0])
        server.objects.desire(version="46")
        for byte in server.event():
            await response.write(bytes([byte]))
        await asyncio.Event().wait()

    missed: list[bytes] = []
    server.streams += [breaks, goes_on]
    async with serving(server) as weights:
        before = server.document()["resourceVersion"]
        found = await seen(weights, 5)

    versions = ["42", "43", "44", "45", "46"]
    assert found == [("ADDED", "42"), *(("MODIFIED", v) for v in versions[1:])]
    assert server.since == [before, str(int(before) + 2)]
    assert server.looks == 1, "the first state; the stream gives all others"


async def test_an_object_that_was_made_again_during_a_gap_is_deleted_and_added():
    server = Scripted()
    spec = {"fleetRef": {"name": "policy"}, "version": "50", "source": {"path": "/w/50"}}

    async def another(response: web.StreamResponse) -> None:
        server.objects.make(spec, uid="uid-2")
        await response.write(server.event())
        await asyncio.Event().wait()

    server.streams.append(another)
    async with serving(server) as weights:
        found = await seen(weights, 3)

    assert found == [("ADDED", "42"), ("DELETED", "42"), ("ADDED", "50")]


@pytest.mark.parametrize("events", [True, False], ids=["held back by a proxy", "404"])
async def test_without_a_stream_the_client_polls_the_state(*, events):
    server = Scripted()

    async def held_back(_: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    server.streams += [held_back] * 9
    async with serving(server, events=events) as weights:
        asked = asyncio.create_task(weights.wait(timeout_seconds=4))
        server.objects.desire(version="43")
        await soon(lambda: server.looks > 0)
        server.objects.apply()
        assert (await asked).applied
    assert len(server.since) <= 1, "it asks for no other stream"


@pytest.mark.parametrize(
    "answer",
    [b"event: weights\ndata: [1]\n\n", b"event: weights\ndata: {\n\n", b"\n" + b"x" * 5_000_000],
    ids=["no object", "no JSON", "no end"],
)
async def test_a_stream_of_something_else_is_left_and_another_one_opened(answer):
    server = Scripted()

    async def odd(response: web.StreamResponse) -> None:
        await response.write(answer)
        await asyncio.Event().wait()

    async def good(response: web.StreamResponse) -> None:
        server.objects.desire(version="43")
        await response.write(b": hello\r\n\r\nevent: later\ndata: {}\n\n" + server.event())
        await asyncio.Event().wait()

    server.streams += [odd, good]
    async with serving(server) as weights:
        assert await seen(weights, 2) == [("ADDED", "42"), ("MODIFIED", "43")]


async def test_an_event_of_another_release_is_an_error():
    async def newer(response: web.StreamResponse) -> None:
        await response.write(b'event: weights\ndata: {"name": "policy"}\n\n')

    async with serving(Scripted(newer)) as weights:
        with pytest.raises(RlfleetError, match="one release"):
            await seen(weights, 2)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_a_quiet_stream_ends_with_the_time_of_a_wait(kind):
    server = Scripted()
    async with serving(server) as weights:
        server.objects.desire(version="43")

        def wait() -> None:
            with Weights("policy", namespace="rl", url=server.url, token=TRAINER) as blocking:
                blocking.wait(timeout_seconds=2)

        begun = asyncio.get_running_loop().time()
        with pytest.raises(TimedOut):
            await (
                asyncio.to_thread(wait) if kind == "blocking" else weights.wait(timeout_seconds=2)
            )
        took = asyncio.get_running_loop().time() - begun

    assert 1.9 < took < 20
    assert server.since, "it has listened"
