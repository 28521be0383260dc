"""Places of requests to the API server are shared among namespaces."""

from __future__ import annotations

import asyncio

import pytest

from fleet_operator.clients.request_places import RequestPlaces, namespace_of


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
        self.places = RequestPlaces(most)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, namespace: str, name: str) -> None:
        async def request() -> None:
            async with self.places.take(f"/api/v1/namespaces/{namespace}/pods"):
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
    requests = Requests(8)
    for n in range(30):
        await requests.begin("many", f"many {n}")
    assert len(requests.begun) == 6
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
