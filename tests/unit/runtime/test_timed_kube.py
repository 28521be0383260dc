"""Requests to the API server are measured by verb, also those that it refuses, and watches are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from tests.unit.runtime.test_metrics import series

from fleet_operator.errors import Conflict
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.timed_kube import TimedKube

COUNT = "rlfleet_api_request_seconds_count"


class Server:
    """Answers with its own name for the verb; refuses to create, and never answers a deletion."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return ("get", path, params)

    async def create(self, path: str, body: Any) -> Any:
        raise Conflict(path)

    async def replace(self, path: str, body: Any) -> Any:
        return ("replace", path, body)

    async def apply(self, path: str, body: Any) -> Any:
        return ("apply", path, body)

    async def merge(self, path: str, body: Any) -> Any:
        return ("merge", path, body)

    async def delete(self, path: str, *, uid: str) -> None:
        await asyncio.get_running_loop().create_future()

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Any]:
        yield {"watched": path}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def kube(metrics: Metrics) -> TimedKube:
    return TimedKube(Server(), metrics.count_request)


async def test_each_answer_arrives_and_is_measured_by_its_verb(kube, metrics):
    assert await kube.get("/p", {"a": "b"}) == ("get", "/p", {"a": "b"})
    for verb in ("replace", "apply", "merge"):
        assert await getattr(kube, verb)("/p", {}) == (verb, "/p", {})
    assert [event async for event in kube.watch("/p", {})] == [{"watched": "/p"}]

    measured = {f'{{verb="{verb}"}}': 1 for verb in ("get", "replace", "apply", "merge")}
    assert series(metrics, COUNT) == measured


async def test_a_refusal_is_measured_too(kube, metrics):
    with pytest.raises(Conflict):
        await kube.create("/p", {})

    assert series(metrics, COUNT) == {'{verb="create"}': 1}


async def test_a_request_that_is_cancelled_is_not_measured(kube, metrics):
    request = asyncio.create_task(kube.delete("/p", uid="u"))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])

    assert series(metrics, COUNT) == {}
