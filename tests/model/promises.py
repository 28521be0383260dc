"""The promises, checked after every step of every simulated run.

 1. A worker generates only with weights whose label it reports, never with a half-loaded model, and
    never with a version that its canary has refused. Requests that could not be ended behind a closed
    latch count, too.
 2. Where versions must not mix, no two workers in service generate with different weights at once.
 3. A pause ends: it does not outlive its lease, nor the time-outs of its rollout, whoever died.
 4. Who is taken away for a template or by a rolling swap leaves at least so many workers serving.
 5. What the fleet serves does not go back, unless the trainer says so.
 6. With faults ended, the fleet converges within a bound, with exactly its replicas even while its
    updates are held, or `Stalled` says why it does not. While
    they last, no rollout stays in a phase beyond its time-outs without a word; and none is given up
    for lateness by a leader that has not watched its phase for as long as that may take, unless a
    worker reports that its own swap has lasted longer.
    A pod behind a scheduling gate keeps no rollout of the others from its end, and is no reason for
    `Stalled`.
 7. A fleet at rest writes nothing.
 8. In `keep` no request is cut short by a rollout, in `wait` none before its drain deadline.
 9. A version of a run stands for one digest, ever: no two tokens of one name come from different
    files, whatever was rewritten, restarted or forgotten in between. And `Ready` is never True while
    a worker that serves, as far as the leader can know, has another run, version or digest than the
    WeightVersion asks for, or while that asks for other files than its version stands for.
11. No call reaches another pod than the one that it is for, and no answer counts for another pod.
12. No request is cut by a planned change before its drain deadline: a worker that is scaled away, or
    replaced for its template, gives its requests `update.drainTimeoutSeconds` from then on.

(6 and 7 are asked at the end of a run: `Simulation.endure`, `settle` and `run_quietly`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from tests.model.fake_state import version_in
from tests.model.wanted import BASE_UID, NO_STATUS

from fleet_operator.api.conditions import ConditionReason, ConditionType, condition_of
from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core.actions import Apply
from fleet_operator.core.amounts import at_most, unavailable_and_surge
from fleet_operator.core.observed import Standing
from fleet_operator.core.rewind import number_of
from fleet_worker.protocol import Phase

if TYPE_CHECKING:
    from tests.model.fake_pods import FakePod
    from tests.model.fake_worker import FakeWorker
    from tests.model.leader import Flight, Leader
    from tests.model.simulator import Simulation
    from tests.model.wanted import Wanted

    from fleet_operator.api.source import WeightSource
    from fleet_operator.api.weights import WeightsSpec
    from fleet_operator.core.decision import Decision
    from fleet_operator.core.observed import PodView
    from fleet_worker.protocol import WorkerState

LEASE_SECONDS = 30.0
"""What the documentation promises, on purpose not what the code says."""
SLACK_SECONDS = 1.0
_ENDED_BY_A_PLAN = frozenset({"fence", "fence after its drain", "drain"})

Name = tuple[str, str | None]
"""A version and its run."""


class PromiseBroken(AssertionError):
    """A promise did not hold; the message holds the log that led there."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"promise {number}: {text}")
        self.number = number


@lru_cache(maxsize=200)
def _rollout_of(wanted: Wanted) -> Rollout:
    settings, weights = wanted.fleet_spec.rollout, wanted.base_spec
    return weights.rollout.over(settings) if weights else settings


@lru_cache(maxsize=200)
def _one_voice(wanted: Wanted) -> bool:
    rollout = _rollout_of(wanted)
    last = rollout.canary.then if rollout.strategy == "Canary" else rollout.strategy
    return wanted.fleet_spec.weights.management == "Operator" and last == "Synchronized"


def _once(rollout: Rollout) -> float:
    """How long a pause may take until it has begun and its load is done."""
    timeouts, pause = rollout.timeouts, rollout.pause
    return float(timeouts.pause_seconds + pause.drain_timeout_seconds + timeouts.load_seconds)


def _base_status(leader: Leader, known: Mapping[str, WeightsStatus]) -> WeightsStatus:
    """Of the WeightVersion of the base weights that the leader sees."""
    uid = leader.wanted.base_uid if leader.wanted is not None else BASE_UID
    return known.get(uid, NO_STATUS)


def _name_of(worker: FakeWorker) -> Name:
    return str(worker.label), worker.run_id


