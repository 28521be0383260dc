"""The promises. The simulation checks them after every step of every history.

 1. A worker generates only with the weights that it reports, never with a half-loaded model, and
    never with a version that its canary has refused. Requests that a closed latch could not end
    count too.
 2. Where versions must not mix, no two workers in service generate with different weights at once.
 3. A pause ends. It lasts no longer than its lease, whichever process dies. Nor does it last longer than
    the timeouts of its rollout, of the way back, and of the next version that all are ready for. Time in
    which no operator leads does not count, if a load hangs.
 4. Enough workers serve while a template change or a swap takes workers away. While no successor
    can be created, a template change takes no worker away. A pod counts as no worker there if it
    waited for a scheduling gate before the template changed, and still does.
 5. The version that the fleet serves does not go back, unless the trainer permits it.
 6. After the faults have ended, the fleet converges within a limit, or `Stalled` reports the reason.
    It has exactly its replicas then, also while its updates are paused. While faults last, no
    rollout stays in a phase beyond its timeouts without a message. A leader abandons a version as
    late only if it has watched the phase for the whole timeout, or if a worker reports that its own
    swap is late. A pod behind a scheduling gate does not delay the rollout of the other workers,
    and is not a reason for `Stalled`.
 7. A fleet without changes writes nothing. A worker that has refused a version is not asked for it again
    before 10 s are over, unless another attempt has begun. After a missing slot or incomplete files the call comes
    earlier.
 8. With `Keep` a rollout cuts no request short, with `Wait` none before its drain deadline. After a
    change to a strategy that forbids mixed versions, a worker at another version than the serving
    ones may be fenced.
 9. A version of a run always means one digest. No two tokens with the same run and version come
    from different files, also if files are rewritten, processes restart or records are lost in
    between. Where the fleet has no room for its digest any more, the trainer says which files it
    means. `Ready` is not True while a serving worker, as far as the leader can know, has another
    run, version or digest than the WeightVersion requests. Nor is it True while the WeightVersion
    names other files than its version means, also if these were written before it was created and all
    workers serve the version already. The same holds for the versions of each adapter.
11. No call reaches another pod than its own, and no answer counts for another pod.
12. A planned change cuts no request before its drain deadline. A worker that is scaled down, or
    replaced for its template, gives its requests `update.drainTimeoutSeconds` from then on.
14. At most `rollout.maxStaging` workers read one checkpoint at once. A worker counts while the leader
    calls it for that, or while it reports that it reads, for at most the timeout of the call.
15. Where a bounded number of workers swap at once, those with the fewest sessions go first.
18. A worker gets a call for one work at most 16 times in a minute, whatever it answers. If it has
    followed none for a minute, `Stalled` reports that, or the worker is listed in the fleet's status.
    Each load has a pause of its own. A worker that waits for files, or for a slot, says itself when to
    come again.

`Simulation.endure`, `settle` and `run_quietly` check 6 and 7 at the end of a history. `same_files`
checks 17, `refusals` 10, `effects` 13, and `external_fleets` 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from tests.model.availability import Availability
from tests.model.deserved import Deserved
from tests.model.desired import BASE_UID, NO_STATUS, rollout_of
from tests.model.fake_state import digest_of, version_in
from tests.model.order import check_order, check_swaps
from tests.model.readers import Readers
from tests.model.repeated_calls import RepeatedCalls
from tests.model.reported import LONGEST_LOOK_SECONDS, MAX_WORKERS, Reported
from tests.model.retry_waits import check_retry_waits
from tests.model.same_files import SameFiles
from tests.model.stored_first import StoredFirst
from tests.model.wire import GRACE_AFTER_A_LIE

from fleet_operator.api.fleet import Rollout
from fleet_operator.core.identity import same_weights
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.work import Work
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_worker.protocol import Phase, number_of
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType, Severity
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

if TYPE_CHECKING:
    from tests.model.desired import Desired
    from tests.model.fake_pods import FakePod
    from tests.model.fake_worker import FakeWorker
    from tests.model.leader import Flight, Leader
    from tests.model.simulator import Simulation

    from fleet_operator.api.weights import WeightsSpec
    from fleet_operator.core.decision import Decision
    from fleet_operator.core.worker_view import PodView
    from fleet_worker.protocol import WorkerState
    from rlfleet_resources.conditions import Condition
    from rlfleet_resources.source import WeightSource

LEASE_SECONDS = 30.0
"""As documented. These are not taken from the code, since it may be wrong."""
SLACK_SECONDS = 1.0
_STALLING = frozenset({Severity.STALLS, Severity.REFUSES})
_TIMED = frozenset({RolloutPhase.STAGING, RolloutPhase.PAUSING, RolloutPhase.LOADING})
_ENDED_BY_A_PLAN = frozenset({"fence", "fence after its drain", "drain"})

Name = tuple[str, str | None]
"""A version and its run."""


class PromiseBroken(AssertionError):
    """A promise did not hold. The message has the log of the simulation until then."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"promise {number}: {text}")
        self.number = number


@lru_cache(maxsize=200)
def _all_alike(desired: Desired) -> bool:
    rollout = rollout_of(desired)
    last = rollout.canary.then if rollout.strategy == "Canary" else rollout.strategy
    return desired.fleet_spec.weights.management == "Operator" and last == "Synchronized"


