"""Caches each worker's last answer and the call in flight to it.

Memory only: after a restart the operator reads every worker's state again. An entry belongs to a pod's
uid and to one process: a new container of the pod starts a new entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from pydantic import BaseModel

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.admissions import may_open_late
from fleet_operator.core.work import COMPARISONS, Compared, Ended, Work
from fleet_operator.core.worker_view import PodView, WorkerView, ended_at
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.call_record import CallRecord
from fleet_worker.http.byte_budget import ByteBudget
from fleet_worker.protocol import Epoch, Reason, WorkerState

_SHORTEST_SILENCE_SECONDS = 0.001
MAX_LARGE_BYTES = 32 * 1024 * 1024
"""Limit for all large answers together. In memory a state takes up to four times the bytes of its answer."""
LARGE_BYTES = 16 * 1024
"""An answer of up to this size does not count, and is always kept. A typical answer is 2 KiB, plus under
1 KiB per adapter.
"""
_TOO_LARGE = WorkerAnswer(
    silent=True,
    message=f"its answer was dropped: the answers of all workers together exceed {MAX_LARGE_BYTES} bytes",
)


class Cancellable(Protocol):
    """A call in flight."""

    def cancel(self) -> object:
        """Cancel it. This may report its end at once."""

    def done(self) -> bool:
        """Whether it has ended."""


@dataclass(slots=True)
class _Entry:
    restarts: int = 0
    state: WorkerState | None = None
    stated_at: float = 0
    """When it gave this state."""
    answered_at: float = 0
    """When the last read or call ended, also without an answer."""
    silent_since: float | None = None
    silence: str = ""
    call: Work | None = None
    epoch: Epoch | None = None
    """The epoch of the call in flight, or of the last call."""
    lost_calls: dict[tuple[str, str | None], Work] = field(default_factory=dict)
    """Calls without an answer since the last answer, by subject."""
    compared: dict[str | None, tuple[Work, float]] = field(default_factory=dict)
    """The last comparison of each adapter's files that ended without a refusal, and when its call began.
    None: of base weights."""
    lost_admission: Epoch | None = None
    """The epoch of the last admission without an answer, until it cannot take effect any more."""
    may_open: bool = False
    """Whether such an admission may still arrive, or one of an earlier leader."""
    flight: Cancellable | None = None
    asking: bool = False
    asked_at: float = 0
    call_began_at: float = 0
    called_at: float = 0
    changed_at: float = 0
    """When the read or call began whose answer first named the weights of the state."""
    calls: CallRecord = field(default_factory=CallRecord)
    ended: Ended | None = None
    ready: bool = False
    started: bool = False
    stale: bool = True
    unanswered: bool = False
    """The last read got no answer."""
    told: tuple[object, ...] = ()
    """The last news that it has heard; empty before."""
    view: WorkerView | None = None
    """The last view, kept while nothing in it changes or ages."""


@dataclass(slots=True)
class WorkerCache:
    """Entries by pod uid. Times are seconds of the event loop's clock."""

    _entries: dict[str, _Entry] = field(default_factory=dict)
    _large: ByteBudget[str] = field(
        default_factory=lambda: ByteBudget(max_bytes=MAX_LARGE_BYTES, small_bytes=LARGE_BYTES)
    )
    """Answers by pod uid."""

    def view(self, pod: PodView, now: float) -> WorkerView:
        """The worker as known at `now`. The same object while its values stay the same."""
        entry = self._entry(pod)
        if entry.view is not None and entry.view.pod is pod:
            return entry.view
        is_ageing = entry.state is not None and ages(entry.state)
        silent = 0.0
        if entry.silent_since is not None:
            silent = max(now - entry.silent_since, _SHORTEST_SILENCE_SECONDS)
        unheeded = entry.calls.unheeded(now)
        view = WorkerView(
            pod=pod,
            state=entry.state,
            state_age_seconds=max(now - entry.stated_at, 0) if is_ageing else 0,
            silent_seconds=silent,
            silence=entry.silence,
            call=entry.call,
            lost_calls=tuple(entry.lost_calls.values()),
            compared=_comparisons(entry, now) if entry.compared else (),
            unheeded=unheeded,
            ended=entry.ended,
            may_open=entry.may_open or (entry.call is not None and entry.call.kind == "admit"),
        )
        entry.view = None if is_ageing or silent or entry.compared or unheeded else view
        return view

    def is_unknown(self, pod: PodView) -> bool:
        """Whether a decision should wait for a worker's state: it was never read, or something has happened
        since. A worker that left the last read without an answer is not waited for.
        """
        if not _is_readable(pod):
            return False
        entry = self._entry(pod)
        return entry.stale and not entry.unanswered and not entry.asking

    def outdated(self, pods: Iterable[PodView]) -> list[PodView]:
        """The workers that were read before the weights of another one changed, as far as they answer.

        `pods`: those of one fleet.
        """
        entries = [(pod, self._entry(pod)) for pod in pods if _is_readable(pod)]
        latest = max((entry.changed_at for _, entry in entries), default=0)
        return [
            pod
            for pod, entry in entries
            if max(entry.asked_at, entry.called_at) < latest
            and not entry.asking
            and entry.silent_since is None
        ]

    def is_due(self, pod: PodView, now: float, *, max_age_seconds: float) -> bool:
        """Whether to read a worker's state: it is unknown or too old. The answer to a call in flight is
        awaited as long.
        """
        if not _is_readable(pod):
            return False
        entry = self._entry(pod)
        if entry.asking:
            return False
        since = entry.answered_at
        if entry.call is not None and entry.call_began_at > since:
            since = entry.call_began_at
        return entry.stale or now - since > max_age_seconds

    def was_told(self, pod: PodView, news: tuple[object, ...]) -> bool:
        """Whether a worker has heard this, or can hear nothing now."""
        entry = self._entries.get(pod.uid)
        if entry is None or entry.asking or entry.state is None or not _is_readable(pod):
            return True
        return entry.told == news

    def note_told(self, pod: PodView, news: tuple[object, ...]) -> None:
        """Note what the read of a worker's state names."""
        self._entry(pod).told = news

    def begin_read(self, pod: PodView, now: float) -> None:
        """Note the start of a read of the worker's state."""
        entry = self._entry(pod)
        entry.asking, entry.stale, entry.asked_at = True, False, now

    def end_read(self, pod: PodView, answer: WorkerAnswer, now: float, *, term: int) -> bool:
        """Note the worker's state. A late answer of an earlier process is dropped.

        `term`: of the leader's calls to the fleet.
        Returns: whether it requests another reconcile. Times and numbers of requests alone do not.
        """
        entry = self._entries.get(pod.uid)
        if entry is None or entry.restarts != pod.restarts:
            return False
        entry.asking, entry.unanswered = False, answer.state is None
        if answer.state is not None and answer.reason is not None:
            entry.told = ()  # it has refused to hear it, for example since a later call overtook it
        if entry.called_at >= entry.asked_at:
            return False  # A call ended later, and its answer is newer.
        before = None if entry.silent_since is not None or entry.lost_calls else entry.state
        self._take(entry, answer, now, term)
        self._bound(pod.uid, answer, now)
        if before is None or answer.state is None:
            return True
        return steady(before) != steady(answer.state)

    def instance(self, uid: str) -> str:
        """The process that answered last; empty before the first answer."""
        entry = self._entries.get(uid)
        return entry.state.instance if entry is not None and entry.state is not None else ""

    def hears(self, uid: str) -> bool:
        """Whether a worker knows desired versions, so that it must also hear of their end."""
        entry = self._entries.get(uid)
        return entry is not None and entry.state is not None and entry.state.limits_lag is not None

    def call_in_flight(self, uid: str) -> Work | None:
        """The work that the call in flight to a worker asks for; None without one."""
        entry = self._entries.get(uid)
        return entry.call if entry else None

    def must_wait(self, uid: str, work: Work, now: float) -> bool:
        """Whether it is too early to repeat a call for this work: its effect was not seen, or did not last."""
        entry = self._entries.get(uid)
        return entry is not None and entry.calls.wait_seconds(work, now) > 0

    def begin_call(
        self, uid: str, work: Work, flight: Cancellable, now: float, *, epoch: Epoch
    ) -> None:
        """Note a call. A call in flight for other work is cancelled, with an unknown outcome."""
        entry = self._entries.setdefault(uid, _Entry())
        before = entry.flight
        if before is not None and entry.call is not None and not before.done():
            _lose(entry, entry.call)
        entry.call, entry.flight, entry.view = work, flight, None
        entry.call_began_at, entry.epoch = now, epoch
        entry.calls.begin(work, now)
        if before is not None:
            before.cancel()

    def end_call(self, call: WorkerCall, answer: WorkerAnswer, now: float) -> str:
        """Note the outcome of a call. Returns: the effect that an answer with success does not show."""
        uid, work = call.pod_uid, call.work
        entry = self._entries.get(uid)
        if entry is None or entry.call != work:
            return ""
        entry.call, entry.flight, entry.called_at, entry.view = None, None, now, None
        missing = entry.calls.end(call, answer, now)
        if work.kind in COMPARISONS:
            entry.compared.pop(work.adapter, None)
            if not answer.silent and answer.reason is None:
                entry.compared[work.adapter] = work, entry.call_began_at
        if answer.silent:
            # It may have taken effect: read the state before the next call.
            entry.stale = True
            _lose(entry, work)
        if answer.reason is Reason.STALE_CALL:
            # Another process of the pod has answered: the cached state is of the previous one.
            entry.stale = True
        self._take(entry, answer, now, entry.epoch.term if entry.epoch is not None else 0)
        self._bound(uid, answer, now)
        return missing

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget pods that are gone."""
        for uid in self._entries.keys() - uids:
            entry = self._entries.pop(uid)
            self._large.release(uid)
            if entry.flight is not None:
                entry.flight.cancel()

    def _bound(self, uid: str, answer: WorkerAnswer, now: float) -> None:
        """Bound the memory of all answers. A worker whose answer is dropped counts as silent."""
        if answer.state is None or (
            answer.size_bytes <= LARGE_BYTES and not self._large.used_bytes
        ):
            return
        for largest in self._large.charge(uid, answer.size_bytes):
            entry = self._entries.get(largest)
            if entry is not None:
                self._take(entry, _TOO_LARGE, now, 0)
                entry.state = None

    def _take(self, entry: _Entry, answer: WorkerAnswer, now: float, term: int) -> None:
        entry.view = None
        if answer.silent or answer.state is None:
            if entry.silent_since is None:
                entry.silent_since = now
            entry.silence = answer.message
            entry.answered_at = now
            return
        entry.silent_since, entry.silence = None, ""
        entry.lost_calls.clear()
        if entry.state is None or weights_of(entry.state) != weights_of(answer.state):
            entry.changed_at = max(entry.asked_at, entry.called_at)
        entry.state, entry.stated_at, entry.answered_at = answer.state, now, now
        entry.calls.note_state(answer.state)
        entry.ended = ended_at(answer.state, now) or entry.ended
        entry.may_open = may_open_late(answer.state, lost=entry.lost_admission, term=term)
        if not entry.may_open:
            entry.lost_admission = None

    def _entry(self, pod: PodView) -> _Entry:
        entry = self._entries.get(pod.uid)
        if entry is None or entry.restarts != pod.restarts:
            before = entry
            entry = self._entries[pod.uid] = _Entry(restarts=pod.restarts)
            self._large.release(pod.uid)
            if before is not None:
                # The news of a restart may be late: then the calls went to the new process.
                entry.calls, entry.lost_calls = before.calls.after_restart(), before.lost_calls
                entry.epoch, entry.ended = before.epoch, before.ended
                entry.lost_admission, entry.may_open = before.lost_admission, before.may_open
                if before.call is not None:
                    _lose(entry, before.call)
                if before.flight is not None:
                    before.flight.cancel()
        if entry.ready != pod.ready:
            # The kubelet saw the worker change: read its state.
            entry.ready, entry.stale = pod.ready, True
        if entry.started != pod.started:
            entry.started, entry.stale = pod.started, True
            if entry.state is None:
                # While its engine started, no port listened: that silence says nothing about the process.
                entry.silent_since, entry.silence, entry.unanswered = None, "", False
        return entry


def _lose(entry: _Entry, work: Work) -> None:
    """Note that a call gets no answer, and may take effect late."""
    entry.lost_calls[work.subject] = work
    if work.kind == "admit":
        entry.lost_admission, entry.may_open = entry.epoch, True


def _comparisons(entry: _Entry, now: float) -> tuple[Compared, ...]:
    return tuple(Compared(work, now - began_at) for work, began_at in entry.compared.values())


def _is_readable(pod: PodView) -> bool:
    return pod.running and pod.ip is not None and not pod.deleting


def weights_of(state: WorkerState) -> tuple[str | None, ...]:
    """The name of the weights that a worker serves."""
    return state.version, state.run_id, state.digest


_AGEING = ("operation", "pause", "stage_failure", "load_failure", "adapter_failure")
"""Parts of a state that hold running times."""
_ageing = attrgetter(*_AGEING)
_lasting = attrgetter(
    *(
        WorkerState.model_fields.keys()
        - {"uptime_seconds", "requests_running", "requests_held", "sessions"}
        - {"earlier_stage_failures", "adapter_failures"}
        - set(_AGEING)
    )
)


def steady(state: WorkerState) -> tuple[object, ...]:
    """The part of an answer that an unchanged worker repeats."""
    parts = (*_ageing(state), *state.earlier_stage_failures, *state.adapter_failures)
    if any(parts):
        parts = tuple(part and _without_times(part) for part in parts)
    return (_lasting(state), bool(state.requests_running), bool(state.requests_held), parts)


def _without_times(part: BaseModel) -> dict[str, object]:
    return {name: v for name, v in vars(part).items() if not name.endswith("_seconds")}


def ages(state: WorkerState) -> bool:
    """Whether a value in it has an age or expires."""
    failures = (state.stage_failure, state.load_failure, state.adapter_failure)
    return (
        state.pause is not None
        or state.operation is not None
        or bool(state.earlier_stage_failures)
        or any(f is not None for f in failures)
    )
