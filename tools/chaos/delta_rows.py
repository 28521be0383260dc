"""Failures of three workers that read deltas from each other (`spec.weights.peers`).

They are played in this order, since each continues the chain of the one before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chaos.fleet import Fleet, NotInTimeError
from chaos.holds import Phase, held_in, stopped_process
from chaos.processes import signal_worker
from chaos.rows import Row

WORKERS = 3
ANCHORS = (1, 10)
"""Versions in full. Version 10 follows a rollback, after which a trainer has no base at hand."""
LAST = 12
RUN = "run"
"""Folder of the versions in the store."""
COLLECTOR = "rlfleet-collector"
_FROM_STORE = "rlfleet_worker_stage_read_bytes_total"
_FROM_PEERS = "rlfleet_worker_stage_peer_bytes_total"
_JOIN_SECONDS = 180


@dataclass
class DeltaFleet(Fleet):
    """A fleet whose versions are in `RUN`.

    Fields:
        digests: version → digest of its result, as far as its writer knows it.
    """

    digests: dict[str, str] = field(default_factory=dict)

    def publish(self, version: str, **spec: Any) -> None:
        """Patch the WeightVersion, with the digest if the writer of the version knows it."""
        super().publish(version, **{"digest": self.digests.get(version), **spec})


def _read(fleet: Fleet, pod: str) -> tuple[float, float]:
    """Bytes that the process of a worker has read from the store, and from peers."""
    return fleet.counted(pod, _FROM_STORE), fleet.counted(pod, _FROM_PEERS)


def _versions_in_a_row(fleet: Fleet, _: Phase) -> None:
    """One delta in each form. Of the three workers, one reads a delta, and two read from peers."""
    for _form in ("slime", "own"):
        reads = fleet.roll_out(fleet.next_step())["storeReads"]
        if (reads["workers"], reads["peerWorkers"]) != (1, WORKERS - 1):
            raise AssertionError(f"the workers have read {reads}")
    # The base of the first delta was in no memory: workers start on files.
    # With digests in it, peers pass on the delta itself.
    if max(reads["bytes"], reads["peerBytes"] / (WORKERS - 1)) >= reads["sizeBytes"] / 5:
        raise AssertionError(f"a delta has a fifth of the bytes of the version: {reads}")


def _parent_killed(fleet: Fleet, _: Phase) -> None:
    """The last worker is to read from the first one, which is killed before it does."""
    parent, _other, child = sorted(fleet.pods())
    before = _read(fleet, child)
    version = str(fleet.next_step())
    with stopped_process(fleet, child, "worker"):
        fleet.publish(version)
        fleet.eventually(lambda: _staged(fleet, version) == WORKERS - 1, "two workers have staged")
        signal_worker(fleet, parent, "worker", "SIGKILL")
    fleet.eventually(lambda: fleet.version_of(child) == version, f"{child} has loaded {version}")
    after = _read(fleet, child)
    if after[0] > before[0] or after[1] <= before[1]:
        raise AssertionError(f"{child} has read {after} bytes after {before}: not from its peer")


def _staged(fleet: Fleet, version: str) -> int:
    status = fleet.get(f"wv/{fleet.name}").get("status", {})
    return int(status["workers"]["staged"]) if status.get("desiredVersion") == version else 0


def _worker_killed(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase) as held:
        signal_worker(fleet, held.waiting, "worker", "SIGKILL")


def _joiner_in_mid_chain(fleet: Fleet, _: Phase) -> float:
    """A fourth worker joins while the fleet serves a delta, and reads all of it from a peer."""
    version = fleet.roll_out(fleet.next_step())["appliedVersion"]
    begun = time.monotonic()
    fleet.patch_fleet({"spec": {"replicas": WORKERS + 1}})
    _until_from_a_peer(fleet, f"{fleet.name}-{WORKERS}", version)
    fleet.patch_fleet({"spec": {"replicas": WORKERS}})
    return begun


def _store_lost(fleet: Fleet, _: Phase) -> float:
    """All versions are gone from the store when a worker starts again."""
    version = fleet.roll_out(fleet.next_step())["appliedVersion"]
    with _without_store(fleet):
        return _killed(fleet, version)


def _killed(fleet: Fleet, version: str) -> float:
    """Kill a worker, and wait until it serves the version again, from a peer. Returns: when it was killed."""
    victim, begun = min(fleet.pods()), time.monotonic()
    signal_worker(fleet, victim, "worker", "SIGKILL")
    _until_from_a_peer(fleet, victim, version)
    return begun


@contextmanager
def _without_store(fleet: Fleet) -> Iterator[None]:
    run, lost = fleet.weights / RUN, fleet.weights / "lost"
    run.rename(lost)
    try:
        yield
    finally:
        lost.rename(run)


def _until_from_a_peer(fleet: Fleet, pod: str, version: str) -> None:
    """Wait until a new process serves the applied version, which it has read from a peer."""
    fleet.eventually(
        lambda: (fleet.version_of(pod), fleet.phase_of(pod)) == (version, "serving"),
        f"{pod} serves version {version}",
        seconds=_JOIN_SECONDS,
    )
    from_store, from_peers = _read(fleet, pod)
    if from_store or not from_peers:
        raise AssertionError(
            f"{pod} has read {from_store} bytes from the store, {from_peers} from peers"
        )


def _rolled_back_over_two_deltas(fleet: Fleet, _: Phase) -> None:
    before = fleet.applied()
    for _step in range(2):
        fleet.roll_out(fleet.next_step())
    fleet.publish(before, rollbackTo=before)
    fleet.wait_ready()
    if fleet.applied() != before:
        raise AssertionError(f"the fleet serves {fleet.applied()} after the rollback to {before}")
    fleet.roll_out(fleet.next_step())  # an anchor


def _old_versions_deleted(fleet: Fleet, _: Phase) -> float:
    """A collector deletes all chains but the last one, and a worker starts again after that."""
    for _step in range(2):
        # A version that the spec may go back to stays.
        fleet.publish(str(fleet.next_step()), retention={"keep": 2}, rollbackTo=None)
        fleet.wait_ready()
    fleet.kubectl("create", "job", "collect", f"--from=cronjob/{COLLECTOR}")
    done = ("job/collect", "--for=condition=Complete", "--timeout=180s")
    if fleet.kubectl("wait", *done, check=False).returncode:
        raise NotInTimeError(fleet.kubectl("logs", "job/collect", check=False).stdout)
    left = {int(made.name[5:]) for made in (fleet.weights / RUN).glob("step_*")}
    if left != set(range(ANCHORS[-1], LAST + 1)):
        raise AssertionError(f"the collector has left the versions {sorted(left)}")
    return _killed(fleet, fleet.applied())


DELTA_ROWS = (
    Row("versions in a row, in both forms", ("Serving",), ("Serving",), _versions_in_a_row),
    Row(
        "parent killed before its child has read",
        ("Staging",),
        ("Staging",),
        _parent_killed,
        cuts=True,
    ),
    Row("worker killed", ("Pausing",), (), _worker_killed, cuts=True),
    Row("new worker in the middle of a chain", ("Serving",), (), _joiner_in_mid_chain),
    Row("store lost, worker killed", ("Serving",), (), _store_lost, cuts=True),
    Row("rolled back over two deltas", ("Serving",), (), _rolled_back_over_two_deltas),
    Row("old versions deleted, worker killed", ("Serving",), (), _old_versions_deleted, cuts=True),
)
