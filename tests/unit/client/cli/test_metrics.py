"""`rlfleet metrics`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support.cli import PODS, Recorded, golden, run
from tests.support.pages import ROOT

from rlfleet.errors import Forbidden

TEXT = """# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{model_name="m"} 3.0
rlfleet_worker_paused_seconds 0.0
"""


def worker(*containers: dict[str, Any]) -> Recorded:
    made = Recorded("applied")
    made.answers[f"GET {PODS}/policy-1"] = {"spec": {"containers": list(containers)}}
    made.answers[f"GET {PODS}/policy-1:8082/proxy/metrics"] = TEXT
    return made


WORKER = {
    "name": "worker",
    "ports": [{"name": "http", "containerPort": 8000}, {"name": "metrics", "containerPort": 8082}],
}


def test_metrics_come_through_the_api_server(monkeypatch):
    code, out, _ = run(monkeypatch, worker(WORKER), "metrics", "policy-1")

    assert code == 0
    golden(out, "metrics.txt")


def test_the_command_of_the_page_runs(monkeypatch):
    page = (ROOT / "docs/how-to/scrape-metrics.md").read_text()
    (command,) = re.findall(r"```sh\nrlfleet (metrics .*?)\n```", page)
    objects = worker(WORKER)
    objects.answers |= {
        key.replace("policy-1", "policy-0"): answer for key, answer in objects.answers.items()
    }

    assert run(monkeypatch, objects, *command.split())[:2] == (
        0,
        "".join(f"{line}\n" for line in TEXT.splitlines()[:2]),
    )


def test_a_terminal_gets_no_control_characters_of_a_worker(monkeypatch):
    objects = worker(WORKER)
    objects.answers[f"GET {PODS}/policy-1:8082/proxy/metrics"] = "a\x1b[2J 1\nb\x07 2\n"

    assert run(monkeypatch, objects, "metrics", "policy-1")[1] == "a[2J 1\nb 2\n"


def test_lines_are_chosen_by_a_text(monkeypatch):
    _, out, _ = run(monkeypatch, worker(WORKER), "metrics", "policy-1", "--contains", "paused")

    assert out == "rlfleet_worker_paused_seconds 0.0\n"


@pytest.mark.parametrize(
    "containers", [[], [{"name": "worker"}], [{"name": "database", "ports": WORKER["ports"]}]]
)
def test_other_pods_have_none(monkeypatch, containers):
    code, _, err = run(monkeypatch, worker(*containers), "metrics", "policy-1")

    assert code == 6
    assert "not a worker" in err


def test_the_right_that_is_missing_is_named(monkeypatch):
    objects = worker(WORKER)
    objects.answers[f"GET {PODS}/policy-1:8082/proxy/metrics"] = Forbidden(
        "no; give the account this right"
    )

    code, _, err = run(monkeypatch, objects, "metrics", "policy-1")

    assert code == 7
    assert "pods/proxy" in err
