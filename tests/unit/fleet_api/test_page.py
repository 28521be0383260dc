"""The requests of the how-to page, run unchanged against the application."""

from __future__ import annotations

import asyncio
import json
import os

from tests.support.fake_cluster import TRAINER
from tests.support.fake_objects import TIME
from tests.support.pages import starting_with
from tests.unit.fleet_api.conftest import Api

PAGE = "docs/how-to/use-the-rl-api.md"


async def run(api: Api, command: str) -> str:
    address = str(api.http.make_url("/fleets/rl/policy"))
    done = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", command.replace("curl ", "curl --fail ")),
        env={"PATH": os.environ["PATH"], "API": address, "TOKEN": TRAINER},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, f"{command}\n{output.decode()}"
    return output.decode()


async def test_the_page_publishes_follows_and_goes_back(api):
    source = {"path": "/weights/run-7/step_42"}
    pinned = {"version": "42", "runID": "run-7", "digest": "sha256:" + "4" * 64, "source": source}
    api.cluster.fleet["status"]["pinned"] = [pinned]
    api.cluster.objects.desire(runID="run-7")
    past = {"result": "Applied", "startedAt": TIME, "totalSeconds": 1, "runID": "run-7"}
    api.cluster.objects.apply(history=[past | {"version": "42"}])
    publish, state, events, undo, rollback, openapi = [
        block for _, block in starting_with("curl ", pages=PAGE)
    ]

    rollout = json.loads(await run(api, publish))
    assert (rollout["version"], rollout["applied"]) == ("43", True)
    shown = json.loads(await run(api, state))["weights"]
    assert (shown["phase"], shown["appliedVersion"]) == ("Applied", "43")
    stream = await run(api, events)
    assert stream.startswith("retry: 1000\n\nid: ")
    assert '"appliedVersion":"43"' in stream
    assert json.loads(await run(api, undo))["version"] == "42"
    assert json.loads(await run(api, rollback))["version"] == "42"
    assert json.loads(await run(api, openapi)) == api.document
