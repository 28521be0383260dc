"""Objects of the API server are read in pages, and little of them is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fake_cluster import PODS, pod
from tests.unit.fleet_api.conftest import Api

from fleet_api.fleets import LARGE_SECONDS, PODS_OF_A_PAGE, Fleets
from fleet_api.problems import Problem
from fleet_operator.places import Places

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


async def test_the_pods_of_a_fleet_come_in_pages_and_all_workers_have_a_row(api, monkeypatch):
    api.cluster.pods = [pod(ordinal) for ordinal in range(WORKERS)]
    sizes = page_by_page(api, monkeypatch)
    status, document = await api.get("/v1/rl/workers")

    assert (status, len(document["workers"])) == (200, WORKERS)
    assert [row["instance_id"] for row in document["workers"]] == list(range(WORKERS))
    assert sizes == [PODS_OF_A_PAGE, PODS_OF_A_PAGE, WORKERS - 2 * PODS_OF_A_PAGE]


async def test_nothing_that_users_make_large_is_kept_of_a_pod(api):
    api.cluster.pods[0]["metadata"] |= {"annotations": {"a": LARGE}, "managedFields": [LARGE]}
    api.cluster.pods[0]["spec"] = {"containers": [{"name": "worker", "args": [LARGE]}]}
    fleets = Fleets(api.cluster, Places(8))
    found = await fleets.pods(await fleets.fleet("rl", "policy"))

    assert sorted(found) == [0, 1]
    assert len(json.dumps(found)) < 2000


async def test_a_fleet_whose_spec_is_too_large_to_be_read_says_so(api):
    """The reader of the process leaves such a spec out (`bounded_json`)."""
    del api.cluster.fleet["spec"]
    status, problem = await api.get("/v1/rl/state")

    assert (status, problem["reason"]) == (502, "SpecTooLarge")


async def test_a_fleet_whose_spec_was_too_large_is_not_read_again_at_once(api):
    """The API server encodes it whole for each read, which takes a core for longer than all else in a request."""
    seconds = 0.0
    fleets = Fleets(api.cluster, Places(8), lambda: seconds)
    spec = api.cluster.fleet.pop("spec")
    with pytest.raises(Problem, match="larger spec"):
        await fleets.fleet("rl", "policy")
    api.cluster.fleet["spec"] = spec
    with pytest.raises(Problem, match="larger spec"):
        await fleets.fleet("rl", "policy")

    seconds = LARGE_SECONDS
    assert (await fleets.fleet("rl", "policy")).name == "policy"
