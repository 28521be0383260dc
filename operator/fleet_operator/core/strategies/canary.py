"""Canary: a few workers take the version behind a closed latch and are judged; then the others.

    a chosen worker                                next
    serves the old version, not probed with it     Probe   (the baseline)
    has a baseline, does not hold the bytes        Stage
    holds them, serves                             Fence   (running requests finish first)
    holds them, closed                             Load
    has loaded, closed                             Probe   (compared with the baseline)
    all chosen ones have been compared             judge

No client gets a token from weights that were not judged: the canary is closed from before its load
until the verdict. Passed, the rollout goes on with the strategy `canary.then`, and the canaries,
which have the weights already, join it. Refused, the version is given up; the canaries are brought
back to the applied version and admitted again, and nobody else has ever had it.

The verdict stands in the WeightVersion's status: a canary that dies afterwards is not judged anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.fleet import Canary
from fleet_operator.api.weights import CanaryVerdict, RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Fence, WorkerCall
from fleet_operator.core.amounts import at_least
from fleet_operator.core.awaiting import is_absent
from fleet_operator.core.counts import agree
from fleet_operator.core.identity import Named, WeightsId, same_weights
from fleet_operator.core.joiners import Admission
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_operator.core.problems import names, problem_of, some, unready
from fleet_operator.core.step import Problem, RolloutView, Step, Strategy
from fleet_operator.core.strategies.shared import (
    has_bytes,
    late,
    loaded_beside,
    over_budget,
    renew,
    source_of,
    with_joiners,
    without,
)
from fleet_worker.protocol import Phase, ProbeReport


def then(strategy: Strategy) -> Strategy:
    """The canary strategy that goes on with another one after a good verdict."""

    def step(view: RolloutView) -> Step:
        said = view.verdict
        passed = said is not None and said.passed and _speaks_of(said, view.target)
        absent = is_absent((*view.members, *view.joiners), view.target)
        if view.halted or view.suspended or passed or absent or _is_served(view):
            # Suspended, or while the checkpoint does not exist yet, no worker is judged: canaries go
            # back to those that serve.
            return strategy(view)
        if (overtaken := _overtaken(view)) is not None:
            taken = strategy(replace(view, target=overtaken))
            problem = taken.problem and replace(taken.problem, halt=False)  # not of the target
            return replace(taken, problem=problem)
        return _judge(view)

    return step


def _is_served(view: RolloutView) -> bool:
    """Whether the members have the target: then it is too late to judge. A canary that does not
    answer any more counts as a member, and serves nobody.
    """
    known = any(m.standing is not Standing.UNKNOWN for m in view.members)
    return known and all(m.has_loaded(view.target) for m in view.members)


def _overtaken(view: RolloutView) -> Target | None:
    """What members hold their requests for and have loaded already, if it was overtaken. It has been
    judged, and they cannot wait for the next verdict: the way out is forward.
    """
    held = [m for m in view.held if not m.goes_on_by_itself]
    loaded = [w for w in loaded_beside(held, view.applied) if not same_weights(w, view.target)]
    if not view.one_voice or len(loaded) != 1:
        return None
    ahead = next(m for m in held if m.has_loaded(loaded[0]))
    return Target.passing(loaded[0], source_of(ahead, view))


def _judge(view: RolloutView) -> Step:
    goal = view.target
    alive = [*view.members, *(j for j in view.joiners if _has_phase(j, Phase.JOINING))]
    alive.sort(key=lambda w: w.pod.ordinal)
    able = [w for w in alive if w.standing is not Standing.UNKNOWN]
    failed = [w for w in able if view.failure_of(w, goal)]
    halt = any(w.state and w.state.load_failure == view.failure_of(w, goal) for w in failed)
    problem = over_budget(view, goal, failed, RolloutPhase.STAGING, halt=halt, among=able)
    if problem is None:
        able = without(able, failed)
    chosen = able[: at_least(view.settings.canary.workers, view.replicas)]
    problem = problem or _problem_of_the_slow(view, goal, chosen)
    reports = [r for w in chosen if (r := _comparison(w, goal))]
    verdict = None
    if chosen and len(reports) == len(chosen):
        verdict = _verdict(reports, names(chosen), goal, view.settings.canary)
        if not verdict.passed:
            reason = ConditionReason.CANARY_REFUSED
            problem = Problem(reason=reason, message=verdict.message, halt=True)
    asked = _next_calls(view, goal, chosen)
    judged = agree(len(chosen) or 1, "is judged", "are judged")
    taken = Step(
        goal=goal,
        phase=RolloutPhase.JUDGING if chosen else RolloutPhase.PENDING,
        actions=(*asked, *renew(view), *_let_go(view)),
        note=f"{some(chosen) or 'no worker'} {judged} with {goal.label}{unready(chosen, goal)}",
        problem=problem,
        failed=names(failed),
        verdict=verdict,
        disturbed=any(w.has_loaded(goal) for w in chosen)
        or any(isinstance(a, Fence) for a in asked),
    )
    # Where versions must not mix, nobody may open beside a member that is elsewhere.
    open_now = view.agrees_on(view.applied) or not view.one_voice
    others = Admission(version=view.applied, fallback=view.applied, open_now=open_now)
    apart = {w.pod.uid for w in chosen}
    return with_joiners(view, taken, others, but=apart)


def _problem_of_the_slow(
    view: RolloutView, goal: Target, chosen: Sequence[WorkerView]
) -> Problem | None:
    """The version is given up if its canaries take longer than to stage, to drain, and to load and be
    probed twice.
    """
    timeouts = view.settings.timeouts
    limit = timeouts.stage_seconds + 3 * timeouts.load_seconds
    limit += view.settings.pause.drain_timeout_seconds
    slow = [w for w in chosen if not _comparison(w, goal)]
    overdue = late(view, RolloutPhase.JUDGING, limit, slow)
    if not overdue:
        return None
    return problem_of(overdue, goal, RolloutPhase.JUDGING, may_fail=view.may_fail, halt=True)


def _next_calls(view: RolloutView, goal: Target, chosen: Sequence[WorkerView]) -> list[WorkerCall]:
    made = []
    for worker in chosen:
        if worker.operation or view.failed_lately(worker, goal):
            continue
        call = _next_call(view, goal, worker)
        if call is not None:
            made.append(call)
    return made


def _next_call(view: RolloutView, goal: Target, worker: WorkerView) -> WorkerCall | None:
    settings, reason = view.settings, "it is the canary"
    report = worker.state.probe if worker.state else None
    loaded = worker.loaded
    probed = report is not None and loaded is not None and _tells_of(report, loaded)
    if not probed and worker.standing in {Standing.OPEN, Standing.CLOSED}:
        return calls.probe(worker, settings, reason=reason)
    if worker.has_loaded(goal):
        return None
    if not has_bytes(worker, goal):
        return calls.stage(worker, goal, settings, reason=reason)
    if worker.standing is Standing.OPEN:
        return calls.set_apart(worker, settings, reason=reason)
    if worker.standing is Standing.CLOSED:
        return calls.load(worker, goal, settings, reason=reason)
    return None


def _comparison(worker: WorkerView, goal: Target) -> ProbeReport | None:
    """What the worker's prompts gave under the goal, if they were run."""
    report = worker.state.probe if worker.state else None
    return report if report is not None and _tells_of(report, goal) else None


