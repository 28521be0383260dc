"""Each verb on objects that the operator's runtime wrote on a fake cluster, against a golden text."""

from __future__ import annotations

import copy
import io
import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from tests.support.cli import (
    CLI,
    PODS,
    SITUATIONS,
    TRUNCATED,
    Recorded,
    golden,
    run,
)
from tests.support.fake_objects import FakeObjects, condition
from tests.support.present import present
from typer.testing import CliRunner

from rlfleet.cli import show
from rlfleet.cli.app import EXIT_CODES, app
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.cli.screen import FleetScreen, grid
from rlfleet.cli.view import fleet_view
from rlfleet.errors import Forbidden, NotConfigured, NotFound, Refused, RlfleetError, TimedOut
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet_resources.fleet_status import WorkerCounts

GOLDEN = CLI / "golden"
ROOT = Path(__file__).parents[4]


CASES = [
    *((look, there) for look in ("status", "workers", "explain", "history") for there in SITUATIONS),
    *(("watch --until-applied", there) for there in ("applied", "broken-fleet", "stalled")),
    *(
        (look, "applied")
        for look in (
            "status -A -o wide", "status -o yaml", "history -o wide", "workers -o wide",
            "explain -o json", "explain SourceUnknown",
        )
    ),
    ("workers -o json", "external"),
    *(
        (change, "applied")
        for change in (
            "publish 3", "publish 3 --wait", "publish 3 -o json", "rollback 1", "undo", "retry",
            "suspend", "resume",
        )
    ),
    ("publish 3", "external"),
    ("resume", "suspended"),
    ("completion bash", "applied"),
    ("version --client", "applied"),
]  # fmt: skip
SCREENS = [there for there in SITUATIONS if there != "orphaned"]


@pytest.mark.parametrize(("command", "situation"), CASES, ids=lambda v: v)
def test_a_verb_prints_its_golden_text(monkeypatch, command, situation):
    code, out, err = run(monkeypatch, Recorded(situation), *command.split())

    end = f"{' '.join(err.split())}\nexit code {code}\n" if code else ""
    golden(out + end, f"{command.replace(' ', '_')}.{situation}.txt")


def test_every_golden_text_belongs_to_a_case():
    assert {f.name for f in GOLDEN.iterdir() if f.is_file()} == {
        *(f"{command.replace(' ', '_')}.{situation}.txt" for command, situation in CASES),
        *(f"{kind}.{there}.txt" for kind in ("screen", "dashboard") for there in SCREENS),
        *(f"report.{there}.txt" for there in SITUATIONS),
        "doctor.healthy.txt",
        "doctor.no-operator.txt",
        "logs.staging.txt",
        "validate.txt",
        "check.accepted.txt",
        "check.refused.txt",
        "record.txt",
        "audit.txt",
        "drain.txt",
        "restart.txt",
        "delta.txt",
        "metrics.txt",
        "screen.live.txt",
    }


def test_every_verb_has_a_golden_text():
    verbs = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}

    assert verbs - {re.split(r"[._]", f.name)[0] for f in GOLDEN.iterdir()} == set()


# --- changes --------------------------------------------------------------------------------------


def test_publish_waits_for_the_outcome(monkeypatch):
    objects = FakeObjects()

    code, out, _ = run(monkeypatch, objects, "publish", "43", "--path", "/weights/x", "--wait")

    assert code == 0
    assert "43" in out
    assert "4 workers" in out
    assert "1.90s" in out
    assert present(objects.weights)["spec"]["source"]["path"] == "/weights/x"


def test_publish_returns_at_once_by_default(monkeypatch):
    objects = FakeObjects(obeys=False)

    assert run(monkeypatch, objects, "publish", "43", "policy")[0] == 0
    assert present(objects.weights)["spec"]["version"] == "43"


def test_publish_names_the_files_of_another_version_only_if_asked(monkeypatch):
    objects = FakeObjects(source={"path": "/weights/step_42"})

    code, _, err = run(monkeypatch, objects, "publish", "43")

    assert code == EXIT_CODES[Refused]
    assert "SourceFixed" in err
    assert objects.weights["spec"]["version"] == "42"
    assert run(monkeypatch, objects, "publish", "43", "--same-files")[0] == 0


def test_publish_says_in_yellow_that_nothing_has_changed(monkeypatch):
    objects = FakeObjects(obeys=False)
    same = condition("WeightsUnchanged", "SameFiles", 2, message="42 has the same digest")
    objects.script.append(lambda: objects.apply(conditions=[same]))
    monkeypatch.setattr(show, "console", lambda: Console(force_terminal=True, highlight=False))

    code, out, _ = run(monkeypatch, objects, "publish", "43", "--wait")

    assert code == 0
    assert "\x1b[33mWeightsUnchanged: 42 has the same digest" in out


