"""Workers with engines that read a version from each other: the same tokens, with a store that is gone."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.support.checkpoints import copy_of
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

from free_ports import free_port


@pytest.mark.long
def test_workers_take_a_version_from_each_other_when_store_and_parent_are_gone(
    weights: Weights, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    path = copy_of(weights.b, root / "step_1")
    ports = [free_port() for _ in range(3)]
    with ExitStack() as running:
        first, second, third = (
            running.enter_context(
                WorkerProcess(
                    tmp_path / str(number),
                    model=weights.a,
                    roots=[root],
                    options=[f"--peer-port={port}"],
                    environment={"RLFLEET_POD_UID": f"pod-{number}"},
                )
            )
            for number, port in enumerate(ports)
        )
        for worker in (first, second, third):
            worker.wait_until_up()
            worker.must("admit", version="base")

        def peer(number: int) -> dict[str, Any]:
            return {"host": "127.0.0.1", "port": ports[number], "pod_uid": f"pod-{number}"}

        state = first.swap("1", path)
        tokens, digest = first.greedy(), state["digest"]
        assert state["peers"]["serves"] == [digest]
        shutil.rmtree(root)

        state = second.stage("1", path, digest=digest, peers=[peer(0)])
        assert state["staged"]["read_from"] == "pod-0"
        _load(second)
        first.kill()
        # The parent is named first, and has ended.
        state = third.stage("1", path, digest=digest, peers=[peer(0), peer(1)])
        assert state["staged"]["read_from"] == "pod-1"
        assert [each["pod_uid"] for each in state["peers"]["refused"]] == ["pod-0"]
        _load(third)

        for worker in (second, third):
            assert worker.state()["digest"] == digest
            assert worker.greedy() == tokens
        assert third.metric("rlfleet_worker_stage_peer_bytes_total") > 0
        assert third.state()["timings"]["peer_bytes"] > 0
        assert third.metric("rlfleet_worker_stage_read_bytes_total") == 0
        eventually(lambda: not _serves(ports[0]))


def _load(worker: WorkerProcess) -> None:
    worker.must("pause", mode="keep", lease_seconds=60)
    worker.must("load", version="1")
    worker.must("resume", version="1")


def _serves(port: int) -> bool:
    """Whether any process still listens on a peer port."""
    wanted = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    return any(
        line.split()[1].endswith(wanted) and line.split()[3] == "0A"
        for line in lines.splitlines()[1:]
        if len(line.split()) > 3
    )
