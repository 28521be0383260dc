"""Part of promise 6: what users read in a status is so, as far as the leader knows.

Judged from what workers have answered and from their pods, at each decision of the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import TYPE_CHECKING

from tests.model import canaries
from tests.model.desired import NO_STATUS

from fleet_operator.core.dropped_pins import may_be_dropped
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.percentages import at_most, rounded_down
from fleet_operator.core.worker_view import Standing
from fleet_worker.protocol import Phase, Reason
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase

if TYPE_CHECKING:
    from tests.model.desired import Desired
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.api.fleet import Rollout
    from fleet_operator.api.weights import WeightsSpec
    from fleet_operator.core.worker_view import WorkerView
    from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, Transition
    from rlfleet_resources.weights_status import WeightsStatus

ROUNDING_SECONDS = 0.5
LONGEST_LOOK_SECONDS = 45.0
"""Two looks at a fleet that the operator seldom looks at."""
MAX_WORKERS = 6
"""No simulated fleet is larger. Workers that are being replaced count too."""
RECYCLED_SECONDS = 330.0
"""The longest wait before a worker is recreated, as documented, and more than one look."""
AGAIN_AFTER_SECONDS = 91.0
_ENDS = frozenset({RolloutPhase.APPLIED, RolloutPhase.RESUMING})
_ADAPTER_COMES = frozenset({RolloutPhase.STAGING, RolloutPhase.LOADING})
_MAY_REFUSE = frozenset({Standing.OPEN, Standing.HELD, Standing.CLOSED})
_MEMBERS = frozenset({Standing.OPEN, Standing.HELD, Standing.UNKNOWN})
_HOLD = frozenset({Phase.PAUSED, Phase.LOADING})
_COMES = frozenset({RolloutPhase.STAGING, RolloutPhase.LOADING})
_PASSES = frozenset({Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_READY, Reason.PEER_UNREADABLE})
"""Reasons that pass: a worker with one has not refused the version."""
_SAYS_WHY = frozenset(
    {ConditionReason.SUSPENDED, ConditionReason.NO_WORKERS, ConditionReason.HALTED}
)


class Reported:
    """Fields:

    recorded: the number of a leader, and the operation that it has recorded last.
    failed_since: uid of a pod that has failed → since when the leader knows.
    judged_by: the number of the leader that has judged last.
    applied: the number of a leader, and the weights that it has recorded as applied last.
    named_others: the number of a leader, and a version of a WeightVersion → when it named other files.
    adapters_since: uid of an adapter's WeightVersion → its phase, and since when the leader knows.
    late: uids of adapters' WeightVersions that are late.
    lacking: uid of an adapter's WeightVersion → the workers that lack it, and since when.
    joining_since: uid of an adapter's WeightVersion → the processes that join, and since when.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.recorded: tuple[int, Transition | None] = (0, None)
        self.failed_since: dict[str, float] = {}
        self.judged_by = 0
        self.breaks: tuple[int, tuple[object, ...]] = (0, ())
        self.applied: tuple[int, AppliedWeights | None] = (0, None)
        self.named_others: dict[tuple[object, ...], float] = {}
        self.adapters_since: dict[str, tuple[tuple[object, ...], float]] = {}
        self.late: frozenset[str] = frozenset()
        self.lacking: dict[str, dict[str, float]] = {}
        self.joining_since: dict[str, dict[tuple[str, int], float]] = {}

    def check(self, leader: Leader, known: Mapping[str, WeightsStatus]) -> None:
        """The leader has decided its statuses. `known`: those of WeightVersions before."""
        observed, desired = leader.observed, leader.desired
        if observed is None or desired is None or observed.is_external:
            return
        status = leader.weights.get(desired.base_uid, NO_STATUS)
        if not self._is_said(leader.fleet):
            reasons = {c.type: c.reason for c in leader.fleet.conditions}
            self.sim.fail(6, f"the fleet is not Ready, not Progressing, and not Stalled: {reasons}")
        for uid, one in leader.weights.items():
            of_fleet = condition_of(leader.fleet.conditions, ConditionType.STALLED) is not None
            if not (of_fleet or one.phase is RolloutPhase.APPLIED or self._is_said(one)):
                self.sim.fail(6, f"{uid} is not Ready, not Progressing, and not Stalled")
        live = [w for w in observed.workers if not w.pod.deleting]
        there = [w for w in live if not w.pod.quarantine and w.pod.running]
        answer = [w for w in there if w.state is not None and not w.silent_seconds]
        self._failed_ones_go(leader.fleet, live)
        self._unread_pins_stay(leader)
        self._pins_are_in_order(leader)
        self._check_each(leader, desired, there)
        if desired.base is not None:
            self._abandoned_stays(known.get(desired.base_uid, NO_STATUS), status)
            self._phase_is_true(leader, status, answer)
            self._count_is_true(status, answer)
            self._silent_ones_have_it(status, there)
            self._refusals_are_reported(leader, status)
            self._engines_that_break_count(
                leader, known.get(desired.base_uid, NO_STATUS), status, there
            )
            self._refusals_count(leader, status, answer)
            self._failed_ones_swap_again(leader, status, live)
            self._wait_hides_no_cause(leader, status, there)
            self._verdict_is_earned(leader, status, answer)
            canaries.check(self.sim, leader, known.get(desired.base_uid, NO_STATUS), status)
            if live:
                self._is_still_judged(leader, known.get(desired.base_uid, NO_STATUS), status)
            self._lost_weights_delay_no_verdict(leader, status, there)
            if status.phase is RolloutPhase.JUDGING:
                self.judged_by = leader.number

    def _check_each(self, leader: Leader, desired: Desired, there: list[WorkerView]) -> None:
        self._adapters_have_room(leader, desired)
        for uid, asked in desired.weights:
            if uid in leader.weights and asked.view(uid).spec.adapter:
                self._late_adapters_are_reported(leader, uid, asked.view(uid).spec, there)
                self._missing_slots_are_reported(leader, desired, uid, there)
            if uid in leader.weights and desired is self.sim.desired:
                self._unread_files_are_noted(leader, uid, asked.view(uid).spec)

    def _adapters_have_room(self, leader: Leader, desired: Desired) -> None:
        """No adapter is refused for want of room while the fleet has slots for all. One with the name of the base model
        takes no slot.
        """
        spec = desired.fleet_spec
        named = {uid: asked.view(uid).spec.adapter for uid, asked in desired.weights}
        own = [uid for uid, adapter in named.items() if adapter not in {"", spec.model.name}]
        for uid in own if len(own) <= spec.adapters.max else ():
            status = leader.weights.get(uid, NO_STATUS)
            stalled = condition_of(status.conditions, ConditionType.STALLED)
            if stalled is not None and stalled.reason is ConditionReason.NO_ROOM_FOR_ADAPTERS:
                self.sim.fail(6, f"{uid} has no slot, and the fleet has {spec.adapters.max}")

    def _is_said(self, status: FleetStatus | WeightsStatus) -> bool:
        """Whether what is not ready is on its way, or stalled, or its user has asked for that."""
        ready, progressing, stalled = (
            condition_of(status.conditions, kind)
            for kind in (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.STALLED)
        )
        known = ready is None or ready.status == "True" or ready.reason in _SAYS_WHY
        comes = progressing is not None and progressing.status == "True"
        return known or comes or stalled is not None

    def _failed_ones_go(self, fleet: FleetStatus, live: list[WorkerView]) -> None:
        """A pod that has failed for good is recreated in time, or the fleet is stalled."""
        failed = {
            w.pod.uid: w.pod.name for w in live if w.pod.quarantine or w.pod.phase == "Failed"
        }
        now, known = self.sim.now, self.failed_since
        self.failed_since = {uid: known.get(uid, now) for uid in failed}
        late = [
            failed[uid]
            for uid, since in self.failed_since.items()
            if now - since > RECYCLED_SECONDS
        ]
        if late and condition_of(fleet.conditions, ConditionType.STALLED) is None:
            self.sim.fail(6, f"{late} have failed for {RECYCLED_SECONDS:.0f} s, and stay")

    def _unread_pins_stay(self, leader: Leader) -> None:
        """No version gets a new pin while the status has one for it that cannot be read."""
        status, stored = leader.fleet, leader.stored
        raws = [e.raw for e in status.unread.entries if e.within == "pinned"]
        unread = {(r.get("version"), r.get("runID")) for r in raws if isinstance(r, dict)}
        if not unread:
            return
        pins, before = ({(p.version, p.run_id) for p in s.pinned} for s in (status, stored))
        if added := (pins - before) & unread:
            self.sim.fail(9, f"{added} get a pin, and have one that cannot be read")

    def _pins_are_in_order(self, leader: Leader) -> None:
        """Weights that become the applied ones have their pin before that of the former ones, since the status loses its last
        pins first.
        """
        (number, before), now = self.applied, leader.fleet.applied
        self.applied = leader.number, now
        places = {(p.version, p.run_id): n for n, p in enumerate(leader.fleet.pinned)}
        if number != leader.number or before is None or now is None:
            return
        old, new = (places.get((w.version, w.run_id)) for w in (before, now))
        if old is not None and new is not None and new > old:
            text = f"{now.version} becomes the applied version after {before.version}"
            self.sim.fail(9, f"{text}, and its pin is dropped first")

    def _unread_files_are_noted(self, leader: Leader, uid: str, spec: WeightsSpec) -> None:
        """A WeightVersion remembers that no worker has read its files: it names a version that was served before, or
        has named other files for it. So it is not `Ready` unless a worker reads them.
        """
        promises, files, name = self.sim.promises, self.sim.files, (spec.version, spec.run_id)
        key, source = (uid, *name), spec.source.resolve(spec.version)
        pins = leader.fleet.pinned_adapters if spec.adapter else leader.fleet.pinned
        own = [
            p
            for p in pins
            if (p.version, p.run_id) == name and getattr(p, "adapter", "") == spec.adapter
        ]
        path, served_at = str(source), promises.served_at.get((spec.adapter, *name))
        if spec.digest is not None:  # it says which files it means
            self.named_others.pop((leader.number, *key), None)
            return
        known = {p.source for p in own} if spec.adapter else promises.sources.get(name, set())
        is_known = bool(known) or not spec.adapter
        if served_at is not None and is_known and source not in known:
            self.named_others[leader.number, *key] = self.sim.now
            return
        since = promises.asked_at.get(key, 0.0)
        is_new = served_at is not None and served_at < since and key not in promises.confirmed
        since = self.named_others.get((leader.number, *key), since if is_new else -1.0)
        liars = any(p.worker.lies_about("stage") for p in self.sim.pods.values())
        changed = files.changed_at.get(path, 0.0) > since or path in files.absent
        if since < 0 or not own or liars or changed or files.read_at.get(path, 0.0) >= since:
            return
        status = leader.weights[uid]  # without a start it has asked for nothing yet
        if status.started_at is not None and not status.files_unread:
            text = f"no worker has read the files in {path} since {uid} names them"
            self.sim.fail(9, f"{text}, and its status does not say so")

    def _late_adapters_are_reported(
        self, leader: Leader, uid: str, spec: WeightsSpec, there: list[WorkerView]
    ) -> None:
        """An adapter is late when all workers had their time, one after the other and in a pause of the base weights: it
        is reported then, and not before.
        """
        assert leader.desired is not None
        if spec.suspend:
            self.adapters_since.pop(uid, None)
            return
        status, now = leader.weights[uid], self.sim.now
        attempt = leader.number, status.desired_version, status.desired_run_id, status.retried
        phase = (*attempt, status.phase, status.phase_started_at)
        known, since = self.adapters_since.get(uid, (phase, now))
        self.adapters_since[uid] = phase, since if known == phase else now
        since = since if known[:4] == attempt else now  # a phase that has just ended counts
        rollout = spec.rollout.over(leader.desired.fleet_spec.rollout)
        least, most = _seconds_of_adapter(rollout, there)
        join_seconds = rollout.timeouts.stage_seconds + rollout.timeouts.load_seconds
        stalled = condition_of(status.conditions, ConditionType.STALLED)
        joins = any(
            w.standing is Standing.CLOSED
            and w.state
            and w.state.uptime_seconds >= join_seconds
            and stalled is not None
            and w.pod.name in stalled.message
            for w in there
        )
        is_late = stalled is not None and stalled.reason is ConditionReason.DEADLINE_EXCEEDED
        if status.phase is RolloutPhase.APPLIED and stalled is None:
            self._unfinished_is_reported(uid, spec, there, most)
        if status.phase not in _ADAPTER_COMES:
            self.lacking.pop(uid, None)
            self.late -= {uid}
            return
        becomes_late = is_late and uid not in self.late  # else its limit may have grown since
        self.late = (self.late - {uid}) | ({uid} if is_late else set())
        if becomes_late and not joins and now - since < least - ROUNDING_SECONDS:
            self.sim.fail(6, f"{uid} is late after {now - since:.1f} s of {least:.0f} s")
        lacks = [
            w.pod.name
            for w in there
            if w.state is not None
            and (w.state.admitted and not w.silent_seconds and w.takes_lora)
            and w.state.uptime_seconds > most
            and w.adapter(spec.adapter) is None
        ]
        # One that was away has its time from its return on.
        known_since = self.lacking.get(uid, {})
        self.lacking[uid] = {name: known_since.get(name, now) for name in lacks}
        late = [n for n, at in self.lacking[uid].items() if now - max(at, since) > most]
        said = condition_of(leader.fleet.conditions, ConditionType.STALLED) or stalled
        if late and said is None:
            self.sim.fail(6, f"{late} lack {uid} for {now - since:.0f} s, unreported")

    def _missing_slots_are_reported(
        self, leader: Leader, desired: Desired, uid: str, there: list[WorkerView]
    ) -> None:
        """An adapter is reported whose workers have no slots, while updates are held and their pods stay."""
        spec, status = desired.fleet_spec, leader.weights[uid]
        members = [w for w in there if w.standing is Standing.OPEN]
        takes = not members or any(w.takes_lora or w.silent_seconds for w in members)
        if (
            takes
            or not spec.update.is_held
            or not spec.adapters.max
            or desired is not self.sim.desired
        ):
            return
        waits = status.phase in {RolloutPhase.STAGING, RolloutPhase.LOADING}
        stalled = condition_of(leader.fleet.conditions, ConditionType.STALLED)
        if waits and (condition_of(status.conditions, ConditionType.STALLED) or stalled) is None:
            self.sim.fail(6, f"no worker has a slot for {uid}, and that is not reported")

    def _unfinished_is_reported(
        self, uid: str, spec: WeightsSpec, there: list[WorkerView], most: float
    ) -> None:
        """A worker that cannot join, since the files of an applied adapter are not complete, is reported in time."""
        known, now = self.joining_since.pop(uid, {}), self.sim.now
        for worker in there:
            state = worker.state
            if worker.standing is not Standing.CLOSED or state is None or worker.silent_seconds:
                continue
            key = worker.pod.uid, worker.pod.restarts
            since = self.joining_since.setdefault(uid, {}).setdefault(key, known.get(key, now))
            waits = any(
                f.reason is Reason.SOURCE_NOT_READY
                and (f.name, f.version, f.run_id) == (spec.adapter, spec.version, spec.run_id)
                for f in state.adapter_failures
            )
            if waits and now - since > most and worker.adapter(spec.adapter) is None:
                text = f"{worker.pod.name} has waited for {uid} for {now - since:.0f} s"
                self.sim.fail(6, f"{text}, unreported")

    def _abandoned_stays(self, before: WeightsStatus, after: WeightsStatus) -> None:
        """An abandoned version does not come back by itself: only a retry or another spec brings it back."""
        asked = [(s.observed_generation, s.retried) for s in (before, after)]
        if before.phase is RolloutPhase.HALTED is not after.phase and asked[0] == asked[1]:
            text = f"{after.desired_version} was abandoned, and is {after.phase} now"
            self.sim.fail(6, f"{text}, and no retry was requested")

    def _silent_ones_have_it(self, status: WeightsStatus, there: list[WorkerView]) -> None:
        """Where versions must not mix, a version is not on all workers while one may generate with another. It
        does not answer now.
        """
        name, ends = (status.desired_version, status.desired_run_id), status.phase in _ENDS
        if not ends or not self.sim.promises.agree:
            return
        for worker in there:
            if worker.standing is Standing.UNKNOWN and worker.state and not _has(worker, name):
                text = f"{name} is {status.phase}, and {worker.pod.name}, which is silent"
                self.sim.fail(6, f"{text}, may serve {worker.state.version}")

    def _phase_is_true(
        self, leader: Leader, status: WeightsStatus, answer: list[WorkerView]
    ) -> None:
        assert leader.decision is not None
        if any(d.part.startswith("the status of") for d in leader.decision.defects):
            return  # the last one stays, and the defect is reported
        name = (status.desired_version, status.desired_run_id)
        members = [w for w in answer if w.state is not None and w.state.admitted]
        has = [w for w in members if _has(w, name)]
        holds = [w.pod.name for w in members if w.state is not None and w.state.phase in _HOLD]
        if status.phase in _ENDS and len(has) < len(members):
            share = f"{len(has)} of {len(members)}"
            self.sim.fail(6, f"{name} is {status.phase}, and {share} workers have it")
        plan = leader.decision.rollout
        goal = plan.step.goal.version, plan.step.goal.run_id
        loads = [w.pod.name for w in members if _loads_others(w, goal)]
        if plan.allows_mixing and status.phase is plan.step.phase in _ENDS and loads:
            self.sim.fail(6, f"{goal} is {plan.step.phase}, and {loads} load other weights")
        if status.phase is RolloutPhase.APPLIED and holds:
            self.sim.fail(6, f"{name} is Applied, and {holds} hold their requests")
        self._record_says_why(leader, members)
        absent = [w for w in answer if _finds_nothing(w, name)]
        assert leader.observed is not None
        known = leader.observed.workers  # also those that have just become silent
        found = any(_has(w, name) or _holds_bytes(w, name) for w in known)
        was_seen = name in self.sim.promises.meant
        was_read = name in {(p.version, p.run_id) for p in leader.fleet.pinned}
        if status.phase in _ENDS and not (was_seen or any(_has(w, name) for w in known)):
            self.sim.fail(6, f"{name} is {status.phase}, and no worker has ever had it")
        begun = status.phase in {RolloutPhase.STAGING, RolloutPhase.JUDGING, RolloutPhase.PAUSING}
        stalled = condition_of(status.conditions, ConditionType.STALLED) is not None
        if absent and len(absent) == len(answer) and begun and not (found or was_read or stalled):
            self.sim.fail(6, f"{name} is {status.phase}, and no worker has found its directory")

    def _count_is_true(self, status: WeightsStatus, answer: list[WorkerView]) -> None:
        """`workersApplied` counts no worker in a phase of a newer release, which may load others."""
        name = (status.desired_version, status.desired_run_id)
        opened = [w for w in answer if w.standing is Standing.OPEN]
        sure = sum(isinstance(w.facts.phase, Phase) and _has(w, name) for w in opened)
        counted = (status.workers_applied or "0").partition("/")[0]
        if int(counted) > sure:
            self.sim.fail(9, f"{counted} workers count as serving {name}, and {sure} do for sure")

    def _engines_that_break_count(
        self, leader: Leader, before: WeightsStatus, status: WeightsStatus, there: list[WorkerView]
    ) -> None:
        """Without a barrier a rollout is not over while an engine breaks on its version, and the version is abandoned if
        more engines break than may fail. The failures of this attempt count, until the version is served.
        """
        assert leader.decision is not None
        assert leader.observed is not None
        plan, begun, applied = leader.decision.rollout, status.started_at, leader.fleet.applied
        name = (status.desired_version, status.desired_run_id)
        last, self.breaks = self.breaks, (0, ())
        if begun is None or not plan.allows_mixing or leader.desired is not self.sim.desired:
            return
        seconds = self.sim.surely_since(begun, leader)
        broke = [w for w in there if _has_broken_on(w, name, seconds)]
        if not broke or plan.step.goal.version != status.desired_version or plan.suspended:
            return
        out = [w.pod.name for w in broke if w.standing is Standing.CLOSED]
        if out and status.phase is RolloutPhase.APPLIED and before.phase in _COMES:
            self.sim.fail(6, f"{name} is Applied, and the engines of {out} break on it")
        is_served = applied is not None and (applied.version, applied.run_id) == name
        rollout, workers = self.sim.promises.rollout, leader.observed.expected_workers
        if len(broke) <= rounded_down(rollout.max_failures, workers) or is_served:
            return
        attempt = (status.desired_version, status.desired_run_id, status.retried)
        self.breaks = leader.number, attempt
        if self.breaks == last and status.phase in _COMES:
            names = [w.pod.name for w in broke]
            self.sim.fail(6, f"{name} is {status.phase}, and the engines of {names} break on it")

    def _failed_ones_swap_again(
        self, leader: Leader, status: WeightsStatus, live: list[WorkerView]
    ) -> None:
        """Without a barrier those whose engine has broken swap again after 90 s, once all others have swapped."""
        assert leader.decision is not None
        assert leader.observed is not None
        plan, goal = leader.decision.rollout, leader.decision.rollout.desired
        waits = plan.halted or plan.suspended or plan.waits_for_pin or plan.step.waiting
        if not plan.allows_mixing or waits or leader.desired is not self.sim.desired:
            return
        name, workers = (goal.version, goal.run_id), leader.observed.expected_workers
        behind = [w for w in live if not w.has_loaded(goal)]
        calm = len(live) == workers and all(w.standing is Standing.OPEN for w in live)
        calm = calm and not any(w.busy or w.unheeded or w.pod.drains_since for w in live)
        again = [w for w in behind if w.has_staged(goal) and _ages(w, name) > AGAIN_AFTER_SECONDS]
        called = leader.decision.worker_calls or leader.decision.pod_actions
        most = rounded_down(self.sim.promises.rollout.max_failures, workers)
        calm = calm and status.phase in _COMES and not called
        if calm and again == behind and 0 < len(again) <= most:
            self.sim.fail(6, f"{again[0].pod.name} may swap to {name} again, and gets no call")

    def _wait_hides_no_cause(
        self, leader: Leader, status: WeightsStatus, there: list[WorkerView]
    ) -> None:
        """Where too few workers serve for a swap, the cause is reported: all that are behind have refused the version, or
        workers that join have refused the applied one.
        """
        assert leader.decision is not None
        plan, begun = leader.decision.rollout, status.started_at
        stalled = condition_of(status.conditions, ConditionType.STALLED)
        if begun is None or stalled is None or "maxUnavailable is" not in stalled.message:
            return
        seconds, goal, applied = self.sim.surely_since(begun, leader), plan.step.goal, plan.applied
        behind = [w for w in there if w.standing in _MEMBERS and not w.has_loaded(goal)]
        last = [_last_refusal(w, (goal.version, goal.run_id)) for w in behind]
        out = [w for w in there if w.standing is Standing.CLOSED]
        out = [w for w in out if not (w.has_loaded(goal) or w.has_loaded(applied))]
        out = [w for w in out if _last_refusal(w, (applied.version, applied.run_id)) < inf]
        if out or (behind and max(last) < seconds):
            self.sim.fail(6, f"workers refuse weights, and Stalled only says: {stalled.message}")

    def _refusals_count(
        self, leader: Leader, status: WeightsStatus, answer: list[WorkerView]
    ) -> None:
        """Behind a barrier each worker counts that refuses a version, also one that was fenced for it."""
        assert leader.decision is not None
        plan, begun = leader.decision.rollout, status.started_at
        name = (status.desired_version, status.desired_run_id)
        step, asked = plan.step, (plan.step.goal.version, plan.step.goal.run_id) == name
        stages = asked and step.phase is status.phase is RolloutPhase.STAGING
        if begun is None or not stages or plan.allows_mixing or plan.suspended:
            return
        seconds = self.sim.surely_since(begun, leader)
        refused = [
            w
            for w in answer
            if not (_has(w, name) or _holds_bytes(w, name) or _has_broken_on(w, name, seconds))
            and w.standing in _MAY_REFUSE
            and _last_refusal(w, name) < seconds
        ]
        counted = status.workers.failed if status.workers is not None else 0
        if counted < len(refused) and any(w.standing is not Standing.CLOSED for w in refused):
            names = [w.pod.name for w in refused]
            self.sim.fail(6, f"{names} refuse {name}, and {counted} count as failed")

    def _is_still_judged(self, leader: Leader, before: WeightsStatus, after: WeightsStatus) -> None:
        """The time to judge a version does not begin again when all canaries have died. It does for each leader."""
        judges = (
            self.sim.promises.rollout.strategy == "Canary"
            and leader.desired is self.sim.desired
            and self.judged_by == leader.number
        )
        asked, known = ((s.observed_generation, s.retried) for s in (after, before))
        assert leader.decision is not None
        none = leader.decision.rollout.step.note.startswith("no worker is testing")
        phases = before.phase, after.phase
        if (
            judges
            and none
            and asked == known
            and phases == (RolloutPhase.JUDGING, RolloutPhase.PENDING)
        ):
            self.sim.fail(
                6, f"no canary of {after.desired_version} answers, and its time begins again"
            )

    def _record_says_why(self, leader: Leader, members: list[WorkerView]) -> None:
        """The operation in progress is recorded while workers that answer hold their requests for it. The record
        becomes one of other weights only when these workers have their bytes. It says that they go back as soon
        as their version is abandoned.
        """
        holds = [w for w in members if w.state is not None and w.state.phase is Phase.PAUSED]
        current = leader.fleet.transition
        (number, before), self.recorded = self.recorded, (leader.number, current)
        if number != leader.number or before is None or not holds:
            return
        if current is None:
            self.sim.fail(5, f"{holds[0].pod.name} is held, and the record of this is gone")
        goal = (current.version, current.run_id)
        assert leader.desired is not None
        asked = leader.weights.get(leader.desired.base_uid, NO_STATUS)
        is_asked = goal == (asked.desired_version, asked.desired_run_id)
        if asked.phase is RolloutPhase.HALTED and is_asked and not current.back:
            self.sim.fail(5, f"{goal} was abandoned, and its record does not say so")
        lack = [w.pod.name for w in holds if not (_has(w, goal) or _holds_bytes(w, goal))]
        if lack and goal != (before.version, before.run_id) and self.sim.promises.agree:
            text = f"the record of {before.version} becomes one of {goal}, which {lack} lack"
            self.sim.fail(5, text)

    def _refusals_are_reported(self, leader: Leader, status: WeightsStatus) -> None:
        """A version that may have meant other files, and a step back without a permission, are stalled."""
        spec, promises = self.sim.desired.base_spec, self.sim.promises
        stalled = condition_of(status.conditions, ConditionType.STALLED)
        suspended = status.phase is RolloutPhase.SUSPENDED
        if (
            leader.desired is not self.sim.desired
            or spec is None
            or stalled is not None
            or suspended
        ):
            return
        name = (spec.version, spec.run_id)
        known = (leader.fleet.applied, leader.fleet.transition)
        names = {(w.version, w.run_id) for w in (*known, *leader.fleet.pinned) if w}
        is_dropped = may_be_dropped(leader.fleet.dropped_pins, WeightsId(*name))
        if is_dropped and name not in names and spec.digest is None:
            self.sim.fail(9, f"the pin of {name} may be dropped, and no digest is asked for")
        stored, served = self.sim.fleet_stored.applied, promises.requested[promises.served]
        is_recorded = stored is not None and (stored.version, stored.run_id) == served
        if is_recorded and promises._is_a_rewind(spec) and not promises.unknown:
            self.sim.fail(5, f"{spec.version} is a step back, and that is not reported")

    def _lost_weights_delay_no_verdict(
        self, leader: Leader, status: WeightsStatus, there: list[WorkerView]
    ) -> None:
        """A version is judged without a comparison when all workers have refused the applied weights in this attempt."""
        applied, name = leader.fleet.applied, (status.desired_version, status.desired_run_id)
        last = status.canary
        is_judged = last is not None and (last.version, last.run_id) == name
        judges = self.sim.promises.rollout.strategy == "Canary" and not is_judged
        waits = status.phase is RolloutPhase.PENDING and leader.desired is self.sim.desired
        begun = status.started_at
        if applied is None or begun is None or not (judges and waits):
            return
        assert leader.decision is not None
        step, seconds = leader.decision.rollout.step, self.sim.surely_since(begun, leader)
        base = (applied.version, applied.run_id)
        knows = name in self.sim.promises.must_be_judged and not step.awaits_source
        lost = [_has_lost(w, base, seconds) and not _failures_of(w, name) for w in there]
        if there and knows and (step.goal.version, step.goal.run_id) == name and all(lost):
            self.sim.fail(6, f"{name} waits for {base}, which all workers have refused")

    def _had_it_before(self, worker: WorkerView, name: tuple[str, str | None]) -> bool:
        """Whether the worker was called to load a version before canaries had to judge it. Since then it has no answers of
        the weights before.
        """
        promises, pod = self.sim.promises, self.sim.pods.get(worker.pod.uid)
        if pod is None:
            return False
        called = promises.deserved.called_at.get((pod.uid, pod.worker.restarts, "load", *name))
        return called is not None and called < promises.judged_since.get(name, 0.0)

    def _verdict_is_earned(
        self, leader: Leader, status: WeightsStatus, answer: list[WorkerView]
    ) -> None:
        """Canaries have compared a version with the applied weights, if any worker can."""
        assert leader.decision is not None
        verdict = leader.decision.rollout.step.verdict
        if verdict is None:
            return
        name, applied = (verdict.version, verdict.run_id), leader.fleet.applied
        begun, others = status.started_at, [w for w in answer if w.pod.name not in verdict.pods]
        could = applied is not None and any(
            _knows(w, (applied.version, applied.run_id)) and not _failures_of(w, name)
            for w in others
        )
        for worker in answer:
            if worker.pod.name not in verdict.pods or worker.state is None or applied is None:
                continue
            report = worker.state.probe
            if report is None or (report.version, report.run_id) != name:
                self.sim.fail(1, f"{worker.pod.name} has not run the prompts on {name}")
            compared = report.compared_with, report.compared_with_run_id
            base = (applied.version, applied.run_id)
            # It has refused them in this attempt, and no other worker that answers could compare.
            lost = begun is not None and any(
                age < self.sim.surely_since(begun, leader) for age in _failures_of(worker, base)
            )
            lost |= self._had_it_before(worker, name)
            is_like = compared == base or (lost and not could)
            if not is_like and verdict.version not in self.sim.promises.incomparable:
                self.sim.fail(
                    1, f"{worker.pod.name} compared {name} with {compared}, not {applied.version}"
                )


