"""Failures of a fleet of real workers, under load, in the middle of rollouts.

`make test` loses an operator and a worker. `make test-all` plays most failures in one phase.
`make reliability` plays them in every phase and writes what was measured to docs/reliability.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chaos import table
from chaos.fleet import Fleet
from chaos.holds import Phase, held_in
from chaos.recovery import Recovery, play
from chaos.rows import ROWS, Row, node_lost
from fleet_operator.core.worker_calls import RENEW_BELOW_SECONDS
from stack.offline import audit

WRITE_TO = os.environ.get("RLFLEET_RELIABILITY_PAGE")
EVERY_TIME = ("operator killed", "worker killed at this work")
CASES = [
    pytest.param(
        row,
        phase,
        id=f"{row.name}, {phase}",
        marks=() if row.name in EVERY_TIME else pytest.mark.long,
    )
    for row in ROWS
    for phase in (row.phases if WRITE_TO else row.daily)
]


@dataclass
class Record:
    """The results of all these tests."""

    replies: Path
    recoveries: list[Recovery] = field(default_factory=list)


@pytest.fixture(scope="module")
def record(shared_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Has every token of all replies recomputed in the end."""
    record = Record(tmp_path_factory.mktemp("rows") / "replies.jsonl")
    yield record
    judged = audit(record.replies, shared_fleet.checkpoints())
    assert judged.returncode == 0, judged.stdout + judged.stderr
    if WRITE_TO:
        table.write(Path(WRITE_TO), record.recoveries, audited_tokens(judged.stdout))


def audited_tokens(report: str) -> int:
    """Sum of a column of the audit's table, which ends at the first empty line."""
    header, *rows = report.partition("\n\n")[0].splitlines()
    column = header.split().index("tokens")
    return sum(int(row.split()[column]) for row in rows)


@pytest.mark.parametrize(("row", "phase"), CASES)
def test_a_fleet_survives(fleet: Fleet, record: Record, row: Row, phase: Phase) -> None:
    recovery = play(fleet, row, phase, record.replies)
    record.recoveries.append(recovery)

    found = fleet.get(f"wv/{fleet.name}")
    assert found["status"]["appliedVersion"] == found["spec"]["version"]
    assert found["status"]["workersApplied"] == "2/2"
    assert recovery.lost == ()
    # The leader may have died just before it renewed a pause, which ends before a slow standby leads.
    ended = row.name == "operator killed" and recovery.seconds > RENEW_BELOW_SECONDS
    assert row.cuts or ended or recovery.retried == 0


@pytest.mark.long
def test_a_checkpoint_that_changes_after_staging_is_never_served(
    fleet: Fleet, record: Record
) -> None:
    """The bytes that were staged are served, and the version's digest stays theirs."""
    applied = fleet.applied()
    versions: list[str] = []

    def work() -> None:
        with held_in(fleet, "Pausing") as held:
            versions.append(held.version)
            file = fleet.folder(int(held.version)) / "model.safetensors"
            data = file.read_bytes()
            file.write_bytes(data[:-64] + bytes(64))
        fleet.eventually(lambda: fleet.applied() == versions[0], "the staged bytes are served")
        file.write_bytes(data)  # for the audit, which computes every token again

    samples = fleet.while_sampling(record.replies, work)

    assert samples.tokens.keys() <= {applied, *versions}
    assert samples.lost == []
    fleet.roll_out(fleet.next_step())


@pytest.mark.long
@pytest.mark.loses_a_node
def test_the_loss_of_a_node_is_reported_and_its_workers_come_back_elsewhere(
    fleet: Fleet, record: Record
) -> None:
    if fleet.cluster.status()["nodes"]["2"]["pid"] is None:
        pytest.skip("another run has taken the node")
    row = Row("node lost", ("Pausing",), (), node_lost, cuts=True)
    recovery = play(fleet, row, "Pausing", record.replies)
    record.recoveries.append(recovery)

    assert {p["spec"]["nodeName"] for p in fleet.pods().values()} == {"node-1"}
    assert recovery.lost == ()
