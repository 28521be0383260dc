"""Operator processes: they start, freeze, are suspended, lose the Lease and wake up."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

from tests.model.fake_pods import at
from tests.model.leader import IMAGE, Leader

from fleet_operator.core.actions import Admit
from fleet_operator.ports import Json
from fleet_operator.runtime.templates import Templates
from rlfleet_resources.fleet_status import FleetStatus

SLEEPERS_LOOKS = 6
"""So often a suspended leader looks around after it woke up, at most: its Lease is read every 2 s."""


class Operators:
    """Part of `Simulation`, on whose fields it works."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def start_operator(self) -> None:
        """A new leader: nothing in memory, a new term, and the wall clock of its host. Calls of the
        one before may still be in the network.
        """
        if self.leader not in self.former_leaders:
            self.wire.leave(self.leader)
        written = {"fleet": self.fleet_stored, **self.weights_stored}
        self.lease_term += 1
        self.leader = Leader(
            self.lease_term,
            self.fleet_stored,
            dict(self.weights_stored),
            written=written,
            seen_until=self.now,  # it has listed everything
            clock_ahead_seconds=self.clock_ahead_seconds,
            fleet_version=self.fleet_version,
            templates=Templates(self.revisions, IMAGE),  # what it uses
            pins=self.pins,
            number=self.leader.number + 1,
        )
        self.pods_before.append((self.now, self._pod_views()))
        self.note("operator", f"starts, term {self.leader.term}")
        self.promises.note_leader()

    def freeze_operator(self) -> None:
        """The leader stops in the middle, with what it was about to do in its hand."""
        self.note("operator", f"of term {self.leader.term} freezes")
        self.former_leaders.append(self.leader)
        self.start_operator()

    def suspend_operator(self, seconds: float) -> None:
        """The virtual machine of the leader is paused: its monotonic clock stops, and another
        process leads. `wake_former` wakes it up, with its old caches.
        """
        self.note("operator", f"of term {self.leader.term} is suspended for {seconds:.0f} s")
        sleeper = self.leader
        sleeper.looks_left = SLEEPERS_LOOKS if sleeper.desired else 0  # else it never looked
        self.former_leaders.append(sleeper)
        self.tick(seconds)
        sleeper.slept_seconds += seconds
        self.start_operator()

    def be_away(self, seconds: float, *, clock_ahead_seconds: float = 0.0) -> None:
        """No operator leads, or the API server is out of reach, which ends every leader; the next
        one runs on a host whose wall clock is wrong by this much.
        """
        self.note("fault", f"no operator for {seconds:.0f} s")
        self.absences.append((self.now, self.now + seconds))
        self.tick(seconds)
        self.clock_ahead_seconds, self.clock_set_at = clock_ahead_seconds, self.now
        self.start_operator()

    def set_clock(self, ahead_seconds: float) -> None:
        """The wall clock of the leader's host is set."""
        self.note("fault", f"the operator's clock is {ahead_seconds:+.0f} s off")
        self.clock_ahead_seconds = self.leader.clock_ahead_seconds = ahead_seconds
        self.clock_set_at = self.now

    def surely_since(self, begun: datetime, leader: Leader) -> float:
        """The seconds since a time that a leader has recorded, at least: what the clock said before it was set says nothing."""
        said = (at(self.now + leader.clock_ahead_seconds) - begun).total_seconds()
        return min(said, self.now - self.clock_set_at)

    def delete_lease(self) -> None:
        """A user deletes the Lease while no process runs; the next one counts terms from 1 again."""
        self.note("user", "deletes the Lease")
        self.former_leaders.clear()
        self.lease_term = 0
        self.lease_deleted = True
        self.start_operator()

    def roll_back_operator(self, chance: Random) -> None:
        """An operator of a later release has led, and has written some pins in a form of its own. One of this
        release leads again.
        """
        stored = self.fleet_stored.to_json()
        for pins in (stored["pinned"], stored["pinnedAdapters"]):
            for number, pin in enumerate(pins):
                if "was" not in pin and chance.random() < 0.4:
                    names = {n: pin[n] for n in ("adapter", "version", "runID") if n in pin}
                    pins[number] = names | {"was": pin}
        self.note("operator", "of a later release has led")
        self._store_pins(stored)

    def update_operator(self) -> None:
        """The operator of the later release is back, and writes its pins as this release reads them."""
        stored = self.fleet_stored.to_json()
        for pins in (stored["pinned"], stored["pinnedAdapters"]):
            pins[:] = [pin.get("was", pin) for pin in pins]
        self._store_pins(stored)

    def _store_pins(self, stored: Json) -> None:
        found = FleetStatus.read(stored)
        if found != self.fleet_stored:
            self.fleet_stored = found
            self.fleet_version += 1
            self.stored_before.append((self.now, self.fleet_version, found))
            self.start_operator()

    def read_lease(self, leader: Leader) -> None:
        """A leader whose call was refused as old reads the Lease; if it is not its own, it ends."""
        if not leader.epochs.is_term_pending:
            return
        ours = leader is self.leader
        leader.read_lease(ours=ours)
        if not ours:
            self.note("former", f"of term {leader.term} has lost the Lease and ends")
            leader.todo.clear()
            leader.looks_left = 0

    def wake_former(self, former: Leader) -> None:
        """A leader that was frozen or suspended continues where it was, unaware of its successor.

        A worker that has not heard of the successor yet would let itself be opened. There the epoch
        does not help, but that the process asks itself before every call whether it leads
        (`runtime.leader_guard`). One that was suspended also looks around again, and decides.
        """
        self.read_lease(former)
        if not former.todo and former.looks_left:
            former.looks_left -= 1
            self.wire.ask(former)
            self.revisions.fenced = True
            decision = former.decide(self.now)
            self.revisions.fenced = False
            calls = [c for c in decision.worker_calls if self._is_aware(c.pod_uid, former)]
            former.todo = deque(calls)
            self.note("former", f"of term {former.term} looks around")
        action = former.todo.popleft() if former.todo else None
        if isinstance(action, Admit) and not self._is_aware(action.pod_uid, former):
            action = None
        if action is not None:
            self.do(action, former)
        if not former.todo and not former.looks_left:
            self.former_leaders.remove(former)
        self.check()

    def _is_aware(self, uid: str, former: Leader) -> bool:
        """Whether a worker has heard of a newer leader."""
        worker = self.workers.get(uid)
        return worker is not None and worker.epoch is not None and worker.epoch.term > former.term
