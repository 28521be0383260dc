"""The failures that a fleet must survive, each a story: hold the rollout, break, let go.

After each the fleet must be whole again at the version that was asked for last, unless the row says
what a person is told instead. A row says in which phases it can be played.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from chaos.fleet import Fleet
from chaos.holds import PHASES, Phase, held_in
from chaos.network import answers_lost
from chaos.processes import signal_leader, signal_worker

Play = Callable[[Fleet, Phase], None]
"""Returns right after the fault; recovery is counted from then on."""
API_SERVER = "kube-apiserver"
FAULT_SECONDS = 4.0
"""How long a fault lasts that ends by itself; a question times out after 3 s."""


@dataclass(frozen=True)
class Row:
    """One kind of failure.

    Fields:
        phases: where it can be played.
        daily: where it is played with every run of the tests; the others take minutes.
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
    """Beyond its time-out it is left behind, and made anew."""
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
        # It does its work now, and nobody hears of it.
        time.sleep(FAULT_SECONDS)


def _api_server_gone(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase):
        fleet.cluster.kill(API_SERVER)
    fleet.cluster.restart(API_SERVER)


def _faster_than_it_loads(fleet: Fleet, phase: Phase) -> None:
    with held_in(fleet, phase):
        for _ in range(4):
            fleet.publish(str(fleet.next_step()))


def node_lost(fleet: Fleet, phase: Phase) -> None:
    """Cut the second node's power, and say so to the cluster once the operator asks for it.

    Until then the rollout goes on without its workers. Not one of `ROWS`: it is lost for good.
    """
    with held_in(fleet, phase):
        fleet.cluster.kill_node(2)
    asks = "delete the Node"
    fleet.eventually(lambda: asks in _stalled(fleet), "the operator asks a person", seconds=240)
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
    Row("worker answers late", PHASES, ("Pausing", "Resuming"), _answers_late),
    Row("worker never answers", ("Staging", "Pausing"), ("Pausing",), _never_answers, cuts=True),
    Row("answer lost after the work", PHASES, ("Pausing", "Loading"), _answer_lost),
    Row("API server gone", PHASES, ("Loading",), _api_server_gone),
    Row("newer versions arrive", PHASES, PHASES, _faster_than_it_loads),
)
