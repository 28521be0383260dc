"""The calls of one rollout to each worker, read off log lines: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rlfleet.cli.log_lines import LogLine
from rlfleet.resources import WeightVersion

OPERATIONS = ("stage", "pause", "load", "apply", "resume")
"""Calls that a worker passes through, in their order. `apply` is pause, load and resume in one."""
ADAPTER_OPERATIONS = ("stage-adapter", "adapter")
"""The same for a LoRA adapter, which is loaded while requests run."""
DONE = "done"
_CLOCKS_DIFFER = timedelta(seconds=1)
_LONGEST_SECONDS = 1e6
"""Of a call. Workers write their logs, so a field may have any value."""


@dataclass(frozen=True, slots=True)
class Span:
    """One call to a worker. `outcome`: `done`, or why it was not."""

    pod: str
    operation: str
    began_at: datetime
    ended_at: datetime
    outcome: str


def spans(lines: Iterable[LogLine], weights: WeightVersion, now: datetime) -> Sequence[Span]:
    """The calls of the rollout of the desired version, by time.

    The operator logs a call that was done at level DEBUG, and any other as a warning. A worker logs
    each load at level INFO. That line counts where the operator has not logged the load.
    """
    status = weights.status
    if status.started_at is None:
        return []
    begin, end = status.started_at - _CLOCKS_DIFFER, now + _CLOCKS_DIFFER
    if status.phase == "Applied":
        taken = timedelta(seconds=status.timings.total_seconds)
        end = min(end, status.started_at + taken + _CLOCKS_DIFFER)
    ours = (None, status.desired_version)
    adapter = weights.spec.adapter
    operations = ADAPTER_OPERATIONS if adapter else OPERATIONS
    known = sorted(
        (
            one
            for one in lines
            if begin <= one.time <= end
            and one.fields.get("version") in ours
            and one.fields.get("adapter") in (None, adapter)
        ),
        key=lambda one: one.time,
    )
    calls, paused = list[Span](), set[str]()
    for line in known:
        span = _call(line, operations)
        if span is None:
            continue
        if span.outcome == DONE and span.operation == "pause":
            if span.pod in paused:
                continue  # it renews the pause
            paused.add(span.pod)
        if span.operation == "resume":
            paused.discard(span.pod)
        calls.append(span)
    if adapter:
        return sorted(calls, key=lambda one: one.began_at)
    loaded_pods = {one.pod for one in calls if one.operation in {"load", "apply"}}
    loads = [_load(one) for one in known if one.fields.get("event") == "loaded"]
    calls += [one for one in loads if one is not None and one.pod not in loaded_pods]
    return sorted(calls, key=lambda one: one.began_at)


def _call(line: LogLine, operations: Sequence[str]) -> Span | None:
    fields = line.fields
    if fields.get("event") != "call" or fields.get("operation") not in operations:
        return None
    return _span(line, str(fields.get("pod", "")), fields["operation"], str(fields.get("outcome")))


def _load(line: LogLine) -> Span | None:
    return _span(line, line.pod, "load", DONE)


def _span(line: LogLine, pod: str, operation: str, outcome: str) -> Span | None:
    taken = line.fields.get("seconds")
    if not isinstance(taken, int | float) or not 0 <= taken <= _LONGEST_SECONDS or not pod:
        return None
    return Span(pod, operation, line.time - timedelta(seconds=taken), line.time, outcome)
