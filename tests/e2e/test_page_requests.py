"""The requests of `connect-a-trainer.md`, run unchanged inside the cluster.

The names of the page are those of the fleet here, `policy` in the namespace `rl`. Its model and its
version are put in the place of the page's.
"""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import FLEET, NAMESPACE, Fleet
from tests.support.pages import starting_with

from stack.fleets import MODEL_NAME

REQUESTS = dict(block for block in enumerate(b for _, b in starting_with("curl http://")))
MODEL, VERSION = "qwen3-8b", "43"
"""Model and version in the page's requests."""


def ask(fleet: Fleet, command: str, version: str) -> tuple[int, str, dict[str, object]]:
    """Run a command of the page. Returns: status, headers in lower case, body."""
    assert f"http://{FLEET}.{NAMESPACE}.svc:8000/" in command
    script = command.replace("curl ", "curl -sSi ").replace(MODEL, MODEL_NAME)
    script = script.replace(VERSION, version)
    answer = fleet.cluster.exec(["bash", "-euo", "pipefail", "-c", script]).stdout
    head, _, body = answer.replace("\r\n", "\n").partition("\n\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


def test_the_page_has_two_requests() -> None:
    assert len(REQUESTS) == 2


@pytest.mark.parametrize("number", REQUESTS)
def test_a_request_of_the_page_is_answered(fleet: Fleet, number: int) -> None:
    applied = fleet.applied()
    status, head, reply = ask(fleet, REQUESTS[number], applied)

    assert status == 200, reply
    assert f"x-weight-version-start: {applied}" in head
    assert reply["model"] == MODEL_NAME
    assert ("nvext" in reply) == ("nvext" in REQUESTS[number])


def test_the_page_demands_weights_that_are_not_there(fleet: Fleet) -> None:
    (demanding,) = [r for r in REQUESTS.values() if "x-weight-version-min" in r]
    status, head, _ = ask(fleet, demanding, str(int(fleet.applied()) + 1))

    assert status == 409
    assert "\nretry-after: " in head
