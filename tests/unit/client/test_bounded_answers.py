"""A client with a limit reads no more of an answer than that."""

from __future__ import annotations

import gzip
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from rlfleet import Forbidden, RlfleetError
from rlfleet.kube import AsyncKube
from rlfleet.kubeconfig import Access
from rlfleet.ports import Json, Kind

LIMIT = 10_000
PART = b'"' + b"x" * 998 + b'"'


class Parts(httpx.AsyncByteStream):
    """A body in parts, which counts those that were read."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            self.read += 1
            yield part


@asynccontextmanager
async def client(
    body: Parts,
    status: int = 200,
    encoding: str = "identity",
    read: Callable[[bytes], Json] = json.loads,
) -> AsyncIterator[AsyncKube]:
    access = Access(
        server="https://server:6443",
        namespace="rl",
        token=lambda: "t",
        tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    kube = AsyncKube(access, "tests", LIMIT, read)
    await kube._http.aclose()
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    kube._http = httpx.AsyncClient(
        transport=httpx.MockTransport(
            lambda _: httpx.Response(status, headers=headers, stream=body)
        )
    )
    try:
        yield kube
    finally:
        await kube.close()


async def get(body: Parts, status: int = 200, encoding: str = "identity") -> object:
    async with client(body, status, encoding) as kube:
        return await kube.get(Kind.FLEETS, "policy")


async def test_an_answer_within_the_limit_is_whole():
    assert await get(Parts(b'{"spec":', b"{}}")) == {"spec": {}}
    packed = gzip.compress(b'{"spec": {"a": 1}}')
    assert await get(Parts(packed), encoding="gzip") == {"spec": {"a": 1}}


async def test_a_longer_answer_is_an_error_and_is_not_read_to_its_end():
    body = Parts(*[PART] * 1000)
    with pytest.raises(RlfleetError, match=f"{LIMIT} bytes"):
        await get(body)

    assert body.read == LIMIT // len(PART) + 1


async def test_an_answer_is_measured_after_its_decompression():
    packed = gzip.compress(bytes(10_000_000))
    assert len(packed) > LIMIT / 2
    parts = [packed[n : n + 100] for n in range(0, len(packed), 100)]
    body = Parts(*parts)
    with pytest.raises(RlfleetError, match=f"{LIMIT} bytes"):
        await get(body, encoding="gzip")

    assert body.read < len(parts) / 10


async def test_a_refusal_keeps_its_meaning():
    with pytest.raises(Forbidden):
        await get(Parts(b'{"kind": "Status", "code": 403, "message": "no"}'), status=403)


async def test_a_change_that_is_too_long_ends_its_watch_and_one_within_the_limit_does_not():
    event = b'{"type": "MODIFIED", "object": {"spec": {}}}\n'
    body = Parts(event, *[PART] * 1000)
    seen = []
    async with client(body) as kube:

        async def watch() -> None:
            async for change in kube.watch(Kind.WEIGHTS, "policy", "1", 60):
                seen.append(change.type)  # noqa: PERF401 - it ends with an error

        with pytest.raises(RlfleetError, match=f"{LIMIT} bytes"):
            await watch()

    assert (seen, body.read) == (["MODIFIED"], 1 + LIMIT // len(PART) + 1)


async def test_a_reader_of_its_own_parses_objects_and_changes_but_no_tables():
    def read(text: bytes) -> dict[str, object]:
        return json.loads(text) | {"read": True}

    event = b'{"type": "MODIFIED", "object": {}}\n'
    async with client(Parts(b'{"a": 1}'), read=read) as kube:
        assert await kube.get(Kind.FLEETS, "policy") == {"a": 1, "read": True}
    async with client(Parts(b'{"a": 1}'), read=read) as kube:
        assert await kube.call("GET", "/api/v1/pods") == {"a": 1, "read": True}
    async with client(Parts(b'{"a": 1}'), read=read) as kube:
        assert await kube.call("GET", "/api/v1/pods", accept="application/json;as=Table") == {
            "a": 1
        }
    async with client(Parts(event), read=lambda text: read(text) | {"type": "READ"}) as kube:
        assert [c.type async for c in kube.watch(Kind.WEIGHTS, "policy", "1", 60)] == ["READ"]
