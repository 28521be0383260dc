"""The failures that a fleet must survive. Each row holds the rollout in a phase, injects a fault, and
releases the rollout.

After each row every worker must serve the desired version again. A row lists the phases in which it can
be played.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from chaos.fleet import Fleet
from chaos.holds import PHASES, Phase, held_in
from chaos.network import answers_lost, leader_without_api_server, operators_without_workers
from chaos.processes import (
    NoSuchProcessError,
    leader_pod,
    signal_leader,
    signal_operator,
    signal_worker,
)
from chaos.store import store_hangs

Play = Callable[[Fleet, Phase], float | None]
"""Returns right after the fault; recovery is counted from then on. Or it waits for a part of the recovery, and
returns the time of the fault on the monotonic clock.
"""
API_SERVER = "kube-apiserver"
FAULT_SECONDS = 4.0
"""How long a fault lasts that ends by itself; a question times out after 3 s."""
PARTITION_SECONDS = 35.0
"""Longer than the lease of a pause, 30 s."""
LEADERLESS_SECONDS = 25.0
"""Longer than the operators' Lease and the takeover by a standby."""
FROZEN_SECONDS = 60.0


@dataclass(frozen=True)
class Row:
    """One kind of failure.

    Fields:
        phases: where it can be played.
        daily: where `make test-all` plays it; the others take minutes. Nowhere if it takes a
            minute by itself, or if the tests on a real control plane play it.
        cuts: it ends a worker's process, so that clients must ask again.
    """

    name: str
    phases: tuple[Phase, ...]
    daily: tuple[Phase, ...]
    play: Play
    cuts: bool = False


def _operator_killed(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase):
        signal_leader(fleet.cluster, "SIGKILL")


def _stuck_worker_killed(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase) as held:
        signal_worker(fleet, held.stuck, "worker", "SIGKILL")


def _waiting_worker_killed(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase) as held:
        signal_worker(fleet, held.waiting, "worker", "SIGKILL")


def _answers_late(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase):
        time.sleep(FAULT_SECONDS)


def _never_answers(fleet: Fleet, phase: Phase) -> None:
    """After its timeout the worker is left behind and recreated."""
    limits = {"timeouts": {"stageSeconds": 3, "pauseSeconds": 3}, "maxFailures": 1}
    with held_in(fleet, phase, rollout=limits) as held:
        signal_worker(fleet, held.stuck, "worker", "SIGSTOP")
        uid = fleet.pods()[held.stuck]["metadata"]["uid"]
        fleet.eventually(lambda: _is_out(fleet, held.stuck, uid), f"{held.stuck} is left behind")
        signal_worker(fleet, held.stuck, "worker", "SIGCONT")
    fleet.publish(held.version, rollout=None)


def _answer_lost(fleet: Fleet, phase: Phase) -> None:
    with ExitStack() as lost:
        with held_in(fleet, phase) as held:
            lost.enter_context(answers_lost(fleet, held.stuck))
        # The worker does its work now, and its answer is lost.
        time.sleep(FAULT_SECONDS)


def _api_server_gone(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase):
        fleet.cluster.kill(API_SERVER)
    fleet.cluster.restart(API_SERVER)


def _faster_than_it_loads(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase):
        for _ in range(4):
            fleet.publish(str(fleet.next_step()))


def _store_hangs(fleet: Fleet, phase: Phase) -> None:
    """Only staging needs the store: from then on a rollout must end while the store hangs."""
    with ExitStack() as hanging:
        with held_in(fleet, phase):
            hanging.enter_context(store_hangs(fleet))
        if phase == "Staging":
            time.sleep(FAULT_SECONDS)
        else:
            fleet.wait_whole()


def _operators_without_workers(fleet: Fleet, phase: Phase) -> None:
    """No pause is renewed and no call arrives for longer than the lease of a pause."""
    with ExitStack() as cut:
        with held_in(fleet, phase):
            cut.enter_context(operators_without_workers(fleet))
        time.sleep(PARTITION_SECONDS)


def _leader_without_api_server(fleet: Fleet, phase: Phase) -> None:
    """The leader must end before the other operator begins, though it reaches all workers."""
    with ExitStack() as cut:
        with held_in(fleet, phase):
            old = cut.enter_context(leader_without_api_server(fleet))
        _until_another_leads(fleet, old)
        time.sleep(LEADERLESS_SECONDS)


def _operator_frozen(fleet: Fleet, phase: Phase) -> None:
    """It wakes up with what it knew a minute ago, while another has led to a newer version."""
    begun = time.monotonic()
    with held_in(fleet, phase):
        old = leader_pod(fleet.cluster)
        signal_operator(fleet.cluster, old, "SIGSTOP")
    _until_another_leads(fleet, old)
    fleet.publish(str(fleet.next_step()))
    fleet.wait_ready()
    time.sleep(max(0.0, begun + FROZEN_SECONDS - time.monotonic()))
    with suppress(NoSuchProcessError):  # the kubelet may have ended it: its probe went unanswered
        signal_operator(fleet.cluster, old, "SIGCONT")


