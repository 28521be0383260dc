"""The admin port of a worker with all its surfaces, over a fake engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import Bench, Trainer

from fleet_worker.protocol import Reason
from fleet_worker.runtime.metrics import WorkerMetrics
from fleet_worker.wire.admin.app import AdminApp
from fleet_worker.wire.admin.bearer import BearerFile
from fleet_worker.wire.admin.guard import Guard
from fleet_worker.wire.admin.surfaces import all_surfaces
from fleet_worker.wire.probes import Probes

RIGHT = "right"


class Port:
    """The admin port of a worker, with all its surfaces."""

    def __init__(self, bench: Bench, folder: Path, **options: Any) -> None:
        self.bench = bench
        self.refused: list[Reason] = []
        self.token_file = folder / "token"
        self.token_file.write_text("right\n")
        trainer = Trainer.of(bench, **options)
        metrics = WorkerMetrics.__new__(WorkerMetrics)
        metrics.registry = bench.registry

        async def drain() -> None:
            return

        surfaces = all_surfaces(
            bench.agent,
            trainer.driver,
            state=lambda: bench.state,
            drain=drain,
            metrics=metrics.text,
        )
        self.app = AdminApp(
            surfaces,
            guard=Guard(BearerFile(self.token_file), pod_uid="uid-0", instance="i"),
            probes=Probes(bench.agent, lambda: None),
            on_refused=self.refused.append,
        )
        self.routes = sorted(route for surface in surfaces for route in surface.routes)
        self.client = self.client_at("10.0.0.1")

    def client_at(self, address: str, *, token: str | None = RIGHT) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers)

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        reply = await self.client.post(path, json=body)
        assert int(reply.headers["content-length"]) == len(reply.content)
        return reply.status_code, reply.json()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        reply = await self.client.get(path)
        return reply.status_code, reply.json()

    def step(self, number: int, value: float = 1.0) -> str:
        return str(write_tiny(self.bench.root / f"step_{number}", value))
