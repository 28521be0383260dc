"""Spans of rollouts, as an exporter in memory gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id
from tests.support.builders import NOW, applied_status, history_of, make_weights
from tests.support.rig import WEIGHTS_PATH, Rig

from fleet_operator.core.actions import Load, Pause, PutLora, Resume, WorkerCall
from fleet_operator.core.observed import WeightsView
from fleet_operator.runtime.tracing import Tracing
from fleet_worker.protocol import PauseMode
from rlfleet_resources import names
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import HistoryEntry, RolloutPhase, WeightsStatus

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NANO = 1_000_000_000
END_SECONDS = 1000


class Seen:
    """A tracing and its spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = self.process()

    def process(self) -> Tracing:
        """Tracing of a new operator process, into the same exporter."""
        return Tracing(SimpleSpanProcessor(self._exporter), clock=lambda: END_SECONDS * NANO)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def staging(version: str = "2") -> WeightsStatus:
    return WeightsStatus(desired_version=version, phase=RolloutPhase.STAGING, started_at=NOW)


def ended(before: WeightsStatus, result: str, *, reason: str = "") -> WeightsStatus:
    entry = HistoryEntry(
        version=before.desired_version,
        result=result,
        started_at=NOW,
        total_seconds=1,
        reason=reason,
    )
    phase = RolloutPhase.HALTED if result == "Halted" else RolloutPhase.APPLIED
    return before.model_copy(update={"phase": phase, "history": (entry,)})


def play(
    tracing: Tracing, *calls: WorkerCall, traceparent: str = "", outcome: str = "done",
    result: str = "Applied", reason: str = "",
) -> None:  # fmt: skip
    """One rollout with these calls."""
    during = staging()
    view = make_weights("2", traceparent=traceparent, status=WeightsStatus())
    trace = tracing.update(KEY, None, [view], {view.uid: during}, now=NOW)
    for call in calls:
        trace.ended(call, outcome, 2)
    view = make_weights("2", traceparent=traceparent, status=during)
    tracing.update(KEY, trace, [view], {view.uid: ended(during, result, reason=reason)}, now=NOW)


def pause(pod: str = "policy-0") -> Pause:
    return Pause(
        pod_uid=pod, pod_name=pod, reason="", mode=PauseMode.KEEP, drain_timeout_seconds=1,
        lease_seconds=30,
    )  # fmt: skip


def load(version: str = "2", run_id: str | None = None) -> Load:
    return Load(
        pod_uid="u", pod_name="policy-0", reason="", version=version, run_id=run_id,
        timeout_seconds=60,
    )  # fmt: skip


def put_adapter(adapter: str, version: str) -> PutLora:
    return PutLora(
        pod_uid="u", pod_name="policy-0", reason="", version=version, adapter=adapter,
        source=WeightSource(path="/weights"), timeout_seconds=60,
    )  # fmt: skip


def make_adapter(adapter: str, version: str, **fields: Any) -> WeightsView:
    view = make_weights(version, name=adapter, uid=f"wv-{adapter}", **fields)
    return replace(view, spec=view.spec.model_copy(update={"adapter": adapter}))


def resume(pod: str = "policy-0") -> Resume:
    return Resume(pod_uid=pod, pod_name=pod, reason="", version="2")


def parent_of(span: ReadableSpan) -> str:
    return format_span_id(span.parent.span_id) if span.parent else ""


def id_of(span: ReadableSpan) -> str:
    return format_span_id(span.context.span_id)


