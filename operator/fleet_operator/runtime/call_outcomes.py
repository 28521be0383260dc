"""Counts, traces and logs the outcomes of calls to workers."""

from __future__ import annotations

import logging
from typing import NamedTuple

from fleet_operator.core.actions import LoraCall, WorkerCall
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import SILENT, Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.traces import CallTrace
from fleet_worker.protocol import Reason

logger = logging.getLogger(__name__)


DONE = "done"
NO_EFFECT = "NoEffect"
"""The outcomes of calls that were answered with success."""


class CallEnd(NamedTuple):
    """The end of a call.

    Fields:
        missing: the effect that an answer with success does not show; empty if it does.
        seconds: how long the call took.
    """

    call: WorkerCall
    answer: WorkerAnswer
    missing: str
    seconds: float


def note_outcome(metrics: Metrics, key: FleetKey, trace: CallTrace | None, end: CallEnd) -> None:
    """Count, trace and log the end of a call. `trace`: None without one."""
    action, answer, missing, seconds = end
    outcome = NO_EFFECT if missing else _outcome(answer)
    metrics.count_call(action.kind, outcome, seconds)
    if trace is not None:
        trace.ended(action, outcome, seconds)
    level = logging.DEBUG if outcome == DONE else logging.WARNING
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "%s on %s: %s",
            action.work,
            action.pod_name,
            outcome,
            extra=fleet_fields(
                "call",
                key,
                pod=action.pod_name,
                operation=action.kind,
                version=action.version or None,
                run_id=action.run_id,
                adapter=action.adapter if isinstance(action, LoraCall) else None,
                outcome=outcome,
                reason=action.reason,
                message_of_worker=missing or answer.message,
                seconds=round(seconds, 3),
            ),
        )


def _outcome(answer: WorkerAnswer) -> str:
    """The outcome as a metric label, from a fixed list."""
    if answer.silent:
        return SILENT
    if answer.reason is None:
        return DONE
    return answer.reason.value if isinstance(answer.reason, Reason) else "other"
