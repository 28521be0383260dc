"""Objects of the API server are read in pages and in turns, and little of them is kept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.fake_cluster import PODS, pod
from tests.support.waiting import soon
from tests.unit.fleet_api.conftest import Api

from fleet_api.fleets import PODS_OF_A_PAGE, Fleets
from fleet_api.turns import AT_ONCE, OF_ONE_NAMESPACE, Turns

WORKERS = 250
LARGE = "y" * 250_000


def page_by_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the fake API server answer with pages. Returns: the sizes of those that were read."""
    sizes: list[int] = []
    call = api.cluster.call

    async def paged(method: str, path: str, params: Any = None, *rest: Any, **more: Any) -> Any:
        answer = await call(method, path, params, *rest, **more)
        if path == PODS and "items" in answer:
            begin, limit = int(params.get("continue", 0)), int(params["limit"])
            found = answer["items"]
            answer["items"] = found[begin : begin + limit]
            sizes.append(len(answer["items"]))
            answer["metadata"] = (
                {"continue": str(begin + limit)} if begin + limit < len(found) else {}
            )
        return answer

    monkeypatch.setattr(api.cluster, "call", paged)
    return sizes


async def test_the_pods_of_a_fleet_come_in_pages_and_all_workers_have_a_row(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.cluster.pods = [pod(ordinal) for ordinal in range(WORKERS)]
    sizes = page_by_page(api, monkeypatch)
    status, document = await api.get("/v1/rl/workers")

    assert (status, len(document["workers"])) == (200, WORKERS)
    assert [row["instance_id"] for row in document["workers"]] == list(range(WORKERS))
    assert sizes == [PODS_OF_A_PAGE, PODS_OF_A_PAGE, WORKERS - 2 * PODS_OF_A_PAGE]


async def test_nothing_that_users_make_large_is_kept_of_a_pod(api: Api) -> None:
    api.cluster.pods[0]["metadata"] |= {"annotations": {"a": LARGE}, "managedFields": [LARGE]}
    api.cluster.pods[0]["spec"] = {"containers": [{"name": "worker", "args": [LARGE]}]}
    fleets = Fleets(api.cluster, Turns())
    found = await fleets.pods(await fleets.fleet("rl", "policy"))

    assert sorted(found) == [0, 1]
    assert len(json.dumps(found)) < 2000


async def test_a_namespace_that_reads_all_the_time_leaves_turns_to_others() -> None:
    turns, hangs, reading = Turns(), asyncio.Event(), []

    async def read(namespace: str) -> None:
        async with turns.of(namespace):
            reading.append(namespace)
            await hangs.wait()

    tenants = [f"eve-{n}" for n in range(AT_ONCE // OF_ONE_NAMESPACE - 1)]
    reads = [asyncio.ensure_future(read(tenant)) for tenant in tenants for _ in range(100)]
    try:
        await soon(lambda: len(reading) == len(tenants) * OF_ONE_NAMESPACE)
        reads.append(asyncio.ensure_future(read("victim")))
        await soon(lambda: "victim" in reading)
        assert len(reading) < AT_ONCE
    finally:
        hangs.set()
    await asyncio.gather(*reads)
    assert turns._of == {}


async def test_a_read_that_fails_or_is_cancelled_ends_its_turn() -> None:
    turns = Turns()
    for _ in range(2 * AT_ONCE):
        with pytest.raises(RuntimeError):
            async with turns.of("rl"):
                raise RuntimeError
    async with asyncio.timeout(5), turns.of("rl"):
        pass
