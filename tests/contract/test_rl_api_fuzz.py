"""schemathesis sends requests made from the OpenAPI document to the RL API's application.

It breaks the schemas too: an RL API must answer bad input as declared, and never with 5xx.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import FLEET_UID, TRAINER, FakeCluster, pod
from tests.support.fake_objects import condition

import envs
from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.openapi import PROXIED
from fleet_api.ports import Target, WorkerReply, WorkerRequest
from fleet_api.settings import parse_settings

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
EXAMPLES = 10
"""Requests of each phase to each operation."""
SECONDS = 240
CONFIGURATION = """
[parameters]
"path.namespace" = "rl"
"path.name" = "policy"

[warnings]
fail-on = ["missing_auth"]
"""
"""The requests are for a fleet that exists, and an operation that never lets one through is a failure."""


SECRET = "/api/v1/namespaces/rl/secrets/policy-admin-token"
CONTROL = r"/fleets/\{namespace\}/\{name\}/(?!v1/rl/)"
"""Paths of the control root, as the document has them."""


def _reply(status: int, document: Any) -> WorkerReply:
    return WorkerReply(status, json.dumps(document).encode())


WRONG: tuple[WorkerReply, ...] = (
    _reply(200, {}),
    _reply(200, {"world_size": "many", "is_paused": [None], "tools": {"a": [1.5]}}),
    WorkerReply(204),
    _reply(302, {"error": "elsewhere"}),
    _reply(400, {"error": {"reason": ["x"] * 99, "message": {"deep": "x" * 9999}}}),
    _reply(409, {"error": {"reason": "StaleCall"}}),
    _reply(422, None),
    _reply(500, {"error": {"message": "\ud800 no text"}}),
    _reply(999, {"error": None}),
)


class StrangeWorkers:
    """Fake workers: the first answers in every wrong way, the second slowly, the third never."""

    def __init__(self) -> None:
        self._wrong = cycle(WRONG)
        self.calls = 0

    async def send(self, target: Target, token: str, request: WorkerRequest) -> WorkerReply:
        self.calls += 1
        match target.pod:
            case "policy-0":
                return next(self._wrong)
            case "policy-1":
                await asyncio.sleep(0.02)
                return _reply(200, {"world_size": 1, "is_paused": True})
            case _:
                # Every third is in time, so that calls succeed too.
                late = self.calls % 3 > 0
                return WorkerReply(problem="no answer in time") if late else _reply(200, {})

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("examples", [4, pytest.param(EXAMPLES, marks=pytest.mark.long)])
async def test_no_input_is_answered_with_5xx_or_otherwise_than_declared(
    tmp_path: Path, examples: int
) -> None:
    cluster = FakeCluster()
    cluster.fleet["status"]["conditions"] = [condition("Available", "MinimumServing", 1)]
    settings = parse_settings(["--requests-per-second=100000"])
    app = build(settings, cluster, Lifecycle(), Metrics())

    await _fuzzed(app, tmp_path, examples, "--checks", ",".join(CHECKS))


@pytest.mark.long
async def test_no_input_and_no_worker_makes_the_control_root_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not answer is 503, as declared; no other 5xx is."""
    workers = StrangeWorkers()
    monkeypatch.setattr("fleet_api.main.AdminPorts", lambda: workers)
    cluster = FakeCluster()
    cluster.fleet["spec"] |= {"replicas": 3}
    cluster.fleet["spec"]["weights"]["management"] = "External"
    cluster.objects.delete()
    cluster.pods = [pod(ordinal) for ordinal in range(3)]
    token = base64.b64encode(b"a-token-of-workers").decode()
    owners = [{"kind": "InferenceFleet", "uid": FLEET_UID}]
    cluster.secrets[SECRET] = {"metadata": {"ownerReferences": owners}, "data": {"token": token}}
    cluster.rights["system:serviceaccount:rl:trainer"].add(
        ("update", "inferencefleets/control", "rl", "policy")
    )
    flags = ["--requests-per-second=100000", "--external-fleets=rl/policy"]
    app = build(parse_settings(flags), cluster, Lifecycle(), Metrics())
    statuses: Counter[int] = Counter()

    @web.middleware
    async def noted(request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        # A passing fault of an adapter's load is 500 on purpose.
        is_passing = b"InternalError" not in (getattr(response, "body", None) or b"")
        repeated = response.status == 500 and is_passing and "load_lora_adapter" in request.path
        statuses[503 if repeated else response.status] += 1
        return response

    app.middlewares.insert(0, noted)
    checks = ",".join(check for check in CHECKS if check != "not_a_server_error")
    await _fuzzed(app, tmp_path, EXAMPLES, "--checks", checks, "--include-path-regex", CONTROL)

    assert {status for status in statuses if status >= 500} <= {503}, statuses
    assert statuses[200] > 0, statuses
    assert statuses[503] > 0, statuses
    assert workers.calls > 100


async def _fuzzed(app: web.Application, folder: Path, examples: int, *arguments: str) -> None:
    """schemathesis finds no failure in the application."""
    (folder / "schemathesis.toml").write_text(CONFIGURATION)
    async with TestServer(app) as server:
        schemathesis = envs.interpreter_of("fuzz").with_name("schemathesis")
        done = await asyncio.create_subprocess_exec(
            *(schemathesis, "run", str(server.make_url("/openapi.json")), *arguments),
            *("--header", f"Authorization: Bearer {TRAINER}"),
            *("--max-examples", str(examples), "--mode", "all", "--seed", "1", "--no-color"),
            *("--exclude-tag", PROXIED),
            *("--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all"),
            *("--generation-database", "none"),
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(done.communicate(), SECONDS)
    assert done.returncode == 0, output.decode()
