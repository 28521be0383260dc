"""A real Prometheus scrapes the RL API: panels have data, and alerts fire and end."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable
from itertools import count
from pathlib import Path

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer, unused_port
from tests.support.fake_cluster import TOKEN_REVIEWS, TRAINER, FakeCluster
from tests.support.prometheus import Prometheus, filled_in, impatient
from tests.support.waiting import eventually_async
from tests.unit.fleet_api.conftest import STATIC_KEY, Api

from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings
from rlfleet.errors import Forbidden

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="apt install prometheus"),
]

FILES = Path(__file__).parents[3] / "charts/rlfleet/files"
RULES = yaml.safe_load((FILES / "alerts.yaml").read_text())
PANELS = {
    (panel["title"], target["expr"])
    for panel in json.loads((FILES / "dashboards/rlfleet-operator.json").read_text())["panels"]
    for target in panel.get("targets", ())
    if "rlfleet_rl_api_" in target["expr"]
}
ALERTS = ("RlfleetApiCannotReviewTokens", "RlfleetApiFailing")
WITHIN_SECONDS = 90


@pytest.fixture
async def api(cluster: FakeCluster, tmp_path: Path) -> AsyncIterator[tuple[Api, Prometheus]]:
    metrics = Metrics()
    (tmp_path / "rl.policy").write_text(STATIC_KEY)
    settings = parse_settings([f"--keys-folder={tmp_path}", "--requests-per-second=1000"])
    app = build(settings, cluster, Lifecycle(), metrics)
    async with (
        TestServer(metrics.application()) as page,
        TestClient(TestServer(app)) as http,
        http.get("/openapi.json") as reply,
    ):
        target = {"targets": [f"127.0.0.1:{page.port}"]}
        job = {"job_name": "rlfleet-api", "honor_labels": True, "static_configs": [target]}
        started = await asyncio.to_thread(
            Prometheus, tmp_path, [job], impatient(RULES, 3), port=unused_port()
        )
        yield Api(http, cluster, tmp_path, await reply.json()), started
        await asyncio.to_thread(started.stop)


async def test_panels_have_data_and_alerts_fire_and_end(api, cluster):
    caller, prometheus = api
    fresh = (f"token-{number}" for number in count())

    def refuse(path: str) -> None:
        if path == TOKEN_REVIEWS:
            raise Forbidden("tokenreviews is forbidden")

    async def use() -> None:
        await caller.get("/v1/rl/state", TRAINER)
        await caller.get("/v1/rl/state", next(fresh))
        await caller.send("POST", "/v1/rl/resume", TRAINER, json={"wait": False})

    async def empty() -> set[str]:
        await use()
        found = [(t, await asyncio.to_thread(prometheus.ask, filled_in(e))) for t, e in PANELS]
        return {title for title, samples in found if not samples}

    async def states() -> set[frozenset[str]]:
        await use()
        return {frozenset(await asyncio.to_thread(prometheus.states, a)) for a in ALERTS}

    async def only(wanted: set[frozenset[str]]) -> bool:
        return await states() == wanted

    # No request has failed yet.
    await eventually_async(
        lambda: _is(empty(), {"Requests that failed"}), within_seconds=WITHIN_SECONDS
    )
    assert await only({frozenset()})

    cluster.fail = refuse
    await eventually_async(lambda: only({frozenset({"firing"})}), within_seconds=WITHIN_SECONDS)
    assert await empty() == set()

    cluster.fail = lambda _: None
    await eventually_async(lambda: only({frozenset()}), within_seconds=WITHIN_SECONDS)


async def _is(found: Awaitable[set[str]], wanted: set[str]) -> bool:
    return await found == wanted