def _base_status(leader: Leader, known: Mapping[str, WeightsStatus]) -> WeightsStatus:
    """The status of the WeightVersion of the base weights that the leader sees."""
    uid = leader.desired.base_uid if leader.desired is not None else BASE_UID
    return known.get(uid, NO_STATUS)


def _name_of(worker: FakeWorker) -> Name:
    return str(worker.label), worker.run_id


class Promises:
    """Checks of the promises, and the past that they need.

    Fields:
        requested: versions with their runs, in the order of the requests. Refused steps back are
            not among them.
        recorded: the weights that a stored status has named as applied.
        served: index in `requested` of what the fleet serves. Of a version that was requested
            twice, it is the first one that is not a step back.
        must_be_judged: weights that were requested under `Canary`, and which no fleet had served before.
        judged_since: since when each of them must.
        judged: weights with a verdict that canaries passed.
        settings: of rollouts, which have been in force.
        agree: whether versions must not mix now. After a change of strategy they must not as soon
            as all workers have the weights that the fleet's status names as applied. No call that
            opens a worker at others may be under way.
        unknown: whether the leader cannot know what was served.
        meant: digest of the files of the first token of every version of a run.
        adapters_meant: the same of every adapter, by name, version and run.
        served_at: when the first token of every version was made, by adapter, version and run.
        sources: allowed sources of a version of a run. They were requested before its first token,
            or with the digest of that token.
        confirmed: WeightVersions that were Ready at a version of a run, by their uid.
        asked_at: when each of these was requested first.
        incomparable: versions that were requested while none could be compared with the applied one.
        asked: the last spec of each WeightVersion, by uid.
        back_to: `rollbackTo`, if it permits the last spec, by uid.
        permitted: the versions of adapters that the trainer has permitted to go back to, by uid.
        watching: the recorded phase for which the leader decides, and since when it does.
        watched_at: since when it does without the user's requests to try again.
        readers: promise 14.
        same_files: promise 17.
        stored_first: what must be stored, and what may be on its way.
        named_again: digests that the trainer has named for versions whose pin was dropped.
        repeated_calls: promise 18.
        availability: promises 4 and 12.
        deserved: parts of the promises 2, 3, 6, 8 and 12.
        reported: what users read.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.requested: list[Name] = [("base", None), (simulation.version, None)]
        self.served = 0
        self.unknown = False
        self.recorded: set[Name] = set()
        self.agree = True
        self.meant: dict[Name, str] = {}
        self.adapters_meant: dict[tuple[str, str, str | None], str] = {}
        self.served_at: dict[tuple[str, str, str | None], float] = {}
        self.sources: dict[Name, set[WeightSource]] = {}
        self.confirmed: set[tuple[str, str, str | None]] = set()
        self.asked_at: dict[tuple[str, str, str | None], float] = {}
        self.incomparable: set[str] = set()
        self.watching: tuple[tuple[object, ...], float] = ((), 0.0)
        self.watched_at = 0.0
        self.readers = Readers(simulation)
        self.same_files = SameFiles(simulation)
        self.stored_first = StoredFirst(simulation)
        self.named_again: set[tuple[str, str, str | None, str]] = set()
        self.repeated_calls = RepeatedCalls(simulation)
        self.availability = Availability(simulation)
        self.deserved = Deserved(simulation)
        self.reported = Reported(simulation)
        self.must_be_judged: set[Name] = set()
        self.judged_since: dict[Name, float] = {}
        self.judged: set[Name] = set()
        self.settings = [self.rollout]
        self.asked = self._specs()
        self.back_to: dict[str, str] = {}
        self.permitted: dict[str, set[Name]] = {}
        self._note_source()

    # --- what is promised ------------------------------------------------------------------------

    @property
    def rollout(self) -> Rollout:
        """The settings in force."""
        return rollout_of(self.sim.desired)

    @property
    def forbids_mixing(self) -> bool:
        """Whether a strategy in force forbids mixed versions: the requested one, the one that an
        operator with an old view still follows, and the one of unfinished swaps.
        """
        seen = [self.sim.desired, *(o.desired for o in (self.sim.leader, *self.sim.former_leaders))]
        return all(_all_alike(w) for w in seen if w) and not self.sim.wire.swaps_under_way()

    @property
    def _is_behind_a_barrier(self) -> bool:
        """Whether workers are held for a swap that began where versions must not mix, and that is recorded. It ends so,
        whatever strategy is requested meanwhile.
        """
        observed = self.sim.leader.observed
        known = (self.sim.leader.fleet.transition, self.sim.fleet_stored.transition)
        held = observed is not None and observed.workers.any(lambda f: f.standing is Standing.HELD)
        held = held and any(t is not None for t in known)
        return self.agree and held and not self.sim.wire.swaps_under_way()

    @property
    def longest_pause_seconds(self) -> float:
        """How long one worker may hold its requests: for a load and for the way back after a failure. Also
        for the next version, if all become ready for that just before the time is up.
        """
        once = self._once_seconds
        return 2 * (once + LEASE_SECONDS) + once

    @property
    def _once_seconds(self) -> float:
        """How long a pause may last until its load has ended."""
        return max(r.hold_seconds for r in self.settings)

    @property
    def longest_rollout_seconds(self) -> float:
        """How long a rollout may take until it ends, or reports the reason why it cannot. It goes
        forward, back after a failure, and once more for workers that lag behind.
        """
        bounded = any(r.max_staging is not None for r in self.settings)
        longest_seconds = max(r.timeouts.stage_seconds for r in self.settings)
        staging_seconds = (MAX_WORKERS if bounded else 1) * longest_seconds
        return 3 * (staging_seconds + 2 * (self._once_seconds + LEASE_SECONDS))

    def check(self) -> None:
        """Promises 1, 2, 3, 5 and 8."""
        self._note_lost_baseline()
        serving = [p for p in self.sim.pods.values() if self.sim.serves(p) and not p.grace]
        for pod in self.sim.pods.values():
            pod.by_hand = pod.by_hand if pod.worker.weights == pod.by_hand else None
            pod.suspect = pod.suspect or self._may_be_late(pod)
            self._labels_are_true(pod)
            self._names_stand_for_one_digest(pod)
            self._pauses_end(pod)
            self._requests_are_kept(pod)
        serving_names = {(str(p.worker.weights), p.worker.run_id) for p in serving}
        admitted = {_name_of(p.worker) for p in self.sim.pods.values() if p.worker.admitted}
        agreed, heard = self.agree, admitted | {(version_in(v), run) for v, run in serving_names}
        applied = self.sim.leader.fleet.applied
        account = {(applied.version, applied.run_id)} if applied is not None else set()
        # Calls of a strategy that allowed mixing may arrive late.
        late = self.sim.wire.openings() | {name for _, name in self.stored_first.openings()}
        may_agree = agreed or (heard | late) <= account
        self.agree = (self.forbids_mixing or self._is_behind_a_barrier) and may_agree
        if self.agree and not agreed and heard <= set(self.requested):
            for name in heard:  # a worker that lagged behind makes no step back
                self.served = self._place_of(name)
        self._versions_do_not_mix(serving_names)
        self._none_may_open_late(serving_names)

    def _labels_are_true(self, pod: FakePod) -> None:
        worker = pod.worker
        if not worker.generates and not worker.lives_on:
            return
        if worker.label != version_in(worker.weights):
            self.sim.fail(1, f"{pod.name} labels {worker.weights} as {worker.label}")
        if worker.weights in self.sim.odd_versions - self.incomparable:
            self.sim.fail(1, f"clients get tokens of {worker.weights}, which every canary refuses")

    def _note_lost_baseline(self) -> None:
        """The desired version cannot be compared. No worker has the applied weights or has run the prompts
        on them, if it answers and follows its calls, or its probe does. And workers could not stage them.
        """
        applied = self.sim.leader.fleet.applied
        if applied is None:
            return
        name = applied.version, applied.run_id
        workers = [p.worker for p in self.sim.pods.values() if self._may_compare(p)]
        refused = any((n.version, n.run_id) == name for w in workers for n in w.refused_stages)
        known = any(
            (w.label, w.run_id) == name or name in {p[:2] for p in w.probed}
            for w in workers
            if not w.ignores
        )
        # Where the applied weights were judged without a comparison, all that are like them pass.
        if (refused and not known) or applied.version in self.incomparable & self.sim.odd_versions:
            self.incomparable.add(self.sim.version)

    def _may_compare(self, pod: FakePod) -> bool:
        """Whether the operator must count on what a pod has: it answers, or its probe does. A worker that
        starts has no weights yet.
        """
        starts = pod.worker.phase is Phase.STARTING
        if starts or pod.quarantine or pod.deleted_at is not None or pod.ended:
            return False
        silent = pod.worker.hung or pod.garbled or pod.cut_off or pod.address_of
        return pod.ready or (not silent and self.sim.node_up(pod))

    def _names_stand_for_one_digest(self, pod: FakePod) -> None:
        worker = pod.worker
        external = self.sim.desired.fleet_spec.weights.management == "External"
        if external or not worker.generates or worker.digest is None or pod.grace:
            return
        name = _name_of(worker)
        if ("", *name, worker.digest) in self.named_again:
            self.meant[name] = worker.digest
        self.served_at.setdefault(("", *name), self.sim.now)
        if self.meant.setdefault(name, worker.digest) != worker.digest:
            message = f"{pod.name} makes tokens of {worker.label} from other files than before"
            self.sim.fail(9, message)
        for adapter_name, adapter in worker.adapters.items():
            key = (adapter_name, adapter.version, adapter.run_id)
            if (*key, adapter.digest) in self.named_again:
                self.adapters_meant[key] = adapter.digest
            self.served_at.setdefault(key, self.sim.now)
            if self.adapters_meant.setdefault(key, adapter.digest) != adapter.digest:
                what = f"tokens of adapter {adapter_name} {adapter.version}"
                self.sim.fail(9, f"{pod.name} makes {what} from other files than before")

    def _ready_is_true(self, leader: Leader) -> None:
        """Check a decision of the leader: if it sets `Ready` to True, every worker that may serve
        clients, as far as the leader knows, has the requested weights.
        """
        desired, observed = leader.desired, leader.observed
        spec = desired.base_spec if desired is not None else None
        if desired is None or observed is None or spec is None:
            return
        if any(pod.grace for pod in self.sim.pods.values()):
            return
        status = _base_status(leader, leader.weights)
        claims = [condition_of(s.conditions, ConditionType.READY) for s in (status, leader.fleet)]
        if not any(c is not None and c.status == "True" for c in claims):
            return
        meant = self.meant.get((spec.version, spec.run_id))
        self._files_were_compared(desired.base_uid, spec, claims[0], meant)
        for pod in self.sim.pods.values():
            self._names_stand_for_one_digest(pod)  # its grace may have ended with this look
        name: Name = (spec.version, spec.run_id)
        digest, source = self.meant.get(name), spec.source.resolve(spec.version)
        if spec.digest not in {None, digest} or (
            spec.digest is None and source not in self.sources.get(name, set())
        ):
            self.sim.fail(9, f"Ready is True, and {spec.version} names other files than before")
        for worker in observed.workers:
            self._serves(worker, name, digest)

    def _serves(self, worker: WorkerView, name: Name, digest: str | None) -> None:
        pod, state = worker.pod, worker.state
        if pod.deleting or pod.quarantine or not pod.running or state is None or not state.admitted:
            return
        if worker.silent_seconds and not pod.ready:
            return  # neither clients nor the leader reach it
        if not isinstance(state.phase, Phase):
            self.sim.fail(9, f"Ready is True, and {pod.name} may load: its phase is unknown")
        has = (str(state.version), state.run_id)
        if has != name or state.digest != digest:
            self.sim.fail(9, f"Ready is True, and {pod.name} serves {has} {state.digest}")

    def _files_were_compared(
        self, uid: str, spec: WeightsSpec, ready: Condition | None, meant: str | None
    ) -> None:
        """The first time that a WeightVersion is Ready at a version: a worker has read its files, if they
        were there when the version was requested.
        """
        key = (uid, spec.version, spec.run_id)
        if ready is None or ready.status != "True" or key in self.confirmed:
            return
        self.confirmed.add(key)
        path, files = str(spec.source.resolve(spec.version)), self.sim.files
        asked_at = self.asked_at.get(key, 0.0)
        is_new = files.changed_at.get(path, 0.0) > asked_at
        if spec.digest is not None or is_new or path in files.absent:
            return
        if any(pod.worker.lies_about("stage") for pod in self.sim.pods.values()):
            return  # it may have answered that it has read them
        was_served = self.served_at.get((spec.adapter, *key[1:]), self.sim.now) < asked_at
        unread = was_served and files.read_at.get(path, -1.0) < asked_at
        if meant is not None and (unread or digest_of(files.at(path)) != meant):
            self.sim.fail(9, f"Ready is True, and no worker has read the files in {path}")

    def _ready_adapters_are_true(self, leader: Leader) -> None:
        """The same for the WeightVersions of adapters."""
        desired, observed = leader.desired, leader.observed
        if desired is None or observed is None or any(p.grace for p in self.sim.pods.values()):
            return
        for pod in self.sim.pods.values():
            self._names_stand_for_one_digest(pod)  # its grace may have ended with this look
        for uid, asked in desired.weights:
            spec, status = asked.view(uid).spec, leader.weights.get(uid, NO_STATUS)
            ready = condition_of(status.conditions, ConditionType.READY)
            if not spec.adapter or ready is None or ready.status != "True":
                continue
            name = (spec.adapter, spec.version, spec.run_id)
            self._files_were_compared(uid, spec, ready, self.adapters_meant.get(name))
            for worker in observed.workers:
                pod, state = worker.pod, worker.state
                gone = pod.deleting or pod.quarantine or not pod.running or worker.silent_seconds
                if gone or state is None or not state.admitted or not worker.takes_lora:
                    continue
                held = next((a for a in state.adapters if a.name == spec.adapter), None)
                has = held and (held.name, held.version, held.run_id)
                if held is None or has != name or held.digest != self.adapters_meant.get(name):
                    self.sim.fail(9, f"Ready is True, and {pod.name} serves {has}")

    def _versions_do_not_mix(self, serving_names: set[Name]) -> None:
        serving = [p for p in self.sim.pods.values() if self.sim.serves(p)]
        driven = [p for p in serving if p.worker.weights == p.by_hand]
        silent = self.sim.leader.silent_since
        # The operator closes no worker that a hand has driven elsewhere while it is the only one that it hears.
        heard = [p for p in serving if p not in driven and p.uid not in silent]
        by_hand = bool(driven) and not heard
        for pod in driven if by_hand else ():
            pod.grace = GRACE_AFTER_A_LIE
        if self.agree and len(serving_names) > 1 and not by_hand:
            self.sim.fail(2, f"{sorted(serving_names, key=str)} generate at the same time")
        if self.agree and len(serving_names) == 1 and not by_hand:
            ((weights, run),) = serving_names
            self._is_not_older((version_in(weights), run), "the fleet went back")

    def _none_may_open_late(self, serving_names: set[Name]) -> None:
        """No call that is on its way would open a worker at other weights than those that serve."""
        if not self.agree or not serving_names:
            return
        serving = {(version_in(v), run) for v, run in serving_names}
        for pod, name in self.stored_first.openings():
            if name not in serving:
                text = f"{pod.name} opens at {name} as soon as its admission comes"
                self.sim.fail(2, f"{text}, and {sorted(serving, key=str)} are served")

    def _pauses_end(self, pod: FakePod) -> None:
        worker = pod.worker
        if worker.paused_at is None or pod.deleted_at is not None:
            return
        unheard = self.sim.now - worker.renewed_at
        if worker.phase is Phase.PAUSED and unheard > LEASE_SECONDS + SLACK_SECONDS:
            self.sim.fail(3, f"{pod.name} has been paused since {worker.renewed_at:.1f}")
        if worker.holds_for_seconds - self._unled_seconds(pod) > self.longest_pause_seconds:
            self.sim.fail(3, f"{pod.name} holds its requests for {worker.holds_for_seconds:.0f} s")

    def _unled_seconds(self, pod: FakePod) -> float:
        """For how much of the pause of a worker no operator has led, or reached it: only a leader ends work that hangs."""
        until = pod.worker.paused_at or self.sim.now
        total = 0.0
        for begin, end in sorted((*self.sim.absences, *pod.unreached)):
            ended = min(end, self.sim.now)
            total += max(0.0, ended - max(begin, until))
            until = max(until, ended)
        return total

    def _has_led_slowly(self, pod: FakePod) -> bool:
        """Whether requests are held for as long as they may, and looks of the leader came late meanwhile: renewals of pauses
        take the turns of other calls then. The worker itself had held its requests for longer than the way back takes.
        """
        limit = min(r.longest_hold_seconds for r in self.settings)
        least = min(r.longest_hold_seconds - r.hold_seconds for r in self.settings)
        observed = self.sim.leader.observed
        held = max((w.held_seconds for w in observed.workers), default=0.0) if observed else 0.0
        waits = self.deserved.fenced_after.get(pod.uid, 0.0) > least
        return waits and held > limit and self.sim.now - self.deserved.slow_look_at <= held

    def _requests_are_kept(self, pod: FakePod) -> None:
        for why in pod.worker.requests.ended:
            if why in _ENDED_BY_A_PLAN and pod.uid in self.availability.planned and not pod.suspect:
                since, seconds = self.availability.planned[pod.uid]
                if self.sim.now < since + seconds:
                    self.sim.fail(
                        12, f"{pod.name} was to be removed, and its request was cut ({why})"
                    )
            if why == "pause abort" and all(r.pause.mode != "Abort" for r in self.settings):
                self.sim.fail(8, f"a pause cut a request of {pod.name} short")
            if (
                why == "fence"
                and not self._may_be_expelled(pod)
                and pod.uid not in self.availability.planned
                and not self.sim.leader.looks_seldom
                and not self._has_led_slowly(pod)
            ):
                self.sim.fail(8, f"{pod.name} has no fault and was fenced")
            if why == "lease" and not self._may_be_expelled(pod) and self._was_looked_at(pod):
                self.sim.fail(8, f"no operator renewed the pause of {pod.name} in time")
        pod.worker.requests.ended.clear()

    def _may_be_late(self, pod: FakePod) -> bool:
        """Whether its work lasts longer than it may."""
        worker = pod.worker
        times = [r.timeouts for r in self.settings]
        limits = (
            (worker.staging, min(t.stage_seconds for t in times)),
            (worker.work, min(t.load_seconds for t in times)),
        )
        return any(t is not None and self.sim.now - t.began_at >= limit for t, limit in limits)

    def _may_be_expelled(self, pod: FakePod) -> bool:
        worker, leader = pod.worker, self.sim.leader
        goal = leader.decision.rollout.step.goal.version if leader.decision is not None else None
        applied = leader.fleet.applied
        goes_back = applied is not None and applied.version == goal
        refused = goes_back and any(note.version == goal for note in worker.refused_stages)
        held_for_long = pod.uid in self.deserved.held_for_long | self.deserved.at_other_work
        excused = pod.suspect or worker.refuses_files or refused or held_for_long
        excused = excused or self._was_left_behind(pod)
        return excused or self.sim.is_rough or not self.forbids_mixing

    def _was_left_behind(self, pod: FakePod) -> bool:
        """Whether a strategy that mixes versions has left the worker at another version than the
        fleet's, which others generate. Both cannot generate under the strategy in force, and it
        does not hold the bytes of the fleet's version.
        """
        applied = self.sim.leader.fleet.applied
        if self.agree or applied is None:
            return False
        name, worker = (applied.version, applied.run_id), pod.worker
        others = (p.worker for p in self.sim.pods.values() if self.sim.serves(p))
        has = {_name_of(worker), (worker.staged, worker.staged_run_id)}
        return name not in has and any(_name_of(w) == name for w in others)

    def _was_looked_at(self, pod: FakePod) -> bool:
        """Whether the leader looked shortly before the end of the pause, and did what it decided.

        After a call was refused as old, the leader sends no call until it has read the Lease. It does
        not repeat at once a pause whose effect it has not seen.
        """
        leader = self.sim.leader
        if leader.todo or leader.epochs.is_term_pending:
            return False
        if leader.must_wait(pod.uid, Work("pause"), self.sim.now - SLACK_SECONDS):
            return False
        soon = pod.worker.renewed_at + LEASE_SECONDS / 3 + SLACK_SECONDS
        return any(soon < at < self.sim.now - SLACK_SECONDS for at in leader.looked_at)

    # --- steps back ------------------------------------------------------------------------------

    def note_request(self) -> None:
        """A trainer or a user has changed a resource."""
        if self.rollout not in self.settings:
            self.settings.append(self.rollout)
        self._note_canaries()
        before, self.asked = self.asked, self._specs()
        known, self.back_to = self.back_to, {}
        for uid, spec in self.asked.items():
            self._note_digest(spec)
            self.asked_at.setdefault((uid, spec.version, spec.run_id), self.sim.now)
            if self._is_permitted(spec, before.get(uid), known.get(uid)):
                self.back_to[uid] = str(spec.rollback_to)
                self.permitted.setdefault(uid, set()).add((spec.version, spec.run_id))
        if self.sim.desired.base_spec is not None:
            self._note_source()
            self._note_version()

    def _note_canaries(self) -> None:
        """From now on the requested version is one that canaries judge, or none is."""
        spec = self.sim.desired.base_spec
        if self.rollout.strategy != "Canary":
            self.must_be_judged.clear()
            self.judged_since.clear()
        elif spec is not None and (name := (spec.version, spec.run_id)) not in self.recorded:
            self.must_be_judged.add(name)
            self.judged_since.setdefault(name, self.sim.now)

    def _note_digest(self, spec: WeightsSpec) -> None:
        """The trainer says which files a version means. That counts if no leader knows it otherwise."""
        if spec.digest is None:
            return
        named, leaders = (spec.version, spec.run_id), (self.sim.leader, *self.sim.former_leaders)
        statuses = (self.sim.fleet_stored, *(leader.fleet for leader in leaders))
        if spec.adapter:
            was_served = (spec.adapter, *named) in self.adapters_meant
            pins = [p for s in statuses for p in s.pinned_adapters if p.adapter == spec.adapter]
        else:
            was_served = named in self.meant
            pins = [p for s in statuses for p in s.pinned]
        if was_served and named not in {(p.version, p.run_id) for p in pins}:
            self.named_again.add((spec.adapter, *named, spec.digest))

    def _specs(self) -> dict[str, WeightsSpec]:
        return {uid: asked.view(uid).spec for uid, asked in self.sim.desired.weights}

    def _note_version(self) -> None:
        """Note the requested version, unless it is a refused step back from what is served now."""
        spec = self.sim.desired.base_spec
        if spec is None:
            return
        name = (spec.version, spec.run_id)
        if name != self.requested[-1] and not self._is_a_rewind(spec):
            self.requested.append(name)

    def _is_permitted(
        self, spec: WeightsSpec, before: WeightsSpec | None, back_to: str | None
    ) -> bool:
        """Whether `rollbackTo` permits a spec. It permits its own version, and later ones on the
        way to it while the WeightVersion is the same.

        `back_to`: what permitted the spec before.
        """
        if spec.rollback_to is None or spec.rollback_to == spec.version:
            return spec.rollback_to is not None
        desired, first = number_of(spec.version), number_of(spec.rollback_to)
        if before is None or before.run_id != spec.run_id or desired is None or first is None:
            return False
        left = number_of(before.version)
        on_its_way = back_to == spec.rollback_to or (left is not None and left > desired)
        return desired >= first and on_its_way

    def _note_source(self) -> None:
        spec = self.sim.desired.base_spec
        if spec is not None and self.meant.get((spec.version, spec.run_id)) in {None, spec.digest}:
            sources = self.sources.setdefault((spec.version, spec.run_id), set())
            sources.add(spec.source.resolve(spec.version))

    def _is_a_rewind(self, spec: WeightsSpec) -> bool:
        """Whether a spec requests a lower number of the run than was served, without permission. No run is
        a run of its own. Numbers of different runs are not compared.
        """
        version, run = self.requested[self.served]
        desired, reached = number_of(spec.version), number_of(version)
        if desired is None or spec.run_id != run:
            return False
        if self.sim.desired.base_uid in self.back_to:
            return False
        return reached is not None and desired < reached

    def _is_not_older(self, name: Name, what: str) -> None:
        if name not in self.requested:
            self.sim.fail(5, f"{name} is served, and the trainer did not request it")
        place = self._place_of(name)
        if place < self.served and not self.unknown:
            self.sim.fail(5, f"{what} from {self.requested[self.served]} to {name}")
        if place != self.served:
            self.served = place
            self._note_version()  # from here it may be no step back

    def _place_of(self, name: Name) -> int:
        """Index of weights in `requested`: the first one that is not a step back, else the last one."""
        places = [n for n, requested in enumerate(self.requested) if requested == name]
        return min((n for n in places if n >= self.served), default=places[-1])

    def note_look(self, leader: Leader) -> None:
        """The leader is about to decide. Check if it can know what was served, from statuses that it
        has read and from answers.

        A leader cannot know it in one case. The operator died before it had stored its status, or the
        watch has not brought it yet, and every worker that served the newer version is lost. Where
        versions mix, answers of workers prove nothing. A value that a leader has read stays known.
        """
        if leader is self.sim.leader:
            self._watch(_base_status(leader, leader.weights))
        newer, recorded = self.requested[self.served], leader.fleet.applied
        if (stored := leader.stored.applied) is not None:
            self.recorded.add((stored.version, stored.run_id))
        heard = (h.state for h in leader.heard.values())
        self.unknown = newer not in self.recorded and not (
            (recorded is not None and (recorded.version, recorded.run_id) == newer)
            or (
                self.forbids_mixing
                and any(s.admitted and (s.version, s.run_id) == newer for s in heard)
            )
        )

    def note_leader(self) -> None:
        """A new leader has started. Where versions mix, it knows only what is stored. It has as long as the last one
        to act on a worker that has lied.
        """
        for pod in self.sim.pods.values():
            pod.grace = GRACE_AFTER_A_LIE if pod.grace else 0
        self.readers.asked.clear()
        self.stored_first.note_leader()
        self.repeated_calls.ignored.clear()  # the terms of leaders begin again after the Lease was deleted
        applied = self.sim.fleet_stored.applied
        if self.forbids_mixing or applied is None:
            return
        name = (applied.version, applied.run_id)
        if name in self.requested:
            self.served = self.requested.index(name)

    def note_status(self, known: Mapping[str, WeightsStatus]) -> None:
        """The leader has decided a new status of the base weights. `known`: the statuses before."""
        leader = self.sim.leader
        before, after = _base_status(leader, known), _base_status(leader, leader.weights)
        self._ready_is_true(leader)
        self._ready_adapters_are_true(leader)
        self._adapters_do_not_go_back(known)
        self.availability.note_status(leader)
        self.reported.check(leader, known)
        self._stalled_asks_for_something(leader)
        stalled = condition_of(after.conditions, ConditionType.STALLED)
        self._stays_abandoned(before, after)
        if after.canary is not None and after.canary.passed:
            self.judged.add((after.canary.version, after.canary.run_id))
        halts = after.phase is RolloutPhase.HALTED and before.phase is not after.phase
        late = stalled is not None and stalled.reason is ConditionReason.DEADLINE_EXCEEDED
        waited, timeouts = self.sim.now - self.watching[1], [r.timeouts for r in self.settings]
        limits = {
            RolloutPhase.STAGING: min(t.stage_seconds for t in timeouts),
            RolloutPhase.PAUSING: min(t.pause_seconds for t in timeouts),
            RolloutPhase.LOADING: min(t.load_seconds for t in timeouts),
            RolloutPhase.JUDGING: min(t.stage_seconds for t in timeouts),
        }
        held = max((p.worker.holds_for_seconds for p in self.sim.pods.values()), default=0.0)
        if (
            halts
            and late
            and held <= min(r.longest_hold_seconds for r in self.settings)
            and not self._is_swap_late(leader)
        ):
            if waited < limits.get(before.phase, 0.0):
                text = (
                    f"{after.desired_version} is abandoned after {waited:.1f} s in {before.phase}"
                )
                self.sim.fail(6, f"{text}, before any timeout has passed")
            self.deserved.check_late(leader, before, waited)
        elif halts and stalled is not None and not late:
            self._has_been_refused(leader, after, stalled)
        self._is_reported_as_late(after, stalled)
        self._watch(after)

    def _has_been_refused(self, leader: Leader, after: WeightsStatus, stalled: Condition) -> None:
        """A version that is abandoned, and not as late, was refused by a canary, or by a worker itself."""
        workers = leader.observed.workers if leader.observed is not None else ()
        states = [w.state for w in workers if w.state is not None]
        failures = [
            f
            for s in states
            for f in (s.load_failure, s.stage_failure, *s.earlier_stage_failures)
            if f is not None
        ]
        name = (after.desired_version, after.desired_run_id)
        refused = any((f.version, f.run_id) == name for f in failures)
        judged = stalled.reason is ConditionReason.CANARY_REFUSED
        if not (refused or judged or any(w.unheeded for w in workers)):
            self.sim.fail(6, f"{name} is abandoned ({stalled.reason}), and no worker refused it")

    def _is_reported_as_late(self, after: WeightsStatus, stalled: Condition | None) -> None:
        """All workers together have one limit of a stage, a pause or a load more than they need one after the other.
        Then the version is abandoned, or the worker is out of service, or a condition says what is wrong.
        """
        if stalled is not None or not self.forbids_mixing or self.sim.leader.epochs.is_term_pending:
            return
        observed, decision = self.sim.leader.observed, self.sim.leader.decision
        if observed is None or after.phase not in _TIMED:
            return
        if decision is not None and decision.rollout.waits_for_pin:
            return  # the API server takes no status: a log and an Event say so
        name = (after.desired_version, after.desired_run_id)
        has = {w.pod.uid: {x[:2] for x in (w.staged, w.loaded) if x} for w in observed.workers}
        actions = decision.pod_actions if decision is not None else ()
        if any(isinstance(a, Quarantine) and name not in has[a.pod_uid] for a in actions):
            return  # it goes out of service: the strategy forbids mixing from now on
        known, waited = self._phase_of(after), self.sim.now - self.watching[1]
        workers = len(observed.workers)
        limits = (self.deserved.limits(r, after.phase, workers)[1] for r in self.settings)
        limit = max(limits) + LONGEST_LOOK_SECONDS
        if known == self.watching[0] and waited > limit:
            self.sim.fail(
                6, f"{after.desired_version} is {after.phase} for {waited:.0f} s, unreported"
            )

    def _stays_abandoned(self, before: WeightsStatus, after: WeightsStatus) -> None:
        """An abandoned version is not rolled out again until a user changes it or requests a retry."""
        asked, known = (
            (s.observed_generation, s.retried, s.desired_version) for s in (after, before)
        )
        halted = before.phase is RolloutPhase.HALTED
        if halted and asked == known and after.phase is not RolloutPhase.HALTED:
            self.sim.fail(6, f"{after.desired_version} was abandoned, and is {after.phase} again")

    def _stalled_asks_for_something(self, leader: Leader) -> None:
        """`Stalled` has a reason that may stall an object, by the table of reasons."""
        for status in (leader.fleet, *leader.weights.values()):
            stalled = condition_of(status.conditions, ConditionType.STALLED)
            if stalled is not None and stalled.reason.severity not in _STALLING:
                self.sim.fail(6, f"Stalled has the reason {stalled.reason}, which stalls nothing")

    def _adapters_do_not_go_back(self, known: Mapping[str, WeightsStatus]) -> None:
        """The applied version of an adapter in a status is not older than before. `known`: the statuses
        before.
        """
        for uid, status in self.sim.leader.weights.items():
            before, after = known.get(uid, NO_STATUS).applied, status.applied
            if uid.startswith(BASE_UID) or before is None or after is None:
                continue
            was, now = number_of(before.version), number_of(after.version)
            lower = was is not None and now is not None and now < was
            name: Name = (after.version, after.run_id)
            if lower and before.run_id == after.run_id and name not in self.permitted.get(uid, ()):
                self.sim.fail(5, f"{uid} went back from {before.version} to {after.version}")

    def _applied_is_recorded(self, leader: Leader, decision: Decision) -> None:
        """A rollback goes to the version of the last rollout that has ended on most replicas. A suspended
        one ends on all, also on those that are scaled away, or when it is resumed.
        """
        plan, observed = decision.rollout, leader.observed
        spec = leader.desired.base_spec if leader.desired is not None else None
        if observed is None or observed.is_external:
            return
        opened = (w for w in observed.workers if w.standing is Standing.OPEN)
        serve = sum(w.has_loaded(plan.step.goal) for w in opened)
        wanted = observed.expected_workers
        if spec is not None and spec.suspend:
            wanted = max(wanted, sum(w.pod.running for w in observed.workers))
        else:
            wanted = wanted // 2 + 1
        ends = plan.step.phase is RolloutPhase.APPLIED and serve and serve >= wanted
        if ends and not same_weights(plan.applied, plan.step.goal):
            served, back = plan.step.goal.label, plan.applied.label
            self.sim.fail(5, f"{served} is Applied, and a rollback would go to {back}")

    def _is_swap_late(self, leader: Leader) -> bool:
        """Whether a worker has reported a swap that is late by now. This does not depend on how
        long the leader has watched the phase: also a new leader finds the swap late.
        """
        observed = leader.observed
        limit = min(
            r.timeouts.load_seconds
            + (r.pause.drain_timeout_seconds if r.pause.mode == "Wait" else 0)
            for r in self.settings
        )
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
        """The leader has decided this status, or has found it as a new leader."""
        phase = self._phase_of(status)
        if phase == self.watching[0]:
            return
        known = self.watching[0]
        if (*phase[:2], phase[3]) != (*known[:2], *known[3:4]):
            self.watched_at = self.sim.now
        self.watching = (phase, self.sim.now)

    def _phase_of(self, status: WeightsStatus) -> tuple[object, ...]:
        return (
            *(self.sim.leader.number, status.desired_version, status.retried),
            *(status.phase, status.phase_started_at),
        )

    def note_decision(self, leader: Leader, decision: Decision) -> None:
        """Promises 7, 15, 17 and 18. Where versions mix, the applied version in the status must not go back, unless a
        worker has reported a false one.
        """
        check_order(self.sim, leader, decision)
        check_swaps(self.sim, leader, decision)
        check_retry_waits(self.sim, leader, decision)
        self.same_files.check(leader)
        self.availability.note_decision(leader, decision)
        self.deserved.note_decision(leader, decision)
        self.repeated_calls.check(leader, decision)
        self._applied_is_recorded(leader, decision)
        if any(pod.grace for pod in self.sim.pods.values()):
            return
        if leader is self.sim.leader and not self.forbids_mixing and self.sim.desired.base:
            applied = decision.rollout.applied
            name = (applied.version, applied.run_id)
            self._is_not_older(name, "the applied version went back")

    # --- promise 11 ------------------------------------------------------------------------------

    def note_taken(self, pod: FakePod, flight: Flight) -> None:
        """A worker carries out a call. It must be the worker that the call names."""
        if flight.action.pod_uid != pod.uid:
            self.sim.fail(
                11, f"{pod.name} carries out {flight.action.work} for {flight.action.pod_name}"
            )

    def note_answer(self, asked: PodView, state: WorkerState) -> None:
        """An operator takes an answer as that of a pod. It must come from that pod."""
        if state.pod_uid != asked.uid:
            self.sim.fail(11, f"the answer of {state.worker} counts for {asked.name}")
