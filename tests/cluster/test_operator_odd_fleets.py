"""Invalid fleets that the API server accepts: each reports it, and other fleets are not affected."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

DEEP = 4000
"""The API server takes up to 10,000 levels; Python's own parser ends at 1,000 by default."""


@pytest.fixture
def _deep_objects_can_be_written() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * DEEP)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_deep_objects_can_be_written")
async def test_a_deeply_nested_overlay_is_refused_and_other_fleets_continue(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator(again=True)
    other = f"{workspace.namespace}-deep"
    await workspace.make_namespace(other)
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)

    overlay = json.loads('{"a":' * DEEP + "1" + "}" * DEEP)
    await workspace.make_fleet(replicas=1, namespace=other, podOverlay={"spec": overlay})

    async def the_reason() -> str:
        path = f"{GROUP}/namespaces/{other}/inferencefleets/{FLEET}"
        found = (await workspace.admin.get(path) or {}).get("status", {}).get("conditions", ())
        return "".join(c["message"] for c in found if c["reason"] == "InvalidSpec")

    message = await workspace.until(the_reason, "the reason is reported")
    await workspace.publish("2")
    await workspace.applied("2", replicas=2)

    assert "spec.podOverlay: nested deeper than 100 levels" in message
    assert operator.starts == 1
