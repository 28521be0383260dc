"""Chooses the canaries: the workers that can compare a version with the weights that clients get."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from fleet_operator.core import worker_failures
from fleet_operator.core.facts import Facts
from fleet_operator.core.identity import Named, WeightsId, same_weights
from fleet_operator.core.percentages import at_least
from fleet_operator.core.strategies.base import RolloutView
from fleet_operator.core.strategies.shared import without
from fleet_operator.core.worker_view import Standing, WorkerView


class Baseline(IntEnum):
    """Answers of the applied weights to the canary prompts, in the order in which workers become canaries."""

    KNOWN = 0
    """The worker keeps answers."""
    LOADED = 1
    """The worker has the applied weights in its engine, or is loading them."""
    MISSING = 2
    """The worker must load the applied weights first."""
    LOST = 3
    """The worker could not load the applied weights: their files are gone, or are others."""


def baseline_of(worker: WorkerView, view: RolloutView) -> Baseline:
    """Whether the worker has answers of the applied weights, or how it gets them.

    A worker that has staged the desired weights has lost the baseline before.
    """
    applied = view.applied
    if has_answers(worker, applied) or _has_compared_with(worker, applied):
        return Baseline.KNOWN
    if worker.has_loaded(applied) or worker.facts.is_loading(applied):
        return Baseline.LOADED
    if applied.is_transferred or worker.facts.has_bytes(view.desired):
        return Baseline.LOST
    refused = worker_failures.last_failure(worker, applied, within_seconds=view.rollout_seconds)
    return Baseline.MISSING if refused is None else Baseline.LOST


def canaries_of(view: RolloutView, able: Sequence[WorkerView]) -> list[WorkerView]:
    """The workers that judge the version: they can compare it, or else they lack the baseline.

    Workers that have lost it judge only if no other worker may compare, not even a silent one.
    """
    baselines = _baselines_of(able, view)
    best = min(baselines.values(), default=Baseline.LOST)
    if best is Baseline.LOST and awaited_by(view, able):
        return []
    tier = {best} if best >= Baseline.MISSING else {Baseline.KNOWN, Baseline.LOADED}
    chosen = [w for w in able if baselines[w.pod.uid] in tier]
    at_it = {t.uid for t in view.trials if t.is_alive}
    chosen.sort(key=lambda w: (w.pod.uid not in at_it, baselines[w.pod.uid], w.pod.ordinal))
    number = at_least(view.settings.canary.workers, view.replicas)
    return list(_without_last_ones(view, chosen, number)[:number])


def _without_last_ones(
    view: RolloutView, able: Sequence[WorkerView], number: int
) -> Sequence[WorkerView]:
    """The workers without those that may not become canaries in the place of dead ones, so that half of the replicas
    serve. A version that kills each canary would take them all from their clients, one after the other.

    `number`: of the canaries.
    """
    at_it = {t.uid for t in view.trials if t.is_alive}
    if len(at_it) == len(view.trials):
        return able
    keep = min(view.replicas // 2, view.replicas - number)
    serving = [w for w in able if w.standing is Standing.OPEN]
    fresh = [w for w in serving if w.pod.uid not in at_it]
    open_now = view.members.count(lambda f: f.standing is Standing.OPEN)
    spare = open_now - (len(serving) - len(fresh)) - keep
    return without(able, fresh[max(0, spare) :])


def _baselines_of(workers: Sequence[WorkerView], view: RolloutView) -> dict[str, Baseline]:
    """The baseline of each worker, by uid. Those without a report and without failures differ by their facts only."""
    by_facts: dict[Facts, Baseline] = {}
    found: dict[str, Baseline] = {}
    for worker in workers:
        facts, state = worker.facts, worker.state
        if facts.refuses or (state is not None and state.probe is not None):
            found[worker.pod.uid] = baseline_of(worker, view)
            continue
        if facts not in by_facts:
            by_facts[facts] = baseline_of(worker, view)
        found[worker.pod.uid] = by_facts[facts]
    return found


def awaited_by(view: RolloutView, able: Sequence[WorkerView]) -> list[WorkerView]:
    """The other workers that may be able to compare: silent ones, and those that load the applied weights."""
    others = without((*view.members, *view.joining), able)
    return [
        w
        for w in others
        if (w.state is None and w.standing is Standing.UNKNOWN)
        or baseline_of(w, view) < Baseline.MISSING
    ]


def has_answers(worker: WorkerView, weights: Named) -> bool:
    """Whether the worker's last answers to the prompts are of these weights."""
    report = worker.state.probe if worker.state else None
    if report is None:
        return False
    return same_weights(WeightsId(report.version, report.run_id, report.digest), weights)


def _has_compared_with(worker: WorkerView, weights: Named) -> bool:
    """Whether the worker has compared its last answers with those of these weights, which it still keeps."""
    report = worker.state.probe if worker.state else None
    if report is None or report.compared_with is None:
        return False
    other = WeightsId(
        report.compared_with, report.compared_with_run_id, report.compared_with_digest
    )
    return same_weights(other, weights)
