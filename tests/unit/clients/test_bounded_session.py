"""kopf reads lists and watches of a real HTTP server through the bounded session."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients.api import iter_jsonlines
from kopf._cogs.clients.errors import APIServerError, APITooManyRequestsError, check_response

from fleet_operator.clients.bounded_json import TEXT_BYTES, opened
from fleet_operator.clients.bounded_session import bounded_session
from fleet_operator.clients.changes_in_turn import ChangesInTurn
from fleet_operator.errors import TooLarge
from fleet_operator.ports import UNREAD_BYTES
from fleet_operator.time_shares import TimeShares

LARGE = "<" * 1_300_000


def thing(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "InferenceFleet", "metadata": {"name": name, "uid": name}, "spec": spec}


class Api:
    """A server with this page and these events."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.status = 200
        self.refusal: str | None = None
        self.large_pages = 0
        self.smaller = True
        app = web.Application()
        app.router.add_get("/things", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer t"
        if self.refusal is not None:
            return web.Response(status=self.status, text=self.refusal)
        if self.status >= 400:
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        if "watch" not in request.query:
            return web.json_response({"kind": "List", "metadata": {}, "items": self.items})
        reply = web.StreamResponse()
        await reply.prepare(request)
        for each in self.items:
            line = {"type": "MODIFIED", "object": each}
            await reply.write(json.dumps(line).encode() + b"\n")
        return reply

    def note_large(self) -> bool:
        self.large_pages += 1
        return self.smaller


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    await api.server.start_server()
    yield api
    await api.server.close()


@pytest.fixture
async def session(api: Api) -> AsyncIterator[aiohttp.ClientSession]:
    tls = ssl.create_default_context()
    headers = {"Authorization": "Bearer t"}
    async with bounded_session(
        tls, headers, None, api.note_large, {"/things": ChangesInTurn(TimeShares())}
    ) as made:
        yield made


async def test_a_list_has_its_objects_closed(api: Api, session: aiohttp.ClientSession) -> None:
    api.items = [thing("a", replicas=1), thing("b", overlay=LARGE)]
    async with await session.request("get", api.server.make_url("/things?limit=500")) as reply:
        page = await reply.json()
    first, second = (opened(each) for each in page["items"])

    assert first == api.items[0]
    assert second["metadata"] == {"name": "b", "uid": "b"}
    assert UNREAD_BYTES in second


async def test_a_watch_continues_behind_a_large_object(
    api: Api, session: aiohttp.ClientSession
) -> None:
    api.items = [thing("a", replicas=1), thing("b", overlay=LARGE), thing("c")]
    async with await session.request("get", api.server.make_url("/things?watch=true")) as reply:
        events = [json.loads(line) async for line in iter_jsonlines(reply.content)]
    found = [opened(each["object"]) for each in events]

    assert [each["type"] for each in events] == ["MODIFIED"] * 3
    assert found[0] == api.items[0]
    assert [UNREAD_BYTES in each for each in found] == [False, True, False]


@pytest.mark.parametrize("smaller", [True, False])
async def test_a_page_that_is_too_large_is_listed_again_in_smaller_ones(
    api: Api, session: aiohttp.ClientSession, *, smaller: bool
) -> None:
    api.items = [thing(f"x{n}", overlay=LARGE) for n in range(1 + TEXT_BYTES // len(LARGE))]
    api.smaller = smaller
    # kopf lists again after the first one. The other one ends it.
    with pytest.raises(aiohttp.ClientPayloadError if smaller else TooLarge):
        async with await session.request("get", api.server.make_url("/things")) as reply:
            await reply.json()

    assert api.large_pages == 1


@pytest.mark.parametrize("path", ["/things", "/things?watch=true"])
async def test_a_refusal_is_what_the_api_server_said(
    api: Api, session: aiohttp.ClientSession, path: str
) -> None:
    api.status = 403
    async with await session.request("get", api.server.make_url(path)) as reply:
        assert await reply.json() == {"kind": "Status", "code": 403}


@pytest.mark.parametrize("path", ["/things", "/things?watch=true"])
@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        pytest.param(429, "Too many requests, please try again later.", APITooManyRequestsError),
        pytest.param(503, "no healthy upstream", APIServerError),
        pytest.param(500, "", APIServerError, id="empty"),
    ],
)
async def test_a_refusal_in_plain_text_is_one_that_kopf_repeats(
    api: Api,
    session: aiohttp.ClientSession,
    path: str,
    status: int,
    text: str,
    error: type[Exception],
) -> None:
    """Any other error ends kopf, and the operator with it."""
    api.status, api.refusal = status, text

    with pytest.raises(error, match=text or None):
        await check_response(await session.request("get", api.server.make_url(path)))
