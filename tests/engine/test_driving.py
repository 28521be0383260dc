"""Rights to drive a worker: tokens, epochs, leases, holders; and requests that are not calls."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support.families import IPV4, IPV6, needs_ipv6, url_of
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, TOKEN, WorkerProcess

from fleet_worker.admin.api import LARGE_BODY

NewVersion = Callable[[], str]


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(None, id="no token"),
        pytest.param("Bearer wrong", id="a wrong token"),
        pytest.param(f"Basic {TOKEN}", id="another scheme"),
        pytest.param("Bearer", id="an empty token"),
    ],
)
def test_without_the_token_every_route_but_the_probes_is_shut(
    worker: WorkerProcess, authorization: str | None
) -> None:
    headers = {"Authorization": authorization} if authorization is not None else {}
    base = f"http://127.0.0.1:{worker.admin_port}"
    with httpx.Client(base_url=base, headers=headers, trust_env=False) as stranger:
        state = stranger.get("/v1/worker/state")
        fence = stranger.put("/v1/worker/fence", json={})
        unknown = stranger.get("/v1/anything")
        probes = [stranger.get(path).status_code for path in ("/livez", "/readyz")]

    assert {state.status_code, fence.status_code, unknown.status_code} == {401}
    assert state.json()["error"]["reason"] == "Unauthorized"
    assert state.json()["state"] is None
    assert probes == [200, 200]
    assert worker.state()["phase"] == "serving"


@needs_ipv6
def test_clients_and_scrapers_connect_to_addresses_of_both_families(worker: WorkerProcess) -> None:
    pages = [
        (worker.port, "/v1/models"),
        (worker.port, "/readyz"),
        (worker.metrics_port, "/metrics"),
    ]
    with httpx.Client(trust_env=False) as client:
        found = [
            client.get(url_of(address, port) + path).status_code
            for address in (IPV4, IPV6)
            for port, path in pages
        ]
        with pytest.raises(httpx.ConnectError):
            client.get(url_of(IPV6, worker.admin_port))

    assert found == [200] * 6


def test_the_token_is_exchanged_without_a_restart(worker: WorkerProcess) -> None:
    def code(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return worker.admin.get("/v1/worker/state", headers=headers).status_code

    try:
        worker.token_file.write_text(f"the-next-one\n{TOKEN}\n")
        assert (code("the-next-one"), code(TOKEN)) == (200, 200)
        worker.token_file.write_text("the-next-one\n")
        assert (code("the-next-one"), code(TOKEN)) == (200, 401)
    finally:
        worker.token_file.write_text(TOKEN + "\n")
    assert code(TOKEN) == 200


def test_without_a_token_every_call_is_refused(worker: WorkerProcess) -> None:
    headers = {"Authorization": "Bearer"}
    try:
        worker.token_file.write_text("\n\n")
        assert worker.admin.get("/v1/worker/state", headers=headers).status_code == 401
    finally:
        worker.token_file.write_text(TOKEN + "\n")


def test_calls_of_an_older_epoch_are_refused(
    worker: WorkerProcess, home: str, weights: Weights
) -> None:
    term, sequence = worker.state()["epoch"].values()
    body = {"mode": "keep", "lease_seconds": 60}

    for late in ((term, sequence - 1), (term - 1, sequence + 100)):
        assert worker.refusal("pause", epoch=late, **body)[:2] == (409, "StaleEpoch")
    assert worker.state()["phase"] == "serving"
    worker.must("pause", epoch=(term, sequence), **body)


def test_a_second_driver_gets_the_holder_and_the_time_left(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    worker.stage(version := new_version(), weights.b)
    worker.must("pause", mode="keep", lease_seconds=60, holder="trainer")
    reply = worker.call("pause", mode="keep", lease_seconds=60, holder="operator")

    error = reply.json()["error"]
    assert (reply.status_code, error["reason"]) == (409, "HeldByAnother")
    assert "trainer" in error["message"]
    assert 20 < error["retry_after_seconds"] <= 60
    assert worker.refusal("load", version=version)[1] == "HeldByAnother"
    assert worker.refusal("resume", version=home)[1] == "HeldByAnother"
    assert worker.state()["pause"]["holder"] == "trainer"


def test_a_lease_without_renewal_ends_with_the_old_weights_serving(
    worker: WorkerProcess, home: str
) -> None:
    expiries = worker.state()["lease_expiries"]
    worker.must("pause", mode="keep", lease_seconds=0.2)
    eventually(lambda: worker.state()["phase"] == "serving")

    state = worker.state()
    assert state["lease_expiries"] == expiries + 1
    assert state["version"] == home
    assert state["pause"] is None
    assert worker.greedy()


def test_pausing_again_renews_the_lease(worker: WorkerProcess, home: str) -> None:
    worker.must("pause", mode="keep", lease_seconds=1)
    state = worker.must("pause", mode="keep", lease_seconds=60)

    assert 20 < state["pause"]["lease_remaining_seconds"] <= 60


def test_a_fence_closes_the_latch_and_ends_what_is_running(
    worker: WorkerProcess, home: str
) -> None:
    import threading  # noqa: PLC0415 - of this test only

    from tests.support.worker import token_request  # noqa: PLC0415 - of this test only

    replies: list[httpx.Response] = []
    request = token_request([1, 2, 3], max_tokens=3000)
    running = threading.Thread(
        target=lambda: replies.append(worker.public.post("/inference/v1/generate", json=request))
    )
    running.start()
    eventually(lambda: worker.state()["requests_running"] == 1)
    state = worker.must("fence", reason="a test")
    running.join(timeout=REPLY_SECONDS)

    assert (state["phase"], state["admitted"]) == ("joining", False)
    assert replies[0].json()["choices"][0]["finish_reason"] == "abort"
    turned_away = worker.public.post("/inference/v1/generate", json=request)
    assert turned_away.status_code == 429
    worker.must("admit", version=home)
    assert worker.greedy()


def test_a_joining_worker_is_loaded_and_admitted_without_a_pause(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    worker.must("fence", reason="a test")
    worker.stage(version := new_version(), weights.b)
    state = worker.must("load", version=version)
    assert (state["phase"], state["version"]) == ("joining", version)
    assert worker.refusal("admit", version=home)[:2] == (409, "VersionMismatch")
    assert worker.must("admit", version=version)["phase"] == "serving"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        pytest.param("PUT", "/v1/worker/pause", b"{", 400, id="no JSON"),
        pytest.param("PUT", "/v1/worker/pause", b"[]", 400, id="no object"),
        pytest.param("PUT", "/v1/worker/load", b'{"version": "no label!"}', 400, id="no label"),
        pytest.param("PUT", "/v1/worker/pause", b" " * (LARGE_BODY + 1), 413, id="too long"),
        pytest.param("POST", "/v1/worker/pause", b"{}", 405, id="wrong method"),
        pytest.param("GET", "/v1/worker/nothing", b"", 404, id="wrong path"),
    ],
)
def test_a_malformed_call_is_refused_without_repeating_its_content(
    worker: WorkerProcess, method: str, path: str, content: bytes, status: int
) -> None:
    reply = worker.admin.request(method, path, content=content)

    assert (reply.status_code, reply.json()["error"]["reason"]) == (status, "BadRequest")
    assert "no label!" not in reply.text
    assert int(reply.headers["content-length"]) == len(reply.content)


def test_a_stage_continues_when_its_caller_disconnects(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    version = new_version()
    body = {
        "version": version,
        "source": {"path": str(weights.c)},
        "epoch": worker.state()["epoch"],
    }
    content = json.dumps(body).encode()
    head = (
        "PUT /v1/worker/stage HTTP/1.1\r\nHost: worker\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", worker.admin_port)) as caller:
        caller.sendall(head.encode() + content)
    # Gone without having waited for the answer.
    eventually(lambda: (worker.state()["staged"] or {}).get("version") == version)
