"""Help, completion and names of the program, as shells and kubectl ask for them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest
import typer
import yaml
from tests.support.cli import Recorded, run
from tests.support.fake_objects import FakeObjects
from tests.support.programs import written_by
from tests.support.waiting import eventually
from typer.testing import CliRunner

import rlfleet.cli
from rlfleet.cli import candidates, cluster
from rlfleet.cli.app import VERBS, app
from rlfleet.errors import Forbidden

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
  - {name: here, context: {cluster: c, user: u}}
  - {name: there, context: {cluster: c, user: u}}
"""


@pytest.mark.parametrize(("verb", "example"), [(verb, line) for _, verb, line in VERBS])
def test_the_example_of_a_verb_is_a_command_line_of_it(verb, example):
    named, *arguments = shlex.split(example)
    commands: Any = typer.main.get_command(app)
    command = commands.get_command(None, named)

    assert named == verb.__name__
    command.make_context(named, arguments)  # an unknown option would be an error


@pytest.mark.parametrize(("verb", "example"), [(verb, line) for _, verb, line in VERBS])
def test_the_help_of_a_verb_has_its_example(verb, example):
    shown = CliRunner().invoke(app, [verb.__name__, "--help"], env={"COLUMNS": "200"}).stdout

    assert f"rlfleet {example}" in shown


def test_the_help_has_the_verbs_in_groups():
    shown = CliRunner().invoke(app, ["--help"]).stdout

    assert [shown.count(f"─ {group} ─") for group in dict.fromkeys(g for g, _, _ in VERBS)] == [
        1
    ] * 7


def completions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> list[str]:
    """The completions that kubectl gets for the words after `kubectl rlfleet`."""
    monkeypatch.setattr("sys.argv", ["kubectl_complete-rlfleet", *words])
    for name in ("_RLFLEET_COMPLETE", "_TYPER_COMPLETE_ARGS", "_TYPER_COMPLETE_FISH_ACTION"):
        monkeypatch.setenv(name, "")
    rlfleet.cli.complete_for_kubectl()
    *found, last = capsys.readouterr().out.splitlines()
    assert last == ":4"
    return [line.partition("\t")[0] for line in found]


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    made = Recorded("applied")
    made.answers["GET /api/v1/namespaces"] = {
        "items": [{"metadata": {"name": name}} for name in ("rl", "rl-2", "default")]
    }
    monkeypatch.setattr(cluster, "connect", lambda *_: made)
    return made


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sta"], ["status"]),
        (["explain", ""], ["policy"]),
        (["publish", "43", "po"], ["policy"]),
        (["publish", "43", "x"], []),
        (["status", "-n", "rl"], ["rl", "rl-2"]),
        (["drain", "policy-"], ["policy-0", "policy-1", "policy-2", "policy-3"]),
    ],
)
@pytest.mark.usefixtures("objects")
def test_kubectl_completes_verbs_names_namespaces_and_pods(monkeypatch, capsys, words, expected):
    assert completions(monkeypatch, capsys, *words) == expected


def test_contexts_are_completed_from_the_kubeconfig(monkeypatch, capsys, tmp_path):
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)

    found = completions(monkeypatch, capsys, "status", "--kubeconfig", str(file), "--context", "t")

    assert found == ["there"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--cont", ["--context"]),
        ("--context ", ["arn:aws:eks:eu:1:train", "here", r"my\ own:one"]),
        ("--context arn:aws:e", ["eks:eu:1:train"]),
        ("--context arn:", ["aws:eks:eu:1:train"]),
        ("--context=he", ["here"]),
        ("--context=arn:aws", ["aws:eks:eu:1:train"]),
        ("--context my", [r"my\ own:one"]),
        (r"--context my\ o", [r"my\ own:one"]),
        (r"--context my\ own:", ["one"]),
        ('--context "my o', ["my own:one"]),
        ("--context nothing", []),
    ],
)
def test_bash_completes_contexts_with_colons_and_spaces(tmp_path, typed, expected):
    """Bash splits words at colons, outside of quotes. Source: bash, COMP_WORDBREAKS."""
    config = yaml.safe_load(KUBECONFIG.replace("there", "arn:aws:eks:eu:1:train"))
    config["contexts"].append({"name": "my own:one", "context": {"cluster": "c"}})
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    program = tmp_path / "rlfleet"
    program.write_text(f"#!{sys.executable}\nfrom rlfleet.cli import main\nmain()\n")
    program.chmod(0o755)
    script = CliRunner().invoke(app, ["completion", "bash"]).output
    line = f"rlfleet status {typed}"
    words = [
        *re.findall(r'[:=]|"[^"]*|(?:\\.|[^\s:="])+', line),
        *([""] if line.endswith(" ") else []),
    ]
    asked = "\n".join(
        [
            script,
            f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}",
            f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
            f'_rlfleet_completion {program} && printf "%s\\n" "${{COMPREPLY[@]}}"',
        ]
    )

    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "config")}
    found = written_by(["bash", "--norc", "-c", asked], env=environment, timeout=60)

    assert [one for one in found.splitlines() if one] == expected


