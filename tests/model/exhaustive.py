"""Every history of a small fleet from version 1 to version 2 with at most two faults.

A history is a choice of at most two moments and of one fault at each. Moments are the steps of the
operator: every reconcile, every call and every write. Faults:

    the operator dies; and for each worker: it dies · it hangs · its next answer is lost after the work
    was done · its engine breaks at the load · its copy of the version is bad

With M moments and k faults there are 1 + M·k + C(M,2)·k² histories. Many of them reach the same state
and continue alike, so each state is simulated once. The number of paths through all states must equal
the number of histories, which shows that none is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

from tests.model.simulator import Simulation
from tests.model.snapshots import copied, essence

from rlfleet_resources.weights_status import RolloutPhase

IDLE_STEP_SECONDS = 5.0
"""A step takes a millisecond. While the operator has nothing to do, it takes this time."""
MAX_STEPS = 600
"""Largest number of steps until a fleet does nothing new."""

Fault = Callable[[Simulation], None]


def _on(ordinal: int, action: Callable[[Simulation, int], None]) -> Fault:
    def fault(fleet: Simulation) -> None:
        if any(p.ordinal == ordinal for p in fleet.pods.values()):
            action(fleet, ordinal)

    return fault


def _lose_answer(fleet: Simulation, ordinal: int) -> None:
    fleet.pod(ordinal).loses_answer = fleet.pod(ordinal).suspect = True


def faults_of(workers: int) -> list[Fault]:
    """The faults of a fleet of this size."""
    found: list[Fault] = [Simulation.start_operator]
    for ordinal in range(workers):
        found += [
            _on(ordinal, lambda fleet, n: fleet.kill(fleet.pod(n))),
            _on(ordinal, lambda fleet, n: fleet.hang(fleet.pod(n))),
            _on(ordinal, _lose_answer),
            _on(ordinal, lambda fleet, n: fleet.will_break("2", fleet.pod(n))),
            _on(ordinal, lambda fleet, n: fleet.spoil("2", fleet.pod(n))),
        ]
    return found


class Explorer:
    """Simulates all histories of one fleet.

    Fields:
        moments: M, the number of moments in the history without a fault.
        simulated: number of steps that were simulated.
    """

    def __init__(self, workers: int) -> None:
        self.start = Simulation(seed=0, replicas=workers)
        self.start.shuffles = False
        self.start.settle()
        self.start.log.clear()
        self.start.publish("2")
        self.counts: dict[tuple[object, ...], int] = {}
        self.good: set[object] = set()
        self.simulated = 0
        self.faults = faults_of(workers)
        self.moments = self._moments()

    def expected(self, most_faults: int = 2) -> int:
        """The number of histories, by the formula."""
        k = len(self.faults)
        return sum(comb(self.moments, faults) * k**faults for faults in range(most_faults + 1))

    def explore(self, most_faults: int = 2) -> int:
        """Simulate all histories. Returns: their number, by the paths that were taken."""
        return self._count(self.start, 0, most_faults)

    def _count(self, fleet: Simulation, moment: int, left: int) -> int:
        if left == 0 or moment == self.moments:
            self._end(fleet)
            return 1
        key = (essence(fleet), moment, left)
        if key not in self.counts:
            without_fault = copied(fleet)
            self._step(without_fault)
            total = self._count(without_fault, moment + 1, left)
            for fault in self.faults:
                branch = copied(fleet)
                fault(branch)
                self._step(branch)
                total += self._count(branch, moment + 1, left - 1)
            self.counts[key] = total
        return self.counts[key]

    def _step(self, fleet: Simulation) -> None:
        self.simulated += 1
        leader = fleet.leader
        if leader.todo:
            fleet.tick(0.001)
            fleet.act()
        else:
            before = leader.decision
            if (
                before is not None
                and not before.pod_actions
                and all(
                    leader.must_wait(call.pod_uid, call.work, fleet.now)
                    for call in before.worker_calls
                )
            ):
                fleet.tick(IDLE_STEP_SECONDS)
            fleet.decide()

    def _end(self, fleet: Simulation) -> None:
        """Continue with the faults until nothing new happens, and then without them."""
        for faulty in (True, False):
            if not self._go(fleet, faulty=faulty):
                return
            fleet = copied(fleet)
            fleet.mend()

    def _go(self, fleet: Simulation, *, faulty: bool) -> bool:
        """Returns: whether these states are new. Otherwise they are known to end well."""
        path: set[object] = set()
        for _ in range(MAX_STEPS):
            key = (faulty, essence(fleet))
            if key in self.good:
                self.good |= path
                return False
            if key in path:
                break
            path.add(key)
            self._step(fleet)
        else:
            fleet.fail(6, f"the fleet still changes after {MAX_STEPS} steps")
        if not faulty and not fleet.converged() and fleet.stalled is None:
            fleet.fail(6, "the fleet has not converged, and Stalled gives no reason")
        self.good |= path
        return True

    def _moments(self) -> int:
        fleet, count = copied(self.start), 0
        while fleet.weights.phase is not RolloutPhase.APPLIED or fleet.leader.todo or count == 0:
            self._step(fleet)
            count += 1
        return count
