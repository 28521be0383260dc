"""The metrics of all workers at one address, as prime-rl polls them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_cluster import STRANGER, FakeCluster, pod

from fleet_api import worker_metrics
from fleet_api.metric_pages import Page, together

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


def page_of(pod_name: str, text: str, part_bytes: int = 1 << 16) -> Page:
    """A page that has come in parts of this length."""
    made, content = Page(pod_name), text.encode() + b"\n"
    for start in range(0, len(content), part_bytes):
        made.take(content[start : start + part_bytes])
    return made


def samples(page: str) -> dict[tuple[str, str], float]:
    """As prime-rl reads them: by the name and the engine."""
    return {
        (sample.name, sample.labels["engine"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_trainers_tell_the_engines_of_workers_apart():
    page = together(
        [page_of("policy-0", PAGE, 7), page_of("policy-1", PAGE.replace(" 2.0", " 3.0"))]
    )

    found = samples(page)
    assert found["vllm:num_requests_running", "policy-0/0"] == 2
    assert found["vllm:num_requests_running", "policy-1/0"] == 3
    assert found["vllm:prefix_cache_hits_total", "policy-1/0"] == 7
    assert found["vllm:e2e_request_latency_seconds_sum", "policy-0/0"] == 5.057022571563721
    assert ("vllm:num_requests_waiting_by_reason", "policy-0/0") in found
    assert page.count('pod="policy-1"') == 5
    assert page.count("# TYPE vllm:num_requests_running gauge\n") == 1


def test_buckets_and_numbers_of_the_process_are_left_out():
    page = together([page_of("policy-0", PAGE)])

    assert "_bucket" not in page
    assert "python_info" not in page


@pytest.mark.parametrize(
    "line",
    [
        'vllm:a{engine="0"} 1.0 vllm:b{engine="policy-1/0"}',
        'vllm:a{engine="0\\"} 1.0',
        'vllm:a{engine="0"',
        "vllm:a 1.0",
        'vllm:a{engine="0",reason="x\rvllm:b"} 1.0',
        f'vllm:a{{engine="0",reason="{"x" * 4096}"}} 1.0',
        "<script>",
    ],
)
def test_a_line_that_is_not_a_sample_of_vllm_is_dropped(line):
    assert together([page_of("policy-0", line), page_of("policy-0", line, 999)]) == ""


def test_a_worker_gets_no_more_of_the_page_than_vllm_needs():
    lines = "".join(f'vllm:a{n}{{engine="0"}} 1.0\n' for n in range(5000))
    page = together([page_of("policy-0", lines), page_of("policy-1", PAGE)])

    assert page.count('pod="policy-0"') == 2000
    assert page.count('pod="policy-1"') == 5


def test_a_page_is_not_held_while_it_comes():
    """Two hundred workers would fill the memory of the process with buckets, which nothing reads."""
    part = b'vllm:a_bucket{engine="0",le="0.3"} 4.0\n' * 1000 + b"x" * 20_000
    page = Page("policy-0")
    tracemalloc.start()
    for _ in range(20):
        page.take(part)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 200_000, "of a million bytes"
    assert together([page]) == ""


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


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_metrics, "PAGES_BYTES", 200_000)


async def test_one_request_has_the_numbers_of_all_workers(api, pages):
    status, page = await api.get("/metrics")

    assert status == 200
    assert {engine for _, engine in samples(page)} == {"policy-0/0", "policy-1/0"}
    assert (await api.get("/metrics", STRANGER))[0] == 403
    assert (await api.get("/metrics", None))[0] == 401


async def test_a_worker_that_fails_is_named_in_a_comment(api, pages):
    pages["policy-0"] = web.Response(status=500, text=PAGE)

    status, page = await api.get("/metrics")
    assert (status, {engine for _, engine in samples(page)}) == (200, {"policy-1/0"})
    assert page.endswith("# policy-0 does not answer\n")

    pages["policy-1"] = web.Response(status=302, headers={"Location": "http://127.0.0.1/"})
    status, page = await api.get("/metrics")
    assert (status, samples(page)) == (200, {})
    assert "# policy-1 does not answer\n" in page


async def test_a_fleet_that_is_too_large_for_one_page_is_409(api):
    api.cluster.fleet["spec"]["replicas"] = 257

    status, problem = await api.get("/metrics")
    assert (status, problem["reason"]) == (409, "TooManyWorkers")
    assert "Prometheus" in problem["detail"]


async def test_pages_beyond_the_share_of_a_namespace_are_503_until_they_are_shorter(
    little_memory, api, pages
):
    """Forty workers with such pages would fill the memory of the process, for all namespaces."""
    lines = (f'vllm:a{n}{{engine="0",reason="{"x" * 2000}"}} 1.0\n' for n in range(100))
    pages["policy-0"] = web.Response(text="".join(lines))

    status, problem = await api.get("/metrics")
    assert (status, problem["reason"]) == (503, "NamespaceOverloaded")

    pages["policy-0"] = web.Response(text=PAGE)
    assert (await api.get("/metrics"))[0] == 200


async def test_workers_that_are_silent_hide_no_others(api, monkeypatch):
    monkeypatch.setattr(worker_metrics, "PAGE_SECONDS", 5.0)
    silent, end = 120, asyncio.Event()

    async def show(request: web.Request) -> web.Response:
        if request.host.split(":")[0] != f"127.0.0.{silent + 1}":
            await end.wait()
        return web.Response(text=PAGE)

    app = web.Application()
    app.router.add_get("/metrics", show)
    async with TestServer(app, host="0.0.0.0") as server:
        api.cluster.fleet["spec"]["serving"] = {"metricsPort": server.port}
        api.cluster.pods = [pod(n, podIP=f"127.0.0.{n + 1}") for n in range(silent + 1)]
        status, page = await api.get("/metrics")
        end.set()

    assert (status, {engine for _, engine in samples(page)}) == (200, {f"policy-{silent}/0"})
    assert page.count("does not answer") == silent


async def test_pollers_at_the_same_time_share_one_read_of_the_workers(api, pages):
    found = await asyncio.gather(*(api.get("/metrics") for _ in range(5)))

    assert len({text for _, text in found}) == 1
    assert api.cluster.times_all_pods_were_read < len(found)
