"""The verbs of `rlfleet` on a real cluster with real workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
from tests.e2e.conftest import FLEET, NAMESPACE, WORKERS, Fleet

from rlfleet.cli.app import EXIT_CODES
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.errors import Refused
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


LOCAL = {"record"}
"""The verbs that ask no cluster, and so have no namespace."""


def ended(fleet: Fleet, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit codes and outputs of commands, one after the other."""
    namespace = ("-n", NAMESPACE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN],
        input=json.dumps([[*w, *(() if w[0] in LOCAL else namespace)] for w in commands]),
        env={**fleet.cluster.environment(), "PYTHONPATH": str(ROOT / "client"), "COLUMNS": "200"}
        | {"HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout)]


def rlfleet(fleet: Fleet, *commands: tuple[str, ...]) -> list[str]:
    """The outputs of commands that succeed, one after the other."""
    found = ended(fleet, *commands)
    for words, (code, output) in zip(commands, found, strict=True):
        assert code == 0, f"rlfleet {words}: {output}"
    return [output for _, output in found]


def first_words(text: str, count: int) -> list[list[str]]:
    """The first words of each line that is not empty."""
    return [line.split()[:count] for line in text.splitlines() if line.strip()]


def test_the_reading_and_the_undoing_verbs_work_on_a_real_cluster(
    fleet: Fleet, tmp_path: Path
) -> None:
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
    assert {"operator:", "leader:", "rights:", "storage:", "image:", "engine:"} <= {
        w for _, w in first_words(doctor, 2)
    }
    assert ["fail"] not in first_words(doctor, 1)
    assert f"serving version {now}" in logged, "of a worker"
    assert f"version {now} on {served} workers" in logged, "of the operator"
    accepted = json.loads(checked)
    assert (accepted["accepted"], accepted["kind"]) == (True, "checkpoint")
    assert f"{FLEET}: version {now}" in page.read_text()
    assert "http" not in page.read_text(), "the page asks no server"
    assert f"version {before} is applied on {WORKERS} workers" in undone
    assert fleet.applied() == before


def test_the_verbs_that_change_a_rollout_work_on_a_real_cluster(fleet: Fleet) -> None:
    before, now, cut = fleet.applied(), str(fleet.next_step()), str(fleet.next_step())
    file = fleet.folder(int(cut)) / "model.safetensors"
    whole = file.read_bytes()
    os.truncate(file, len(whole) // 2)

    rlfleet(fleet, ("suspend", FLEET), ("publish", now, FLEET))
    fleet.eventually(lambda: fleet.reason("Ready") == "Suspended", "Suspended")
    assert fleet.applied() == before

    _, seen, back = rlfleet(
        fleet,
        ("resume", FLEET),
        ("watch", FLEET, "--until-applied"),
        ("rollback", before, FLEET, "--wait", "--timeout", "120"),
    )
    assert seen.splitlines()[-1].startswith(f"{FLEET} {now}: Applied")
    assert f"version {before} is applied on {WORKERS} workers" in back
    assert fleet.applied() == before

    ((code, refused),) = ended(fleet, ("publish", cut, FLEET, "--wait", "--timeout", "120"))
    assert (code, "CheckpointTruncated" in refused) == (EXIT_CODES[Refused], True)
    assert fleet.applied() == before

    file.write_bytes(whole)
    (again,) = rlfleet(fleet, ("retry", FLEET, "--wait", "--timeout", "120"))
    assert f"version {cut} is applied on {WORKERS} workers" in again


def test_the_labels_of_real_replies_are_audited_on_a_real_cluster(
    fleet: Fleet, tmp_path: Path
) -> None:
    body = {"model": fleet.get(f"ifl/{FLEET}")["spec"]["model"]["name"], "max_tokens": 4}
    body |= {"prompt": [1, 2, 3], "logprobs": 1, "return_token_ids": True}
    made = httpx.post(f"{fleet.url()}/v1/completions", json=body, timeout=60, trust_env=False)
    reply = made.raise_for_status().json()
    replies, records = tmp_path / "replies.jsonl", tmp_path / "records.jsonl"
    replies.write_text(json.dumps(reply) + "\n")

    (recorded,) = rlfleet(fleet, ("record", str(replies)))
    records.write_text(recorded)
    (audited,) = rlfleet(fleet, ("audit", str(records), FLEET, "-o", "json"))

    (record,) = map(json.loads, recorded.splitlines())
    assert record["weight_versions"][0]["version"] == fleet.applied()
    assert {check["result"] for check in json.loads(audited)["items"]} == {"ok"}

    record["weight_versions"][0]["digest"] = "0" * 12
    records.write_text(json.dumps(record))
    ((code, _),) = ended(fleet, ("audit", str(records), FLEET))
    assert code == CHECKS_FAILED
