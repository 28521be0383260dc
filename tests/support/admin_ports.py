"""The admin port of a worker over a fake engine: with the operator's routes, or with all trainers' routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from tests.support.tiny import write_tiny
from tests.support.worker_harness import TrainerHarness, WorkerHarness

from fleet_worker.admin.addressing import Taken
from fleet_worker.admin.app import AdminApp
from fleet_worker.admin.guard import BearerFile, Guard
from fleet_worker.admin.operator import operator_api
from fleet_worker.http.unauthenticated import Probes
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.process.apis import all_apis
from fleet_worker.protocol import Reason

TOKEN = "right"
EPOCH = {"term": 1, "sequence": 1}


class OperatorPort:
    """The application, a client with the token, and the calls that it passed on."""

    def __init__(self, harness: WorkerHarness, token_file: Path) -> None:
        self.harness = harness
        self.problem: str | None = None
        self.listens = True
        self.refused: list[Reason] = []
        self.drained = 0
        self.app = AdminApp(
            [operator_api(harness.agent, lambda: harness.state, self.drain)],
            guard=Guard(BearerFile(token_file), pod_uid="uid-0", instance="i"),
            probes=Probes(harness.agent, lambda: self.problem, listens=lambda: self.listens),
            on_refused=self.refused.append,
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://worker",
            headers={"Authorization": "Bearer right"},
        )

    async def drain(self) -> None:
        self.drained += 1

    async def put(self, call: str, **body: Any) -> httpx.Response:
        return await self.client.put(f"/v1/worker/{call}", json={"epoch": EPOCH, **body})


class TrainerPort:
    """The admin port of a worker, with the routes of all trainers."""

    def __init__(self, harness: WorkerHarness, folder: Path, **options: Any) -> None:
        self.harness = harness
        self.refused: list[Reason] = []
        self.token_file = folder / "token"
        self.token_file.write_text("right\n")
        trainer = TrainerHarness.of(harness, **options)
        metrics = WorkerMetrics.__new__(WorkerMetrics)
        metrics.registry = harness.registry

        async def drain() -> None:
            return

        apis = all_apis(
            harness.agent,
            trainer.driver,
            state=lambda: harness.state,
            drain=drain,
            metrics=metrics.text,
        )
        self._guard = Guard(BearerFile(self.token_file), pod_uid="uid-0", instance="i")
        self.app = AdminApp(
            apis,
            guard=self._guard,
            probes=Probes(harness.agent, lambda: None),
            on_refused=self.refused.append,
        )
        self.routes = sorted(route for api in apis for route in api.routes)
        self.client = self.client_at("10.0.0.1")

    def client_at(self, address: str, *, token: str | None = TOKEN) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers)

    def take_adapters(self) -> None:
        """From now on the worker has slots for adapters."""
        self.harness.agent.adapters._slots, self.harness.agent.adapters.max_rank = 2, 8

    def start_again(self, instance: str) -> None:
        """From now on this is another process of the pod, as far as calls tell."""
        self.harness.instance = instance
        self._guard._taken = Taken(instance)

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        reply = await self.client.post(path, json=body)
        assert int(reply.headers["content-length"]) == len(reply.content)
        return reply.status_code, reply.json()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        reply = await self.client.get(path)
        return reply.status_code, reply.json()

    def step(self, number: int, value: float = 1.0) -> str:
        return str(write_tiny(self.harness.root / f"step_{number}", value))
