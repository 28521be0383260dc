"""What users ask of status: versions per worker, since when, and which files must stay."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from tests.cluster.support.stage import FLEET, Stage
from tests.model.fake_state import digest_of


async def test_status_says_which_versions_serve_and_which_sources_must_stay(stage: Stage) -> None:
    await stage.start_operator()
    await stage.make_fleet(
        replicas=3, version="1", rollout={"strategy": "Rolling", "maxUnavailable": 1}
    )
    await stage.applied("1")
    first = await _status(stage)
    assert first["versions"] == [{"version": "1", "digest": digest_of("1"), "workers": 3}]
    assert _paths(first) == {"/weights/base", "/weights/step_1"}

    for worker in stage.kubelet.workers:
        worker.slow_seconds = 1.5
    await stage.publish("2")
    mixed = await stage.until(lambda: _differing(stage), "workers differ")
    assert sum(v["workers"] for v in mixed["versions"]) <= 3
    assert _paths(mixed) == {"/weights/base", "/weights/step_1", "/weights/step_2"}

    await stage.applied("2")
    second = await _status(stage)
    assert second["versions"] == [{"version": "2", "digest": digest_of("2"), "workers": 3}]
    assert _at(second) > _at(first)
    weights = (await stage.weights())["status"]
    assert weights["applied"]["appliedAt"] == second["applied"]["appliedAt"]
    # The one before it stays: a rollback would read it. What came before that may go.
    await stage.publish("3")
    await stage.applied("3")
    assert _paths(await _status(stage)) == {"/weights/base", "/weights/step_2", "/weights/step_3"}


async def test_the_columns_answer_without_a_describe(stage: Stage) -> None:
    await stage.start_operator()
    await stage.make_fleet(replicas=2, version="1")
    await stage.applied("1", replicas=2)

    fleet = await _table(stage, "ifl")
    weights = await _table(stage, "wv")

    assert (fleet["READY"], fleet["REPLICAS"], fleet["AVAILABLE"]) == ("True", "2", "2")
    assert fleet["ENDPOINT"] == f"http://{FLEET}.{stage.namespace}.svc:8000"
    assert (weights["READY"], weights["APPLIED"], weights["WORKERS"]) == ("True", "1", "2/2")
    assert float(weights["PAUSE(S)"]) >= 0
    for table in (fleet, weights):
        assert table["APPLIED FOR"].endswith("s")  # an age: how long it has been applied


async def _status(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = (await stage.fleet()).get("status", {})
    return found


async def _differing(stage: Stage) -> dict[str, Any] | None:
    status = await _status(stage)
    return status if len(status.get("versions", ())) == 2 else None


def _paths(status: dict[str, Any]) -> set[str]:
    return {s["source"]["path"] for s in status["sourcesInUse"]}


def _at(status: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(status["applied"]["appliedAt"])


async def _table(stage: Stage, kind: str) -> dict[str, str]:
    """What `kubectl get -o wide` prints of one object, by heading."""
    heading, row = (await stage.kubectl("get", kind, FLEET, "-o", "wide")).splitlines()
    columns = list(re.finditer(r"\S+(?: \S+)*", heading))
    ends = [*(c.start() for c in columns[1:]), len(row)]
    return {c[0]: row[c.start() : end].strip() for c, end in zip(columns, ends, strict=True)}