@pytest.mark.parametrize(
    "command", [["publish", "43", "--wait"], ["explain"], ["explain", "-o", "json"]], ids=str
)
def test_the_remarks_of_a_version_are_shown(monkeypatch, command):
    objects = FakeObjects(obeys=False)
    said = condition("Remarks", "IgnoredOrCast", 2, message="the end tokens are ignored")
    if command[0] == "publish":
        objects.script.append(lambda: objects.apply(conditions=[said]))
    else:
        objects.desire(version="43")
        objects.apply(conditions=[said])

    code, out, _ = run(monkeypatch, objects, *command)

    assert code == 0
    assert "the end tokens are ignored" in " ".join(out.split())


@pytest.mark.parametrize("verb", ["publish 43", "rollback 41", "undo"])
def test_files_that_no_worker_finds_end_the_wait(monkeypatch, verb):
    def fleet() -> FakeObjects:
        objects = FakeObjects(obeys=False)
        absent = condition("Ready", "WaitingForCheckpoint", 2, status="False")
        objects.script.append(lambda: objects.look("Pending", absent))
        return objects

    code, _, err = run(monkeypatch, fleet(), *verb.split(), "--wait")
    assert (code, "stays desired" in err) == (EXIT_CODES[Refused], True)
    waits = "--wait", "--wait-for-files"
    assert run(monkeypatch, fleet(), *verb.split(), *waits)[0] == EXIT_CODES[TimedOut]


def test_rollback_to_a_version_that_never_was_is_not_found(monkeypatch):
    objects = FakeObjects()

    code, _, err = run(monkeypatch, objects, "rollback", "99")

    assert code == EXIT_CODES[NotFound]
    assert "it has: 41, 42" in err
    assert objects.weights["spec"]["version"] == "42"


def test_publish_begins_in_the_trace_of_its_option(monkeypatch):
    objects, span = FakeObjects(), f"00-{'a' * 32}-{'b' * 16}-01"

    assert run(monkeypatch, objects, "publish", "43", "--traceparent", span)[0] == 0
    assert present(objects.weights)["metadata"]["annotations"] == {"rlfleet.dev/traceparent": span}


def test_publish_creates_the_object(monkeypatch):
    objects = FakeObjects()
    objects.delete()

    code, _, _ = run(
        monkeypatch, objects, "publish", "43", "--create-for", "policy", "--path", "/w"
    )

    assert code == 0
    assert present(objects.weights)["spec"]["fleetRef"] == {"name": "policy"}


def test_a_refused_version_exits_with_its_reason(monkeypatch):
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: objects.stall("CheckpointTruncated"))

    code, _, err = run(monkeypatch, objects, "publish", "43", "--wait")

    assert code == 3
    assert "CheckpointTruncated" in err


def test_a_slow_rollout_exits_with_the_timeout_code(monkeypatch):
    objects = FakeObjects(obeys=False)

    assert run(monkeypatch, objects, "publish", "43", "--wait", "--timeout", "5")[0] == 4


def test_rollback_retry_suspend_and_resume_patch_the_object(monkeypatch):
    objects, digest = FakeObjects(), f"sha256:{'41' * 32}"
    assert objects.weights is not None

    assert run(monkeypatch, objects, "rollback", "41", "--digest", digest, "--wait")[0] == 0
    assert objects.weights["spec"]["version"] == "41"
    assert objects.weights["spec"]["digest"] == digest
    assert run(monkeypatch, objects, "retry", "--wait")[0] == 0
    assert objects.weights["metadata"]["annotations"]["rlfleet.dev/retry"]
    assert run(monkeypatch, objects, "suspend")[0] == 0
    assert objects.weights["spec"]["suspend"] is True
    assert run(monkeypatch, objects, "resume")[0] == 0
    assert objects.weights["spec"]["suspend"] is False


def test_a_change_prints_its_outcome_as_data(monkeypatch):
    objects = FakeObjects()

    _, published, _ = run(monkeypatch, objects, "publish", "43", "--wait", "-o", "json")
    _, back, _ = run(monkeypatch, objects, "rollback", "42", "--wait", "-o", "yaml")
    _, requested, _ = run(monkeypatch, objects, "retry", "-o", "json")

    found = json.loads(published)
    assert (found["name"], found["version"], found["applied"]) == ("policy", "43", True)
    assert found["workers"]["applied"] == 4
    assert found["timings"]["totalSeconds"] == 1.9
    assert yaml.safe_load(back)["version"] == "42"
    assert json.loads(requested)["applied"] is False


