"""The metrics of all workers at one address, as prime-rl polls them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_cluster import STRANGER, FakeCluster, pod
from tests.unit.fleet_api.conftest import Api

from fleet_api.metric_pages import together

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 2.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="policy"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="waiting for capacity, deferred"} 1.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3"} 4.0
vllm:e2e_request_latency_seconds_sum{engine="0"} 5.057022571563721
vllm:e2e_request_latency_seconds_count{engine="0"} 4.0
python_info{version="3.11"} 1.0
"""


def samples(page: str) -> dict[tuple[str, str], float]:
    """As prime-rl reads them: by the name and the engine."""
    return {
        (sample.name, sample.labels["engine"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_trainers_tell_the_engines_of_workers_apart() -> None:
    page = together({"policy-0": PAGE, "policy-1": PAGE.replace(" 2.0", " 3.0")})

    found = samples(page)
    assert found["vllm:num_requests_running", "policy-0/0"] == 2
    assert found["vllm:num_requests_running", "policy-1/0"] == 3
    assert found["vllm:prefix_cache_hits_total", "policy-1/0"] == 7
    assert found["vllm:e2e_request_latency_seconds_sum", "policy-0/0"] == 5.057022571563721
    assert ("vllm:num_requests_waiting_by_reason", "policy-0/0") in found
    assert page.count('pod="policy-1"') == 5
    assert page.count("# TYPE vllm:num_requests_running gauge\n") == 1


def test_buckets_and_numbers_of_the_process_are_left_out() -> None:
    page = together({"policy-0": PAGE})

    assert "_bucket" not in page
    assert "python_info" not in page


@pytest.mark.parametrize(
    "line",
    [
        'vllm:a{engine="0"} 1.0 vllm:b{engine="policy-1/0"}',
        'vllm:a{engine="0\\"} 1.0',
        'vllm:a{engine="0"',
        "vllm:a 1.0",
        "<script>",
    ],
)
def test_a_line_that_is_no_sample_of_vllms_is_left_out(line: str) -> None:
    assert together({"policy-0": f"{line}\n"}) == ""


def test_a_worker_gets_no_more_of_the_page_than_vllm_needs() -> None:
    lines = "".join(f'vllm:a{n}{{engine="0"}} 1.0\n' for n in range(5000))
    page = together({"policy-0": lines, "policy-1": PAGE})

    assert page.count('pod="policy-0"') == 2000
    assert page.count('pod="policy-1"') == 5


@pytest.fixture
async def pages(cluster: FakeCluster) -> AsyncIterator[dict[str, web.Response]]:
    """Answers of two workers, at the port of their metrics."""
    answers = {f"policy-{n}": web.Response(text=PAGE) for n in range(2)}
    port = unused_port()
    cluster.fleet["spec"]["serving"] = {"metricsPort": port}
    cluster.pods = [pod(n, podIP=f"127.0.0.{n + 1}") for n in range(2)]
    servers = []
    for number, name in enumerate(answers):

        async def show(_: web.Request, name: str = name) -> web.Response:
            return answers[name]

        app = web.Application()
        app.router.add_get("/metrics", show)
        servers.append(TestServer(app, host=f"127.0.0.{number + 1}", port=port))
        await servers[-1].start_server()
    yield answers
    for server in servers:
        await server.close()


async def test_one_request_has_the_numbers_of_all_workers(
    api: Api, pages: dict[str, web.Response]
) -> None:
    status, page = await api.get("/metrics")

    assert status == 200
    assert {engine for _, engine in samples(page)} == {"policy-0/0", "policy-1/0"}
    assert (await api.get("/metrics", STRANGER))[0] == 403
    assert (await api.get("/metrics", None))[0] == 401


async def test_a_worker_that_fails_is_named_in_a_comment(
    api: Api, pages: dict[str, web.Response]
) -> None:
    pages["policy-0"] = web.Response(status=500, text=PAGE)

    status, page = await api.get("/metrics")
    assert (status, {engine for _, engine in samples(page)}) == (200, {"policy-1/0"})
    assert page.endswith("# policy-0 does not answer\n")

    pages["policy-1"] = web.Response(status=302, headers={"Location": "http://127.0.0.1/"})
    status, page = await api.get("/metrics")
    assert (status, samples(page)) == (200, {})
    assert "# policy-1 does not answer\n" in page


async def test_a_fleet_that_is_too_large_for_one_page_is_409(api: Api) -> None:
    api.cluster.fleet["spec"]["replicas"] = 257

    status, problem = await api.get("/metrics")
    assert (status, problem["reason"]) == (409, "TooManyWorkers")
    assert "Prometheus" in problem["detail"]
