"""Exports OpenTelemetry spans: one for each rollout, and one for each call to a worker within it.

The IDs of a rollout's span follow from the WeightVersion and the start of its rollout. So the calls of a
former leader and of its successor are in one trace, and no span is open during a rollout.

Only this module imports OpenTelemetry. `main` imports it if the operator has an endpoint for spans.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleet_operator.command_line import release
from fleet_operator.core.actions import Pause, Resume, WorkerCall
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.traces import CallTrace
from rlfleet_resources.weights_status import HistoryEntry, RolloutPhase, WeightsStatus

EXPORT_SECONDS = 5.0
"""Timeout of one export. A process that ends waits for the last one."""
MAX_QUEUED_SPANS = 65_536
"""Spans that wait for an export. More than that are dropped; a rollout has 3 or 4 for each worker."""
_NANO = 1_000_000_000
_DONE = "done"
_ENDED = frozenset({RolloutPhase.APPLIED, RolloutPhase.HALTED})
_Begun = tuple[str | None, str | None, datetime | None]
"""Version, run and start of a rollout: what its history entry has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollout:
    """One rollout.

    Fields:
        parent: context with the trainer's span; empty without one.
        own: IDs of the rollout's span.
        inside: context of the spans of its calls.
        paused: uids of workers whose first pause has a span. Later ones are renewals.
    """

    begun: _Begun
    attributes: dict[str, str]
    parent: Context
    own: SpanContext
    inside: Context
    paused: set[str] = field(default_factory=set)


