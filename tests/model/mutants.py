"""One-line mistakes in the planner, each with the promise that it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Fields:
        package: where the file is.
        rollout: settings under which it shows soonest.
        story: tells of it; luck would take too long.
        first_seed: a history that shows it, tried first; after a change of the planner or of the
            simulator another one may.
    """

    promise: int
    mistake: str
    file: str
    line: str
    instead: str
    rollout: dict[str, Any] | None = field(default=None)
    story: str | None = None
    first_seed: int | None = None
    package: str = "fleet_operator"


SYNCHRONIZED: dict[str, Any] = {}
SHORT = {"timeouts": {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}}
ROLLING = {"strategy": "Rolling", "maxUnavailable": 1}
CANARY = {"strategy": "Canary"}
BOUNDED = {"maxStaging": 1}

MUTANTS = [
    Mutant(
        1,
        "a version is looked for where the one before it lies",
        "core/observed.py",
        "source = spec.source.resolve(spec.version)",
        "source = spec.source.resolve(self.status.applied_version or spec.version)",
        SYNCHRONIZED,
    ),
    Mutant(
        1,
        "a canary that fails is said to have passed",
        "core/strategies/canary.py",
        "passed=not bad,",
        "passed=True,",
        CANARY,
        first_seed=32,
    ),
    Mutant(
        2,
        "the barrier does not wait for silent workers",
        "core/strategies/synchronized.py",
        "behind = view.members.where(lambda f: not f.has_loaded(goal))",
        "behind = view.members.where(lambda f: not f.has_loaded(goal)"
        " and f.standing is not Standing.UNKNOWN)",
        SYNCHRONIZED,
    ),
    Mutant(
        2,
        "a hung worker is not expected to come back",
        "core/worker_view.py",
        "return self.state.admitted or opened_since",
        "return False",
        SYNCHRONIZED,
    ),
    Mutant(
        2,
        "workers open while another admission is under way",
        "core/no_mixing.py",
        "if not unsure:",
        "if True:",
        story="an_admission_that_arrives_late",
    ),
    Mutant(
        2,
        "a new leader forgets that its predecessor may have admitted a worker",
        "core/admissions.py",
        "if accepted is None or accepted.term < term:",
        "if False:",
        story="an_admission_of_a_former_leader_that_arrives_late",
    ),
    Mutant(
        2,
        "a worker that generates with other weights is not fenced",
        "core/no_mixing.py",
        'if not m.is_doing("fence")',
        "if False",
        story="a_worker_with_other_weights_than_the_fleet",
    ),
    Mutant(
        2,
        "joining workers open while members of the old version still generate",
        "core/strategies/synchronized.py",
        "fallback=goal, open_now=agree, rollout_goal=coming)",
        "fallback=goal, open_now=True, rollout_goal=coming)",
        story="a_status_that_was_lost",
    ),
    Mutant(
        3,
        "a paused worker is never resumed, only renewed",
        "core/strategies/synchronized.py",
        "if m.state is not None and not m.operation",
        "if m.state is not None and m.operation",
        SHORT,
    ),
    Mutant(
        3,
        "a pause is asked for that lasts ten times as long as is promised",
        "core/worker_calls.py",
        "mode=PAUSE_MODES[settings.pause.mode],\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=LEASE_SECONDS,\n    )\n\n\ndef load(",
        "mode=PAUSE_MODES[settings.pause.mode],\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=10 * LEASE_SECONDS,\n    )\n\n\ndef load(",
        SYNCHRONIZED,
    ),
    Mutant(
        4,
        "one worker too many is replaced at a time",
        "core/fleet_plan.py",
        "if allowed <= 0:",
        "if allowed < 0:",
    ),
    Mutant(
        4,
        "workers are taken away for a template that could not be recorded",
        "core/fleet_plan.py",
        "return outdated if observed.template else outdated.where(lambda f: f.pod.drains)",
        "return outdated",
        story="a_template_that_cannot_be_recorded",
    ),
    Mutant(
        4,
        "what a template change has taken away itself was held back before it",
        "core/fleet_plan.py",
        "return min(before, sound.count(lambda f: f.pod.gated))",
        "return sound.count(lambda f: f.pod.gated)",
        story="a_template_that_no_queue_lets_in",
    ),
    Mutant(
        4,
        "what a queue has let in since is held back for ever",
        "core/fleet_plan.py",
        "return min(before, sound.count(lambda f: f.pod.gated))",
        "return before",
        first_seed=2,
    ),
    Mutant(
        6,
        "a pod that a queue holds back keeps a template change from its end",
        "core/fleet_plan.py",
        "return min(before, sound.count(lambda f: f.pod.gated))",
        "return 0",
        story="a_template_change_beside_a_pod_that_a_queue_holds_back",
    ),
    Mutant(
        4,
        "workers that are away do not count while others swap",
        "core/strategies/gradual.py",
        "[: max(0, at_once - away)]",
        "[:at_once]",
        ROLLING,
    ),
    Mutant(
        5,
        "a run may go back to any step",
        "core/rollback_guard.py",
        "if wanted is None or reached is None or wanted >= reached:",
        "if True:",
        story="a_run_that_starts_again",
    ),
    Mutant(
        5,
        "what was served before is not remembered",
        "core/applied.py",
        "known.insert(0, Checkpoint.recorded(recorded))",
        "known.append(Checkpoint.recorded(recorded))",
    ),
    Mutant(
        5,
        "which weights are older is forgotten with the WeightVersion",
        "core/applied.py",
        "return one in pinned and two in pinned and pinned.index(two) < pinned.index(one)",
        "return False",
        story="a_hung_worker_that_outlives_the_history",
    ),
    Mutant(
        6,
        "a joining worker is admitted only while its adapters are missing",
        "core/joining.py",
        "if admission.open_now and equipped and not worker.operation:",
        "if admission.open_now and not equipped and not worker.operation:",
    ),
    Mutant(
        6,
        "a version is abandoned at the deadline of a phase because its checkpoint does not exist yet",
        "core/missing_checkpoint.py",
        "phase=RolloutPhase.PENDING,",
        "phase=step.phase,",
        story="a_checkpoint_that_comes_late",
    ),
    Mutant(
        6,
        "a pod that a queue holds back counts as away",
        "core/observed.py",
        "return max(replicas - gated, min(replicas, len(there) - gated))",
        "return replicas",
        story="a_pod_that_a_queue_holds_back",
    ),
    Mutant(
        6,
        "a failed worker is never recreated",
        "core/fleet_plan.py",
        "recycle(observed, [w for w in failed if w.pod.uid not in lost], now=now)",
        "recycle(observed, [], now=now)",
    ),
    Mutant(
        6,
        "workers beyond the replicas bridge an update that is held",
        "core/surplus.py",
        "if observed.spec.update.is_held or waits_for <= 0:",
        "if waits_for <= 0:",
        first_seed=119,
    ),
    Mutant(
        6,
        "the first worker is never created",
        "core/fleet_plan.py",
        "missing = missing[:CREATE_AT_ONCE]",
        "missing = missing[1:CREATE_AT_ONCE]",
    ),
    Mutant(
        6,
        "no worker is ever late",
        "core/strategies/shared.py",
        "if view.phase is not phase or view.phase_seconds <= limit_seconds:",
        "if True:",
        SYNCHRONIZED,
        first_seed=73,
    ),
    Mutant(
        6,
        "time without a leader counts",
        "core/rollout_plan.py",
        "phase_seconds=weights.watched.phase_seconds if weights else 0,",
        "phase_seconds=(now - weights.status.phase_started_at).total_seconds()"
        " if weights and weights.status.phase_started_at else 0,",
        story="an_outage_of_130_seconds",
    ),
    Mutant(
        6,
        "deadlines are counted on a wall clock",
        "core/rollout_plan.py",
        "phase_seconds=weights.watched.phase_seconds if weights else 0,",
        "phase_seconds=(now - weights.status.phase_started_at).total_seconds()"
        " if weights and weights.status.phase_started_at else 0,",
        story="a_clock_that_is_ahead",
    ),
    Mutant(
        5,
        "refused as old, a leader raises its own term",
        "runtime/epochs.py",
        "self._refused[key] = max(obeyed.term, self._refused.get(key, 0))",
        "self._floors[key] = obeyed.term",
        story="a_leader_whose_clock_stood_still",
    ),
    Mutant(
        5,
        "a former leader writes its status over that of its successor",
        "runtime/resource_versions.py",
        'return "" if known == self._refused.get(uid) else known',
        'return ""',
        story="a_status_that_is_written_late",
    ),
    Mutant(
        6,
        "what was refused before the last refusal is forgotten",
        "core/worker_calls.py",
        "state.stage_failure, *state.earlier_stage_failures)",
        "state.stage_failure)",
        story="a_fleet_without_a_good_version",
    ),
    Mutant(
        6,
        "a swap is late by the age of an old answer",
        "core/strategies/gradual.py",
        "+ worker.silent_seconds",
        "+ worker.state_age_seconds",
        story="an_answer_that_is_20_seconds_old",
    ),
    Mutant(
        7,
        "a rollout starts again with every reconcile",
        "core/weights_status.py",
        "started_at = now if fresh or before.started_at is None else before.started_at",
        "started_at = now",
    ),
    Mutant(
        7,
        "a phase starts again with every reconcile",
        "core/weights_status.py",
        "phase_started_at=now if moved else before.phase_started_at,",
        "phase_started_at=now,",
    ),
    Mutant(
        8,
        "a pause cuts requests short whatever its mode",
        "core/worker_calls.py",
        "mode=PAUSE_MODES[settings.pause.mode],\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=LEASE_SECONDS,\n    )\n\n\ndef load(",
        "mode=PauseMode.ABORT,\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=LEASE_SECONDS,\n    )\n\n\ndef load(",
        SYNCHRONIZED,
    ),
    Mutant(
        8,
        "a pause is not renewed while a load runs",
        "core/worker_calls.py",
        "and lease_remaining_seconds(worker) < RENEW_BELOW_SECONDS",
        "and not worker.operation and lease_remaining_seconds(worker) < RENEW_BELOW_SECONDS",
        story="a_load_that_lasts_longer_than_a_lease",
    ),
    Mutant(
        8,
        "one that is about to load the goal is set apart",
        "core/no_mixing.py",
        "if isinstance(a, Load) and same_weights(a, step.goal)",
        "if isinstance(a, Load) and not a",
        story="a_strategy_that_is_changed_in_the_middle",
    ),
    Mutant(
        8,
        "a canary is set apart without a drain",
        "core/worker_calls.py",
        "drain_timeout_seconds=settings.pause.drain_timeout_seconds,\n    )\n\n\ndef drain_out_of_service(",
        "drain_timeout_seconds=0,\n    )\n\n\ndef drain_out_of_service(",
        CANARY,
    ),
    Mutant(
        11,
        "a worker takes calls that are for another pod",
        "admin/addressing.py",
        "if wanted != own:",
        "if False:",
        package="fleet_worker",
        story="an_address_that_another_pod_has",
    ),
    Mutant(
        9,
        "a new WeightVersion of the served version reads no files",
        "core/comparison.py",
        "and (is_new or view.phase is RolloutPhase.COMPARING)",
        "and view.phase is RolloutPhase.COMPARING",
        story="files_written_over_before_a_recreation",
    ),
    Mutant(
        9,
        "what a version stands for is not written down",
        "core/pins.py",
        "added = _first_reports(observed.workers, asked) if asked else ()",
        "added = ()",
        story="files_that_are_rewritten_under_their_path",
    ),
    Mutant(
        9,
        "workers load before it is written down what the version stands for",
        "core/pin_gate.py",
        "kept += [action] if stored else []",
        "kept += [action]",
        story="files_that_are_rewritten_before_anything_is_written_down",
    ),
    Mutant(
        9,
        "the pins of adapters are forgotten",
        "core/lora.py",
        "    if not added:\n        return before\n",
        "    if not added:\n        return ()\n",
        story="an_adapter_that_is_rewritten_under_its_path",
    ),
    Mutant(
        9,
        "workers serve an adapter before its pin is stored",
        "core/lora.py",
        "if worker.has_staged(own) or pins.is_stored(own):",
        "if True:",
        story="an_adapter_that_is_rewritten_before_its_pin_is_stored",
    ),
    Mutant(
        9,
        "other files under the same version of a run count as applied",
        "core/reused_versions.py",
        "elif not _is_from(wanted.source, source, commit):",
        "elif False:",
        SYNCHRONIZED,
    ),
    Mutant(
        12,
        "a worker that is scaled away is given no time",
        "core/draining.py",
        "drain_timeout_seconds=timeout_seconds,",
        "drain_timeout_seconds=0,",
    ),
    Mutant(
        12,
        "a pod is not given the time that its requests may take",
        "core/manifests/pods.py",
        '"value": str(seconds)}',
        '"value": "0"}',
    ),
    Mutant(
        14,
        "one more worker may read than should",
        "core/staging.py",
        "new[: max(0, most - len(holders))]",
        "new[: max(0, most - len(holders) + 1)]",
        BOUNDED,
    ),
    Mutant(
        14,
        "what a worker reads for an earlier leader does not count",
        "core/staging.py",
        "seconds = worker.seconds_at(call.kind, _weights_of(call))",
        "seconds = None",
        BOUNDED,
        first_seed=28,
    ),
    Mutant(
        14,
        "a worker whose answer was lost does not count",
        "core/staging.py",
        "if seconds is None and worker.lost_call == call.work:",
        "if False:",
        BOUNDED,
        first_seed=35,
    ),
    Mutant(
        14,
        "joining workers do not count",
        "core/staging.py",
        "if pod.deleting or pod.quarantine or not pod.running:",
        "if worker.standing is Standing.CLOSED:",
        BOUNDED,
        first_seed=19,
    ),
    Mutant(
        6,
        "a worker that waits for its turn to read is late",
        "core/strategies/base.py",
        "groups = 1 if self.max_staging is None else ceil(workers / self.max_staging)",
        "groups = 1",
        story="a_store_that_serves_one_worker_at_a_time",
    ),
    Mutant(
        4,
        "a worker that has left the Service in silence counts as serving in a scale-down",
        "core/surplus.py",
        "serves = may_serve(worker) and worker.standing is not Standing.ABSENT",
        "serves = may_serve(worker)",
        story="a_scale_down_beside_a_worker_that_hangs",
    ),
    Mutant(
        6,
        "a worker that was fenced because it refused the files no longer counts as failed",
        "core/strategies/synchronized.py",
        "counted = [*failed, *closed] if failed else []",
        "counted = failed",
        story="two_workers_that_refuse_while_one_may",
    ),
    Mutant(
        6,
        "a version that the engine refused is not given up",
        "core/strategies/gradual.py",
        "halt = bool(closed or stuck or overdue or failed_to_load(view, goal, refused))",
        "halt = bool(closed or stuck or overdue)",
        story="an_engine_that_refuses_a_version_while_its_worker_joins",
    ),
    Mutant(
        6,
        "the wait for workers that cannot join hides the reason why they cannot",
        "core/strategies/gradual.py",
        "if beyond and blocked and at_once is not None and step.problem is None:",
        "if beyond and blocked and at_once is not None:",
        story="a_worker_that_no_version_lets_in",
    ),
    Mutant(
        15,
        "the workers with the most sessions swap first",
        "core/strategies/gradual.py",
        'key=attrgetter("sessions")',
        'key=attrgetter("sessions"), reverse=True',
        story="workers_with_different_numbers_of_sessions",
    ),
    Mutant(
        15,
        "sessions that are between two turns do not count",
        "core/worker_view.py",
        "return max(self.requests, (self.state.sessions or 0) if self.state else 0)",
        "return self.requests",
        ROLLING,
    ),
    Mutant(
        6,
        "a worker whose engine failed once never swaps again",
        "core/strategies/gradual.py",
        "without(behind, failed) or _again(view, goal, refused)",
        "without(behind, failed)",
        story="an_engine_that_refuses_a_version_once",
    ),
    Mutant(
        9,
        "a worker in a phase of a newer release makes a fleet Ready",
        "core/fleet_status.py",
        "f.standing is Standing.OPEN and isinstance(f.phase, Phase)",
        "f.standing is Standing.OPEN",
        story="a_rollback_under_a_worker_of_a_newer_release",
    ),
    Mutant(
        9,
        "a worker that loads other weights counts as done while it names its old ones",
        "core/strategies/gradual.py",
        "return not worker.has_loaded(goal) or worker.loads_others_than(goal)",
        "return not worker.has_loaded(goal)",
        story="a_rollback_under_a_worker_that_loads",
    ),
    Mutant(
        11,
        "an operator believes any pod that has the address",
        "core/answers.py",
        "if not other and reason != Reason.WRONG_POD:",
        "if True:",
    ),
]