def trace_of(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


async def test_a_rollout_is_a_child_of_the_trainers_span_and_has_a_child_for_each_call_to_a_worker():
    seen = Seen()

    rig = Rig(replicas=2)
    rig.traces = seen.tracing
    async with rig:
        await rig.applied("1")
        annotations = {names.ANNOTATION_TRACEPARENT: f"00-{TRACE}-{PARENT}-01"}
        rig.cluster.objects[WEIGHTS_PATH]["metadata"]["annotations"] = annotations
        rig.publish("2")
        await rig.applied("2")
    spans = [s for s in seen.spans if s.attributes["rlfleet.version"] == "2"]
    (rollout,) = (s for s in spans if s.name == "rollout")
    calls = [s for s in spans if s.name != "rollout"]

    assert {trace_of(s) for s in spans} == {TRACE}
    assert parent_of(rollout) == PARENT
    assert rollout.attributes["rlfleet.result"] == "Applied"
    assert {parent_of(s) for s in calls} == {id_of(rollout)}
    assert Counter(s.name for s in calls) == {"stage": 2, "pause": 2, "load": 2, "resume": 2}
    assert {s.attributes["k8s.pod.name"] for s in calls} == {"policy-0", "policy-1"}


def test_the_calls_of_a_former_leader_and_of_its_successor_are_in_one_trace():
    seen, during = Seen(), staging()
    view = make_weights("2", status=during)
    seen.tracing.update(KEY, None, [view], {view.uid: during}, now=NOW).ended(load(), "done", 1)
    successor = seen.process()
    trace = successor.update(KEY, None, [view], {view.uid: during}, now=NOW)
    trace.ended(resume(), "done", 1)
    successor.update(KEY, trace, [view], {view.uid: ended(during, "Applied")}, now=NOW)
    (rollout,) = seen.named("rollout")

    assert len({trace_of(s) for s in seen.spans}) == 1
    assert {parent_of(s) for s in (*seen.named("load"), *seen.named("resume"))} == {id_of(rollout)}


@pytest.mark.parametrize("sent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01"])
def test_a_rollout_without_a_valid_annotation_begins_a_trace(sent):
    seen = Seen()
    play(seen.tracing, load(), traceparent=sent)
    (rollout,) = seen.named("rollout")

    assert rollout.parent is None
    assert parent_of(seen.named("load")[0]) == id_of(rollout)


def test_a_rollout_that_the_trainer_does_not_sample_has_no_spans():
    seen = Seen()
    play(seen.tracing, load(), traceparent=f"00-{TRACE}-{PARENT}-00")

    assert seen.spans == ()


def test_a_call_has_its_duration_and_a_failed_one_its_outcome():
    seen = Seen()
    play(seen.tracing, load(), outcome="silent")
    (call,) = seen.named("load")

    assert (call.start_time, call.end_time) == ((END_SECONDS - 2) * NANO, END_SECONDS * NANO)
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "silent")


def test_a_renewal_of_a_pause_has_no_span_and_the_next_pause_has_one():
    seen = Seen()
    play(seen.tracing, pause(), pause("policy-1"), pause(), resume(), pause())

    assert [s.attributes["k8s.pod.name"] for s in seen.named("pause")] == [
        "policy-0", "policy-1", "policy-0",
    ]  # fmt: skip


def test_a_call_for_another_version_has_no_span():
    seen = Seen()
    play(seen.tracing, load("1"))

    assert seen.named("load") == []


def test_a_call_for_the_same_version_of_another_run_has_no_span():
    seen = Seen()
    play(seen.tracing, load("2", run_id="before"))

    assert seen.named("load") == []


async def test_the_rollout_of_an_adapter_and_that_of_the_base_weights_are_two_traces():
    """They run at the same time, on the same workers."""
    seen, path = Seen(), f"{WEIGHTS_PATH}-tuned"

    rig = Rig(replicas=2, adapters={"max": 1})
    rig.traces = seen.tracing
    async with rig:
        await rig.applied("1")
        rig.add_adapter(path, "tuned", "1")
        await rig.until(lambda: rig.status(path).get("appliedVersion") == "1", what="version 1")
        of_base, of_adapter = f"00-{TRACE}-{PARENT}-01", f"00-{'a' * 32}-{PARENT}-01"
        for at, traceparent in ((WEIGHTS_PATH, of_base), (path, of_adapter)):
            metadata = rig.cluster.objects[at]["metadata"]
            metadata["annotations"] = {names.ANNOTATION_TRACEPARENT: traceparent}
        rig.cluster.objects[path]["spec"] |= {"version": "2"}
        rig.publish("2")
        await rig.applied("2")
        await rig.until(lambda: rig.status(path).get("appliedVersion") == "2", what="version 2")
    spans = [s for s in seen.spans if s.attributes["rlfleet.version"] == "2"]
    adapters = [s for s in spans if s.attributes.get("rlfleet.adapter") == "tuned"]
    base = [s for s in spans if "rlfleet.adapter" not in s.attributes]

    assert len(adapters) + len(base) == len(spans)
    assert Counter(s.name for s in base) == {
        "rollout": 1, "stage": 2, "pause": 2, "load": 2, "resume": 2,
    }  # fmt: skip
    assert Counter(s.name for s in adapters) == {"rollout": 1, "stage-adapter": 2, "adapter": 2}
    for found, trace in ((base, TRACE), (adapters, "a" * 32)):
        (rollout,) = (s for s in found if s.name == "rollout")
        assert {trace_of(s) for s in found} == {trace}
        assert parent_of(rollout) == PARENT
        assert {parent_of(s) for s in found if s is not rollout} == {id_of(rollout)}


