"""The verbs by the RL API's URL."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_cluster import TRAINER
from tests.support.pages import ROOT
from typer.testing import CliRunner

from rlfleet.cli import dashboard
from rlfleet.cli.app import EXIT_CODES, app
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.errors import NotConfigured, Refused


async def run(command: str, **environment: str) -> Any:
    def invoke() -> Any:
        return CliRunner().invoke(app, command.split(), prog_name="rlfleet", env=environment)

    return await asyncio.to_thread(invoke)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TRAINER)
    return file


async def test_a_version_is_published_by_the_options_before_the_verb(api, token):
    page = (ROOT / "docs/how-to/use-the-cli.md").read_text()
    (command,) = re.findall(r"```sh\nrlfleet (--url .*?)\n```", page)
    command = command.replace("https://rl.example.com", api.url)

    done = await run(f"{command.replace('/run/secrets/rlfleet/token', str(token))} -o json")

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["applied"] is True
    assert api.objects.weights["spec"]["version"] == "43"


async def test_the_dashboard_shows_a_fleet_of_the_rl_api(api, token, monkeypatch):
    pages: list[str] = []

    def look(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dashboard, "_pause", look)
    monkeypatch.setattr(dashboard.Latest, "put", lambda _, text: pages.append(text))

    done = await run(f"--url {api.url} --token-file {token} dashboard policy -n rl --no-browser")

    assert done.exit_code == 0, done.output
    assert "<dt>Desired</dt><dd>42</dd>" in pages[0]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("history policy", "42"),
        ("explain policy", "Nothing blocks version 42"),
        ("status policy", "Applied"),
        ("workers policy", "2/2 workers"),
        ("report policy", "<html"),
        ("watch policy --until-applied", "Applied"),
        ("suspend policy", "rollouts are suspended"),
        ("resume policy", "rollouts continue"),
        ("rollback 41 policy", "version 41 is requested"),
        ("undo policy --wait", "version 41 is applied"),
        ("retry policy --wait", "version 42 is applied"),
    ],
    ids=lambda text: text.split()[0],
)
async def test_a_verb_of_one_fleet_works_by_the_environment(api, command, words):
    variables = {
        "RLFLEET_API_URL": api.url, "RLFLEET_API_TOKEN": TRAINER, "RLFLEET_NAMESPACE": "rl",
    }  # fmt: skip
    done = await run(command, **variables)

    assert done.exit_code == 0, done.output
    assert words in done.output


async def test_doctor_has_the_conditions_of_one_fleet(api, token):
    stalled = {"type": "Stalled", "status": "True", "reason": "WorkersFailing", "message": "no"}
    stalled |= {"observedGeneration": 1, "lastTransitionTime": "2026-03-01T12:00:00Z"}
    api.objects.fleet["status"]["conditions"] = [stalled]

    done = await run(f"--url {api.url} --token-file {token} doctor policy -n rl")

    assert done.exit_code == CHECKS_FAILED
    assert done.stdout.startswith("fail  fleets: policy is stalled, WorkersFailing: no\n")


@pytest.mark.parametrize("verb", ["workers", "explain", "report"])
async def test_a_fleet_without_a_weightversion_is_shown(api, token, verb):
    api.objects.delete()

    done = await run(f"--url {api.url} --token-file {token} {verb} policy -n rl")

    assert done.exit_code == 0, done.output
    assert "policy" in done.stdout


async def test_a_stall_has_its_exit_code(api, token):
    api.objects._obeys = False
    api.objects.script.extend([lambda: None, lambda: api.objects.stall("CheckpointTruncated")])

    done = await run(f"--url {api.url} --token-file {token} publish 43 policy -n rl --wait")
    assert done.exit_code == EXIT_CODES[Refused]
    assert "CheckpointTruncated" in done.stderr


async def test_verbs_that_need_more_than_one_fleet_say_so(api, token):
    for verb, words in (("status -A", "needs the Kubernetes API"), ("doctor", "name the fleet")):
        done = await run(f"--url {api.url} --token-file {token} {verb} -n rl")
        assert done.exit_code == EXIT_CODES[NotConfigured]
        assert words in done.stderr