def _tells_of(report: ProbeReport, weights: Named) -> bool:
    """Whether the prompts were run on these weights."""
    return same_weights(WeightsId(report.version, report.run_id, report.digest), weights)


def _speaks_of(verdict: CanaryVerdict, weights: Named) -> bool:
    """Whether these weights were judged."""
    return same_weights(WeightsId(verdict.version, verdict.run_id, verdict.digest), weights)


def _verdict(
    reports: Sequence[ProbeReport], pods: tuple[str, ...], goal: Target, limits: Canary
) -> CanaryVerdict:
    worst = {
        "finite": all(r.finite for r in reports),
        "repetition": max(r.repetition for r in reports),
        "logprob_drift": max(r.logprob_drift or 0.0 for r in reports),
        "kl": max(r.kl or 0.0 for r in reports),
    }
    checks = (
        (worst["finite"], "the logits are numbers"),
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
    )
    bad = [told for holds, told in checks if not holds]
    compared = reports[0].compared_with
    told = "; ".join(bad) or "; ".join(told for _, told in checks)
    message = f"canary {', '.join(pods)} with version {goal.label} against {compared}: {told}." + (
        " No client got a token of it; the applied version keeps serving." if bad else ""
    )
    return CanaryVerdict(
        version=goal.version,
        run_id=goal.run_id,
        digest=goal.digest,
        passed=not bad,
        pods=pods,
        finite=bool(worst["finite"]),
        repetition=round(float(worst["repetition"]), 4),
        logprob_drift=round(float(worst["logprob_drift"]), 4),
        kl=round(float(worst["kl"]), 4),
        message=message,
    )


def _let_go(view: RolloutView) -> tuple[WorkerCall, ...]:
    elsewhere = [m for m in view.members if not m.has_loaded(view.applied)]
    if view.one_voice and any(m.standing is not Standing.HELD for m in elsewhere):
        return ()
    return tuple(
        calls.resume(m, reason="nothing is left that it should wait for")
        for m in view.held
        if m.has_loaded(view.applied) and not m.operation
    )


def _has_phase(worker: WorkerView, phase: Phase) -> bool:
    return worker.state is not None and worker.state.phase is phase
