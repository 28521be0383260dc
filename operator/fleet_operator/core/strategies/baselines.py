"""Whether a canary can compare a version with the applied weights, which clients get."""

from __future__ import annotations

from enum import IntEnum

from fleet_operator.core import worker_failures
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import Named, WeightsId, same_weights
from fleet_operator.core.worker_view import WorkerView


class Baseline(IntEnum):
    """The run of the canary prompts on the applied weights, in the order in which workers become canaries."""

    KNOWN = 0
    """The worker keeps a run."""
    LOADED = 1
    """The worker has the applied weights in its engine, and can run the prompts now."""
    MISSING = 2
    """The worker must load the applied weights first."""
    LOST = 3
    """The worker cannot load the applied weights any more: their files are gone or are others."""


def baseline_of(worker: WorkerView, applied: Checkpoint) -> Baseline:
    """Whether the worker has a baseline, or how it gets one."""
    if has_run_on(worker, applied) or _compared_with(worker, applied):
        return Baseline.KNOWN
    if worker.has_loaded(applied):
        return Baseline.LOADED
    failed = worker_failures.failure_of(worker, applied) is not None
    return Baseline.LOST if failed or applied.is_transferred else Baseline.MISSING


def has_run_on(worker: WorkerView, weights: Named) -> bool:
    """Whether the worker's last run of the prompts was on these weights."""
    report = worker.state.probe if worker.state else None
    if report is None:
        return False
    return same_weights(WeightsId(report.version, report.run_id, report.digest), weights)


def _compared_with(worker: WorkerView, weights: Named) -> bool:
    """Whether the worker has compared its last run with a run on these weights, which it still keeps.

    Workers of an earlier release report neither the run nor the digest of the other weights.
    """
    report = worker.state.probe if worker.state else None
    if report is None or report.compared_with is None:
        return False
    if report.compared_with_run_id is None and report.compared_with_digest is None:
        return report.compared_with == weights.version
    other = WeightsId(
        report.compared_with, report.compared_with_run_id, report.compared_with_digest
    )
    return same_weights(other, weights)
