"""Promise 17 on a simulated fleet.

17. A version with the files of an earlier one of its run is reported: `WeightsUnchanged` has the reason
    `SameFiles` when it is Ready. The same holds for each adapter. No other version is reported so. The
    weights that a fleet starts with belong to no run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType

if TYPE_CHECKING:
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

Pinned = tuple[str, str | None, str]
"""An adapter, or nothing for the base weights, a run and a version."""


class SameFiles:
    """Fields:

    since: pins of the leader's status, read or not, and the number of pins that came before.
    digests: versions that ever had a digest, by adapter, run and digest. The first one is that which had it first.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.since: dict[Pinned, int] = {}
        self.digests: dict[tuple[str, str | None, str], list[str]] = {}
        self.seen = 0

    def check(self, leader: Leader) -> None:
        """The leader has decided."""
        pins = self._note_pins(leader)
        desired = leader.desired
        for uid, asked in desired.weights if desired is not None else ():
            spec, status = asked.view(uid).spec, leader.weights.get(uid)
            if status is None or not status.is_about(spec.version, spec.run_id):
                continue
            ready = condition_of(status.conditions, ConditionType.READY)
            is_ready = ready is not None and ready.status == "True"
            key = (spec.adapter, spec.run_id, spec.version)
            found = condition_of(status.conditions, ConditionType.WEIGHTS_UNCHANGED)
            warned = found is not None and found.reason is ConditionReason.SAME_FILES
            if is_ready and not warned and (twin := self._earlier(key, pins)):
                self.sim.fail(17, f"{key} has the files of {twin}, and nothing says so")
            others = set(self.digests.get((*key[:2], pins.get(key, "")), ())) - {spec.version}
            if warned and not others:
                self.sim.fail(17, f"{key} is reported to have the files of another version")

    def _note_pins(self, leader: Leader) -> dict[Pinned, str]:
        status, start = leader.fleet, leader.observed and leader.observed.spec.model.version
        pins: dict[Pinned, str] = {}
        for pin in reversed(status.pinned):
            if (pin.version, pin.run_id) != (start, None):
                pins["", pin.run_id, pin.version] = pin.digest
        for adapter in reversed(status.pinned_adapters):
            pins[adapter.adapter, adapter.run_id, adapter.version] = adapter.digest
        unread = [e.raw for e in status.unread.entries]  # the pins are there, and were before
        unread_keys = {(r.get("adapter", ""), r.get("runID"), r["version"]) for r in unread}
        there = pins.keys() | unread_keys
        self.since = {key: n for key, n in self.since.items() if key in there}
        for key, digest in pins.items():
            self.seen += 1
            self.since.setdefault(key, self.seen)
            had_it = self.digests.setdefault((*key[:2], digest), [])
            had_it += [key[2]] if key[2] not in had_it else []
        for own in (*status.pinned, *status.pinned_adapters):
            named = (getattr(own, "adapter", ""), own.run_id, own.digest)
            others = set(self.digests.get(named, ())) - {own.version}
            if own.same_as is not None and own.same_as not in others:
                self.sim.fail(17, f"{own.version} of {own.run_id} is noted to be {own.same_as}")
        return pins

    def _earlier(self, key: Pinned, pins: dict[Pinned, str]) -> Pinned | None:
        """A version of the same run with the same digest, whose pin was there before. If the first version that had
        the files comes back after its pin was dropped, it is not their copy.
        """
        if key not in pins or self.digests[(*key[:2], pins[key])][0] == key[2]:
            return None
        earlier = (
            other
            for other, digest in pins.items()
            if other[:2] == key[:2] and digest == pins[key] and self.since[other] < self.since[key]
        )
        return next(earlier, None)