@pytest.mark.parametrize("entry", ["main", "complete_for_kubectl"])
def test_ctrl_c_during_a_completion_prints_nothing(tmp_path, entry):
    """A shell waits for the credential plugin of a kubeconfig, and so does the user."""
    slow, begun = tmp_path / "slow", tmp_path / "begun"
    slow.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    slow.chmod(0o755)
    config = yaml.safe_load(KUBECONFIG)
    config["users"][0]["user"] = {"exec": {"apiVersion": "v1", "command": str(slow)}}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    asked = {
        "_RLFLEET_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": "rlfleet status ",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    words = ["status", ""] if entry == "complete_for_kubectl" else []
    # A process in the background of a script ignores SIGINT, and so would this one.
    obeys = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{obeys}; from rlfleet.cli import {entry}; {entry}()"
    program = [sys.executable, "-c", code, *words]
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "config")}
    if entry == "main":
        environment |= asked
    with subprocess.Popen(
        program,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as completing:
        try:
            eventually(begun.exists)
            completing.send_signal(signal.SIGINT)
            _, errors = completing.communicate(timeout=30)
        finally:
            os.killpg(completing.pid, signal.SIGKILL)

    assert errors == b""
    assert completing.returncode == 130


def test_a_cluster_that_refuses_or_does_not_answer_completes_nothing(monkeypatch, capsys):
    def refuse(*_: Any) -> FakeObjects:
        raise Forbidden("no")

    monkeypatch.setattr(candidates, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(cluster, "connect", refuse)

    assert completions(monkeypatch, capsys, "explain", "") == []


@pytest.mark.parametrize(
    ("program", "usage"),
    [("/usr/bin/kubectl-rlfleet", "kubectl rlfleet"), ("/usr/bin/rlfleet", "rlfleet")],
)
def test_help_names_the_program_as_it_was_called(monkeypatch, capsys, program, usage):
    monkeypatch.setattr("sys.argv", [program, "status", "--help"])

    with pytest.raises(SystemExit):
        rlfleet.cli.main()

    assert f"Usage: {usage} status" in capsys.readouterr().out


# --- papercuts ------------------------------------------------------------------------------------


def test_status_takes_a_name(monkeypatch):
    code, out, _ = run(monkeypatch, Recorded("applied"), "status", "policy")

    assert (code, out.count("policy")) == (0, 2)  # the fleet and its WeightVersion


@pytest.mark.parametrize("more", [[], ["-A"]])
def test_status_of_an_unknown_name_names_similar_ones(monkeypatch, more):
    code, out, err = run(monkeypatch, Recorded("applied"), "status", "polici", *more)

    assert (code, out) == (6, "")
    assert "did you mean policy?" in err


def test_a_dead_server_ends_publish_within_its_timeout(monkeypatch):
    objects = FakeObjects()
    begun = objects.now
    objects.failures.extend(rlfleet.Unavailable("away") for _ in range(100))

    code, _, _ = run(monkeypatch, objects, "publish", "43", "policy", "--timeout", "3")

    assert code == 9
    assert objects.now - begun <= 3
