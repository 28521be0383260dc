"""Every history of a small fleet from version 1 to version 2 with at most two faults.

A history is a choice of at most two moments and of one fault at each. Moments are the steps of the
operator: every look around, every call and every write. Faults:

    the operator dies; and for each worker: it dies · it hangs · its next answer is lost, the work
    done · its engine breaks at the load · its copy of the version is no good

With M moments and k faults there are 1 + M·k + C(M,2)·k² histories. Many of them meet in the same
moment and continue alike, so each moment is played once. The sum over all ways must equal that
number, which shows that none is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

from tests.model.simulator import Simulation
from tests.model.snapshots import copied, essence

from fleet_operator.api.weights import RolloutPhase

REST_SECONDS = 5.0
"""Steps take a millisecond; while there is nothing to do it passes in these pieces."""
LONGEST_WAY = 600
"""Steps until a fleet does nothing new any more."""

Fault = Callable[[Simulation], None]


def _on(ordinal: int, action: Callable[[Simulation, int], None]) -> Fault:
    def fault(fleet: Simulation) -> None:
        if any(p.ordinal == ordinal for p in fleet.pods.values()):
            action(fleet, ordinal)

    return fault


def _mute(fleet: Simulation, ordinal: int) -> None:
    fleet.pod(ordinal).mute = fleet.pod(ordinal).suspect = True


def faults_of(workers: int) -> list[Fault]:
    """The faults of a fleet of so many workers."""
    found: list[Fault] = [Simulation.start_operator]
    for ordinal in range(workers):
        found += [
            _on(ordinal, lambda fleet, n: fleet.kill(fleet.pod(n))),
            _on(ordinal, lambda fleet, n: fleet.hang(fleet.pod(n))),
            _on(ordinal, _mute),
            _on(ordinal, lambda fleet, n: fleet.will_break("2", fleet.pod(n))),
            _on(ordinal, lambda fleet, n: fleet.spoil("2", fleet.pod(n))),
        ]
    return found


class Explorer:
    """Goes through all histories of one fleet.

    Fields:
        moments: M, as many as the history without a fault has.
        went: moments that were gone through.
    """

    def __init__(self, workers: int) -> None:
        self.start = Simulation(seed=0, replicas=workers)
        self.start.shuffles = False
        self.start.settle()
        self.start.log.clear()
        self.start.publish("2")
        self.counts: dict[tuple[object, ...], int] = {}
        self.good: set[object] = set()
        self.went = 0
        self.faults = faults_of(workers)
        self.moments = self._moments()

    def expected(self, most_faults: int = 2) -> int:
        """How many histories there are."""
        k = len(self.faults)
        return sum(comb(self.moments, faults) * k**faults for faults in range(most_faults + 1))

    def explore(self, most_faults: int = 2) -> int:
        """Go through them. Returns: how many these were."""
        return self._count(self.start, 0, most_faults)

    def _count(self, fleet: Simulation, moment: int, left: int) -> int:
        if left == 0 or moment == self.moments:
            self._end(fleet)
            return 1
        key = (essence(fleet), moment, left)
        if key not in self.counts:
            onwards = copied(fleet)
            self._step(onwards)
            total = self._count(onwards, moment + 1, left)
            for fault in self.faults:
                branch = copied(fleet)
                fault(branch)
                self._step(branch)
                total += self._count(branch, moment + 1, left - 1)
            self.counts[key] = total
        return self.counts[key]

    def _step(self, fleet: Simulation) -> None:
        self.went += 1
        leader = fleet.leader
        if leader.todo:
            fleet.tick(0.001)
            fleet.act()
        else:
            before = leader.decision
            if before is not None and not (before.worker_calls or before.pod_actions):
                fleet.tick(REST_SECONDS)
            fleet.decide()

    def _end(self, fleet: Simulation) -> None:
        """Continue with the faults until nothing new happens, and then without them."""
        for faulty in (True, False):
            if not self._go(fleet, faulty=faulty):
                return
            fleet = copied(fleet)
            fleet.mend()

    def _go(self, fleet: Simulation, *, faulty: bool) -> bool:
        """Returns: whether these moments are new; else their end is known to be good."""
        way: set[object] = set()
        for _ in range(LONGEST_WAY):
            key = (faulty, essence(fleet))
            if key in self.good:
                self.good |= way
                return False
            if key in way:
                break
            way.add(key)
            self._step(fleet)
        else:
            fleet.fail(6, "it comes to no end")
        if not faulty and not fleet.converged() and fleet.stalled is None:
            fleet.fail(6, "it ends neither on the version nor with a word")
        self.good |= way
        return True

    def _moments(self) -> int:
        fleet, count = copied(self.start), 0
        while fleet.weights.phase is not RolloutPhase.APPLIED or fleet.leader.todo or count == 0:
            self._step(fleet)
            count += 1
        return count
