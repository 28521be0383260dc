"""Canary: a few workers load the version behind a closed latch and are judged before the others.

    a canary                                            next
    serves the old version, has not run the prompts     CanaryPrompts   (the baseline)
    has a baseline, has not staged                      Stage
    has staged, serves                                  Fence   (running requests finish first)
    has staged, latch closed                            Load
    loads, or its load has failed, latch closed         nothing: it stays the canary
    has loaded, latch closed                            CanaryPrompts   (compared with the baseline)
    all canaries have been compared                     judge

The baseline is what the applied weights, which clients get, answer. The weights that a canary had before may
be refused ones. Compared with these, weights that diverge the same way would pass. So a canary without
answers of the applied weights stages and loads these first. If no worker can load them any more, the version
is judged without a comparison (decision 46).

No client gets a token from weights that were not judged: the latch of a canary stays closed from
before its load until the verdict. After a good verdict the rollout continues with the strategy
`canary.then`, and the canaries, which have the weights already, join it. After a bad verdict the
version is abandoned. The canaries roll back to the applied version and are admitted again. No other
worker has ever loaded the version.

If a canary dies, another worker takes its place, as long as half of the replicas serve then. Below that the
version is judged by those that come back.

The canaries and the verdict are stored in the status of the WeightVersion. So the time of a canary begins with its
call, and a worker that was away before has not died of the version. After a canary dies the version is not judged
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Fence, WorkerCall
from fleet_operator.core.advance import Mode
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts
from fleet_operator.core.identity import Named, WeightsId, same_weights
from fleet_operator.core.joining import Admission
from fleet_operator.core.lateness import is_in_time, lasts
from fleet_operator.core.messages import named, pod_names, problem_of, some, unready
from fleet_operator.core.missing_checkpoint import is_missing
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step, Strategy
from fleet_operator.core.strategies.baselines import (
    Baseline,
    awaited_by,
    baseline_of,
    canaries_of,
    has_answers,
)
from fleet_operator.core.strategies.shared import (
    advanced,
    failed_to_load,
    may_resume,
    over_budget,
    with_joiners,
    without,
)
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_operator.counts import agree, counted_of
from fleet_worker.protocol import Phase, PromptsReport
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import MAX_CANARY_PODS, CanaryVerdict, RolloutPhase

_APART = frozenset({Phase.JOINING, Phase.PAUSING, Phase.LOADING, Phase.BROKEN})
"""The phases of a canary behind its closed latch. It keeps its part in all of them: otherwise the next worker would
take it over while this one loads, and leave its clients, too."""
_NAMED_AT_MOST = 3


def then(strategy: Strategy) -> Strategy:
    """The canary strategy that continues with `strategy` after a good verdict."""

    def step(view: RolloutView) -> Step:
        absent = is_missing(view.there, view.desired) or view.desired.is_transferred
        known = same_weights(view.desired, view.applied) or _is_served(view)
        if view.halted or has_passed(view) or absent or known:
            # Without files there is nothing to judge yet: canaries serve again.
            return strategy(view)
        if view.suspended:
            return strategy(replace(view, halted=True))
        return _judge(view)

    return step


def has_passed(view: RolloutView) -> bool:
    """Whether the desired version has a good verdict."""
    last = view.verdict
    return last is not None and last.passed and _judges(last, view.desired)


def _is_served(view: RolloutView) -> bool:
    """Whether the members serve the desired version, so that it is too late to judge it.

    A canary that stopped answering counts as a member, but serves no client. Nor do members that are
    paused. So at least one member must be open.
    """
    known = view.members.any(lambda f: f.standing is Standing.OPEN)
    return known and view.members.all(lambda f: f.has_loaded(view.desired))


def _judge(view: RolloutView) -> Step:
    goal = view.desired
    joining = view.joining.where(lambda f: f.phase in _APART)
    able = view.members.plus(joining).where(_may_judge)
    failed = [w for w in able.where(lambda f: f.refuses) if view.failure_of(w, goal)]
    at_work = able.where(lambda f: f.operation is not None)
    hanging = [w for w in at_work if _hangs_elsewhere(w, view)]
    halt = bool(failed_to_load(view, goal, failed))
    problem = over_budget(view, goal, failed, RolloutPhase.STAGING, halt=halt, among=able)
    chosen = canaries_of(view, able if problem else without(able, [*failed, *hanging]))
    chosen = chosen or canaries_of(view, without(able, failed))
    if failed and not chosen:
        # Only they can compare.
        may_fail, staging = view.may_fail, RolloutPhase.STAGING
        problem = problem or problem_of(failed, goal, staging, may_fail=may_fail, halt=False)
        chosen = canaries_of(view, able)
    lacking = [w for w in chosen if baseline_of(w, view) is Baseline.MISSING]
    awaited = awaited_by(view, able) if able and not chosen else []
    problem = problem or _late_verdict(view, chosen, lacking or awaited)
    reports = [r for w in chosen if (r := _report(w, view))]
    verdict = None
    if chosen and len(reports) == len(chosen):
        compares = all(baseline_of(w, view) is Baseline.KNOWN for w in chosen)
        verdict = _verdict(reports, chosen, view, compares=compares)
        if not verdict.passed:
            reason = ConditionReason.CANARY_REFUSED
            problem = RolloutProblem(reason=reason, message=verdict.message, halt=True)
    requested = [*_calls_to_held(view), *_next_calls(view, chosen)]
    # If all canaries have died, the time does not begin again: a version that kills each would never be late.
    dead = view.phase is RolloutPhase.JUDGING and not (chosen or awaited)
    judges = bool((dead and view.workers) or (chosen and not lacking))
    note = f"{some(chosen) or 'no worker'} {agree(len(chosen) or 1, 'is', 'are')} testing version {goal.label}"
    if lacking:
        note = f"{some(lacking)} {agree(len(lacking), 'loads', 'load')} version {view.applied.label} first, as the baseline"
    if awaited:
        note = f"only {some(awaited)} can compare {goal.label} with {view.applied.label}"
    taken = Step(
        goal=goal,
        phase=RolloutPhase.JUDGING if judges else RolloutPhase.PENDING,
        actions=tuple(requested),
        note=f"{note}{unready(chosen, goal)}",
        problem=problem,
        failed=pod_names(failed),
        verdict=verdict,
        canaries=tuple(chosen),
        holds_requests=any(w.has_loaded(goal) for w in chosen)
        or any(isinstance(a, Fence) for a in requested),
    )
    # Where versions must not mix, no worker is admitted while a member may run another version.
    open_now = view.agrees_on(view.applied) or not view.forbids_mixing
    others = Admission(goal=view.applied, fallback=view.applied, open_now=open_now)
    canaries = {w.pod.uid for w in chosen}
    return with_joiners(view, taken, others, but=canaries)


def _late_verdict(
    view: RolloutView, chosen: Sequence[WorkerView], lacking: Sequence[WorkerView]
) -> RolloutProblem | None:
    """The problem that canaries are late.

    The limit is the time to stage, to drain, to load once and to run the prompts twice. A version is abandoned
    when a canary has had this time since its call, or twice the time if it was at something else before. So is a
    version after twice the time if processes have ended repeatedly after their calls. A late baseline is only
    reported, and so are canaries that have died.
    """
    timeouts = view.settings.timeouts
    limit = view.staging_seconds(len(chosen)) + 3 * timeouts.load_seconds
    limit += view.settings.pause.drain_timeout_seconds
    phase = RolloutPhase.PENDING if lacking else RolloutPhase.JUDGING
    slow = lacking or [w for w in chosen or view.workers if not _report(w, view)]
    if not slow or not lasts(view, limit, phase):
        return None
    if lacking:
        return problem_of(slow, view.applied, phase, may_fail=view.may_fail, halt=False)
    if not chosen:
        return _without_canaries(view)
    trials = {t.uid: t.seconds for t in view.trials if t.is_alive}
    called = [w for w in slow if w.pod.uid in trials]
    if not called:
        return _without_a_call(slow, view)
    had_time = any(
        trials[w.pod.uid] > (2 * limit if is_in_time(view, w) else limit) for w in called
    )
    die = view.phase_seconds > 2 * limit and sum(t.deaths for t in view.trials) > 1
    return problem_of(called, view.desired, phase, may_fail=view.may_fail, halt=had_time or die)


def _without_canaries(view: RolloutView) -> RolloutProblem:
    """The problem that no worker may test the version, and none comes back."""
    number = view.members.count(lambda f: f.standing is Standing.OPEN)
    serve = counted_of(number, view.replicas, "worker", "serves", "serve")
    others = view.workers.where(lambda f: f.standing is not Standing.OPEN)
    gone = [t.pod for t in view.trials if not t.is_alive]
    died = f", and canaries have died ({named(gone, len(gone))})" if gone else ""
    message = (
        f"no worker tests version {view.desired}: {serve} clients{died}. Half of the replicas keep serving. "
        f"Look at the other pods ({some(others)}), or publish another version"
    )
    return RolloutProblem(reason=ConditionReason.DEADLINE_EXCEEDED, message=message, halt=False)


def _without_a_call(slow: Sequence[WorkerView], view: RolloutView) -> RolloutProblem:
    """The problem that canaries are at something else, for longer than a judgement may take."""
    works = "; ".join(f"{w.pod.name}: {w.operation or 'no work'}" for w in slow[:_NAMED_AT_MOST])
    message = (
        f"version {view.desired} is not tested: {agree(len(slow), 'its canary has', 'its canaries have')} not run "
        f"the prompts on version {view.applied.label} yet ({works}). The fleet stays on the applied version. "
        f"Look at the logs of {agree(len(slow), 'this pod', 'these pods')}"
    )
    return RolloutProblem(reason=ConditionReason.DEADLINE_EXCEEDED, message=message, halt=False)


def _calls_to_held(view: RolloutView) -> Sequence[WorkerCall]:
    """The calls to workers that hold their requests, since a barrier was forgotten while they were silent. They go
    back: what they have loaded may be a version that was not judged. Only the pause of a load is renewed.
    """
    resumed = may_resume(view)
    back, reason = without(view.held, resumed), "no canary has judged what it has"
    calls = advanced(view, back, view.applied, Mode.LOAD, reason, renews=False)
    reason = "the canaries do not need its pause"
    return (*calls, *advanced(view, resumed, view.applied, Mode.SERVE, reason, renews=False))


def _next_calls(view: RolloutView, chosen: Sequence[WorkerView]) -> list[WorkerCall]:
    made: list[WorkerCall] = []
    settings, reason = view.settings, "it is the canary"
    for worker in chosen:
        weights = _runs_next(worker, view)
        # The read of a version that nothing wants any more may last for long, and the next stage ends it.
        is_busy = bool(worker.operation) and not worker.is_doing("stage")
        if is_busy or view.failed_lately(worker, weights):
            continue
        if not worker.has_loaded(weights):
            made += advanced(view, [worker], weights, Mode.OUT, reason)
        elif not has_answers(worker, weights) and worker.standing is not Standing.HELD:
            baseline = view.applied
            made.append(
                worker_calls.canary_prompts(worker, settings, baseline=baseline, reason=reason)
            )
    return made


def _report(worker: WorkerView, view: RolloutView) -> PromptsReport | None:
    """The report of the canary prompts under the desired version, if it counts for the verdict."""
    counts = has_answers(worker, view.desired) and _runs_next(worker, view) is view.desired
    return worker.state.probe if worker.state and counts else None


def _runs_next(worker: WorkerView, view: RolloutView) -> Checkpoint:
    """The weights on which a canary runs the prompts next: the applied ones, for want of a baseline."""
    needs_no_load = baseline_of(worker, view) in {Baseline.KNOWN, Baseline.LOST}
    return view.desired if needs_no_load else view.applied


def _judges(verdict: CanaryVerdict, weights: Named) -> bool:
    """Whether the verdict is about these weights."""
    return same_weights(WeightsId(verdict.version, verdict.run_id, verdict.digest), weights)


def _verdict(
    reports: Sequence[PromptsReport],
    canaries: Sequence[WorkerView],
    view: RolloutView,
    *,
    compares: bool,
) -> CanaryVerdict:
    """`compares`: the reports compare the goal with the applied version."""
    goal, limits = view.desired, view.settings.canary
    worst = {
        "finite": all(r.finite for r in reports),
        "repetition": max(r.repetition for r in reports),
        "logprob_drift": max(r.logprob_drift or 0.0 for r in reports) if compares else 0.0,
        "kl": max(r.kl or 0.0 for r in reports) if compares else 0.0,
    }
    checks = [
        (worst["finite"], "finite logits" if worst["finite"] else "logits that are not finite"),
        (
            100 * worst["repetition"] <= limits.max_repetition_percent,
            f"repetition {100 * worst['repetition']:.0f}%, limit {limits.max_repetition_percent}%",
        ),
        (
            1000 * worst["logprob_drift"] <= limits.max_logprob_drift_millinats,
            (
                f"logprob drift {1000 * worst['logprob_drift']:.0f} millinats, limit "
                f"{limits.max_logprob_drift_millinats}"
            ),
        ),
        (
            1000 * worst["kl"] <= limits.max_kl_millinats,
            f"KL {1000 * worst['kl']:.0f} millinats, limit {limits.max_kl_millinats}",
        ),
    ]
    compared = f"compared with {view.applied.label}"
    if not compares:
        compared = "without a baseline, since no worker can load the applied version"
        checks = checks[:2]
    bad = [text for holds, text in checks if not holds]
    results = "; ".join(bad) or "; ".join(text for _, text in checks)
    canary = agree(len(canaries), "canary", "canaries")
    message = f"{canary} {some(canaries)} at version {goal.label}, {compared}: {results}."
    if bad:
        unseen = not view.members.any(lambda f: f.standing is Standing.OPEN and f.has_loaded(goal))
        message += " No client got a token of this version;" if unseen else ""
        message += (
            f" {'t' if unseen else 'T'}he fleet stays on the applied version. "
            "Publish another version, or change spec.rollout.canary of the fleet."
        )
    return CanaryVerdict(
        version=goal.version,
        run_id=goal.run_id,
        digest=goal.digest,
        passed=not bad,
        pods=pod_names(canaries)[:MAX_CANARY_PODS],
        finite=bool(worst["finite"]),
        repetition=round(float(worst["repetition"]), 4),
        logprob_drift=round(float(worst["logprob_drift"]), 4),
        kl=round(float(worst["kl"]), 4),
        message=message,
    )


def _hangs_elsewhere(worker: WorkerView, view: RolloutView) -> bool:
    """Whether its work on other weights takes too long, so that another worker is the canary."""
    work = worker.operation
    goal = view.desired.version, view.desired.run_id
    return work is not None and work[1:3] != goal and not is_in_time(view, worker)


def _may_judge(worker: Facts) -> bool:
    """Whether it answers, and is not held without work: then it will resume, or go back."""
    is_paused = worker.standing is Standing.HELD and not worker.operation
    return worker.standing is not Standing.UNKNOWN and not is_paused
