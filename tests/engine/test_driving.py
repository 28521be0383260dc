"""Rights to drive a worker: tokens, epochs, leases, holders; and requests that are not calls."""

from __future__ import annotations

import httpx
import pytest
from tests.support.families import IPV4, IPV6, needs_ipv6, url_of
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess


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