# --- pods and writers -----------------------------------------------------------------------------


def test_a_pod_is_shown_with_its_problem(monkeypatch):
    objects = Recorded("applied")
    quarantined, draining, waiting, gone = objects.pods
    quarantined["metadata"]["annotations"] = {"rlfleet.dev/quarantine": "{}"}
    draining["metadata"]["annotations"] = {"rlfleet.dev/drain": "{}"}
    waiting["status"] = {
        "containerStatuses": [
            {"name": "worker", "restartCount": 3, "state": {"waiting": {"reason": "ErrImagePull"}}}
        ]
    }
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:17:00Z"
    present(objects.fleet)["status"]["laggards"] = [
        {"pod": "policy-0", "state": "broken", "reason": "Quarantined", "version": "1"}
    ]

    _, out, _ = run(monkeypatch, objects, "workers", "-o", "json")

    pods = json.loads(out)["pods"]
    assert [one["status"] for one in pods] == [
        "Quarantined", "Draining", "ErrImagePull", "Terminating",
    ]  # fmt: skip
    assert [one["version"] for one in pods] == ["1", "2", None, "2"]
    assert [one["restarts"] for one in pods] == [0, 0, 3, 0]


def test_workers_are_shown_without_the_right_to_list_pods(monkeypatch):
    objects = Recorded("applied")
    objects.answers[f"GET {PODS}"] = Forbidden("pods is forbidden")

    code, out, err = run(monkeypatch, objects, "workers")

    assert code == 0
    assert "4 serving" in out
    assert "pods is forbidden" in err


def test_history_has_the_outcome_and_the_writer_of_every_rollout(monkeypatch):
    objects = FakeObjects()
    began = {"startedAt": "2026-11-27T10:00:00Z", "totalSeconds": 4.5}
    refused = {
        "version": "43",
        "result": "Refused",
        "reason": "CheckpointTruncated",
        "message": "1 worker cannot load version 43",
        "requestedBy": "rlfleet-cli",
    }
    done = {"version": "42", "result": "Applied", "requestedBy": "trainer"}
    objects.write(history=[began | refused, began | done])

    _, out, _ = run(monkeypatch, objects, "history", "-o", "wide")

    first, second = out.splitlines()[1:]
    for word in (
        "Refused",
        "rlfleet-cli",
        "CheckpointTruncated",
        "1 worker cannot load version 43",
    ):
        assert word in first
    assert "trainer" in second


# --- watch ----------------------------------------------------------------------------------------


def test_watch_prints_each_change_until_the_version_is_applied(monkeypatch):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    acts = [lambda: objects.look("Loading"), lambda: None, objects.apply]
    monkeypatch.setattr(time, "sleep", lambda _: acts.pop(0)())

    code, out, _ = run(monkeypatch, objects, "watch", "--until-applied")

    assert code == 0
    phases = [line.split(": ")[1].split(",")[0] for line in out.splitlines()]
    assert phases == ["not seen yet", "Loading", "Applied"]


def test_watch_ends_when_the_weight_version_is_deleted(monkeypatch):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.look("Loading")
    acts = [objects.delete]
    monkeypatch.setattr(time, "sleep", lambda _: acts.pop(0)())

    code, out, err = run(monkeypatch, objects, "watch", "policy", "--until-applied")

    assert (code, acts) == (6, [])
    assert "Loading" in out
    assert "'policy'" in err


def test_watch_takes_a_refusal_from_before_a_retry_for_an_old_one(monkeypatch):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    objects.stall("FailureBudgetExceeded")
    assert run(monkeypatch, objects, "retry", "policy")[0] == 0
    acts = [lambda: objects.look("Loading"), objects.apply]
    monkeypatch.setattr(time, "sleep", lambda _: acts.pop(0)())

    assert run(monkeypatch, objects, "watch", "policy", "--until-applied")[0] == 0
    assert acts == []


def test_watch_ends_with_a_refusal(monkeypatch):
    code, out, err = run(monkeypatch, Recorded("stalled"), "watch", "--until-applied")

    assert code == 3
    assert "Stalled: CheckpointTruncated" in out
    assert TRUNCATED in " ".join(err.split())


