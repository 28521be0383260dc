"""Three real workers that read deltas from each other, under load, with failures.

`make test` kills a parent. `make reliability` plays all rows and writes a part of docs/reliability.md.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.test_failure_rows import audited_tokens
from tests.support import damage, slime_deltas

import stack
from chaos import table
from chaos.delta_rows import ANCHORS, DELTA_ROWS, LAST, RUN, WORKERS, DeltaFleet
from chaos.recovery import Recovery, play
from chaos.rows import Row
from chaos.setup import RECYCLE_WINDOW_SECONDS
from chaos.store import mount_store
from devcluster import Cluster
from rlfleet.deltas.between import write_between
from stack.fleets import WEIGHTS_ROOT
from stack.offline import audit, write_checkpoints

NAME, NAMESPACE = "deltas", "rl-deltas"
CHANGED_SHARE = 0.01
WRITE_TO = os.environ.get("RLFLEET_RELIABILITY_PAGE")
CASES = [
    pytest.param(row, id=row.name, marks=() if row.daily else pytest.mark.long)
    for row in DELTA_ROWS
]


@dataclass
class Record:
    """The results of all these tests."""

    replies: Path
    recoveries: list[Recovery] = field(default_factory=list)


def write_versions(folder: Path) -> dict[str, str]:
    """Write `model`, all versions in full in `full`, and what is published of them in `RUN`.

    Even versions are deltas as slime writes them, odd ones have our form.

    Returns: version → digest of the result, of those in our form.
    """
    write_checkpoints({folder / "model": {"seed": 0}})
    digests: dict[str, str] = {}
    before = folder / "model"
    for version in range(1, LAST + 1):
        new = folder / "full" / f"step_{version}"
        out = folder / RUN / new.name
        shutil.copytree(before, new)
        damage.edit_tensors(new, lambda tensors, seed=version: change(tensors, seed))
        if version in ANCHORS:
            shutil.copytree(new, out)
        elif version % 2:
            names = {"version": str(version), "base_version": str(version - 1)}
            done = write_between(before, new, out, **names, begun=lambda _: lambda _: None)
            digests[str(version)] = done.result_digest
        else:
            form = {"encoding": ("xor", "overwrite")[version // 2 % 2]}
            slime_deltas.write_delta(
                before, new, out, version=version, base_version=version - 1, **form
            )
        before = new
    return digests


def change(tensors: damage.Tensors, seed: int) -> None:
    """Let a share of the elements of each tensor change places."""
    chance = np.random.default_rng(seed)
    for name, (dtype, shape, content) in tensors.items():
        values = np.frombuffer(content, "<u2").copy()
        chosen = chance.choice(len(values), max(2, int(len(values) * CHANGED_SHARE)), replace=False)
        values[chosen] = values[np.roll(chosen, 1)]
        tensors[name] = (dtype, shape, values.tobytes())


@pytest.fixture(scope="module")
def deltas(cluster: Cluster) -> Iterator[DeltaFleet]:
    folder = cluster.folder / "deltas"
    folder.mkdir()
    digests = write_versions(folder)
    folder.chmod(0o755)
    cluster.kubectl("create", "namespace", NAMESPACE)
    fleet = DeltaFleet(
        cluster, folder, itertools.count(2), name=NAME, namespace=NAMESPACE, digests=digests
    )
    made = stack.fleet_manifest(NAME, replicas=WORKERS)
    made["spec"]["model"]["source"]["path"] = f"{WEIGHTS_ROOT}/model"
    made["spec"]["weights"]["peers"] = {"enabled": True}
    made["spec"]["recycle"] = {"windowSeconds": RECYCLE_WINDOW_SECONDS}
    version = stack.weights_manifest(NAME, fleet=NAME, version="1")
    version["spec"]["source"]["path"] = f"{WEIGHTS_ROOT}/{RUN}/step_{{version}}"
    fleet.apply(*stack.weights_volume(mount_store(cluster, folder), NAMESPACE), made, version)
    yield fleet
    fleet.kubectl("delete", "ifl,wv", NAME)


@pytest.fixture(scope="module")
def record(deltas: DeltaFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Has every token of all replies recomputed in the end."""
    record = Record(tmp_path_factory.mktemp("rows") / "replies.jsonl")
    yield record
    full = deltas.weights / "full"
    judged = audit(record.replies, {str(n): full / f"step_{n}" for n in range(1, LAST + 1)})
    assert judged.returncode == 0, judged.stdout + judged.stderr
    if WRITE_TO:
        table.write_deltas(Path(WRITE_TO), record.recoveries, audited_tokens(judged.stdout))


@pytest.fixture(scope="module")
def collector(deltas: DeltaFleet) -> None:
    """The chart's collector, which runs when a row starts it. It sees the volume where workers do."""
    values = {
        "namespace": NAMESPACE,
        "volume.hostPath.path": deltas.weights,
        "mountPath": WEIGHTS_ROOT,
        "runAsUser": os.getuid(),
        "graceSeconds": 75,
        "suspend": "true",
    }
    stack.install(
        deltas.cluster, *(f"collectors[0].{key}={value}" for key, value in values.items())
    )


@pytest.mark.parametrize("row", CASES)
def test_a_fleet_of_deltas_survives(
    deltas: DeltaFleet, record: Record, row: Row, request: pytest.FixtureRequest
) -> None:
    if row is DELTA_ROWS[-1]:
        request.getfixturevalue("collector")
    recovery = play(deltas, row, row.phases[0], record.replies)
    record.recoveries.append(recovery)

    found = deltas.get(f"wv/{NAME}")
    assert found["status"]["appliedVersion"] == found["spec"]["version"]
    assert found["status"]["workersApplied"] == f"{WORKERS}/{WORKERS}"
    assert recovery.lost == ()
    assert row.cuts or recovery.retried == 0
