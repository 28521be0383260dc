"""The event loop is shared: requests to one namespace's fleets do not take the time of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from tests.support.fake_cluster import READER, FakeCluster, pod
from tests.support.waiting import soon
from tests.unit.fleet_api.test_grants import cluster_with, fleet

import fleet_api.reads
from fleet_api.authentication import Authenticator
from fleet_api.fleets import Fleet, Fleets
from fleet_api.grants import Grants
from fleet_api.loop_time import LoopTime, measured, paced, turn
from fleet_api.pace import AT_ONCE, Pace
from fleet_api.problems import Problem
from fleet_api.shared_calls import SharedReads
from fleet_operator.places import Places

STEP_SECONDS = 0.03
EVES = "//fleets/mallory/policy/v1/rl/state"
BURST = 40


def work_for(seconds: float) -> None:
    """Keep the loop busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def steps(number: int) -> str:
    for _ in range(number):
        work_for(STEP_SECONDS)
        await asyncio.sleep(0)
    return "done"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shares(clock: Clock) -> LoopTime:
    made = LoopTime(clock)
    made.note("victim", 0.01)
    return made


async def used_up(shares: LoopTime, tenant: str) -> Problem:
    with pytest.raises(Problem) as refused:
        await shares.share(tenant, steps(1))
    return refused.value


async def test_a_namespace_that_has_used_its_share_is_refused_for_a_moment_and_others_are_not(
    shares, clock
):
    shares.note("mallory", 10)
    problem = await used_up(shares, "mallory")
    assert (problem.status, problem.reason) == (503, "NamespaceOverloaded")
    assert await shares.share("victim", steps(1)) == "done"

    clock.now += int(problem.headers["Retry-After"]) + 1
    assert await shares.share("mallory", steps(1)) == "done"


async def test_a_namespace_that_is_alone_has_no_limit(clock):
    alone = LoopTime(clock)
    alone.note("only", 10)
    assert await alone.share("only", steps(1)) == "done"


async def test_the_time_of_all_steps_counts_also_in_tasks_of_their_own(shares):
    async def with_a_task() -> str:
        return await asyncio.ensure_future(measured(steps(60)))

    assert await shares.share("mallory", with_a_task()) == "done"
    assert (await used_up(shares, "mallory")).status == 503


async def test_the_time_of_waits_does_not_count(shares):
    await shares.share("mallory", asyncio.sleep(0.2, "done"))
    assert shares.wait_seconds("mallory") == 0


async def test_errors_and_cancellations_pass_through(shares):
    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await shares.share("mallory", failing())

    ended: list[str] = []

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    task = asyncio.ensure_future(shares.share("mallory", waiting()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleaned up"]


async def test_a_turn_waits_for_the_share_of_its_tenant_and_for_nothing_outside_of_a_request():
    shares = LoopTime(time.monotonic)
    shares.note("victim", 0.01)
    waited: list[float] = []

    async def stream() -> None:
        shares.note("mallory", 1.5)
        began = time.monotonic()
        await turn()
        waited.append(time.monotonic() - began)

    await asyncio.wait_for(turn(), 0.1)
    await shares.share("mallory", stream())
    assert waited[0] > 0.1
    assert shares.wait_seconds("mallory") < 0.1


async def test_requests_of_one_moment_go_on_in_turns_by_their_tenant(api, monkeypatch):
    api.cluster.add_tenant("mallory", "eve")
    assert {(await api.get("/v1/rl/state"))[0], (await api.get(EVES, "eve"))[0]} == {200}
    begun, ended, begin = list[str](), list[str](), Authenticator.caller

    async def begins(self: Authenticator, authorization: str, namespace: str, *more: str) -> Any:
        begun.append(namespace)
        return await begin(self, authorization, namespace, *more)

    def ends(fleet: Fleet, _: Any) -> dict[str, Any]:
        ended.append(fleet.namespace)
        return {}

    monkeypatch.setattr(Authenticator, "caller", begins)
    monkeypatch.setattr(fleet_api.reads, "state_of", ends)
    writers = []
    for namespace in [*["mallory"] * BURST, "rl"]:
        _, writer = await asyncio.open_connection(api.http.server.host, api.http.server.port)
        writers.append((writer, namespace))
    for writer, namespace in writers:
        head = f"GET /fleets/{namespace}/policy/v1/rl/state HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
        writer.write(f"{head}{READER if namespace == 'rl' else 'eve'}\r\n\r\n".encode())
    await soon(lambda: len(ended) == len(writers))
    for writer, _ in writers:
        writer.close()

    assert begun.index("rl") < 3 * AT_ONCE
    assert ended.index("rl") < 3 * AT_ONCE


async def test_no_tenant_waits_for_more_than_one_request_of_each_other_one_at_a_time():
    pace, gone = Pace(), list[str]()

    async def request(tenant: str) -> None:
        await pace.turn(tenant)
        gone.append(tenant)

    await asyncio.gather(*map(request, [*["before"] * BURST, "rl", *["after"] * BURST]))

    assert gone.index("rl") <= AT_ONCE + 2


async def test_clients_that_ask_again_at_once_share_each_read_although_they_go_on_in_turns():
    shares, reads, rounds, count = LoopTime(time.monotonic), SharedReads[str, None](), 10, 0

    async def read() -> None:
        nonlocal count
        count += 1
        await asyncio.sleep(0)

    async def request() -> None:
        await reads.join("policy", read)
        await paced()

    async def client() -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)  # as a look at the network
            await shares.share("mallory", request())

    await asyncio.gather(*(client() for _ in range(BURST)))

    assert count <= rounds + 2


async def test_slow_objects_of_a_tenant_refuse_its_own_requests_alone(api, monkeypatch):
    objects = api.cluster.add_tenant("mallory", "eve")
    read = objects.get

    async def slow(*asked: Any) -> Any:
        work_for(STEP_SECONDS)
        return await read(*asked)

    monkeypatch.setattr(objects, "get", slow)
    theirs: set[Any] = set()
    for _ in range(80):
        status, body = await api.get(EVES, "eve")
        theirs.add((status, body.get("reason")))
        assert (await api.get("/v1/rl/state"))[0] == 200
        if len(theirs) > 1:
            break
    assert theirs == {(200, None), (503, "NamespaceOverloaded")}


async def test_other_tasks_run_between_two_pods_of_a_page():
    cluster = FakeCluster()
    cluster.pods = [pod(n) for n in range(50)]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(tick())
    found = await Fleets(cluster, Places(8)).pods(fleet())
    other.cancel()
    assert len(found) == 50
    assert ticks >= 50


async def test_reads_of_admin_tokens_take_turns_with_other_reads():
    cluster = cluster_with(right=True)
    places = Places(1)
    async with aclosing(_held(places)) as held:
        await anext(held)
        reading = asyncio.ensure_future(Grants((), cluster, places).permit(fleet()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (reading.done(), cluster.calls) == (False, [])
    assert await reading


async def _held(places: Places) -> AsyncGenerator[None]:
    async with places.of("other"):
        yield