@pytest.mark.parametrize("situation", SCREENS)
def test_the_screen_of_watch_has_its_golden_text(monkeypatch, situation):
    objects = Recorded(situation)
    weights = [WeightVersion.model_validate(objects.weights)] if objects.weights else []
    found = fleet_view(InferenceFleet.model_validate(objects.fleet), weights, objects.moment)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(FleetScreen(found))

    golden(console.export_text(), f"screen.{situation}.txt")


def test_a_large_fleet_is_drawn_to_scale():
    lines = list(grid(WorkerCounts(total=5000, serving=4999, broken=1)))

    assert sum(line.plain.count("■") for line in lines) == 1000
    assert sum(line.plain.count("✗") for line in lines) == 1


# --- what goes wrong ------------------------------------------------------------------------------


def test_the_name_of_a_fleet_means_its_base_weights(monkeypatch):
    objects = FakeObjects()
    present(objects.weights)["metadata"]["name"] = "other"

    assert run(monkeypatch, objects, "history", "policy")[0] == 0


def test_an_empty_namespace_names_the_next_step(monkeypatch):
    objects = FakeObjects()
    objects.delete()
    objects.fleet = None

    assert "rlfleet status -A" in run(monkeypatch, objects, "explain")[2]
    code, _, err = run(monkeypatch, objects, "status")
    assert (code, "rlfleet status -A" in err) == (0, True)


def test_several_weight_versions_need_a_name(monkeypatch):
    objects = FakeObjects()
    second = present(copy.deepcopy(objects.weights))
    second["metadata"]["name"] = "math"

    async def all_(kind: str) -> list[Any]:
        return [objects.weights, second]

    monkeypatch.setattr(objects, "all", all_)
    code, _, err = run(monkeypatch, objects, "suspend")

    assert code == 6
    assert "policy, math" in err


def test_a_missing_right_has_its_own_exit_code(monkeypatch):
    objects = FakeObjects()
    objects.failures.append(Forbidden("weightversions is forbidden; give the account list"))

    code, _, err = run(monkeypatch, objects, "suspend")

    assert code == 7
    assert "give the account list" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "set KUBECONFIG"), (("--context", "b"), "no context 'b'; it has: a")],
    ids=["no kubeconfig", "a wrong context"],
)
def test_a_missing_cluster_has_its_own_exit_code(monkeypatch, tmp_path, arguments, said):
    file = tmp_path / "config"
    if arguments:
        entry = {"name": "a", "context": {"cluster": "a", "user": "a"}}
        file.write_text(json.dumps({"current-context": "a", "contexts": [entry]}))
    monkeypatch.setenv("KUBECONFIG", str(file))

    done = CliRunner().invoke(app, ["status", *arguments])

    assert done.exit_code == EXIT_CODES[NotConfigured]
    assert said in " ".join(done.stderr.split())


def test_a_reason_is_found_in_any_case_and_a_similar_one_is_proposed(monkeypatch):
    found = run(monkeypatch, Recorded("applied"), "explain", "checkpointtruncated")
    similar = run(monkeypatch, Recorded("applied"), "explain", "ChekpointTruncated")

    assert found[0] == 0
    assert "CheckpointTruncated" in similar[2]


def test_a_reason_is_explained_without_a_cluster():
    done = CliRunner().invoke(app, ["explain", "CheckpointTruncated"])

    assert done.exit_code == 0
    assert "Publish the next version." in done.stdout


# --- the page -------------------------------------------------------------------------------------


def test_the_page_lists_every_verb_and_exit_code():
    page = (ROOT / "docs/how-to/use-the-cli.md").read_text()
    verbs = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}

    assert {v for v in verbs if f"`rlfleet {v}" not in page} == set()
    assert f"$ rlfleet status\n{(GOLDEN / 'status.applied.txt').read_text()}```" in page
    for error, code in EXIT_CODES.items():
        assert f"| {code} | `{error.__name__}` |" in page
    assert f"| {CHECKS_FAILED} |" in page


def test_the_command_on_the_page_runs(monkeypatch):
    page = (ROOT / "docs/how-to/use-the-cli.md").read_text()
    commands = re.findall(r"```sh\nrlfleet (.*?)\n```", page)
    (command,) = (c for c in commands if not c.startswith("--url"))  # test_by_url.py runs that

    assert run(monkeypatch, FakeObjects(), *shlex.split(command))[0] == 0


def test_every_error_of_the_client_has_an_exit_code():
    own = {e for e in RlfleetError.__subclasses__() if e.__module__ == "rlfleet.errors"}

    assert {e.__name__ for e in own} - {e.__name__ for e in EXIT_CODES} == {
        "IncompleteReply",
        "NotWritten",
        "UnusableWeights",
    }