def _has(worker: WorkerView, name: tuple[str | None, str | None]) -> bool:
    return worker.state is not None and (worker.state.version, worker.state.run_id) == name


def _holds_bytes(worker: WorkerView, name: tuple[str | None, str | None]) -> bool:
    staged = worker.state.staged if worker.state is not None else None
    return staged is not None and (staged.version, staged.run_id) == name


def _finds_nothing(worker: WorkerView, name: tuple[str | None, str | None]) -> bool:
    failure = worker.state.stage_failure if worker.state is not None else None
    return (
        failure is not None
        and failure.reason is Reason.SOURCE_ABSENT
        and (failure.version, failure.run_id) == name
        and not any(u.is_failure for u in worker.unheeded)  # then it has ignored a later call
    )


def _loads_others(worker: WorkerView, name: tuple[str | None, str | None]) -> bool:
    work = worker.state.operation if worker.state is not None else None
    if work is None or work.kind not in {"load", "apply"}:
        return False
    return work.version != name[0] or work.run_id not in {None, name[1]}


def _seconds_of_adapter(rollout: Rollout, there: list[WorkerView]) -> tuple[float, float]:
    """When an adapter may be late, and when it is: with the time that all workers need, one after the other."""
    times = rollout.timeouts
    others = times.pause_seconds + rollout.pause.limit() + 2 * times.load_seconds
    count = sum(w.standing is not Standing.ABSENT for w in there)
    groups = 1
    if rollout.max_staging is not None:
        groups = max(1, ceil(count / at_most(rollout.max_staging, max(count, 1))))
    most = MAX_WORKERS if rollout.max_staging is not None else 1
    return (
        times.stage_seconds * groups + others,
        times.stage_seconds * most + others + LONGEST_LOOK_SECONDS,
    )