class Tracing:
    """All spans of one operator process.

    `clock`: the time in nanoseconds.
    """

    def __init__(
        self, processor: SpanProcessor, *, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._clock = clock
        self._ids = _Ids()
        described = {"service.name": "rlfleet-operator", "service.version": release()}
        self._provider = TracerProvider(
            resource=Resource.create(described), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fleet_operator")

    @classmethod
    def to_endpoint(cls, endpoint: str) -> Tracing:
        """Spans for a collector. `endpoint`: its OTLP/HTTP address, without `/v1/traces`."""
        address = f"{endpoint.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(endpoint=address, timeout=EXPORT_SECONDS)
        return cls(BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS))

    def shut_down(self) -> None:
        """Export what is left. Blocks for `EXPORT_SECONDS` at most for each batch."""
        self._provider.shutdown()

    def update(
        self,
        key: FleetKey,
        before: CallTrace | None,
        weights: Iterable[WeightsView | UnreadWeights],
        statuses: Mapping[str, WeightsStatus],
        *,
        now: datetime,
    ) -> _Calls:
        """Export the spans of rollouts that have ended. Returns: the trace of the calls that follow."""
        under_way = before.under_way if isinstance(before, _Calls) else {}
        after = dict[str, _Rollout]()
        calls: dict[str, _Rollout] = {}
        for each in weights:
            if isinstance(each, UnreadWeights):
                continue
            status = statuses[each.uid]
            known = under_way.get(each.uid)
            for entry in _new_entries(each.status, status):
                begun: _Begun = (entry.version, entry.run_id, entry.started_at)
                # The annotation is about the version that replaced this one.
                sent = each.traceparent if status.is_about(entry.version, entry.run_id) else ""
                self._export(_same(known, begun) or _rollout(key, each, begun, sent), entry, now)
            if status.started_at is None or status.phase in _ENDED:
                continue
            begun = (status.desired_version, status.desired_run_id, status.started_at)
            rollout = _same(known, begun) or _rollout(key, each, begun, each.traceparent)
            after[each.uid] = rollout
            if status.phase is not RolloutPhase.PENDING:  # another version has the workers
                calls[each.spec.adapter] = rollout
        return _Calls(self, calls, after)

    def call_ended(
        self, rollout: _Rollout, action: WorkerCall, outcome: str, seconds: float
    ) -> None:
        """Export the span of a call that has ended now."""
        if not rollout.own.trace_flags.sampled or _is_of_another(action, rollout):
            return
        if isinstance(action, Resume):
            rollout.paused.discard(action.pod_uid)
        if isinstance(action, Pause) and outcome == _DONE:
            if action.pod_uid in rollout.paused:
                return
            rollout.paused.add(action.pod_uid)
        end = self._clock()
        of_the_call = {
            "k8s.pod.name": action.pod_name,
            "k8s.pod.uid": action.pod_uid,
            "rlfleet.outcome": outcome,
        }
        span = self._tracer.start_span(
            action.kind,
            context=rollout.inside,
            kind=SpanKind.CLIENT,
            attributes=rollout.attributes | of_the_call,
            start_time=end - int(seconds * _NANO),
        )
        if outcome != _DONE:
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(end)

    def _export(self, rollout: _Rollout, entry: HistoryEntry, now: datetime) -> None:
        if not rollout.own.trace_flags.sampled:
            return
        self._ids.next = rollout.own
        try:
            span = self._tracer.start_span(
                "rollout",
                context=rollout.parent,
                attributes=rollout.attributes | {"rlfleet.result": entry.result},
                start_time=int(entry.started_at.timestamp() * _NANO),
            )
        finally:
            self._ids.next = None
        if entry.result in {"Halted", "Refused"}:
            span.set_status(Status(StatusCode.ERROR, entry.reason))
        span.end(int(now.timestamp() * _NANO))


@dataclass(frozen=True, slots=True)
class _Calls:
    """The trace of the calls of one reconcile.

    Fields:
        rollouts: those that the calls belong to, by adapter, empty for base weights.
        under_way: all that have not ended, by uid of the WeightVersion.
    """

    tracing: Tracing
    rollouts: Mapping[str, _Rollout]
    under_way: Mapping[str, _Rollout]

    def ended(self, action: WorkerCall, outcome: str, seconds: float) -> None:
        """Note a call that has ended now. A call outside of a rollout has no span."""
        rollout = self.rollouts.get(getattr(action, "adapter", ""))
        if rollout is not None:
            self.tracing.call_ended(rollout, action, outcome, seconds)


class _Ids(RandomIdGenerator):
    """Random IDs, and the chosen ones for the span of a rollout."""

    def __init__(self) -> None:
        self.next: SpanContext | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.next is None else self.next.trace_id

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.next is None else self.next.span_id


def _rollout(key: FleetKey, weights: WeightsView, begun: _Begun, traceparent: str) -> _Rollout:
    version, run_id, started_at = begun
    named = "\n".join(map(str, (weights.uid, version, run_id, started_at)))
    ids = hashlib.sha256(named.encode()).digest()
    parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    sent = get_current_span(parent).get_span_context()
    own = SpanContext(
        trace_id=sent.trace_id if sent.is_valid else int.from_bytes(ids[:16]),
        span_id=int.from_bytes(ids[16:24]),
        is_remote=False,
        trace_flags=sent.trace_flags if sent.is_valid else TraceFlags(TraceFlags.SAMPLED),
    )
    described = {
        "k8s.namespace.name": key[0],
        "rlfleet.fleet": key[1],
        "rlfleet.weightversion": weights.name,
        "rlfleet.adapter": weights.spec.adapter,
        "rlfleet.version": version,
        "rlfleet.run_id": run_id,
    }
    return _Rollout(
        begun=begun,
        attributes={name: value for name, value in described.items() if value},
        parent=parent,
        own=own,
        inside=set_span_in_context(NonRecordingSpan(own), Context()),
    )


def _same(known: _Rollout | None, begun: _Begun) -> _Rollout | None:
    return known if known is not None and known.begun == begun else None


def _new_entries(before: WeightsStatus, after: WeightsStatus) -> list[HistoryEntry]:
    if after.history == before.history:
        return []
    return [entry for entry in after.history if entry not in before.history]


def _is_of_another(action: WorkerCall, rollout: _Rollout) -> bool:
    """Whether the call is for another version, or for the same one of another run. A worker that joins
    gets such calls. The IDs of adapters never meet those of base weights: `_Calls` has one rollout each.
    """
    return bool(action.version) and (action.version, action.run_id) != rollout.begun[:2]
