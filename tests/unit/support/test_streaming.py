"""The check that planned changes cut nothing sees each way in which a stream can be cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from tests.support.streaming import TOKENS, Streams, stream

DONE = b"data: [DONE]\n\n"
LATCH = {"retry-after": "1", "connection": "close"}


def chunk(tokens: int, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "token_ids": [1] * tokens, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


WHOLE = (chunk(TOKENS - 1), chunk(1, "length"), DONE)


class FakeStream(httpx.AsyncByteStream):
    """Sends its chunks; `breaks` then breaks the connection instead of ending it."""

    def __init__(self, *chunks: bytes, breaks: bool = False) -> None:
        self._chunks = chunks
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for one in self._chunks:
            yield one
        if self._breaks:
            raise httpx.ReadError("connection reset by peer")


def replies(*chunks: bytes, breaks: bool = False) -> httpx.Response:
    return httpx.Response(200, stream=FakeStream(*chunks, breaks=breaks))


def raises(error: type[httpx.TransportError]) -> httpx.Response:
    raise error("broken")


def seen(bad: Callable[[], httpx.Response], *, good: int = 1) -> Streams:
    """The clients' view of a worker whose every other reply is bad: `good` whole ones between."""
    streams, stop, number = Streams(), asyncio.Event(), 0

    def answer(_: httpx.Request) -> httpx.Response:
        nonlocal number
        number += 1
        if number >= 40:
            stop.set()
        return replies(*WHOLE) if number % (good + 1) else bad()

    async def run() -> None:
        transport = httpx.MockTransport(answer)
        async with asyncio.timeout(20):
            await stream("http://fake", "m", streams, stop, transport=transport, retry_seconds=0)

    asyncio.run(run())
    assert streams.whole >= 20
    return streams


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        pytest.param(lambda: raises(httpx.ReadError), "ReadError", id="before the first byte"),
        pytest.param(
            lambda: raises(httpx.RemoteProtocolError),
            "RemoteProtocolError",
            id="closed before the first byte",
        ),
        pytest.param(
            lambda: replies(chunk(3), breaks=True), "ReadError", id="after the first byte"
        ),
        pytest.param(
            lambda: replies(*WHOLE[:-1], breaks=True),
            "ReadError",
            id="before the end of the stream",
        ),
        pytest.param(lambda: replies(*WHOLE, breaks=True), "ReadError", id="after the last event"),
        pytest.param(lambda: replies(chunk(3)), "without [DONE]", id="an end in the middle"),
        pytest.param(lambda: replies(*WHOLE[:-1]), "without [DONE]", id="no end"),
        pytest.param(lambda: replies(chunk(3, "abort"), DONE), "abort", id="ended by the worker"),
        pytest.param(lambda: replies(chunk(3, "length"), DONE), "length", id="too few tokens"),
        pytest.param(
            lambda: replies(chunk(3), b'data: {"error": {"message": "x"}}\n\n', DONE),
            "KeyError",
            id="an error in the stream",
        ),
        pytest.param(lambda: httpx.Response(500, text="dead"), "500 dead", id="another status"),
        pytest.param(lambda: httpx.Response(429, text="x"), "429 x", id="a 429 of something else"),
        pytest.param(lambda: raises(httpx.ReadTimeout), "ReadTimeout", id="silence"),
    ],
)
def test_an_incomplete_stream_is_a_problem(bad: Callable[[], httpx.Response], why: str) -> None:
    streams = seen(bad)

    assert len(streams.cut) >= 20
    assert all(why in one for one in streams.cut)
    assert streams.problems() == streams.cut
    assert not streams.refused


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(lambda: raises(httpx.ConnectError), id="no connection"),
        pytest.param(lambda: httpx.Response(429, headers=LATCH, text="joining"), id="the latch"),
    ],
)
def test_a_request_refused_before_any_work_is_sent_again(
    refusal: Callable[[], httpx.Response],
) -> None:
    streams = seen(refusal)

    assert streams.problems() == []
    assert streams.refused.total() >= 20


def test_requests_without_an_answer_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.streaming.ATTEMPTS", 3)
    streams, stop = Streams(), asyncio.Event()

    def answer(_: httpx.Request) -> httpx.Response:
        stop.set()
        return httpx.Response(429, headers=LATCH, text="joining")

    transport = httpx.MockTransport(answer)
    asyncio.run(stream("http://fake", "m", streams, stop, transport=transport, retry_seconds=0))

    assert streams.lost
    assert streams.problems() == [
        "no stream reached its end",
        *("never answered: 429 joining" for _ in streams.lost),
    ]
