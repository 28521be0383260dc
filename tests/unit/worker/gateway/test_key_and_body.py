"""API keys, and the size of bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_server import ONE, FakePort
from tests.support.worker_harness import WorkerHarness

from fleet_worker.gateway.gate import keys_of, read_whole, replayed
from fleet_worker.http.asgi import WireError


@pytest.fixture
async def locked(serving: WorkerHarness) -> AsyncIterator[FakePort]:
    made = FakePort(serving.agent, keys=("one", "two"))
    yield made
    await made.client.aclose()


@pytest.mark.parametrize(
    "authorization", [None, "Bearer", "Bearer three", "Basic one", "one", "Bearer one two"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/inference/v1/generate"),
        ("POST", "/tokenize"),
        ("POST", "/v1/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("GET", "/version"),
        ("POST", "/pause"),
        ("GET", "/nothing"),
    ],
)
async def test_a_request_without_the_key_is_refused(
    locked: FakePort, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    reply = await locked.client.request(method, path, headers=headers)

    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["type"] == "AuthenticationError"


@pytest.mark.parametrize("key", ["one", "two"])
async def test_a_request_with_a_key_is_served(locked: FakePort, key: str) -> None:
    locked.server.prompts = [ONE]
    headers = {"authorization": f"bearer {key}"}

    assert (await locked.ask(headers=headers)).status_code == 200
    assert (await locked.client.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/ping"])
async def test_health_needs_no_key(locked: FakePort, path: str) -> None:
    assert (await locked.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "environment", "keys"),
    [
        (SimpleNamespace(api_key=["a", "b"]), {"VLLM_API_KEY": "c"}, ["a", "b"]),
        (SimpleNamespace(api_key=None), {"VLLM_API_KEY": "c"}, ["c"]),
        (SimpleNamespace(), {}, [""]),
    ],
)
def test_the_keys_are_those_of_vllms_arguments(
    arguments: Any, environment: dict[str, str], keys: list[str]
) -> None:
    assert keys_of(arguments, environment) == keys


class Sender:
    """A client that sends a body in pieces."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.messages = [
            {"type": "http.disconnect"}
            if piece is None
            else {"type": "http.request", "body": piece, "more_body": number + 1 < len(pieces)}
            for number, piece in enumerate(pieces)
        ]

    async def __call__(self) -> Any:
        return self.messages.pop(0)


async def test_an_endless_body_is_not_read_to_its_end() -> None:
    sender = Sender(*[b"x" * 60] * 10)
    with pytest.raises(WireError):
        await read_whole(sender, limit=100)

    assert len(sender.messages) == 6


async def test_a_body_is_replayed_once_before_later_messages() -> None:
    receive = replayed(b"ab", Sender(None))

    assert (await receive())["body"] == b"ab"
    assert (await receive())["type"] == "http.disconnect"


async def test_a_latch_that_closes_during_the_body_refuses_the_request(
    port: FakePort, serving: WorkerHarness
) -> None:
    port.server.prompts = [ONE]

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model":'
        await serving.fence()
        yield b'"policy"}'

    reply = await port.client.post("/v1/completions", content=pieces())
    assert reply.status_code == 429
    assert port.server.asked == []