def _failures_of(worker: WorkerView, name: tuple[str | None, str | None]) -> list[float]:
    """The ages of the refusals of a version, in seconds."""
    return [age for age, _ in _refusals_of(worker, name)]


def _refusals_of(
    worker: WorkerView, name: tuple[str | None, str | None]
) -> list[tuple[float, Reason]]:
    """The ages of the refusals of a version, in seconds, and their reasons."""
    state = worker.state
    if state is None:
        return []
    known = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
    return [
        (f.age_seconds + worker.state_age_seconds, f.reason)
        for f in known
        if f is not None and (f.version, f.run_id) == name
    ]


def _last_refusal(worker: WorkerView, name: tuple[str | None, str | None]) -> float:
    """The age of the last refusal of a version, in seconds; infinite if the worker only waits for files."""
    age, reason = min(_refusals_of(worker, name), default=(inf, ""))
    return inf if reason in _PASSES else age


def _ages(worker: WorkerView, name: tuple[str | None, str | None]) -> float:
    """The age of its last refusal of a version, in seconds."""
    return min(_failures_of(worker, name), default=0.0)


def _has_broken_on(worker: WorkerView, name: tuple[str | None, str | None], seconds: float) -> bool:
    """Whether the engine of a worker has refused a version within this time, and the worker does not have it."""
    failure = worker.state.load_failure if worker.state is not None else None
    if failure is None or worker.silent_seconds or _has(worker, name):
        return False
    age_seconds = failure.age_seconds + worker.state_age_seconds
    return (failure.version, failure.run_id) == name and age_seconds < seconds


def _knows(worker: WorkerView, name: tuple[str | None, str | None]) -> bool:
    """Whether a worker could compare with these weights: it has them, or its last answers of the prompts."""
    report = worker.state.probe if worker.state is not None else None
    return _has(worker, name) or (
        report is not None
        and name
        in {
            (report.version, report.run_id),
            (report.compared_with, report.compared_with_run_id),
        }
    )


def _has_lost(worker: WorkerView, name: tuple[str, str | None], seconds: float) -> bool:
    """Whether a worker that answers has refused a version within this time, and knows no answers of it."""
    if worker.state is None or worker.silent_seconds or worker.busy or _knows(worker, name):
        return False
    return any(age < seconds for age in _failures_of(worker, name))
