"""Parts of the promises 1, 2, 5 and 9 that hold before anything goes wrong.

A leader may end after each call, each answer may be lost, and each call may come late. Histories with just this bad
luck are rare. So these are checked at each call and at each write of the fleet's status. The status holds all
that the next leader needs. A call that is on its way would break no promise, whenever it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleet_operator.core.actions import Admit, Apply, Load, Pause, PutLora, Resume
from fleet_operator.core.dropped_pins import may_be_dropped
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.worker_view import Standing
from fleet_worker.protocol import Phase

if TYPE_CHECKING:
    from tests.model.fake_pods import FakePod
    from tests.model.leader import Flight, Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.actions import WorkerCall
    from rlfleet_resources.fleet_status import FleetStatus

Key = tuple[str, str, str | None]
"""An adapter, or nothing for the base weights, a version and a run."""


class StoredFirst:
    """Fields:

    led_since: when the leader began to lead.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.led_since = 0.0

    def note_leader(self) -> None:
        """A new leader has started."""
        self.led_since = self.sim.now

    # --- calls --------------------------------------------------------------------------------------

    def note_sent(self, leader: Leader, call: WorkerCall) -> None:
        """A call is about to leave an operator."""
        if leader is not self.sim.leader:
            self._has_its_own_term(leader)
            return
        observed = leader.observed
        if observed is None or observed.is_external:
            return
        if isinstance(call, Load | Apply | Admit | PutLora):
            self._is_pinned(call)
        if isinstance(call, Apply | Admit | Resume):
            self._is_judged(leader, call)
        self._is_recorded(call, {w.pod.uid for w in observed.workers if w.state and w.state.pause})
        if isinstance(call, Admit | Resume) and self.sim.promises.agree:
            self._opens_alone(leader, call)

    def _is_judged(self, leader: Leader, call: Apply | Admit | Resume) -> None:
        """Clients get no weights that canaries should have judged and have not."""
        name, applied = (str(call.version), call.run_id), leader.fleet.applied
        is_served = applied is not None and (applied.version, applied.run_id) == name
        if leader.desired is not self.sim.desired or is_served:
            return
        if name in self.sim.promises.must_be_judged - self.sim.promises.judged:
            self.sim.fail(1, f"{call.work} on {call.pod_name}, and no canary has passed it")

    def _has_its_own_term(self, former: Leader) -> None:
        if former.epoch.term >= self.sim.leader.epoch.term and not self.sim.lease_deleted:
            self.sim.fail(5, f"a former leader sends calls with term {former.epoch.term}")

    def _is_pinned(self, call: Load | Apply | Admit | PutLora) -> None:
        """The digest of the weights is stored, so that their version means these files from now on."""
        adapter = call.adapter if isinstance(call, PutLora) else ""
        pins = dict(_pins_of(self.sim.fleet_stored))
        digest = pins.get((adapter, str(call.version), call.run_id))
        if digest is None or call.digest not in {None, digest}:
            what = f"{call.work} on {call.pod_name}"
            self.sim.fail(9, f"{what}, and the digest of the version is not stored ({digest})")

    def _is_recorded(self, call: WorkerCall, held: set[str]) -> None:
        """The next leader finds to what end a worker is away, or which other weights it serves. Where versions
        may mix, a paused worker resumes with the weights that it has, and waits for its turn.
        """
        stored = self.sim.fleet_stored
        begins = isinstance(call, Apply) or (isinstance(call, Pause) and call.pod_uid not in held)
        opens = isinstance(call, Resume | Admit)
        if not begins and not opens:
            return
        current = stored.transition
        known = [stored.applied, current, current.base if current is not None else None]
        names = {(w.version, w.run_id) for w in known if w is not None}
        is_known = current is not None
        mixes = current is not None and current.strategy != "Synchronized"
        if not isinstance(call, Pause) and not (mixes and isinstance(call, Resume)):
            is_known = (str(call.version), call.run_id) in names
        if not is_known:
            self.sim.fail(5, f"{call.work} on {call.pod_name}, and the status does not say why")

    def _opens_alone(self, leader: Leader, call: Admit | Resume) -> None:
        """No other worker may open at other weights, as far as the leader knows. A former leader may have
        called it. It refuses such a call only after one of this leader.
        """
        assert leader.observed is not None
        for worker in leader.observed.workers:
            pod, state = self.sim.pods.get(worker.pod.uid), worker.state
            if pod is None or state is None or pod.worker.started_at >= self.led_since:
                continue
            joins = worker.standing is Standing.CLOSED and state.phase is Phase.JOINING
            obeys_former = state.epoch is None or state.epoch.term < leader.term
            others = (state.version, state.run_id) != (call.version, call.run_id)
            if joins and obeys_former and others and pod.uid != call.pod_uid:
                what = f"{call.work} on {call.pod_name}"
                self.sim.fail(2, f"{what}, and {pod.name} may open at {state.version}")

    # --- calls on their way -------------------------------------------------------------------------

    def openings(self) -> Iterator[tuple[FakePod, tuple[str, str | None]]]:
        """Workers that an admission on its way would open now, and the weights that they have. A lost one
        counts: its leader cannot know that it is not late.
        """
        wire = self.sim.wire
        for flight in (*wire.flights(), *wire.lost):
            pod = self.sim.pods.get(flight.action.pod_uid)
            if pod is not None and flight.ticket is None and _would_open(flight, pod):
                yield pod, (str(pod.worker.label), pod.worker.run_id)

    # --- writes -------------------------------------------------------------------------------------

    def note_write(self, leader: Leader) -> None:
        """The API server is about to take a status of the fleet."""
        before, after = self.sim.fleet_stored, leader.fleet
        if leader.stored != before:
            self.sim.fail(5, f"the leader of term {leader.term} writes over what it has not read")
        if self.sim.desired.fleet_spec.weights.management == "External":
            return
        self._is_not_older(before, after)
        pins, kept = dict(_pins_of(before)), dict(_pins_of(after))
        for adapter, version, run in pins.keys() - kept.keys():
            weights = WeightsId(version, run)
            if not may_be_dropped(after.dropped_pins, weights, adapter=adapter):
                self.sim.fail(9, f"the pin of {adapter} {version} is dropped without a mark")

    def _is_not_older(self, before: FleetStatus, after: FleetStatus) -> None:
        """No status names older weights as applied than the stored one, unless the trainer asks for them."""
        promises = self.sim.promises
        old, new = (
            (s.applied.version, s.applied.run_id) if s.applied is not None else None
            for s in (before, after)
        )
        asked = promises.requested
        if old not in asked or new not in asked or any(p.grace for p in self.sim.pods.values()):
            return
        if asked.index(old) > max(n for n, name in enumerate(asked) if name == new):
            self.sim.fail(5, f"the applied version goes back from {old} to {new}")


def _pins_of(status: FleetStatus) -> Iterator[tuple[Key, str]]:
    for pin in reversed(status.pinned):
        yield ("", pin.version, pin.run_id), pin.digest
    for own in reversed(status.pinned_adapters):
        yield (own.adapter, own.version, own.run_id), own.digest


def _would_open(flight: Flight, pod: FakePod) -> bool:
    call, worker = flight.action, pod.worker
    if not isinstance(call, Admit) or worker.restarts != flight.restarts:
        return False
    if (call.version, call.run_id) != (worker.label, worker.run_id):
        return False
    if worker.epoch is not None and flight.epoch < worker.epoch:
        return False
    out = pod.quarantine or pod.drains_since is not None or pod.ended or pod.deleted_at is not None
    return worker.phase is Phase.JOINING and not out and not pod.problem
