"""Parts of the promises 2, 3, 6, 8 and 12 that each call must keep, and each report that a version is late.

A sound worker keeps its requests, whether it has some now or not. And no worker and no version is late that
had less than its time. So a mistake shows without the bad luck that makes it hurt.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tests.model.desired import rollout_of

from fleet_operator.core import worker_failures
from fleet_operator.core.actions import (
    Admit,
    Apply,
    Fence,
    Load,
    LoraCall,
    Pause,
    Resume,
    Stage,
)
from fleet_operator.core.identity import same_weights
from fleet_operator.core.percentages import at_most
from fleet_operator.core.pod_actions import CreatePod
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing
from fleet_worker.protocol import Phase
from rlfleet_resources.weights_status import RolloutPhase

if TYPE_CHECKING:
    from tests.model.fake_pods import FakePod
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.api.fleet import Rollout
    from fleet_operator.core.actions import WorkerCall
    from fleet_operator.core.checkpoint import Checkpoint
    from fleet_operator.core.decision import Decision
    from fleet_operator.core.work import WorkKind
    from fleet_operator.core.worker_view import WorkerView
    from rlfleet_resources.weights_status import WeightsStatus

LEASE_SECONDS = 30.0
"""As documented."""
TAKE_OVER_SECONDS = 20.0
"""As documented: a standby needs as long to take over, and pauses last as long at least."""
_KINDS = {
    RolloutPhase.STAGING: {"stage"},
    RolloutPhase.PAUSING: {"pause"},
    RolloutPhase.LOADING: {"load", "apply"},
    RolloutPhase.JUDGING: {"stage", "load"},
}
"""The calls that a worker must have got before it can be late in a phase."""
_MAY_SERVE = frozenset({Standing.OPEN, Standing.UNKNOWN})


class Deserved:
    """Fields:

    called_at, last_called_at: when a worker's process first got a call of a kind for a version, by any leader, and
        when it last did.
    silent_at: when a worker last did not answer the leader, by its uid.
    held_for_long: uids of workers that were fenced after they had held their requests for as long as any may, under
        several leaders, and have not opened since.
    held_at: when the leader last saw a worker held, by its uid.
    fenced_after: how long a worker had held its requests at its last fence, by its uid.
    at_other_work: uids of workers whose last fence came while other work kept them from a pause. Others had waited for
        it as long as a pause may take.
    slow_look_at: when the leader last looked after as long as it takes until pauses must be renewed.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.called_at: dict[tuple[object, ...], float] = {}
        self.last_called_at: dict[tuple[object, ...], float] = {}
        self.silent_at: dict[str, float] = {}
        self.slow_look_at = 0.0
        self.held_for_long: set[str] = set()
        self.held_at: dict[str, float] = {}
        self.fenced_after: dict[str, float] = {}
        self.at_other_work: set[str] = set()

    # --- calls --------------------------------------------------------------------------------------

    def note_sent(self, leader: Leader, call: WorkerCall) -> None:
        """A call is about to leave an operator."""
        pod = self.sim.pods.get(call.pod_uid)
        if pod is None:
            return
        named = call.work[1:3]
        if call.kind in {
            "pause",
            "fence",
            "probe",
        }:  # a probe of the applied weights is for the desired ones
            named = (self.sim.weights.desired_version, self.sim.weights.desired_run_id)
        key = (pod.uid, pod.worker.restarts, call.kind, *named)
        self.called_at.setdefault(key, self.sim.now)
        self.last_called_at[key] = self.sim.now
        if isinstance(call, Admit | Resume):
            self.held_for_long.discard(pod.uid)
        observed = leader.observed
        if leader is not self.sim.leader or observed is None or observed.is_external:
            return
        if isinstance(call, Pause):
            self._pause_has_a_barrier(leader, call)
        if isinstance(call, Pause | Apply) and call.lease_seconds > LEASE_SECONDS:
            self.sim.fail(3, f"{call.work} on {call.pod_name} for {call.lease_seconds:.0f} s")
        worker = next((w for w in observed.workers if w.pod.uid == call.pod_uid), None)
        if worker is None:
            return
        self._is_deserved(leader, call, pod, worker)

    def _waits_for_a_place(self, leader: Leader, worker: WorkerView) -> bool:
        """Whether a paused worker lacks the bytes to go on, and others read, of which only some may at once."""
        observed, decision = leader.observed, leader.decision
        if observed is None or decision is None or worker.busy:
            return False
        reads = any(w.is_doing("stage") for w in observed.workers)
        lacks = not worker.facts.has_bytes(decision.rollout.step.goal)
        return (
            lacks and reads and any(r.max_staging is not None for r in self.sim.promises.settings)
        )

    def _note_other_work(self, leader: Leader, worker: WorkerView) -> None:
        rules, observed, decision = self.sim.promises.settings, leader.observed, leader.decision
        if observed is None or decision is None:
            return
        limit = min(r.timeouts.pause_seconds + r.pause.limit() for r in rules)
        waited = max((w.held_seconds for w in observed.workers), default=0.0)
        work = worker.state.operation if worker.state is not None else None
        pauses = decision.rollout.step.phase is RolloutPhase.PAUSING
        if pauses and waited >= limit and work is not None and work.kind != "pause":
            self.at_other_work.add(worker.pod.uid)
        else:
            self.at_other_work.discard(worker.pod.uid)

    def _is_deserved(
        self, leader: Leader, call: WorkerCall, pod: FakePod, worker: WorkerView
    ) -> None:
        if isinstance(call, Fence):
            self._leaves_those_in_time(leader, call, worker)
            self.fenced_after[pod.uid] = worker.held_seconds
            self._note_other_work(leader, worker)
            longest = min(r.longest_hold_seconds for r in self.sim.promises.settings)
            led_seconds = self.sim.now - self.sim.promises.stored_first.led_since
            if worker.held_seconds > max(longest, led_seconds) or (
                worker.held_seconds > longest and self._waits_for_a_place(leader, worker)
            ):
                self.held_for_long.add(pod.uid)
            self._may_be_fenced(leader, call, pod, worker)
        if isinstance(call, Admit | Resume) and self.sim.promises.agree:
            self._opens_alone(leader, call)
        if isinstance(call, Load) and worker.standing is Standing.HELD:
            self._is_begun(leader, call)
        if isinstance(call, Stage):
            self._holds_nothing_better(leader, call, worker)
        judges = self.sim.weights.phase is RolloutPhase.JUDGING
        if isinstance(call, Stage) and judges and leader.desired is self.sim.desired:
            self._has_a_baseline(leader, call, worker)

    def _pause_has_a_barrier(self, leader: Leader, call: Pause) -> None:
        """Where versions may mix, nothing needs a pause, and none is renewed, but that of a load that a barrier began. A
        barrier that is recorded may.
        """
        assert leader.desired is not None
        workers = leader.observed.workers if leader.observed is not None else ()
        if any(w.pod.uid == call.pod_uid and w.is_doing("load") for w in workers):
            return
        rollout, stored = rollout_of(leader.desired), self.sim.fleet_stored.transition
        last = rollout.canary.then if rollout.strategy == "Canary" else rollout.strategy
        known = [w.strategy for w in (stored, leader.fleet.transition) if w is not None]
        if last != "Synchronized" and "Synchronized" not in known:
            self.sim.fail(3, f"{call.work} on {call.pod_name}, and {last} needs no pause")

    def _may_be_fenced(self, leader: Leader, call: Fence, pod: FakePod, worker: WorkerView) -> None:
        """A sound worker that serves has time for its requests: as long as an update may take. One that must not serve
        its version next to others has the time of a pause.
        """
        promises, state = self.sim.promises, worker.state
        if state is None or state.phase is not Phase.SERVING or not state.admitted:
            return
        if worker.silent_seconds or pod.suspect or pod.worker.refuses_files or leader.looks_seldom:
            return  # of a leader that looks seldom, one lost pause makes a worker late
        weights = self.sim.weights.desired_version, self.sim.weights.desired_run_id
        began = self.called_at.get((pod.uid, pod.worker.restarts, "pause", *weights), self.sim.now)
        pause_seconds = min(r.timeouts.pause_seconds + r.pause.limit() for r in promises.settings)
        is_missed = (
            self.held_at.get(pod.uid, -1.0) < began
        )  # of a pause that came, the next one is another
        if worker.is_called_to("pause") and is_missed and self.sim.now - began >= pause_seconds:
            return  # its pause does not get through to it
        if self._may_wait_no_longer(leader):
            return
        assert leader.observed is not None
        applied = leader.fleet.applied
        mixes = applied is None or (state.version, state.run_id) != (
            applied.version,
            applied.run_id,
        )
        least, number = min(r.pause.drain_timeout_seconds for r in promises.settings), 8
        if worker.pod.drains_since is not None:
            update_seconds, number = leader.observed.spec.update.drain_timeout_seconds, 12
            apart = mixes and promises.forbids_mixing
            least = min(least, update_seconds) if apart else update_seconds
        if call.drain_timeout_seconds < least:
            seconds = call.drain_timeout_seconds
            self.sim.fail(
                number,
                f"{call.pod_name} serves, and its fence leaves it {seconds:.0f} of {least} s",
            )

    def _may_wait_no_longer(self, leader: Leader) -> bool:
        """Whether workers have held their requests for as long as they may, and those that are not paused yet are not more,
        or not in time.
        """
        assert leader.observed is not None
        assert leader.decision is not None
        goal = leader.decision.rollout.step.goal
        longest = min(r.longest_hold_seconds for r in self.sim.promises.settings)
        waited = [w for w in leader.observed.workers if w.held_seconds > longest]
        behind = [w for w in leader.observed.workers if w.standing in _MAY_SERVE]
        behind = [w for w in behind if not w.has_loaded(goal)]
        late = any(
            w.silent_seconds
            or any(u.work.adapter is None for u in w.unheeded)
            or self._works_too_long(w)
            for w in behind
        )
        return bool(waited) and (late or len(waited) >= len(behind))

    def _leaves_those_in_time(self, leader: Leader, call: Fence, worker: WorkerView) -> None:
        """A worker that is called to take the applied weights again is not fenced while it is in time. Soon it serves
        them, unless requests are held for too long. A swap without a barrier is not cut while it is in time.
        """
        applied, work, state, plan = (
            leader.fleet.applied,
            worker.call,
            worker.state,
            leader.decision,
        )
        sound = state is not None and state.admitted and not worker.silent_seconds
        if state is None or not sound or worker.pod.drains_since is not None or plan is None:
            return
        longest = min(r.longest_hold_seconds for r in self.sim.promises.settings)
        doing = state.operation
        is_late = doing is not None and doing.kind in {"stage", "load", "apply"}
        is_late = is_late and not self._is_in_time(worker, (doing.version, doing.run_id))
        comes = work is not None and work.kind in {"load", "apply"} and applied is not None
        comes = (
            comes
            and not is_late
            and max(w.held_seconds for w in leader.observed.workers) <= longest
        )
        if comes and work and applied and work[1:3] == (applied.version, applied.run_id):
            self.sim.fail(8, f"{call.work} on {call.pod_name}, which is called to {work}")
        if call.drain_timeout_seconds:
            return
        self._has_held_up_the_others(leader, call, worker)
        swap = state.operation if plan.rollout.allows_mixing else None
        if swap is None or swap.kind != "apply":
            return
        if self._is_in_time(worker, (swap.version, swap.run_id)) and not worker.unheeded:
            self.sim.fail(8, f"{call.work} on {call.pod_name}, whose swap is in time")

    def _has_held_up_the_others(self, leader: Leader, call: Fence, worker: WorkerView) -> None:
        """A paused worker without work is fenced if it has refused the version, or if its phase is late. Otherwise
        requests must have been held for as long as they may.
        """
        assert leader.decision is not None
        assert leader.observed is not None
        plan, state, promises = leader.decision.rollout, worker.state, self.sim.promises
        goal, phase = plan.step.goal, plan.step.phase
        if state is None or state.phase is not Phase.PAUSED or worker.busy:
            return
        if not (worker.has_loaded(goal) or worker.has_loaded(plan.applied)):
            return  # it must not serve what it has
        known = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
        refused = {(f.version, f.run_id) for f in known if f is not None}
        ignored = [u for u in worker.unheeded if u.work.adapter is None]
        refused |= {(str(u.work.version), u.work.run_id) for u in ignored if u.is_failure}
        if (goal.version, goal.run_id) in refused:
            return
        waited = self.sim.now - promises.watched_at
        limits = (self.limits(r, phase, 1)[0] for r in promises.settings)
        is_late = same_weights(goal, plan.desired) and waited >= min(limits)
        held = max(w.held_seconds for w in leader.observed.workers)
        # One that does not follow its calls goes sooner: the others may still have to go back.
        most = min(
            r.longest_hold_seconds - bool(ignored) * r.hold_seconds for r in promises.settings
        )
        if held <= most and not is_late:
            self.sim.fail(8, f"{call.work} on {call.pod_name} after {held:.0f} s of {most} s")

    def _is_begun(self, leader: Leader, call: Load) -> None:
        """No worker loads a superseded version unless one has begun with it: else all serve what they have."""
        assert leader.observed is not None
        if leader.decision is None:
            return
        plan = leader.decision.rollout
        if same_weights(call, plan.desired) or same_weights(call, plan.applied):
            return
        held = [w for w in leader.observed.workers if w.standing is Standing.HELD]
        if not any(w.facts.is_loading(call) or w.has_loaded(call) for w in held):
            self.sim.fail(3, f"{call.work} on {call.pod_name}, which is superseded and not begun")

    def _has_a_baseline(self, leader: Leader, call: Stage, worker: WorkerView) -> None:
        """A canary has the applied weights, or their answers, before it reads others. Else it loads them first, if any
        worker can.
        """
        promises, applied = self.sim.promises, leader.fleet.applied
        name = (str(call.version), call.run_id)
        if name not in promises.must_be_judged - promises.judged or applied is None:
            return
        state, pod = worker.state, self.sim.pods.get(worker.pod.uid)
        if state is None or name[0] in promises.incomparable:
            return
        kinds = ("stage", "load")
        if pod is None or any(pod.worker.lies_about(k) or pod.worker.refuses_all(k) for k in kinds):
            return  # it cannot be given them
        known = {name, (state.version, state.run_id)}
        if state.probe is not None:
            known.add((state.probe.version, state.probe.run_id))
            known.add((str(state.probe.compared_with), state.probe.compared_with_run_id))
        assert leader.observed is not None
        silent = [w for w in leader.observed.workers if w.standing is Standing.UNKNOWN]
        base = (applied.version, applied.run_id)
        could = [w.pod.name for w in silent if w.state and (w.version, w.state.run_id) == base]
        if base not in known and could:
            self.sim.fail(1, f"{call.work} on {call.pod_name}, and {could} could compare")
        refused = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
        known |= {(f.version, f.run_id) for f in refused if f is not None}
        if base not in known:
            what = f"{call.work} on {call.pod_name}, the canary"
            self.sim.fail(1, f"{what}, which has {known} and no answers of {applied.version}")

    def _holds_nothing_better(self, leader: Leader, call: Stage, worker: WorkerView) -> None:
        """A joining worker does not read a refused version again while it holds the other one that would let it in, and
        has not refused the held one. It would never load either.
        """
        state, fleet, promises = worker.state, leader.fleet, self.sim.promises
        if state is None or state.staged is None or worker.standing is not Standing.CLOSED:
            return
        plan = leader.decision.rollout if leader.decision is not None else None
        spec = self.sim.desired.base_spec
        stays = plan is None or plan.halted or plan.step.holds_requests
        stays = stays or plan.step.phase is RolloutPhase.JUDGING
        # A problem of the rollout stops it, so that its goal lets none in. One of joining workers does not.
        problem = plan.step.problem if plan is not None else None
        stays = stays or (problem is not None and "cannot join" not in problem.message)
        stays = stays or spec is None or spec.suspend
        if stays or promises.must_be_judged or leader.desired is not self.sim.desired:
            return
        goals = (fleet.applied, plan.step.goal if plan is not None else None)
        lets_in = {(w.version, w.run_id) for w in goals if w is not None}
        held, asked = (state.staged.version, state.staged.run_id), (str(call.version), call.run_id)
        pins = {(p.version, p.run_id): p.digest for p in fleet.pinned}
        if pins.get(held) not in {None, state.staged.digest}:
            return  # its files were rewritten before it read them
        known = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
        refused = {(f.version, f.run_id) for f in known if f is not None}
        refused |= {(str(u.work.version), u.work.run_id) for u in worker.unheeded if u.is_failure}
        if {held, asked} <= lets_in and asked in refused and held not in refused:
            self.sim.fail(6, f"{call.work} on {call.pod_name}, which holds {held} and can load it")

    def _opens_alone(self, leader: Leader, call: Admit | Resume) -> None:
        """No other worker may generate with other weights, as far as the leader knows."""
        assert leader.observed is not None
        name = (call.version, call.run_id)
        for worker in leader.observed.workers:
            seen, state = worker.pod, worker.state
            gone = seen.deleting or seen.quarantine or not seen.running
            if gone or seen.uid == call.pod_uid:
                continue
            if state is None:
                has, generates = None, seen.ready
            else:
                holds = state.phase in {Phase.PAUSED, Phase.LOADING} and not worker.silent_seconds
                has, generates = (state.version, state.run_id), state.admitted and not holds
            if generates and has != name:
                what = f"{call.work} on {call.pod_name}"
                self.sim.fail(2, f"{what}, and {seen.name} may generate with {has}")

    def note_decision(self, leader: Leader, decision: Decision) -> None:
        """The leader has decided. A worker that loads keeps its pause for as long as a standby needs."""
        observed = leader.observed
        if leader is not self.sim.leader or observed is None or observed.is_external:
            return
        if leader.looked_at[1] - leader.looked_at[0] >= LEASE_SECONDS - TAKE_OVER_SECONDS:
            self.slow_look_at = self.sim.now
        for worker in observed.workers:
            if worker.silent_seconds or worker.state is None:
                self.silent_at[worker.pod.uid] = self.sim.now
            if worker.standing is Standing.HELD:
                self.held_at[worker.pod.uid] = self.sim.now
        if not decision.is_planned:
            return  # pauses are renewed until there is a plan again
        self._requests_wait_for_something(leader, decision)
        self._suspended_ones_are_left(leader, decision)
        called = {c.pod_uid for c in decision.worker_calls}
        called |= {a.pod_uid for a in decision.pod_actions if not isinstance(a, CreatePod)}
        for worker in observed.workers:
            state, seen = worker.state, worker.pod
            gone = seen.deleting or seen.quarantine or not seen.running or seen.drains_since
            if gone or state is None or state.pause is None or state.operation is None:
                continue
            left_seconds = state.pause.lease_remaining_seconds - worker.state_age_seconds
            loads = state.operation.kind == "load" and state.admitted and not worker.silent_seconds
            renews = seen.uid in called or worker.is_called_to("pause")
            if loads and 0 < left_seconds < TAKE_OVER_SECONDS and not renews:
                self.sim.fail(8, f"{seen.name} loads, and its pause ends in {left_seconds:.1f} s")

    def _suspended_ones_are_left(self, leader: Leader, decision: Decision) -> None:
        """No rollout continues to a version that is suspended and that canaries must judge, unless a barrier began it or it
        is served.
        """
        plan, spec, promises = decision.rollout, self.sim.desired.base_spec, self.sim.promises
        goal, known = plan.step.goal, leader.fleet.transition
        name = (goal.version, goal.run_id)
        barrier = known is not None and known.strategy == "Synchronized"
        asked = spec is not None and spec.suspend and leader.desired is self.sim.desired
        if not asked or barrier or name not in promises.must_be_judged - promises.judged:
            return
        assert leader.observed is not None
        opened = [w for w in leader.observed.workers if w.standing is Standing.OPEN]
        is_served = bool(opened) and all(w.has_loaded(goal) for w in opened)
        # Workers do not look again for the files while the version is suspended.
        told = any(worker_failures.absence(w, goal) for w in leader.observed.workers)
        absent = told or str(goal.source) in self.sim.files.absent or plan.step.awaits_source
        if not (same_weights(goal, plan.applied) or is_served or absent):
            self.sim.fail(1, f"{name} is suspended, no canary has judged it, and it is the goal")

    def _requests_wait_for_something(self, leader: Leader, decision: Decision) -> None:
        """While workers hold their requests, something is under way. It is a call, the work of a worker or of its pod, a
        write, or a wait for a retry. A renewal of a pause takes the turn of another call.
        """
        assert leader.observed is not None
        there = [w for w in leader.observed.workers if _runs(w)]
        held = {w.pod.uid: w.pod.name for w in there if _is_paused(w)}
        comes = any(w.state is None or w.busy or w.facts.refuses for w in there)
        # A silent one may generate at other weights until it is gone, also while it drains.
        pods = [(w.pod, w.silent_seconds) for w in leader.observed.workers]
        comes = comes or any(s and p.running and not p.quarantine for p, s in pods)
        calls = [c for c in decision.worker_calls if not isinstance(c, LoraCall)]
        plan = decision.rollout
        waits = calls or decision.pod_actions or plan.waits_for_pin or plan.step.waiting
        if not held or leader.epochs.is_term_pending:
            return
        if not (comes or waits):
            names = ", ".join(held.values())
            self.sim.fail(3, f"{names} hold their requests, and nothing is under way")
        self._silent_ones_go(leader, decision)
        self._none_waits_with_what_all_have(leader, decision, there)
        if plan.step.phase is RolloutPhase.STAGING and not plan.waits_for_pin:
            self._held_ones_stage(decision, there)
            self._none_is_held_for_longer(decision, there)
        others = any(w.silent_seconds or w.state is None or w.facts.refuses for w in there)
        if plan.step.phase is RolloutPhase.STAGING and not (others or plan.waits_for_pin):
            self._none_waits_for_a_stage(leader, decision, there)

    def _silent_ones_go(self, leader: Leader, decision: Decision) -> None:
        """No worker holds its requests for a silent one that its probe has taken from its clients: that one is quarantined."""
        assert leader.observed is not None
        go = {a.pod_uid for a in decision.pod_actions if not isinstance(a, CreatePod)}
        go |= {c.pod_uid for c in decision.worker_calls}
        waits = decision.rollout.step.waiting.partition("may generate other weights")[2]
        for worker in leader.observed.workers:
            pod, silent = worker.pod, worker.silent_seconds >= PROBE_SECONDS
            if silent and pod.name in waits and not pod.ready and pod.uid not in go:
                self.sim.fail(3, f"{waits} holds up the others, and is not quarantined")

    def _none_waits_with_what_all_have(
        self, leader: Leader, decision: Decision, there: list[WorkerView]
    ) -> None:
        """Workers that have all loaded a version of a barrier serve it, also if a newer one is still to be read."""
        current, plan, applied = leader.fleet.transition, decision.rollout, leader.fleet.applied
        if leader.observed is None or any(
            w.standing is Standing.UNKNOWN for w in leader.observed.workers
        ):
            return  # it may serve others
        members = [w for w in there if w.state is not None and w.state.admitted]
        is_stage = plan.step.phase is RolloutPhase.STAGING and not plan.step.waiting
        ends = plan.waits_for_pin or plan.halted or plan.suspended or decision.pod_actions
        if current is None or current.back or applied is None or ends or not is_stage:
            return
        has = {(w.version, w.state.run_id) for w in members if w.state is not None}
        name, desired = (
            (current.version, current.run_id),
            (plan.desired.version, plan.desired.run_id),
        )
        idle = all(_is_paused(w) and not w.busy and not w.silent_seconds for w in members)
        is_back = desired == (applied.version, applied.run_id) or not same_weights(
            plan.step.goal, plan.desired
        )
        called = {c.pod_uid for c in decision.worker_calls if not isinstance(c, Stage)}
        if members and idle and has == {name} and not is_back and desired != name and not called:
            names = ", ".join(w.pod.name for w in members)
            self.sim.fail(8, f"{names} have loaded {name}, and wait for {desired}")

    def _held_ones_stage(self, decision: Decision, there: list[WorkerView]) -> None:
        """No worker holds its requests that lacks the bytes of the goal, has not refused it, and gets no call."""
        goal, called = decision.rollout.step.goal, {c.pod_uid for c in decision.worker_calls}
        for worker in there:
            state = worker.state
            if state is None or not _is_paused(worker) or worker.busy or worker.silent_seconds:
                continue
            known = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
            works = [(f.version, f.run_id) for f in known if f is not None]
            works += [(u.work.version, u.work.run_id) for u in worker.unheeded]
            waits = decision.rollout.step.waiting or worker.pod.uid in called
            lacks = not (worker.has_staged(goal) or worker.has_loaded(goal))
            if lacks and not waits and (goal.version, goal.run_id) not in works:
                self.sim.fail(3, f"{worker.pod.name} waits for {goal.label}, and gets no call")

    def _none_is_held_for_longer(self, decision: Decision, there: list[WorkerView]) -> None:
        """Once requests have been held for as long as they may, a worker that cannot resume gets a call: its fence."""
        longest = max(r.longest_hold_seconds for r in self.sim.promises.settings)
        called = {c.pod_uid for c in decision.worker_calls}
        called |= {a.pod_uid for a in decision.pod_actions if not isinstance(a, CreatePod)}
        for worker in there:
            is_idle = _is_paused(worker) and not (worker.busy or worker.silent_seconds)
            stays = is_idle and worker.pod.uid not in called
            applied = decision.rollout.applied
            if stays and worker.held_seconds > longest and not worker.has_loaded(applied):
                self.sim.fail(3, f"{worker.pod.name} is held for {worker.held_seconds:.0f} s")

    def _none_waits_for_a_stage(
        self, leader: Leader, decision: Decision, there: list[WorkerView]
    ) -> None:
        """No worker holds its requests while others serve and stage. It resumes, or goes back."""
        applied, goal = leader.fleet.applied, decision.rollout.step.goal
        if applied is None or decision.rollout.step.waiting:
            return
        name = (applied.version, applied.run_id)
        other = [
            c.pod_uid
            for c in decision.worker_calls
            if isinstance(c, Stage) and (c.version, c.run_id) != name
        ]
        called = {c.pod_uid for c in decision.worker_calls}
        serving = [w for w in there if w.standing is Standing.OPEN and w.state]
        serves = any((w.version, w.state.run_id) == name for w in serving if w.state)
        idle = [w for w in there if _is_paused(w) and not w.busy and w.pod.uid not in called]
        idle = idle if serves else []
        astray = [w for w in there if _is_paused(w) and w.pod.uid in other and not w.busy]
        idle += [w for w in astray if serves and not w.has_staged(goal)]
        if idle and all((w.version, w.state.run_id) == name for w in serving if w.state):
            self.sim.fail(3, f"{idle[0].pod.name} holds its requests while others stage")

    # --- versions -----------------------------------------------------------------------------------

    def check_late(self, leader: Leader, before: WeightsStatus, waited: float) -> None:
        """The leader abandons a version as late, after this time in its phase. Some worker has had the whole timeout
        since the call for it, or does not answer, and the phase has taken that long. Or all workers together had
        one timeout more than they need one after the other.
        """
        observed = leader.observed
        if observed is None or before.phase not in _KINDS:
            return
        name = (before.desired_version, before.desired_run_id)
        limits = [
            self.limits(r, before.phase, len(observed.workers)) for r in self.sim.promises.settings
        ]
        limit, longest = min(s for s, _ in limits), min(s for _, s in limits)
        if before.phase in {RolloutPhase.PAUSING, RolloutPhase.LOADING}:
            loads = before.phase is RolloutPhase.LOADING and waited <= longest
            kinds_in_time: tuple[WorkKind, ...] = ("load", "apply") if loads else ("apply",)
            self._one_is_late(leader, name, kinds_in_time)
        # A pause that is renewed takes the turn of a load, and the end of a pause that of a stage: here in one look,
        # there in two.
        apart = leader.looked_at[1] - leader.looked_at[0]
        is_slow = self.sim.now - self.slow_look_at <= waited
        was_held = any(
            self.held_at.get(w.pod.uid, -1.0) >= self.sim.now - waited for w in observed.workers
        )
        renews = is_slow and (
            before.phase is RolloutPhase.LOADING
            or (before.phase is RolloutPhase.STAGING and was_held)
        )
        judged = before.phase is RolloutPhase.JUDGING
        had_longest = waited > longest and not (
            judged and not self._has_ended_canaries(leader, name)
        )
        if had_longest or leader.looks_seldom or limit <= 2 * apart or renews:
            return  # a renewal may have been due at each look
        if any(self._explains(leader, before, w, waited, limit) for w in observed.workers):
            return
        text = (
            f"{before.desired_version} is abandoned as late after {waited:.1f} s in {before.phase}"
        )
        self.sim.fail(6, f"{text}, and no worker had {limit:.0f} s for it since its call")

    def _explains(
        self,
        leader: Leader,
        before: WeightsStatus,
        worker: WorkerView,
        waited: float,
        limit: float,
    ) -> bool:
        """Whether a version is late because of this worker."""
        assert leader.decision is not None
        # It may answer again with this look.
        was_silent = self.silent_at.get(worker.pod.uid, -1.0) >= leader.looked_at[0]
        ignores = any(u.work.adapter is None for u in worker.unheeded)
        judged = before.phase is RolloutPhase.JUDGING
        # The leader does not know the words of a newer release, or other work does not end.
        is_ahead = self.sim.pods[worker.pod.uid].worker.ahead
        works = not judged and self._works_too_long(worker)
        silent = bool(worker.silent_seconds) or worker.state is None or was_silent
        if waited >= limit and (silent or ignores or is_ahead or works):
            return True
        if worker.silent_seconds or worker.state is None or was_silent:
            return False
        if self._is_not_late(worker, before.phase, leader.decision.rollout.desired):
            return False
        name = (before.desired_version, before.desired_run_id)
        uid, restarts = worker.pod.uid, worker.pod.restarts
        kinds = _KINDS.get(before.phase, set())
        times = [self.called_at.get((uid, restarts, kind, *name)) for kind in kinds]
        had = [self.sim.now - at for at in times if at is not None]
        lacks = (worker.version, worker.state.run_id) != name
        return (lacks or judged) and max(had, default=0.0) >= limit

    def _has_ended_canaries(self, leader: Leader, name: tuple[str, str | None]) -> bool:
        """Whether processes have ended after their calls for a version that is judged."""
        assert leader.observed is not None
        now = {(w.pod.uid, w.pod.restarts) for w in leader.observed.workers if w.pod.running}
        called = {
            key[:2]
            for key in self.called_at
            if key[2] in _KINDS[RolloutPhase.JUDGING] and key[3:] == name
        }
        return bool(called - now)

    def _one_is_late(
        self, leader: Leader, name: tuple[str | None, ...], kinds: tuple[WorkKind, ...]
    ) -> None:
        """Some worker is behind that is not in time with its load or swap. While workers swap by themselves, no other work
        is late than a swap, which none has reported here.
        """
        assert leader.observed is not None
        assert leader.decision is not None
        plan = leader.decision.rollout
        behind = [w for w in leader.observed.workers if _runs(w) and not w.has_loaded(plan.desired)]
        in_time = [w for w in behind if any(map(w.is_doing, kinds)) and self._is_in_time(w, name)]
        if plan.allows_mixing or (behind and len(in_time) == len(behind)):
            self.sim.fail(6, f"{name} is abandoned as late, and each worker is in time")

    def _is_not_late(self, worker: WorkerView, phase: RolloutPhase, desired: Checkpoint) -> bool:
        """Whether a worker has done what its phase calls it to, or is in time with it."""
        match phase:
            case RolloutPhase.JUDGING:
                return False
            case RolloutPhase.STAGING if worker.has_staged(desired):
                return True
            case RolloutPhase.PAUSING if worker.standing is Standing.HELD:
                return True
        return self._is_in_time(worker, (desired.version, desired.run_id))

    def _is_in_time(self, worker: WorkerView, name: tuple[str | None, ...]) -> bool:
        """Whether a worker stages, loads or swaps to a version, and for no longer than that may take. The age of its
        answer does not count, nor the time of the phase: it began when it got its call.
        """
        work = worker.state.operation if worker.state is not None else None
        if work is None or (work.version, work.run_id) != name or worker.silent_seconds:
            return False
        limits = {
            "stage": min(r.timeouts.stage_seconds for r in self.sim.promises.settings),
            "load": min(r.timeouts.load_seconds for r in self.sim.promises.settings),
        }
        swap = min(r.timeouts.load_seconds + r.pause.limit() for r in self.sim.promises.settings)
        return work.running_seconds < (limits | {"apply": swap}).get(work.kind, 0)

    def _works_too_long(self, worker: WorkerView) -> bool:
        """Whether a worker is at one piece of work for longer than that may take."""
        work = worker.state.operation if worker.state is not None else None
        if work is None:
            return False
        settings = self.sim.promises.settings
        match work.kind:
            case "stage":
                limit = min(r.timeouts.stage_seconds for r in settings)
            case "apply":
                limit = min(r.timeouts.load_seconds + r.pause.limit() for r in settings)
            case _:
                limit = min(r.timeouts.load_seconds for r in settings)
        return work.running_seconds + worker.state_age_seconds >= limit

    def limits(self, rollout: Rollout, phase: RolloutPhase, workers: int) -> tuple[float, float]:
        """The time of one worker in a phase, and that of all workers together."""
        times, replicas = rollout.timeouts, self.sim.replicas
        drain_seconds = rollout.pause.limit()
        groups = 1
        if rollout.max_staging is not None:
            groups = ceil(max(replicas, workers) / max(1, at_most(rollout.max_staging, replicas)))
        stage_seconds = float(times.stage_seconds)
        match phase:
            case RolloutPhase.STAGING:
                return stage_seconds, stage_seconds * (groups + 1)
            case RolloutPhase.PAUSING:
                limit = times.pause_seconds + drain_seconds
            case RolloutPhase.LOADING:
                limit = float(times.load_seconds)
            case _:
                limit = stage_seconds + 3 * times.load_seconds + drain_seconds
        return limit, 2 * limit


def _runs(worker: WorkerView) -> bool:
    pod = worker.pod
    return pod.running and not (pod.deleting or pod.quarantine or pod.drains_since is not None)


def _is_paused(worker: WorkerView) -> bool:
    state = worker.state
    return state is not None and state.admitted and state.phase is Phase.PAUSED