class Promises:
    """What must hold, and what must be remembered to tell.

    Fields:
        wishes: versions with their runs, in the order in which the trainer asked for them, and was
            entitled to.
        recorded: the weights that a stored status has called applied.
        served: where in them the fleet stands; of a version that was asked for twice, the first
            time that fits.
        agree: whether versions do not mix; after a change of strategy, from when they do not, and are
            what the fleet says that it applied.
        forgotten: whether the leader cannot know what was served.
        meant: digest of the first token of every version of a run.
        sources: where a version of a run may come from: what was asked for before its first token,
            or with the digest of that.
        taken: uids of pods that operators have taken away.
        planned: uid of a worker that is to go by plan → since when, and its drain timeout in seconds.
        back_to: `rollbackTo`, if the last spec was permitted by it.
        watching: the recorded phase that the leader decides on, and since when it does.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.wishes: list[Name] = [("base", None), (simulation.version, None)]
        self.served = 0
        self.forgotten = False
        self.recorded: set[Name] = set()
        self.agree = True
        self.taken: set[str] = set()
        self.planned: dict[str, tuple[float, float]] = {}
        self.meant: dict[Name, str] = {}
        self.sources: dict[Name, set[WeightSource]] = {}
        self.watching: tuple[tuple[object, ...], float] = ((), 0.0)
        self.modes = {self.rollout.pause.mode}
        self.asked = simulation.wanted.base_spec
        self.back_to: str | None = None
        self._note_source()

    # --- what is promised ------------------------------------------------------------------------

    @property
    def rollout(self) -> Rollout:
        """The settings that hold."""
        return _rollout_of(self.sim.wanted)

    @property
    def one_voice(self) -> bool:
        """Whether the strategy promises that versions do not mix; also the one that operators who
        are behind still go by, and that of swaps which are still on their way.
        """
        seen = [self.sim.wanted, *(o.wanted for o in (self.sim.leader, *self.sim.ghosts))]
        return all(_one_voice(w) for w in seen if w) and not self.sim.wire.swaps_under_way()

    @property
    def longest_pause_seconds(self) -> float:
        """How long one worker may hold its requests: there, and back again after a failure."""
        return 2 * (_once(self.rollout) + LEASE_SECONDS)

    @property
    def longest_rollout_seconds(self) -> float:
        """How long a rollout may take until it has ended, or has said why it has not: there, back
        again after a failure, and once more for those that are left behind.
        """
        return 3 * (self.rollout.timeouts.stage_seconds + self.longest_pause_seconds)

    def check(self) -> None:
        """Promises 1, 2, 3, 5 and 8."""
        serving = [p for p in self.sim.pods.values() if self.sim.serves(p) and not p.grace]
        for pod in self.sim.pods.values():
            self._labels_are_true(pod)
            self._names_stand_for_one_digest(pod)
            self._pauses_end(pod)
            self._requests_are_kept(pod)
        voices = {(str(p.worker.weights), p.worker.run_id) for p in serving}
        admitted = {_name_of(p.worker) for p in self.sim.pods.values() if p.worker.admitted}
        agreed, heard = self.agree, admitted | {(version_in(v), run) for v, run in voices}
        applied = self.sim.leader.fleet.applied
        account = {(applied.version, applied.run_id)} if applied is not None else set()
        self.agree = self.one_voice and (agreed or heard <= account)
        if self.agree and not agreed and heard <= set(self.wishes):
            for name in heard:  # one that was left behind is no step back
                self.served = self._place_of(name)
        self._versions_do_not_mix(voices)

    def _labels_are_true(self, pod: FakePod) -> None:
        worker = pod.worker
        if not worker.generates and not worker.lives_on:
            return
        if worker.label != version_in(worker.weights):
            self.sim.fail(1, f"{pod.name} labels {worker.weights} as {worker.label}")
        if worker.weights in self.sim.odd_versions:
            self.sim.fail(1, f"clients get tokens of {worker.weights}, which no canary lets pass")

    def _names_stand_for_one_digest(self, pod: FakePod) -> None:
        worker = pod.worker
        external = self.sim.wanted.fleet_spec.weights.management == "External"
        if external or not worker.generates or worker.digest is None or pod.grace:
            return
        first = self.meant.setdefault(_name_of(worker), worker.digest)
        if first != worker.digest:
            told = f"{pod.name} makes tokens of {worker.label} with other files than others did"
            self.sim.fail(9, told)

    def _ready_is_true(self, leader: Leader) -> None:
        """The leader has decided on what it has observed: where it says that all is well, every
        worker that may serve clients, as far as the leader knows, has the weights that are asked for.
        """
        wanted, observed = leader.wanted, leader.observed
        spec = wanted.base_spec if wanted is not None else None
        if wanted is None or observed is None or spec is None:
            return
        if any(pod.grace for pod in self.sim.pods.values()):
            return
        status = _base_status(leader, leader.weights)
        claims = [condition_of(s.conditions, ConditionType.READY) for s in (status, leader.fleet)]
        if not any(c is not None and c.status == "True" for c in claims):
            return
        name: Name = (spec.version, spec.run_id)
        digest, source = self.meant.get(name), spec.source.resolve(spec.version)
        if spec.digest not in {None, digest} or (
            spec.digest is None and source not in self.sources.get(name, set())
        ):
            self.sim.fail(9, f"Ready is True, and {spec.version} stands for other files")
        for worker in observed.workers:
            pod, state = worker.pod, worker.state
            gone = pod.deleting or pod.quarantine or not pod.running
            if gone or state is None or not state.admitted:
                continue
            if worker.silent_seconds and not pod.ready:
                continue  # clients do not reach it, and neither does the leader
            has = (str(state.version), state.run_id)
            if has != name or state.digest != digest:
                self.sim.fail(9, f"Ready is True, and {pod.name} serves {has} {state.digest}")

    def _versions_do_not_mix(self, voices: set[Name]) -> None:
        if self.agree and len(voices) > 1:
            self.sim.fail(2, f"{sorted(voices, key=str)} generate at the same time")
        if self.agree and len(voices) == 1:
            ((weights, run),) = voices
            self._is_not_older((version_in(weights), run), "the fleet went back")

    def _pauses_end(self, pod: FakePod) -> None:
        worker = pod.worker
        if worker.paused_at is None or pod.deleted_at is not None:
            return
        unheard = self.sim.now - worker.renewed_at
        if worker.phase is Phase.PAUSED and unheard > LEASE_SECONDS + SLACK_SECONDS:
            self.sim.fail(3, f"{pod.name} has been paused since {worker.renewed_at:.1f}")
        if worker.holds_for_seconds > self.longest_pause_seconds:
            self.sim.fail(3, f"{pod.name} holds its requests for {worker.holds_for_seconds:.0f} s")

    def _requests_are_kept(self, pod: FakePod) -> None:
        for why in pod.worker.requests.ended:
            if why in _ENDED_BY_A_PLAN and pod.uid in self.planned and not pod.suspect:
                since, seconds = self.planned[pod.uid]
                if self.sim.now < since + seconds:
                    self.sim.fail(12, f"{pod.name} was to go, and its request was cut ({why})")
            if why == "pause abort" and "Abort" not in self.modes:
                self.sim.fail(8, f"a pause cut a request of {pod.name} short")
            if why == "fence" and not self._may_be_expelled(pod) and pod.uid not in self.planned:
                self.sim.fail(8, f"{pod.name} has nothing wrong with it and was fenced")
            if why == "lease" and not self._may_be_expelled(pod) and self._was_looked_at(pod):
                self.sim.fail(8, f"nobody renewed the pause of {pod.name} in time")
        pod.worker.requests.ended.clear()

    def _may_be_expelled(self, pod: FakePod) -> bool:
        excused = pod.suspect or pod.worker.refuses_files
        return excused or self.sim.is_rough or not self.one_voice

    def _was_looked_at(self, pod: FakePod) -> bool:
        """Whether the leader looked when the pause was about to end, and did what it decided.

        Calls that were refused as old are sent again once it has read the Lease.
        """
        if self.sim.leader.todo or self.sim.leader.epochs.refused():
            return False
        soon = pod.worker.renewed_at + LEASE_SECONDS / 2 + SLACK_SECONDS
        return any(soon < at < self.sim.now - SLACK_SECONDS for at in self.sim.leader.looked_at)

    # --- going back ------------------------------------------------------------------------------

    def note_wish(self) -> None:
        """The trainer, or a person, has changed something."""
        spec, before = self.sim.wanted.base_spec, self.asked
        self.modes.add(self.rollout.pause.mode)
        self.asked = spec
        permitted = spec is not None and self._is_permitted(spec, before)
        self.back_to = spec.rollback_to if spec is not None and permitted else None
        if spec is None:
            return
        self._note_source()
        wish = (spec.version, spec.run_id)
        if wish != self.wishes[-1] and not self._is_a_rewind(spec):
            self.wishes.append(wish)

    def _is_permitted(self, spec: WeightsSpec, before: WeightsSpec | None) -> bool:
        """Whether `rollbackTo` lets a trainer ask for it: for that version, or, with the same object,
        for a later one on the way there.
        """
        if spec.rollback_to is None or spec.rollback_to == spec.version:
            return spec.rollback_to is not None
        wanted, first = number_of(spec.version), number_of(spec.rollback_to)
        if before is None or before.run_id != spec.run_id or wanted is None or first is None:
            return False
        left = number_of(before.version)
        on_its_way = self.back_to == spec.rollback_to or (left is not None and left > wanted)
        return wanted >= first and on_its_way

    def _note_source(self) -> None:
        spec = self.sim.wanted.base_spec
        if spec is not None and self.meant.get((spec.version, spec.run_id)) in {None, spec.digest}:
            sources = self.sources.setdefault((spec.version, spec.run_id), set())
            sources.add(spec.source.resolve(spec.version))

    def _is_a_rewind(self, spec: WeightsSpec) -> bool:
        """Whether a run asks for less than it has served, and does not say that it may. Of another
        run no number is less.
        """
        version, run = self.wishes[self.served]
        wanted, reached = number_of(spec.version), number_of(version)
        if spec.run_id is None or wanted is None or spec.run_id != run:
            return False
        if self.back_to is not None:
            return False
        return reached is not None and wanted < reached

    def _is_not_older(self, name: Name, told: str) -> None:
        if name not in self.wishes:
            self.sim.fail(5, f"{name} is served, and the trainer did not ask for it")
        place = self._place_of(name)
        if place < self.served and not self.forgotten:
            self.sim.fail(5, f"{told} from {self.wishes[self.served]} to {name}")
        self.served = place

    def _place_of(self, name: Name) -> int:
        """Of several the first one that is no step back, else the last one."""
        places = [n for n, wished in enumerate(self.wishes) if wished == name]
        return min((n for n in places if n >= self.served), default=places[-1])

    def note_look(self, leader: Leader) -> None:
        """The leader is about to decide. Does it know, by what was written or said, what was served?

        It takes an operator that dies before its status is stored, and the loss of every worker that
        served the newer version, for no leader to know. Where versions mix workers prove nothing.
        What was stored once stays known.
        """
        if leader is self.sim.leader:
            self._watch(_base_status(leader, leader.weights))
        newer, recorded = self.wishes[self.served], leader.fleet.applied
        if (stored := self.sim.fleet_stored.applied) is not None:
            self.recorded.add((stored.version, stored.run_id))
        heard = (h.state for h in leader.heard.values())
        self.forgotten = newer not in self.recorded and not (
            (recorded is not None and (recorded.version, recorded.run_id) == newer)
            or (
                self.one_voice and any(s.admitted and (s.version, s.run_id) == newer for s in heard)
            )
        )

    def note_leader(self) -> None:
        """A new leader: where versions mix it knows what is written, and no more."""
        applied = self.sim.fleet_stored.applied
        if self.one_voice or applied is None:
            return
        name = (applied.version, applied.run_id)
        if name in self.wishes:
            self.served = self.wishes.index(name)

    def note_status(self, known: Mapping[str, WeightsStatus]) -> None:
        """The leader has decided a new status of the base weights. `known`: statuses of before."""
        leader = self.sim.leader
        before, after = _base_status(leader, known), _base_status(leader, leader.weights)
        self._ready_is_true(leader)
        stalled = condition_of(after.conditions, ConditionType.STALLED)
        halts = after.phase is RolloutPhase.HALTED and before.phase is not after.phase
        late = stalled is not None and stalled.reason is ConditionReason.DEADLINE_EXCEEDED
        timeouts, waited = self.rollout.timeouts, self.sim.now - self.watching[1]
        limits = {
            RolloutPhase.STAGING: timeouts.stage_seconds,
            RolloutPhase.PAUSING: timeouts.pause_seconds,
            RolloutPhase.LOADING: timeouts.load_seconds,
            RolloutPhase.JUDGING: timeouts.stage_seconds,
        }
        held = max((p.worker.holds_for_seconds for p in self.sim.pods.values()), default=0.0)
        if (
            halts
            and late
            and waited < limits.get(before.phase, 0.0)
            and held <= _once(self.rollout)
            and not self._is_swap_late(leader)
        ):
            text = f"{after.desired_version} is given up after {waited:.1f} s in {before.phase}"
            self.sim.fail(6, f"{text}, of which nobody can be late")
        self._watch(after)

    def _is_swap_late(self, leader: Leader) -> bool:
        """Whether a worker that swaps by itself has said that it is at it for longer than it may, or
        has not answered since: its own account needs no leader that has watched the phase. A new
        leader, or a new attempt, finds the swap as late as it is.
        """
        rollout, observed = self.rollout, leader.observed
        drain = rollout.pause.drain_timeout_seconds if rollout.pause.mode == "Wait" else 0
        limit = rollout.timeouts.load_seconds + drain
        at_work = (
            (w.state.operation, w.silent_seconds)
            for w in (observed.workers if observed is not None else ())
            if w.state is not None
        )
        return any(
            work is not None and work.kind == "apply" and work.running_seconds + silent > limit
            for work, silent in at_work
        )

    def _watch(self, status: WeightsStatus) -> None:
        """The leader has decided this status, or has come and found it."""
        phase = (
            *(self.sim.lease_term, status.desired_version, status.retried),
            *(status.phase, status.phase_started_at),
        )
        if phase != self.watching[0]:
            self.watching = (phase, self.sim.now)

    def note_decision(self, leader: Leader, decision: Decision) -> None:
        """Where versions mix, what counts is what the fleet says that it applied, unless it was told
        lies.
        """
        if any(pod.grace for pod in self.sim.pods.values()):
            return
        if leader is self.sim.leader and not self.one_voice and self.sim.wanted.base:
            applied = decision.rollout.applied
            name = (applied.version, applied.run_id)
            self._is_not_older(name, "the applied version went back")

    # --- how many serve --------------------------------------------------------------------------

    def note_leaving(self, pod: FakePod, leader: Leader) -> None:
        """A pod is about to be drained or deleted.

        What a leader that was frozen still had in its hand is not asked about, and its successor
        does not know of it at once: the API server knows no epochs. The process asks itself before
        every write whether it leads (`runtime.fenced`), which is not simulated.
        """
        observed = leader.observed
        if not pod.quarantine and not pod.ended and observed is not None:
            seconds = observed.spec.update.drain_timeout_seconds
            self.planned.setdefault(pod.uid, (self.sim.now, seconds))
        if leader is not self.sim.leader:
            return
        known = pod.uid in self.taken
        if not pod.ended:  # else it was taken away before
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
            return  # it has come back to clients, and the operator cannot know yet
        self._enough_serve(spec.replicas - unavailable, seen, f"{pod.name} is taken away")

    def note_cluster_drain(self, pod: FakePod) -> None:
        """A pod is about to be deleted by the cluster, as when its node is drained. What is at work
        on its weights comes to its end first, which is not simulated.
        """
        work = pod.worker.work
        if work is None or work.step == "drain":
            seconds = self.sim.wanted.fleet_spec.update.drain_timeout_seconds
            self.planned.setdefault(pod.uid, (self.sim.now, seconds))

    def note_staying(self, pod: FakePod) -> None:
        """A pod that was to go stays."""
        self.taken.discard(pod.uid)
        self.planned.pop(pod.uid, None)

    def note_taken(self, pod: FakePod, flight: Flight) -> None:
        """A worker does what it is asked."""
        if flight.action.pod_uid != pod.uid:
            self.sim.fail(11, f"{pod.name} takes {flight.action.key} of {flight.action.pod_name}")

    def note_answer(self, asked: PodView, state: WorkerState) -> None:
        """An operator believes an answer."""
        if state.pod_uid != asked.uid:
            self.sim.fail(11, f"what {state.worker} says is booked for {asked.name}")

    def note_call(self, pod: FakePod, flight: Flight) -> None:
        """A call is about to be taken by a worker."""
        leader = self.sim.leader
        observed, rollout = leader.observed, _rollout_of(leader.wanted or self.sim.wanted)
        gradual = rollout.strategy == "Rolling" or (
            rollout.strategy == "Canary" and rollout.canary.then == "Rolling"
        )
        if not gradual or not isinstance(flight.action, Apply) or observed is None:
            return
        if flight.epoch.term != leader.term or flight.sent_at < self.sim.now:
            return  # what an older leader has sent, or what was decided on what is not so any more
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
        self, least: int, seen: set[str], told: str, *, but: FakePod | None = None
    ) -> None:
        """Who serves now, or did when the operator looked and was not taken away by it, counts."""
        away = self.taken | ({but.uid} if but else set())
        there = {p.uid for p in self.sim.pods.values() if self.sim.serves(p)} | seen
        count = len(there - away)
        if count < least:
            self.sim.fail(4, f"{told}, which leaves {count} serving; at least {least} should")
