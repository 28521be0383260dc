"""schemathesis sends requests made from the OpenAPI document to the RL API's application.

It breaks the schemas too: an RL API must answer bad input as declared, and never with 5xx.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import TRAINER, FakeCluster
from tests.support.fake_objects import condition

import envs
from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.openapi import PROXIED
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


async def test_no_input_is_answered_with_5xx_or_otherwise_than_declared(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.fleet["status"]["conditions"] = [condition("Available", "MinimumServing", 1)]
    settings = parse_settings(["--requests-per-second=100000"])
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    async with TestServer(build(settings, cluster, Lifecycle(), Metrics())) as server:
        schemathesis = envs.interpreter_of("fuzz").with_name("schemathesis")
        done = await asyncio.create_subprocess_exec(
            *(schemathesis, "run", str(server.make_url("/openapi.json"))),
            *("--header", f"Authorization: Bearer {TRAINER}", "--checks", ",".join(CHECKS)),
            *("--max-examples", str(EXAMPLES), "--mode", "all", "--seed", "1", "--no-color"),
            *("--exclude-tag", PROXIED),
            *("--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all"),
            *("--generation-database", "none"),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(done.communicate(), SECONDS)
    assert done.returncode == 0, output.decode()
