"""The API's own metrics."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from tests.support.fake_cluster import READER, STRANGER, TRAINER, FakeCluster
from tests.unit.fleet_api.conftest import STATIC_KEY, Api

from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings

PAGE = Path(__file__).parents[3] / "docs/reference/rl-api.md"
STATE = "/v1/rl/state"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def api(cluster: FakeCluster, metrics: Metrics, tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "rl.policy").write_text(STATIC_KEY)
    settings = parse_settings([f"--keys-folder={tmp_path}"])
    app = build(settings, cluster, Lifecycle(), metrics)
    async with TestClient(TestServer(app)) as http, http.get("/openapi.json") as reply:
        yield Api(http, cluster, tmp_path, await reply.json())


async def shown(metrics: Metrics) -> str:
    server = TestServer(metrics.application())
    async with TestClient(server) as http, http.get("/metrics") as reply:
        assert reply.content_type == "text/plain"
        return await reply.text()


async def test_requests_authentications_reviews_and_changes_are_counted(api, metrics):
    for token in (READER, READER, STRANGER, None, STATIC_KEY):
        await api.get(STATE, token)
    await api.send("PUT", "/v1/rl/weights", TRAINER, json={"version": "43"})
    await api.send("PUT", "/v1/rl/weights", STRANGER, json={"version": "44"})
    text = await shown(metrics)

    route = 'route="/fleets/{namespace}/{name}/v1/rl/state"'
    for status, number in ((200, 3), (403, 1), (401, 1)):
        assert f'requests_total{{method="GET",{route},status="{status}"}} {number}.0' in text
    assert f'rlfleet_rl_api_request_seconds_count{{method="GET",{route}}} 5.0' in text
    assert 'rlfleet_rl_api_authentications_total{result="token"} 5.0' in text
    assert 'rlfleet_rl_api_authentications_total{result="key"} 1.0' in text
    assert 'rlfleet_rl_api_authentications_total{result="refused"} 1.0' in text
    assert 'rlfleet_rl_api_token_reviews_total{cache="hit"} 2.0' in text
    assert 'rlfleet_rl_api_token_reviews_total{cache="miss"} 3.0' in text
    (change,) = re.findall(r"rlfleet_rl_api_changes_total\{(.*?)\} (\S+)", text)
    route = 'route="/fleets/{namespace}/{name}/v1/rl/weights"'
    assert change == (f'{route},status="200"', "1.0")
    assert "policy" not in text, "a fleet in a label stays after the fleet"
    assert 'rlfleet_rl_api_requests_in_work{kind="own"} 0.0' in text


async def test_invented_paths_and_methods_make_no_series(api, metrics):
    for number in range(5):
        await api.send("PROPFIND", f"//nothing/{number}")
        await api.get(f"//fleets/rl/absent-{number}{STATE}", STRANGER)
    text = await shown(metrics)

    assert "absent" not in text
    assert 'rlfleet_rl_api_requests_total{method="any",route="",status="404"} 5.0' in text


async def test_the_page_names_every_series(metrics):
    named = set(re.findall(r"rlfleet_rl_api_[a-z_]+", PAGE.read_text()))
    families = re.findall(r"# TYPE (rlfleet_rl_api_\S+) (\S+)", await shown(metrics))

    assert named == {name for name, _ in families if not name.endswith("_created")}
