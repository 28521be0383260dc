"""Promise 18: a call is repeated ever later while its worker does not follow it, and that is reported.

Checked when a leader sends a call, and at each of its decisions. The worker itself counts, not what
the operator makes of its answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.model.fake_state import kind_of

from fleet_operator.core.work import COMPARISONS
from fleet_worker.protocol import Phase, Reason
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType, LaggardReason

if TYPE_CHECKING:
    from tests.model.fake_worker import FakeWorker
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.actions import WorkerCall
    from fleet_operator.core.decision import Decision
    from fleet_operator.core.work import Work
    from fleet_worker.protocol import WorkerState

CALLS_PER_MINUTE = 16
"""As documented: two at once, the next ones after 1, 2 and 4 s, and one every 5 s from then on."""
SPACED_SECONDS = (0.0, 0.0, 1.0, 3.0, 7.0)
"""The least time from the first one of two, three and more calls without an effect to the last one."""
REPORTED_SECONDS = 60.0
"""As documented."""
REPORTED_CALLS = 3
SPACED_AT_MOST_SECONDS = 30.0
"""A leader that repeats a call more seldom does not look at its fleet."""
LASTS_SECONDS = 8.0
"""As documented: an effect that an answer shows, and that is not missed for this long, has lasted."""
_PASSES = frozenset({Reason.NO_ADAPTER_SLOT, Reason.SOURCE_NOT_READY, Reason.SOURCE_ABSENT})

_WAITS = frozenset({LaggardReason.STARTING, LaggardReason.JOINING})

Called = tuple[int, str, int, "Work"]
"""The term of a leader, uid of a worker, restarts of it, and the work that a call asks for."""


@dataclass
class Ignored:
    """Calls for one work in a row that a worker has not followed.

    Fields:
        worker: what the worker was like; it has not changed since the first call.
    """

    worker: tuple[object, ...]
    first_at: float
    last_at: float
    count: int = 0


class RepeatedCalls:
    """Fields:

    sent: when calls were sent in the last minute, in the order of time.
    ignored: the last calls for each work that a worker has not followed.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.sent: dict[tuple[object, ...], deque[float]] = {}
        self.ignored: dict[Called, Ignored] = {}

    def note_sent(self, leader: Leader, call: WorkerCall) -> None:
        """A call leaves an operator."""
        pod, now = self.sim.pods.get(call.pod_uid), self.sim.now
        if pod is None:
            return
        called: Called = (leader.term, call.pod_uid, pod.worker.restarts, call.work)
        self._note_ignored(leader, call, called, pod.worker)
        heard = leader.heard.get(call.pod_uid)
        if heard is not None and _waits_for_files(heard.state, call.work):
            return  # the worker says itself when to come again
        # Each load has a pause of its own.
        of_load = pod.worker.weights if call.kind == "pause" else None
        self._is_spaced(call, called, pod.worker)
        lately = self.sent.setdefault((*called, of_load), deque())
        lately.append(now)
        while lately[0] <= now - 60:
            lately.popleft()
        if len(lately) > CALLS_PER_MINUTE:
            self.sim.fail(18, f"{call.pod_name} gets {call.work} {len(lately)} times in a minute")

    def _is_spaced(self, call: WorkerCall, called: Called, worker: FakeWorker) -> None:
        """Calls that a worker refuses or ignores come ever later. After the first one that it claims to follow, the
        next one comes at once. Calls before may have got no answer.
        """
        known = self.ignored.get(called)
        if known is None or known.count < 3:
            return
        seconds, count = known.last_at - known.first_at, known.count - worker.claims
        least = SPACED_SECONDS[min(count, len(SPACED_SECONDS)) - 1]
        if seconds < least:
            text = f"{call.pod_name} gets {call.work} {known.count} times within {seconds:.1f} s"
            self.sim.fail(18, f"{text}, and follows none")

    def check(self, leader: Leader, decision: Decision) -> None:
        """The leader has decided. Calls that it still needs, and that were not followed for long, are
        reported.
        """
        if leader is not self.sim.leader:
            return
        for call in decision.worker_calls:
            pod = self.sim.pods.get(call.pod_uid)
            if pod is None:
                continue
            ignored = self.ignored.get((leader.term, pod.uid, pod.worker.restarts, call.work))
            if ignored is None or ignored.worker != _likeness(pod.worker):
                continue
            # As documented: then it believes that an effect has lasted, and forgets the other calls.
            forgotten_seconds = LASTS_SECONDS if pod.worker.claims else REPORTED_SECONDS
            if self.sim.now - ignored.last_at >= forgotten_seconds:
                continue
            seconds = ignored.last_at - ignored.first_at
            for_long = seconds > REPORTED_SECONDS and ignored.count >= REPORTED_CALLS
            if for_long and not _reports(leader, pod.name):
                text = f"{pod.name} has not followed {call.work} for {seconds:.0f} s"
                self.sim.fail(18, f"{text}, and that is not reported")

    def _note_ignored(
        self, leader: Leader, call: WorkerCall, called: Called, worker: FakeWorker
    ) -> None:
        kind = kind_of(call.to_request(leader.epoch))
        refuses = worker.refuses_all(kind) or worker.resets_connection_of(kind)
        ignores = worker.lies_about(kind) and call.kind not in COMPARISONS
        if not (refuses or ignores):
            self.ignored.pop(called, None)
            return
        now, likeness = self.sim.now, _likeness(worker)
        known = self.ignored.get(called)
        apart_seconds = LASTS_SECONDS if worker.claims else SPACED_AT_MOST_SECONDS
        is_old = known is not None and now - known.last_at >= apart_seconds
        if known is None or is_old or known.worker != likeness:
            known = self.ignored[called] = Ignored(likeness, now, now)
        known.count, known.last_at = known.count + 1, now


def _likeness(worker: FakeWorker) -> tuple[object, ...]:
    """The effects of calls and faults on a worker."""
    return (
        *(worker.phase, worker.admitted, worker.hung, worker.ahead),
        *(worker.label, worker.run_id, worker.weights),
        *(worker.staged, worker.staged_run_id, worker.staged_weights),
        *(tuple(sorted(worker.adapters)), tuple(sorted(worker.staged_adapters))),
        *(a.weights for a in (*worker.adapters.values(), *worker.staged_adapters.values())),
        worker.paused_at if worker.phase is Phase.PAUSED else None,
        *(worker.ignores, worker.refuses, worker.resets),
    )


def _waits_for_files(state: WorkerState, work: Work) -> bool:
    """Whether a worker reports that the files of a version are not complete, or that it has no slot."""
    failures = (state.stage_failure, *state.earlier_stage_failures, *state.adapter_failures)
    return any(
        f is not None
        and (f.version, f.run_id) == (work.version, work.run_id)
        and f.reason in _PASSES
        for f in failures
    )


def _reports(leader: Leader, pod: str) -> bool:
    """Whether a condition reports trouble, or the fleet's status lists the worker with more than that it waits."""
    statuses = (leader.fleet, *leader.weights.values())
    found = (condition_of(s.conditions, ConditionType.STALLED) for s in statuses)
    listed = any(row.pod == pod and row.reason not in _WAITS for row in leader.fleet.laggards)
    return listed or any(c is not None and c.status == "True" for c in found)
