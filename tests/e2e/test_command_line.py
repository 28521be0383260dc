"""The verbs of `rlfleet` that look or check, and `undo`, on a real cluster with real workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import FLEET, NAMESPACE, WORKERS, Fleet

from stack.fleets import WEIGHTS_ROOT

ROOT = Path(__file__).parents[2]
RUN = """
import json, sys
from typer.testing import CliRunner
from rlfleet.cli.app import app
outputs = []
for words in json.load(sys.stdin):
    done = CliRunner().invoke(app, words, prog_name="rlfleet")
    outputs.append([done.exit_code, done.output])
print(json.dumps(outputs))
"""
"""All verbs in one process, apart from that of the tests: its imports are most of their time."""


def rlfleet(fleet: Fleet, *commands: tuple[str, ...]) -> list[str]:
    """The outputs of commands that succeed, one after the other."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN],
        input=json.dumps([[*words, "-n", NAMESPACE] for words in commands]),
        env={**fleet.cluster.environment(), "PYTHONPATH": str(ROOT / "client"), "COLUMNS": "200"}
        | {"HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = []
    for words, (code, output) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 0, f"rlfleet {words}: {output}"
        found.append(output)
    return found


def first_words(text: str, count: int) -> list[list[str]]:
    """Of each line that is not empty."""
    return [line.split()[:count] for line in text.splitlines() if line.strip()]


def test_every_verb_works_on_a_real_cluster(fleet: Fleet, tmp_path: Path) -> None:
    before, now = str(fleet.next_step()), str(fleet.next_step())
    for version in (before, now):
        fleet.roll_out(int(version))
    fleet.wait_whole()

    page = tmp_path / "report.html"
    status, workers, history, explained, validated, doctor, logged, checked, _, undone = rlfleet(
        fleet,
        ("status",),
        ("workers", FLEET),
        ("history", FLEET),
        ("explain", FLEET),
        ("validate", str(ROOT / "docs/tutorial/fleet.yaml")),
        ("doctor",),
        ("logs", FLEET, "--version", now, "--since", "5m"),
        ("check", f"{WEIGHTS_ROOT}/step_{before}", FLEET, "-o", "json"),
        ("report", FLEET, "--file", str(page)),
        ("undo", FLEET, "--wait", "--timeout", "120"),
    )

    served = f"{WORKERS}/{WORKERS}"
    assert first_words(status, 7)[1] == [FLEET, FLEET, "True", served, now, now, "0"]
    assert f"{WORKERS} workers with version {now}" in workers
    assert all(pod in workers for pod in fleet.pods())
    assert first_words(history, 2)[1:3] == [[now, "Applied"], [before, "Applied"]]
    assert f"{served} workers serve it" in explained
    assert first_words(validated, 1) == [["ok"], ["ok"]]
    assert {"operator:", "leader:", "rights:", "storage:"} <= {w for _, w in first_words(doctor, 2)}
    assert ["fail"] not in first_words(doctor, 1)
    assert f"serving version {now}" in logged, "of a worker"
    assert f"version {now} on {served} workers" in logged, "of the operator"
    accepted = json.loads(checked)
    assert (accepted["accepted"], accepted["kind"]) == (True, "checkpoint")
    assert f"{FLEET}: version {now}" in page.read_text()
    assert "http" not in page.read_text(), "the page asks no server"
    assert f"version {before} is applied on {WORKERS} workers" in undone
    assert fleet.applied() == before