@pytest.mark.parametrize("of", ["", "tuned"])
def test_a_call_has_no_span_while_only_other_weights_roll_out(of):
    """Not even if both have versions with the same number."""
    seen, during, status = Seen(), staging("2"), applied_status("2", history=history_of("2"))
    base, adapter = make_weights("2", status=status), make_adapter("tuned", "2", status=status)
    rolling, other = (adapter, load("2")) if of else (base, put_adapter("tuned", "2"))
    statuses = {base.uid: status, adapter.uid: status} | {rolling.uid: during}
    calls = seen.tracing.update(KEY, None, [base, adapter], statuses, now=NOW)
    calls.ended(other, "done", 1)
    calls.ended(put_adapter("another", "2"), "done", 1)

    assert seen.spans == ()


def test_each_adapter_has_a_rollout_of_its_own():
    seen, during = Seen(), staging("2")
    views = [make_adapter(name, "2", status=during) for name in ("math", "code")]
    statuses = {view.uid: during for view in views}
    calls = seen.tracing.update(KEY, None, views, statuses, now=NOW)
    for name in ("math", "code"):
        calls.ended(put_adapter(name, "2"), "done", 1)
    over = {view.uid: ended(during, "Applied") for view in views}
    seen.tracing.update(KEY, calls, views, over, now=NOW)

    rollouts = {s.attributes["rlfleet.adapter"]: id_of(s) for s in seen.named("rollout")}
    assert len(set(rollouts.values())) == len(rollouts) == 2
    put = {s.attributes["rlfleet.adapter"]: parent_of(s) for s in seen.named("adapter")}
    assert put == rollouts
    assert len({trace_of(s) for s in seen.spans}) == 2


def test_a_call_outside_of_a_rollout_has_no_span():
    seen, status = Seen(), applied_status("1", history=history_of("1"))
    view = make_weights("1", status=status)
    seen.tracing.update(KEY, None, [view], {view.uid: status}, now=NOW).ended(load("1"), "done", 1)

    assert seen.spans == ()


@pytest.mark.parametrize("result", ["Halted", "Refused"])
def test_a_rollout_that_was_refused_is_an_error_with_its_reason(result):
    seen = Seen()
    play(seen.tracing, result=result, reason="CheckpointTruncated")
    (rollout,) = seen.named("rollout")

    assert rollout.status.status_code is StatusCode.ERROR
    assert rollout.status.description == "CheckpointTruncated"


@pytest.mark.parametrize("result", ["Superseded", "Refused"])
@pytest.mark.parametrize("began_before", [True, False], ids=["the same leader", "a new leader"])
def test_a_replaced_rollout_is_never_in_the_trace_of_the_version_after_it(result, began_before):
    seen, first, before = Seen(), staging("2"), None
    view = make_weights("2", traceparent=f"00-{TRACE}-{PARENT}-01", status=WeightsStatus())
    if began_before:
        before = seen.tracing.update(KEY, None, [view], {view.uid: first}, now=NOW)
    later = ended(first, result).model_copy(
        update={"desired_version": "3", "phase": RolloutPhase.STAGING}
    )
    other = f"00-{'a' * 32}-{PARENT}-01"
    view = make_weights("3", traceparent=other, status=first)
    seen.tracing.update(KEY, before, [view], {view.uid: later}, now=NOW)
    (rollout,) = seen.named("rollout")

    assert trace_of(rollout) != "a" * 32
    assert (trace_of(rollout) == TRACE) is began_before
    assert rollout.attributes["rlfleet.version"] == "2"
