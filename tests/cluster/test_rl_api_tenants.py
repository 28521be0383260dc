"""One tenant's objects, bodies, streams and waits at the RL API cost another tenant nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.cluster.support.costs import ROUNDS, Costs
from tests.cluster.support.flood import everything
from tests.cluster.support.operator_process import peak_mib
from tests.cluster.support.rl_api import RlApi
from tests.cluster.support.workspace import FLEET, GROUP

pytestmark = [
    pytest.mark.attack,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]
HEAD = {"apiVersion": "rlfleet.dev/v1alpha1"}
BODIES = 256
ELSEWHERE = "127.0.0.2"
"""An address of its own for the attack: that of the other tenant has shares of its own."""


class Tenants:
    """A reader of one tenant, and the other one, with a fleet and two accounts."""

    def __init__(self, api: RlApi, attack: str) -> None:
        self.api = api
        self.costs = Costs(attack=attack)
        self.namespace = f"{api.workspace.namespace}-other"
        self.accounts: list[str] = []
        self._own = ""

    async def begin(self, **spec: Any) -> None:
        """Make both, and measure the requests of the one without the other."""
        workspace = self.api.workspace
        await workspace.make_fleet(replicas=1, version="1")
        await workspace.make_namespace(self.namespace)
        await workspace.make_fleet(replicas=0, namespace=self.namespace, **spec)
        self._own = await self.api.account("own", workspace.namespace, "get", "patch")
        for name in ("other-1", "other-2"):
            self.accounts.append(await self.api.account(name, self.namespace, "get", "patch"))
        await self.costs.measure_alone(self.request)

    async def request(self) -> float:
        """A read and a publication. Returns: the seconds of both."""
        began = time.monotonic()
        publication = {"version": "1", "wait": False}
        state = await self.api.send("GET", "/v1/rl/state", self._own)
        published = await self.api.send("PUT", "/v1/rl/weights", self._own, publication)
        assert (state[0], published[0]) == (200, 202), (state, published)
        return time.monotonic() - began

    async def measure_server(self) -> None:
        """Measure the API server alone: requests as those of `request`, without the RL API, also while two read the
        other tenant's fleet all the time.
        """
        workspace = self.api.workspace
        own = f"{GROUP}/namespaces/{workspace.namespace}"
        large = f"{GROUP}/namespaces/{self.namespace}/inferencefleets/{FLEET}"
        server, tls = workspace.credentials.server, workspace.credentials.tls

        async def ask() -> float:
            began = time.monotonic()
            for _ in range(2):
                await workspace.admin.get(f"{own}/inferencefleets/{FLEET}")
                await workspace.admin.get(f"{own}/weightversions/{FLEET}")
            changed = {"metadata": {"annotations": {"at": str(began)}}}
            await workspace.admin.merge(f"{own}/weightversions/{FLEET}", changed)
            return time.monotonic() - began

        async def read() -> None:
            while True:
                async with http.get(server + large) as reply:
                    await reply.read()

        self.costs.server_alone = [await ask() for _ in range(ROUNDS)]
        headers = {"Authorization": f"Bearer {workspace.credentials.token}"}
        connector = aiohttp.TCPConnector(ssl=tls)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
            tasks = [asyncio.create_task(read()) for _ in range(2)]
            try:
                self.costs.server_attacked = [await ask() for _ in range(2 * ROUNDS)]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def path(self, path: str) -> str:
        """A path of the other tenant's fleet."""
        return f"/fleets/{self.namespace}/{FLEET}{path}"

    def end(self) -> None:
        """Check the costs."""
        self.costs.rl_api_mib = peak_mib(self.api.process.pid)
        if (code := self.api.process.returncode) is not None:
            self.costs.ends.append(f"exit code {code}")
        self.costs.check()

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Connections of the other tenant."""
        connector = aiohttp.TCPConnector(local_addr=(ELSEWHERE, 0), limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        base = f"http://127.0.0.1:{self.api.port}"
        async with aiohttp.ClientSession(base, connector=connector, timeout=timeout) as made:
            yield made

    def headers(self, number: int) -> dict[str, str]:
        """Those of one of the other tenant's accounts."""
        return {"Authorization": f"Bearer {self.accounts[number % len(self.accounts)]}"}


async def test_256_bodies_that_do_not_come_take_no_place_of_another_tenant(api: RlApi) -> None:
    tenants = Tenants(api, "256 bodies that do not come")
    await tenants.begin()
    head = f"PUT {tenants.path('/v1/rl/weights')} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n"
    head += "Content-Type: application/json\r\n"
    writers = []
    for n in range(BODIES):
        own = f"Authorization: {tenants.headers(n)['Authorization']}\r\n\r\n{{"
        _, writer = await asyncio.open_connection("127.0.0.1", api.port, local_addr=(ELSEWHERE, 0))
        writer.write((head + own).encode())
        writers.append(writer)
        if n % (BODIES // ROUNDS) == 0:
            await tenants.costs.measure(tenants.request, 1)
    await tenants.costs.measure(tenants.request)
    for writer in writers:
        writer.close()

    tenants.end()


async def test_streams_and_waits_of_a_tenant_leave_some_for_another(api: RlApi) -> None:
    tenants = Tenants(api, "128 streams and 256 waits")
    await tenants.begin()
    wait = {"version": "7", "wait": True, "timeoutSeconds": 3600}

    async def stream(number: int) -> None:
        path, headers = tenants.path("/v1/rl/events"), tenants.headers(number)
        async with http.get(path, headers=headers) as reply:
            await reply.read()

    async def publish(number: int) -> None:
        path, headers = tenants.path("/v1/rl/weights"), tenants.headers(number)
        async with http.put(path, json=wait, headers=headers) as reply:
            await reply.read()

    async with tenants.clients() as http:
        tasks = [asyncio.create_task(stream(n)) for n in range(128)]
        tasks += [asyncio.create_task(publish(n)) for n in range(256)]
        try:
            await tenants.costs.measure(tenants.request, 2 * ROUNDS)
            own = {"version": "1", "wait": True, "timeoutSeconds": 1}
            waited, _ = await api.send("PUT", "/v1/rl/weights", tenants._own, own)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    assert waited != 503, "another tenant may wait, too"
    tenants.end()


@pytest.mark.parametrize("what", ["a fleet of 1.2 MB", "200 WeightVersions of 250 KB"])
async def test_large_objects_of_a_tenant_do_not_fill_the_memory(api: RlApi, what: str) -> None:
    tenants = Tenants(api, f"20 readers at once of {what}")
    of_fleet = what.startswith("a fleet")
    volumes = [{"name": f"v{n}"} for n in range(60_000)]
    await tenants.begin(**({"podOverlay": {"spec": {"volumes": volumes}}} if of_fleet else {}))
    if not of_fleet:
        spec = {"fleetRef": {"name": FLEET}, "version": "1", "source": {"path": "/weights/step_1"}}
        body = HEAD | {"kind": "WeightVersion", "spec": spec}
        body |= {"metadata": {"annotations": {"x": "y" * 250_000}}}
        path = f"{GROUP}/namespaces/{tenants.namespace}/weightversions"
        await everything(api.workspace, [path], body, number=200)

    async def read(number: int) -> None:
        while True:
            headers = tenants.headers(number)
            async with http.get(tenants.path("/v1/rl/state"), headers=headers) as reply:
                await reply.read()

    async with tenants.clients() as http:
        tasks = [asyncio.create_task(read(n)) for n in range(20)]
        try:
            await tenants.costs.measure(tenants.request, 2 * ROUNDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    if of_fleet:
        await tenants.measure_server()
    tenants.end()
