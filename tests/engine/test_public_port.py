"""Routes that the public port does not serve."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.environments import worker_python
from tests.support.programs import written_by
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

# Control routes of vLLM 0.32 behind any gate, and some of rlfleet's own.
CONTROL_ROUTES = (
    "POST /pause",
    "POST /resume",
    "GET /is_paused",
    "POST /abort_requests",
    "POST /init_weight_transfer_engine",
    "POST /shutdown_weight_transfer_engine",
    "POST /start_weight_update",
    "POST /start_draft_weight_update",
    "POST /update_weights",
    "POST /finish_weight_update",
    "POST /update_weight_version",
    "GET /weight_info",
    "POST /weight_checker",
    "GET /get_world_size",
    "POST /collective_rpc",
    "POST /sleep",
    "POST /wake_up",
    "GET /is_sleeping",
    "POST /release_kv_cache_memory",
    "POST /reset_prefix_cache",
    "POST /reset_mm_cache",
    "POST /reset_encoder_cache",
    "GET /server_info",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
    "POST /scale_elastic_ep",
    "POST /is_scaling_elastic_ep",
    "POST /fault_tolerance/apply",
    "GET /fault_tolerance/status",
    "POST /start_profile",
    "POST /stop_profile",
    "GET /tokenizer_info",
    "GET /kv_event_sources",
    "POST /invocations",
    "POST /v1/systemone",
    "POST /generative_scoring",
    "GET /v1/worker/state",
    "PUT /v1/worker/fence",
    "POST /v1/worker/drain",
)


@pytest.mark.parametrize("route", CONTROL_ROUTES)
def test_a_control_route_is_not_on_the_public_port(worker: WorkerProcess, route: str) -> None:
    method, path = route.split()

    for spelling in (path, f"{path}/", f"/{path}", f"/v1/..{path}"):
        reply = worker.public.request(method, spelling, json={})
        assert reply.status_code == 404, f"{spelling}: {reply.status_code}"
    described = worker.public.get("/openapi.json").json()["paths"]
    assert path not in described


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/version", "/metrics", "/load", "/v1/models", "/openapi.json"]
)
def test_the_information_routes_are_served(worker: WorkerProcess, path: str) -> None:
    assert worker.public.get(path).status_code == 200


def test_the_metrics_are_vllms_and_ours(worker: WorkerProcess) -> None:
    text = worker.public.get("/metrics").text

    assert "vllm:generation_tokens_total" in text
    assert "rlfleet_worker_phase" in text


def test_a_scraper_needs_no_key_and_gets_nothing_but_metrics(worker: WorkerProcess) -> None:
    reply = worker.scrape()

    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {f.name for f in text_string_to_metric_families(reply.text)}
    assert {"vllm:generation_tokens", "rlfleet_worker_phase"} <= names
    for path in ("/", "/v1/models", "/v1/worker/state", "/health", "/metrics/", "/openapi.json"):
        assert worker.scrape(path).status_code == 404
    assert worker.scrape(method="POST").status_code == 405


def test_metrics_hold_nothing_that_a_client_has_sent(worker: WorkerProcess) -> None:
    secret = "xyzzy-a-secret-of-the-tests"
    asked = {"model": "policy", "prompt": secret, "user": secret, "max_tokens": 2}
    sent = (
        worker.public.post("/v1/completions", json=asked, headers={"x-request-id": secret}),
        worker.public.post("/v1/completions", json=asked | {"model": secret}),
        worker.public.get(f"/{secret}"),
        worker.public.get("/v1/models", params={"q": secret}, headers={"user-agent": secret}),
    )
    before = worker.scrape().text

    assert [reply.status_code for reply in sent] == [200, 404, 404, 200]
    # Rendered once a second: what was scraped just now may be older than the requests.
    fresh = eventually(
        lambda: next((t for t in [worker.scrape().text] if t != before), None), within_seconds=60
    )
    assert secret not in before
    assert secret not in fresh


_OPENAI = """
import json, sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="none")
messages = [{"role": "user", "content": "hello"}]
options = dict(model="policy", messages=messages, max_tokens=4, extra_body={"ignore_eos": True})
whole = client.chat.completions.create(**options)
chunks = list(client.chat.completions.create(**options, stream=True))
print(json.dumps([c.choices[0].model_dump().get("weight_versions") for c in [whole, *chunks]]))
"""


def test_the_openai_library_hands_the_versions_on(worker: WorkerProcess) -> None:
    # The library comes with vLLM, so it is in the worker's environment.
    url = f"http://127.0.0.1:{worker.port}/v1"
    command = [worker_python(), "-c", _OPENAI, url]
    whole, *chunks = json.loads(written_by(command, timeout=120))

    assert [span["version"] for span in whole] == [worker.state()["version"]]
    assert chunks[-1] == [worker.span(0, 4)]
    assert set(map(str, chunks[:-1])) == {"None"}
