"""The end of a simulated history: faults end or remain, time passes, and the fleet converges.

Promises 6 and 7 are checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.model.desired import NO_STATUS
from tests.model.fake_state import version_in
from tests.model.fake_worker import ROOM_FOR_ADAPTERS, FakeWorker
from tests.model.faults import Faults

from fleet_operator.core.percentages import unavailable_and_surge
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase

TICK_SECONDS = 1.0
STEPS_TO_CONVERGE = 20
"""Enough stages, loads and prompts, one worker after the other, for every fleet."""
_ABOUT_IDENTITY = {
    ConditionReason.VERSION_REUSED,
    ConditionReason.DIGEST_MISMATCH,
    ConditionReason.REWIND_REFUSED,
    ConditionReason.DIGEST_REQUIRED,
}
LOOKS_AT_REST = 40
"""After this number of idle looks, a fleet that has said why is not watched any longer."""
SELDOM_SECONDS = 5.0
"""Between two looks at such a fleet, after half of them. Some retries come after a minute and a half."""
LONG_TICK_SECONDS = 20.0
"""The longest time between two looks at which the operator still renews pauses in time."""


class Convergence:
    """Part of `Simulation`, on whose fields it works."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def mend(self) -> None:
        """End all faults: repair what is broken, and return what was lost."""
        self._end_faults()
        self.update_operator()
        if self.room is not None:
            self.hold_new_pods(hold=False)
        for node in [n for n, lost_at in self.nodes.items() if lost_at is not None]:
            self.return_node(node)
        for pod in self.pods.values():
            pod.worker.hung = False
            if pod.cut_off:
                self.cut_off(pod, cut=False)
            self.obey(pod)
            pod.worker.stubborn_until = pod.worker.no_slot_until = 0
            pod.worker.failing_adapters = 0
            pod.address_of, pod.garbled, pod.worker.ahead = "", False, False
            if pod.problem and not pod.ended:
                self.crash_loop(pod, over=True)

    def _end_faults(self) -> None:
        self.faults, self.lag_seconds, self.between = Faults(), 0.0, None
        self.former_leaders.clear()
        if self.revisions.refused:
            self.refuse_templates(refuse=False)
        self.wire.mend()

    def repair(self) -> None:
        """All versions can be read everywhere, at the same speed."""
        self.repair_workers()
        self.files.rewritten.clear()

    def repair_workers(self) -> None:
        """Only the requests of trainers and the files that they write remain."""
        for worker in self.workers.values():
            worker.breaking_versions.clear()
            worker.bad_sources.clear()
            worker.slow_seconds = self.slow_seconds
            worker.room_for_adapters = ROOM_FOR_ADAPTERS
        self.bad_versions.clear()

    def converged(self) -> bool:
        """Whether every worker serves the requested version and the status reports it. The leader has heard
        the answers to its last calls, and none of an earlier leader is on its way.
        """
        serving = [p for p in self.pods.values() if self.serves(p)]
        versions = {p.worker.weights for p in serving}
        if self.leader.observed is None or self.wire.flights():
            return False
        return (
            len(self.pods) == len(serving) == self.replicas
            and len(versions) == 1
            and {version_in(v) for v in versions} == {self.version}
            and {p.worker.run_id for p in serving} == {self._run()}
            and self.weights.phase is RolloutPhase.APPLIED
            and self.fleet.transition is None
            and self._adapters_are_applied()
            and not self._reports_calls()
            and self._statuses_are_of_today()
            and self._is_updated()
            and all(self._has_adapters(p.worker) for p in serving)
            and not any(w.work or w.staging for w in self.workers.values())
        )

    def _is_updated(self) -> bool:
        """Whether no worker has an older template; where updates are held, any may have one."""
        held = self.desired.fleet_spec.update.is_held
        return held or self.fleet.updated_replicas == self.replicas

    def _run(self) -> str | None:
        spec = self.desired.base_spec
        return spec.run_id if spec is not None else None

    def _statuses_are_of_today(self) -> bool:
        base = self.desired.base
        fleet = self.fleet.observed_generation == self.desired.generation
        return fleet and (base is None or self.weights.observed_generation == base.generation)

    def _reports_calls(self) -> bool:
        """Whether the fleet still reports calls without an effect. It does for some seconds after the last."""
        found = condition_of(self.fleet.conditions, ConditionType.STALLED)
        return found is not None and found.reason is ConditionReason.CALL_WITHOUT_EFFECT

    def _adapters_are_applied(self) -> bool:
        """Whether the WeightVersion of each adapter says so."""
        uids = [uid for uid, _ in self.desired.weights if uid != self.desired.base_uid]
        known = self.leader.weights
        return all(known.get(uid, NO_STATUS).phase is RolloutPhase.APPLIED for uid in uids)

    def _has_adapters(self, worker: FakeWorker) -> bool:
        adapters = (
            a.view(uid).spec for uid, a in self.desired.weights if uid != self.desired.base_uid
        )
        served = {name: (a.version, a.run_id) for name, a in worker.adapters.items()}
        return not worker.staged_adapters and served == {
            spec.adapter: (spec.version, spec.run_id) for spec in adapters
        }

    def settle(self, bound: int = 400) -> None:
        """End the faults and let time pass until the fleet has converged. A version that was abandoned
        because of an earlier fault is requested once more.
        """
        converges = self._converges(bound)
        if not converges and self.weights.phase is RolloutPhase.HALTED:
            self.retry("now that all is well")
            converges = self._converges(bound)
        if not converges:
            if self.converged():
                self.fail(7, "the operator keeps writing about a converged fleet")
            self.fail(6, f"not converged on {self.version} after {bound} reconciles")

    def settle_or_say(self, bound: int = 400) -> None:
        """With faults ended but not repaired, converge, or say what is wrong."""
        if self._converges(bound, gives_up=True) or self.weights.phase is RolloutPhase.SUSPENDED:
            return
        if self.replicas and not self.stalled and not self._stalls():
            self.fail(6, f"neither on {self.version} after {bound} reconciles nor stalled")

    def settle_or_say_reused(self) -> None:
        """With all repaired but the files, converge, or say in these words that a version would
        have two sets of files, or that the files do not match `spec.digest`.
        """
        self.repair_workers()
        if self._converges(400, gives_up=True) or self.weights.phase is RolloutPhase.HALTED:
            return  # abandoned because of an earlier fault; another test checks the report
        said = self._stalls() | ({self.stalled.reason} if self.stalled is not None else set())
        if (
            said
        ):  # a used failure budget says no more than that: the rows of the workers have the cause
            said |= {laggard.reason for laggard in self.leader.fleet.laggards}
        if not said & set(_ABOUT_IDENTITY):
            self.fail(6, f"not converged on {self.version}, and Stalled says {said}")

    def adapters(self, name: str) -> list[str]:
        """Returns the weights that serving workers have under an adapter's name."""
        serving = [w for w in self.workers.values() if w.generates]
        return [w.adapters[name].weights for w in serving if name in w.adapters]

    def stalled_adapter(self, name: str) -> bool:
        """Whether the WeightVersion of an adapter is stalled."""
        status = self.leader.weights.get(str(self.adapter_uid(name)), NO_STATUS)
        return condition_of(status.conditions, ConditionType.STALLED) is not None

    def _stalls(self) -> set[str]:
        """Why WeightVersions are stalled, those of adapters included."""
        found = (
            condition_of(s.conditions, ConditionType.STALLED) for s in self.leader.weights.values()
        )
        return {c.reason for c in found if c is not None}

    def endure(self) -> None:
        """Faults stay, a queue keeps holding its pods, and nothing new happens: no rollout stays in a
        phase without a message. Operators, the network and the caches work from now on.
        """
        self._end_faults()
        said = 0
        for _ in range(int(self.promises.longest_rollout_seconds / LONG_TICK_SECONDS) + 1):
            self.reconcile()
            self.tick(0.1)  # what it has asked for is answered, and it looks again
            self.reconcile()
            self.tick(LONG_TICK_SECONDS)
            said = 0 if self._silent_about() else said + 1
            if said == LOOKS_AT_REST:
                return
        self.decide()
        if silent := self._silent_about():
            self.fail(6, f"{silent} without a condition")

    def _silent_about(self) -> str:
        """The version or adapter that stays in a phase without a message; empty without one."""
        decision, phase = self.leader.decision, self.weights.phase
        waits = phase in {RolloutPhase.APPLIED, RolloutPhase.SUSPENDED, RolloutPhase.HALTED}
        # Without workers it has not begun; but neither has it while another one is under way.
        waits |= phase is RolloutPhase.PENDING and not decision.rollout.step.holds_requests
        if not waits and not self.stalled:
            return f"version {self.version} stays {phase}"
        for uid, status in self.leader.weights.items():
            under_way = status.phase in {RolloutPhase.STAGING, RolloutPhase.LOADING}
            stalled = condition_of(status.conditions, ConditionType.STALLED)
            if uid != self.desired.base_uid and under_way and stalled is None:
                return f"{uid}: the adapter stays {status.phase}"
        return "" if self.stalled or decision.rollout.step.holds_requests else self._outdated()

    def _outdated(self) -> str:
        """The workers that keep an older template, though one of them may go; empty without one. A pod that has waited
        for a gate since before the change does not hold up the others.
        """
        template, spec = self.leader.observed.template, self.desired.fleet_spec
        if template is None or spec.update.is_held:
            return ""
        there = [p for p in self.pods.values() if p.deleted_at is None and not p.ended]
        gated = sum(p.gated for p in there)
        if gated > self.promises.availability.held_back.get(template.revision, 0):
            return ""  # no successor gets in
        unavailable, _ = unavailable_and_surge(spec.update, spec.replicas)
        up = sum(p.ready and p.drains_since is None and not p.quarantine for p in there)
        old = [p.name for p in there if p.worker.revision != template.revision]
        may_go = bool(old) and up > spec.replicas - gated - unavailable
        return f"{old} keep an older template" if may_go else ""

    def _converges(self, bound: int, *, gives_up: bool = False) -> bool:
        """`gives_up`: a fleet that is stalled and has had nothing to do for long stays so."""
        self.mend()
        slowest = max((w.slow_seconds for w in self.workers.values()), default=self.slow_seconds)
        idle = 0
        for _ in range(bound + int(STEPS_TO_CONVERGE * slowest)):
            at_work = self.reconcile()
            rests = idle > LOOKS_AT_REST // 2
            self.tick(0.1 if at_work else SELDOM_SECONDS if rests else TICK_SECONDS)
            self._do_what_a_user_would()
            if self.converged() and not self.reconcile():
                return True
            comes = any(
                w.started_at > self.now or w.work or w.staging for w in self.workers.values()
            )
            idle = 0 if at_work or comes or not gives_up or not self._stalls() else idle + 1
            if idle > LOOKS_AT_REST:
                return False
        return False

    def _do_what_a_user_would(self) -> None:
        """Budgets that are used up ask for it: "find the cause, then delete the pod"."""
        if self.leader.decision is not None and self.leader.decision.pods.exhausted:
            for pod in self.pods.values():
                if pod.quarantine or pod.ended:
                    self._delete(pod)

    def until(self, condition: Callable[[], object], bound: int = 300) -> None:
        """Reconcile, and let time pass while there is nothing to do, until a condition holds."""
        for _ in range(bound):
            if condition():
                return
            if not self.reconcile():
                self.tick()
        self.fail(6, "the condition was never met")

    def look(self, reconciles: int = 20, seconds: float = TICK_SECONDS) -> None:
        """Let some time pass."""
        for _ in range(reconciles):
            self.reconcile()
            self.tick(seconds)

    def run_quietly(self, reconciles: int = 10) -> int:
        """Writes of a fleet at rest over some more reconciles."""
        before = self.writes + self.revisions.writes
        self.look(reconciles)
        return int(self.writes + self.revisions.writes - before)
