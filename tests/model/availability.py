"""Promises 4 and 12: a planned change leaves enough workers serving and cuts no request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.desired import rollout_of

from fleet_operator.core.actions import Apply
from fleet_operator.core.percentages import at_most, unavailable_and_surge
from fleet_operator.core.pod_actions import BeginDrain, DeletePod, Quarantine
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType

if TYPE_CHECKING:
    from tests.model.fake_pods import FakePod
    from tests.model.leader import Flight, Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.decision import Decision
    from fleet_operator.core.observed import FleetObserved
    from fleet_operator.core.worker_view import WorkerView


class Availability:
    """Fields:

    taken: uids of pods that operators have taken away.
    held_back: revision → number of pods of other revisions that waited for a gate when its template
        was recorded, as far as the leader could know.
    planned: uid of a worker that a plan removes → since when, and its drain timeout in seconds.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.taken: set[str] = set()
        self.held_back: dict[str, int] = {}
        self.planned: dict[str, tuple[float, float]] = {}

    def note_status(self, leader: Leader) -> None:
        """The leader has decided a status: `Available` is True only if enough workers have clients, as
        far as it knows.
        """
        observed, found = (
            leader.observed,
            condition_of(leader.fleet.conditions, ConditionType.AVAILABLE),
        )
        if observed is None or found is None or found.status != "True":
            return
        spec = observed.spec
        least = max(1, spec.replicas - unavailable_and_surge(spec.update, spec.replicas)[0])
        serving = [w.pod.name for w in observed.workers if w.state and w.state.admitted]
        if not observed.is_external:
            assert leader.desired is not None
            longest = rollout_of(leader.desired).hold_seconds
            held = {w.pod.name for w in observed.workers if w.held_seconds > longest}
            serving = [name for name in serving if name not in held]
        if len(serving) < least:
            self.sim.fail(4, f"Available is True, and only {serving} of at least {least} serve")

    def note_decision(self, leader: Leader, decision: Decision) -> None:
        """No drain begins for a template whose pods cannot be created."""
        observed = leader.observed
        if observed is not None and not observed.is_external:
            self._idle_ones_go_first(observed, decision)
        if observed is None or observed.template is not None:
            return
        living = [w for w in observed.workers if not w.pod.deleting]
        sound = [w for w in living if not w.pod.quarantine and not w.facts.pod.ended]
        if len(sound) > observed.spec.replicas:
            return  # scaled away
        marked = {w.pod.uid for w in living if w.pod.drains_since is not None}
        stay = {w.pod.uid for w in sound} - marked
        for action in decision.pod_actions:
            if isinstance(action, BeginDrain | DeletePod) and action.pod_uid in stay:
                text = f"{action.pod_name} is taken away, and no successor can be created"
                self.sim.fail(4, f"{text} ({action.reason})")

    def _idle_ones_go_first(self, observed: FleetObserved, decision: Decision) -> None:
        """A scale-down takes no worker that serves while one stays that has no clients. Workers of the current template
        go only for that. While updates are held, or no template can be recorded, all do.
        """
        template, is_held = observed.template, observed.spec.update.is_held
        leaves = BeginDrain | DeletePod | Quarantine
        actions = [a for a in decision.pod_actions if isinstance(a, leaves)]
        going = {a.pod_uid for a in actions if isinstance(a, BeginDrain | DeletePod)}
        leave = {a.pod_uid for a in actions}
        idle = [w.pod.name for w in observed.workers if w.pod.uid not in leave and _is_idle(w)]
        for worker in observed.workers if idle else ():
            pod, serves = worker.pod, worker.standing in {Standing.OPEN, Standing.HELD}
            serves = serves and not worker.is_doing("fence")
            known = pod.quarantine or pod.drains_since is not None or pod.deleting
            stays = is_held or template is None or pod.revision == template.revision
            current = stays and not known
            if pod.uid in going and current and serves:
                self.sim.fail(4, f"{pod.name} serves and is drained, while {idle} stay")

    def note_created(self, pod: FakePod, leader: Leader) -> None:
        """A pod is created. The kubelet gives its requests the time that the fleet promises."""
        assert leader.observed is not None
        promised = leader.observed.spec.update.drain_timeout_seconds
        if pod.drain_seconds < promised:
            self.sim.fail(12, f"{pod.name} is given {pod.drain_seconds} s of {promised} s to drain")

    def note_leaving(self, pod: FakePod, leader: Leader) -> None:
        """A pod is about to be drained or deleted.

        Actions that a frozen leader had decided before do not count. The API server knows no epochs,
        and the next leader sees them late. The real process checks before every write that it is
        the leader (`runtime.leader_guard`), which is not simulated.
        """
        observed = leader.observed
        work = pod.worker.work
        is_fenced = (
            work is not None and work.operation == "fence"
        )  # for another reason: it drains by that
        if not (pod.quarantine or pod.ended or is_fenced) and observed is not None:
            seconds = observed.spec.update.drain_timeout_seconds
            self.planned.setdefault(pod.uid, (self.sim.now, seconds))
        if leader is not self.sim.leader:
            return
        known = pod.uid in self.taken
        if not pod.ended:  # else it did not serve any more
            self.taken.add(pod.uid)
        if known or observed is None or not self.sim.serves(pod) or pod.quarantine or pod.ended:
            return
        spec = observed.spec
        unavailable, surge = unavailable_and_surge(spec.update, spec.replicas)
        living = [w for w in observed.workers if not w.pod.deleting]
        if len(living) > spec.replicas + (0 if spec.update.is_held else surge):
            return  # scaled away
        admitted = {w.pod.uid for w in observed.workers if w.state and w.state.admitted}
        seen = {w.pod.uid for w in observed.workers if w.pod.ready}
        if pod.uid not in seen | admitted:
            return  # clients reach it again, and the operator cannot know that yet
        if observed.template is None and len(living) <= spec.replicas:
            self.sim.fail(4, f"{pod.name} is taken away, and no successor can be created")
        least = spec.replicas - unavailable - self._never_let_in(observed)
        self._enough_serve(least, seen, f"{pod.name} is taken away")

    def note_template(self, revision: str) -> None:
        """The leader records the template of a revision."""
        waiting = (p for p in self.sim.leader.pods if p.facts.gated and not p.deleting)
        self.held_back[revision] = sum(p.revision != revision for p in waiting)

    def _never_let_in(self, observed: FleetObserved) -> int:
        """How many pods have waited for a gate since before the template was changed."""
        before = self.held_back.get(observed.template.revision, 0) if observed.template else 0
        return min(before, sum(w.pod.facts.gated and not w.pod.deleting for w in observed.workers))

    def note_cluster_drain(self, pod: FakePod) -> None:
        """The cluster is about to delete a pod, for example to drain its node. In reality a load
        ends first, which is not simulated.
        """
        work = pod.worker.work
        if work is None or work.step == "drain":
            seconds = self.sim.desired.fleet_spec.update.drain_timeout_seconds
            self.planned.setdefault(pod.uid, (self.sim.now, seconds))
        else:
            self.planned.pop(pod.uid, None)

    def note_staying(self, pod: FakePod) -> None:
        """The operator ends a drain, and the pod stays."""
        self.taken.discard(pod.uid)
        self.planned.pop(pod.uid, None)

    def note_call(self, pod: FakePod, flight: Flight) -> None:
        """A call is about to be taken by a worker."""
        leader = self.sim.leader
        observed, rollout = leader.observed, rollout_of(leader.desired or self.sim.desired)
        gradual = rollout.strategy == "Rolling" or (
            rollout.strategy == "Canary" and rollout.canary.then == "Rolling"
        )
        if not gradual or not isinstance(flight.action, Apply) or observed is None:
            return
        if flight.epoch.term != leader.term or flight.sent_at < self.sim.now:
            return  # an older leader has sent it, or the fleet has changed since the decision
        if not self.sim.serves(pod) or pod.worker.staged != flight.action.version:
            return
        gated = sum(w.pod.wait is not None for w in observed.workers)
        there = max(0, observed.spec.replicas - gated)
        least = there - at_most(rollout.max_unavailable, there)
        seen = {w.pod.uid for w in observed.workers if w.standing is Standing.OPEN}
        self._enough_serve(least, seen - self._swapping(), f"{pod.name} is swapped", but=pod)

    def _swapping(self) -> set[str]:
        return {
            uid
            for uid, f in self.sim.leader.flights.items()
            if isinstance(f.action, Apply) and f.ticket is not None
        }

    def _enough_serve(
        self, least: int, seen: set[str], what: str, *, but: FakePod | None = None
    ) -> None:
        """Count workers that serve now, or served when the operator looked, without removed ones."""
        away = self.taken | ({but.uid} if but else set())
        there = {p.uid for p in self.sim.pods.values() if self.sim.serves(p)} | seen
        count = len(there - away)
        if count < least:
            self.sim.fail(4, f"{what}, which leaves {count} serving; at least {least} should")


def _is_idle(worker: WorkerView) -> bool:
    """Whether a worker that stays has no clients, as far as its last answer and its probe tell."""
    pod, state = worker.pod, worker.state
    gone = pod.deleting or pod.quarantine or pod.drains_since is not None or worker.facts.pod.ended
    out = state is None or not state.admitted or worker.silent_seconds > 0
    return out and not gone and not pod.ready