def _path_rewritten(fleet: Fleet, _: Phase) -> None:
    """Other weights are under the path of the applied version when a worker starts again.

    The worker must not be admitted, and the fleet must say why, until the files are restored.
    """
    version, victim = fleet.applied(), min(fleet.pods())
    with _written_over(fleet, version):
        signal_worker(fleet, victim, "worker", "SIGKILL")
        fleet.eventually(lambda: _is_reused(fleet), "VersionReused is reported", seconds=120)
        if fleet.phase_of(victim) == "serving":
            raise AssertionError(f"{victim} serves files that are not those of version {version}")


def _recreated_over_its_files(fleet: Fleet, _: Phase) -> None:
    """The files of the applied version are written over, and its WeightVersion is created again.

    All workers serve the version, and none of them has read the new files.
    """
    with _written_over(fleet, fleet.applied()):
        fleet.recreate()
        fleet.eventually(lambda: _is_reused(fleet), "VersionReused is reported", seconds=120)


@contextmanager
def _written_over(fleet: Fleet, version: str) -> Iterator[None]:
    """Other weights are under the path of a version meanwhile."""
    file = fleet.folder(int(version)) / "model.safetensors"
    rightful = file.read_bytes()
    file.write_bytes((fleet.folder(fleet.next_step()) / "model.safetensors").read_bytes())
    try:
        yield
    finally:
        file.write_bytes(rightful)


def _recreated_for_another_run(fleet: Fleet, _: Phase) -> None:
    """Another run begins at the number of the applied version, with other weights."""
    version = fleet.applied()
    before = fleet.digest_of_applied()
    run = fleet.begin_run(version)
    fleet.wait_whole()
    fleet.eventually(
        lambda: _applied(fleet) == (version, run), f"the fleet has taken version {version} of {run}"
    )
    if fleet.digest_of_applied() == before:
        raise AssertionError(f"version {version} of {run} is reported with the digest before")
    fleet.publish(str(fleet.next_step()), source={"path": fleet.source})


def _applied(fleet: Fleet) -> tuple[str, str]:
    applied = fleet.get(f"ifl/{fleet.name}")["status"]["applied"]
    return applied["version"], applied.get("runID", "")


def _until_another_leads(fleet: Fleet, old: str) -> None:
    fleet.eventually(
        lambda: leader_pod(fleet.cluster) not in ("", old), "another operator leads", seconds=60
    )


def _is_reused(fleet: Fleet) -> bool:
    found = (fleet.condition("Stalled", what) for what in ("", f"ifl/{fleet.name}"))
    return any(c is not None and c["reason"] == "VersionReused" for c in found)


def node_lost(fleet: Fleet, phase: Phase) -> None:
    """Cut the second node's power, and delete its Node once the operator asks for it.

    Until then the rollout continues without its workers. Not one of `ROWS`, since the node is lost.
    """
    with held_in(fleet, phase):
        fleet.cluster.kill_node(2)
    asks = "delete the Node"
    fleet.eventually(
        lambda: asks in _stalled(fleet),
        "the operator asks for the deletion of the Node",
        seconds=240,
    )
    fleet.cluster.kubectl("delete", "node", "node-2")


def _stalled(fleet: Fleet) -> str:
    condition = fleet.condition("Stalled", f"ifl/{fleet.name}")
    return condition["message"] if condition else ""


def _is_out(fleet: Fleet, pod: str, uid: str) -> bool:
    found = fleet.pods().get(pod)
    if found is None or found["metadata"]["uid"] != uid:
        return True
    return "deletionTimestamp" in found["metadata"]


ROWS = (
    Row("operator killed", PHASES, ("Loading",), _operator_killed),
    Row("worker killed at this work", PHASES, ("Loading",), _stuck_worker_killed, cuts=True),
    Row("worker killed after this work", ("Pausing",), (), _waiting_worker_killed, cuts=True),
    Row("worker answers late", PHASES, (), _answers_late),
    Row("worker never answers", ("Staging", "Pausing"), (), _never_answers, cuts=True),
    Row("answer lost after the work", PHASES, ("Loading",), _answer_lost),
    Row("API server gone", PHASES, ("Loading",), _api_server_gone),
    Row("newer versions arrive", PHASES, ("Resuming",), _faster_than_it_loads),
    Row("store hangs", PHASES, ("Loading",), _store_hangs),
    Row(
        "operators cut off from workers",
        PHASES,
        (),
        _operators_without_workers,
        cuts=True,
    ),
    Row("leader cut off from the API server", PHASES, (), _leader_without_api_server),
    Row("leader frozen for 60 s", PHASES, (), _operator_frozen, cuts=True),
    Row("path rewritten, worker killed", ("Serving",), ("Serving",), _path_rewritten, cuts=True),
    Row(
        "files written over, WeightVersion recreated",
        ("Serving",),
        ("Serving",),
        _recreated_over_its_files,
    ),
    Row(
        "WeightVersion recreated for another run",
        ("Serving",),
        ("Serving",),
        _recreated_for_another_run,
    ),
)
