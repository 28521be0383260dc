"""Places of requests to the API server are shared among namespaces."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter

import pytest
from tests.support import virtual_time
from tests.support.virtual_time import now

from fleet_operator.clients.kube import namespace_of
from fleet_operator.places import FEW, SLOW_ALONE, Places


@pytest.mark.parametrize(
    ("path", "namespace"),
    [
        ("/api/v1/namespaces/rl/pods/a", "rl"),
        ("/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets", "rl"),
        ("/api/v1/pods", ""),
        ("/api/v1/namespaces", ""),
    ],
)
def test_the_tenant_is_the_namespace_in_the_path(path: str, namespace: str) -> None:
    assert namespace_of(path) == namespace


class Requests:
    """Requests that last until they are ended."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, namespace: str, name: str) -> None:
        async def request() -> None:
            async with self.places.of(namespace):
                self.begun.append(name)
                await asyncio.Event().wait()

        self.tasks[name] = asyncio.create_task(request())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])
        await asyncio.sleep(0)


async def test_many_requests_of_one_namespace_leave_places_to_the_others() -> None:
    requests = Requests(4)
    for n in range(30):
        await requests.begin("many", f"many {n}")
    assert len(requests.begun) == 3
    await requests.begin("one", "one")

    assert requests.begun[-1] == "one"


async def test_cancelled_requests_leave_their_places_whether_they_waited_or_not() -> None:
    requests = Requests(4)
    for n in range(20):
        await requests.begin("rl", str(n))
    for n in range(19):
        await requests.end(str(n))
    assert "19" in requests.begun
    await requests.end("19")
    for n in range(20, 23):
        await requests.begin("rl", str(n))

    assert requests.begun[-3:] == ["20", "21", "22"]


async def test_a_request_that_is_cancelled_as_its_turn_comes_passes_the_place_on() -> None:
    requests = Requests(1)
    for name in "abc":
        await requests.begin("rl", name)
    requests.tasks["a"].cancel()
    await asyncio.sleep(0)
    requests.tasks["b"].cancel()
    for _ in range(5):
        await asyncio.sleep(0)

    assert requests.begun[-1] == "c"


class Server:
    """A server whose requests last for their time. Counts those of a tenant that run at once."""

    def __init__(self) -> None:
        self.places = Places(16)
        self.running: Counter[str] = Counter()

    async def ask(self, tenant: str, seconds: float) -> None:
        async with self.places.of(tenant):
            self.running[tenant] += 1
            await asyncio.sleep(seconds)
            self.running[tenant] -= 1


def test_a_tenant_with_slow_requests_gets_the_time_of_two_next_to_one_with_fast_ones() -> None:
    async def story() -> list[int]:
        server, seen = Server(), []
        slow = [asyncio.create_task(server.ask("slow", 0.5)) for _ in range(600)]
        for _ in range(400):
            await server.ask("fast", 0.01)
            await asyncio.sleep(0.05)
            seen.append(server.running["slow"])
        for task in slow:
            task.cancel()
        return seen[100:]

    seen = virtual_time.run(story())
    assert 1.5 <= statistics.mean(seen) <= 2.5
    assert max(seen) <= 4


@pytest.mark.parametrize(("seconds", "at_once"), [(0.09, 12), (0.5, SLOW_ALONE)])
def test_a_tenant_gets_all_of_its_places_while_no_other_asks_unless_its_requests_are_slow(
    seconds: float, at_once: int
) -> None:
    async def story() -> int:
        server = Server()
        asking = [asyncio.create_task(server.ask("rl", seconds)) for _ in range(1000)]
        await asyncio.sleep(3.1)
        for task in asking:
            task.cancel()
        return server.running["rl"]

    assert virtual_time.run(story()) == at_once


@pytest.mark.parametrize(("tenant", "at_once", "seconds"), [("many", 1, 0.01), ("", 12, 0.5)])
def test_what_leaves_time_and_what_belongs_to_no_tenant_is_not_held_back(
    tenant: str, at_once: int, seconds: float
) -> None:
    async def story() -> float:
        server, began = Server(), now()

        async def keep_asking(name: str, lasts: float) -> None:
            for _ in range(50):
                await server.ask(name, lasts)

        asking = (keep_asking(tenant, seconds) for _ in range(at_once))
        await asyncio.gather(keep_asking("rl", 0.01), *asking)
        return now() - began

    assert virtual_time.run(story()) == pytest.approx(50 * seconds, rel=0.01)


def test_a_tenant_with_few_requests_waits_for_none_of_thirty_with_many() -> None:
    """It would get a thirtieth of the time, and a rollout needs more for a moment."""

    async def story() -> list[float]:
        server, waits = Server(), []
        asking = [asyncio.create_task(server.ask(f"many-{n % 30}", 0.03)) for n in range(30 * 60)]
        await asyncio.sleep(2)  # at first none has used any time

        async def ask() -> None:
            began = now()
            await server.ask("few", 0.03)
            waits.append(now() - began - 0.03)

        for _ in range(30):
            await asyncio.gather(*(ask() for _ in range(FEW)))
        for task in asking:
            task.cancel()
        return waits

    waits = virtual_time.run(story())
    assert [each for each in waits if each > 0.03] == []


def test_two_requests_of_an_unknown_tenant_begin_next_to_others() -> None:
    async def story() -> list[int]:
        server, seen = Server(), []
        for _ in range(20):
            await server.ask("known", 0.05)
        asking = [asyncio.create_task(server.ask("new", 5.0)) for _ in range(100)]
        for _ in range(40):
            await server.ask("known", 0.05)
            seen.append(server.running["new"])
        for task in asking:
            task.cancel()
        return seen

    assert max(virtual_time.run(story())) == 2
