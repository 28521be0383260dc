"""The router of a fleet: its objects, its view of the workers, and what the status shows of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.support.builders import FLEET_UID, NOW, build_pod, make_fleet, make_worker
from tests.support.present import present
from tests.support.programs import written_by

from fleet_operator.core.decision import decide
from fleet_operator.core.events import fleet_events
from fleet_operator.core.manifests import children, revisions, router
from fleet_operator.core.observed import FleetObserved, RouterObject, RouterView
from rlfleet_resources import names
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType

GOLDEN = Path(__file__).parent / "golden" / "router.json"
ROUTER = {"image": "router:1", "resources": {"requests": {"cpu": "1"}}}


def routed(*workers, **spec) -> FleetObserved:
    return make_fleet(*workers or (make_worker(0).serving("1"),), router=ROUTER, **spec)


def status_of(observed: FleetObserved) -> FleetStatus:
    return decide(observed, default_image="worker:1", now=NOW).fleet


def ordinals_in(observed: FleetObserved) -> list[str]:
    return [url.removeprefix("http://").partition(".")[0] for url in router.worker_urls(observed)]


def test_the_objects_are_the_recorded_ones():
    """After a change that is meant: write `router.router_children(routed())` to the file."""
    assert router.router_children(routed()) == json.loads(GOLDEN.read_text())


def test_a_fleet_without_the_field_has_no_router():
    observed = make_fleet(make_worker(0).serving("1"))

    assert router.router_children(observed) == []
    assert status_of(observed).router is None
    assert condition_of(status_of(observed).conditions, ConditionType.ROUTER_AVAILABLE) is None


def test_the_pods_of_a_router_are_not_workers_and_no_workers_are_routers():
    deployment, service = router.router_children(routed())
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    worker = build_pod(routed(), 0, "worker:1", revision="r")["metadata"]["labels"]
    of_workers = children.service(routed())["spec"]["selector"]

    assert names.LABEL_FLEET not in labels
    assert names.LABEL_MANAGED_BY not in labels
    assert not labels.items() >= of_workers.items()
    assert not worker.items() >= service["spec"]["selector"].items()


def test_a_router_has_no_access_to_the_api_server():
    deployment, _ = router.router_children(routed())
    pod = deployment["spec"]["template"]["spec"]

    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod


def test_the_router_knows_every_ordinal_that_an_update_can_use():
    two = [make_worker(n).serving("1") for n in (0, 1)]

    assert ordinals_in(routed(*two, update={"maxSurge": 1})) == ["policy-0", "policy-1", "policy-2"]


def test_the_router_knows_workers_with_high_ordinals_after_a_scale_down():
    left = [make_worker(n).serving("1") for n in (0, 4)]

    found = ordinals_in(routed(*left, replicas=2, update={"maxSurge": 0}))

    assert found == [f"policy-{n}" for n in range(5)]


def test_a_router_of_many_workers_checks_each_less_often():
    urls = [f"http://w-{n}:8000" for n in range(1000)]
    spec = present(routed().spec.router)

    found = router.arguments(spec, urls, 8000)

    assert found[found.index("--health-check-interval-secs") + 1] == "5"


def test_another_router_replaces_no_worker():
    other = make_fleet(make_worker(0).serving("1"))

    assert revisions.revision_of(routed()) == revisions.revision_of(other)


def test_the_status_shows_the_router_and_its_address():
    observed = replace(routed(), router=RouterView(ready_replicas=1))
    status = status_of(observed)
    available = condition_of(status.conditions, ConditionType.ROUTER_AVAILABLE)

    assert status.router is not None
    assert (status.router.replicas, status.router.ready_replicas) == (1, 1)
    assert status.router.endpoint == "http://policy-router.rl.svc:8000"
    assert status.endpoint == "http://policy.rl.svc:8000", "the fleet's own Service stays"
    assert available is not None
    assert (available.status, available.reason) == ("True", ConditionReason.ROUTER_READY)


def test_a_router_without_ready_replicas_is_a_condition_with_the_cause_and_an_event():
    before = status_of(replace(routed(), router=RouterView(ready_replicas=1)))
    observed = replace(routed(), router=RouterView(problem="quota exceeded"), status=before)
    after = status_of(observed)
    available = present(condition_of(after.conditions, ConditionType.ROUTER_AVAILABLE))

    assert (available.status, available.reason) == ("False", ConditionReason.ROUTER_NOT_READY)
    assert "quota exceeded" in available.message
    assert "policy-router" in available.message
    assert [e.reason for e in fleet_events(before, after)] == [ConditionReason.ROUTER_NOT_READY]


@pytest.mark.parametrize("owner", ["", "another"])
def test_a_router_of_another_owner_is_never_deleted(owner):
    seen = RouterView(objects=(RouterObject(path="/x", uid="u", owner=owner),))

    assert router.unwanted(replace(make_fleet(make_worker(0)), router=seen)) == []


def test_a_router_goes_with_its_field():
    own = RouterObject(path="/x", uid="u", owner=FLEET_UID)
    seen = RouterView(objects=(own,))

    assert router.unwanted(replace(make_fleet(make_worker(0)), router=seen)) == [own]
    assert router.unwanted(replace(routed(), router=seen)) == []


def test_a_router_cuts_no_generation_within_a_day():
    """Its own limit is 30 minutes, also for streams, and a held request counts all of its pause."""
    spec = present(routed().spec.router)

    found = router.arguments(spec, ["http://w-0:8000"], 8000)

    assert int(found[found.index("--request-timeout-secs") + 1]) >= 24 * 60 * 60


class Worker(ThreadingHTTPServer):
    """A worker that is ready when it has been asked so often."""

    def __init__(self, asked: int) -> None:
        super().__init__(("127.0.0.1", 0), Readiness)
        self.left = asked
        self.asked = Event()


class Readiness(BaseHTTPRequestHandler):
    server: Worker

    def do_GET(self) -> None:
        self.server.left -= 1
        self.server.asked.set()
        self.send_response(200 if self.path == "/readyz" and self.server.left < 0 else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def a_worker(*, asked: int) -> Iterator[Worker]:
    with Worker(asked) as worker:
        Thread(target=worker.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield worker
        worker.shutdown()


def command_of(folder: Path, worker: Worker, before: str = "") -> tuple[list[str], dict[str, str]]:
    """The command of a router's container with one worker, and variables in which the router prints its arguments."""
    program = folder / "vllm-router"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (deployment, _) = router.router_children(routed())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    python, flag, start = container["command"]
    given = container["args"][: container["args"].index("--worker-urls") + 1]
    given += ["http://127.0.0.1:1", f"http://127.0.0.1:{worker.server_port}"]
    return [python, flag, before + start, *given], {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("dual", "host"), [(True, "::"), (False, "0.0.0.0")])
