"""The WeightVersion that steers a fleet is found without reading the others."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from tests.support.fake_cluster import WEIGHTS_COLUMNS, row_of, table_of

from fleet_api.lists import ROWS_OF_A_PAGE
from fleet_api.loop_time import LoopTime
from fleet_api.problems import Problem
from fleet_api.steering import KNOWN_SECONDS, Steering
from fleet_operator.places import Places
from rlfleet.errors import NotFound

BASE = ("rl", "policy", "")


def weights(name: str, made: str = "10:00:00", fleet: str = "policy", **spec: Any) -> Any:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}-{made}",
            "creationTimestamp": f"2026-11-22T{made}Z",
        },
        "spec": {"fleetRef": {"name": fleet}, "version": "1", **spec},
    }


class FakeNamespace:
    """The API server with WeightVersions. It counts what is read."""

    def __init__(self, *made: Any) -> None:
        self.objects = {one["metadata"]["name"]: one for one in made}
        self.reads: Counter[str] = Counter()
        self.columns = WEIGHTS_COLUMNS
        self.most_rows = 0
        self.now = 0.0

    def of(self, _: str) -> FakeNamespace:
        return self

    async def get(self, _: str, name: str) -> Any:
        self.reads[name] += 1
        if name not in self.objects:
            raise NotFound(name)
        return copy.deepcopy(self.objects[name])

    async def call(self, method: str, path: str, params: Any, *, accept: str) -> Any:
        assert (method, path.rpartition("/")[2]) == ("GET", "weightversions")
        assert params["includeObject"] == "None"
        assert "as=Table" in accept
        self.reads["table"] += 1
        begin, limit = int(params.get("continue", 0)), int(params["limit"])
        found = [row_of(one) for one in self.objects.values()]
        follow = str(begin + limit) if begin + limit < len(found) else ""
        table = table_of(self.columns, found[begin : begin + limit])
        self.most_rows = max(self.most_rows, len(table["rows"]))
        return table | {"metadata": {"continue": follow}}

    def steering(self) -> Steering:
        return Steering(self, Places(8), lambda: self.now)


async def name_of(steering: Steering, steered: tuple[str, str, str] = BASE) -> str | None:
    found = await steering.of(steered)
    return None if found is None else str(found["metadata"]["name"])


async def test_it_is_the_oldest_one_of_the_fleet_and_then_the_first_name():
    namespace = FakeNamespace(
        weights("newest", "11:00:00"),
        weights("b"),
        weights("a"),
        weights("older-of-another", "09:00:00", fleet="another"),
        weights("older-adapter", "09:00:00", adapter="poet"),
    )
    steering = namespace.steering()

    assert await name_of(steering) == "a"
    assert await name_of(steering, ("rl", "policy", "poet")) == "older-adapter"
    assert await name_of(steering, ("rl", "policy", "none")) is None
    assert namespace.reads == {"table": 3, "a": 1, "older-adapter": 1}


async def test_many_requests_read_the_steering_object_and_the_table_once():
    namespace = FakeNamespace(*(weights(f"w-{n:04}", f"10:00:{n % 60:02}") for n in range(2000)))
    steering = namespace.steering()
    for _ in range(50):
        assert await name_of(steering) == "w-0000"

    assert namespace.reads == {"table": 2000 / ROWS_OF_A_PAGE, "w-0000": 50}


async def test_the_oldest_one_of_30_000_is_found_in_pages_between_which_others_get_the_loop():
    made = [weights(f"w-{n:05}", f"10:{n // 60 % 60:02}:{n % 60:02}") for n in range(30_000)]
    namespace = FakeNamespace(*made, weights("oldest", "09:00:00"))
    shares = LoopTime(lambda: namespace.now)

    assert await shares.share("rl", name_of(namespace.steering())) == "oldest"
    assert namespace.reads["table"] == 30_000 // ROWS_OF_A_PAGE + 1
    assert namespace.most_rows == ROWS_OF_A_PAGE


async def test_one_that_is_deleted_or_made_again_is_not_taken_for_the_oldest_one():
    namespace = FakeNamespace(weights("a"), weights("b", "10:30:00"))
    steering = namespace.steering()
    assert await name_of(steering) == "a"

    del namespace.objects["a"]
    assert await name_of(steering) == "b"
    namespace.objects["b"] = weights("b", "12:00:00")
    namespace.objects["c"] = weights("c", "11:00:00")
    assert await name_of(steering) == "c"


async def test_one_of_the_same_second_with_a_smaller_name_is_found_after_some_seconds():
    namespace = FakeNamespace(weights("b"))
    steering = namespace.steering()
    assert await name_of(steering) == "b"
    namespace.objects["a"] = weights("a")
    namespace.now = KNOWN_SECONDS

    assert await name_of(steering) == "a"


async def test_one_that_names_another_fleet_by_now_does_not_steer():
    namespace = FakeNamespace(weights("a"), weights("b", "11:00:00"))
    steering = namespace.steering()
    assert await name_of(steering) == "a"
    namespace.objects["a"] = weights("a", fleet="another")

    assert await name_of(steering) == "b"


async def test_one_that_is_gone_between_the_table_and_its_read_is_passed_over(monkeypatch):
    namespace = FakeNamespace(weights("a"), weights("b", "11:00:00"))
    read = namespace.get

    async def get(kind: str, name: str) -> Any:
        namespace.objects.pop("a", None)
        return await read(kind, name)

    monkeypatch.setattr(namespace, "get", get)
    assert await name_of(namespace.steering()) == "b"


async def test_a_crd_of_another_release_is_a_problem_with_its_remedy():
    namespace = FakeNamespace(weights("a"))
    namespace.columns = ["Name", "Fleet", "Age"]
    with pytest.raises(Problem) as found:
        await namespace.steering().of(BASE)

    assert (found.value.status, found.value.reason) == (502, "UnreadableFleet")


async def test_a_request_lists_no_whole_weightversions(api):
    for _ in range(3):
        assert (await api.get("/v1/rl/state"))[0] == 200

    assert not any(request.startswith("all") for request, _ in api.cluster.objects.requests)