def test_a_router_listens_on_the_addresses_of_all_families_that_its_kernel_has(
    tmp_path, dual, host
):
    before = f"import socket; socket.has_dualstack_ipv6 = lambda: {dual}\n"
    with a_worker(asked=0) as worker:
        command, environment = command_of(tmp_path, worker, before)
        given = written_by(command, env=environment, timeout=30).splitlines()

    hosts = [given[given.index(name) + 1] for name in ("--host", "--prometheus-host")]
    assert hosts == [host, host]
    assert len(given) == len(command) - 3


def test_a_router_starts_when_a_worker_is_ready(tmp_path):
    with a_worker(asked=1) as worker:
        command, environment = command_of(tmp_path, worker)
        written_by(command, env=environment, timeout=30)

        assert worker.left == -1


def test_a_router_that_waits_for_a_worker_ends_when_its_pod_is_deleted(tmp_path):
    with a_worker(asked=1000) as worker:
        command, environment = command_of(tmp_path, worker)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as waiting:
            assert worker.asked.wait(timeout=30)
            waiting.terminate()
            written, _ = waiting.communicate(timeout=30)

        assert (waiting.returncode, written) == (0, b"")


def test_a_router_before_workers_that_serve_https_has_its_cause():
    observed = routed(engine={"args": ["--ssl-certfile=/tls/tls.crt"]})
    available = condition_of(status_of(observed).conditions, ConditionType.ROUTER_AVAILABLE)

    assert available is not None
    assert available.reason is ConditionReason.ROUTER_NOT_READY
    assert "--ssl-certfile" in available.message
