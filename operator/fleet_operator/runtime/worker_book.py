"""What every worker last said, and what is being asked of it right now.

Memory only: after a restart every worker is asked again. An entry belongs to a pod's uid, and its
answers to one process: a new container of the same pod starts a new entry.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fleet_operator.core.observed import PodView, WorkerView
from fleet_operator.ports import WorkerAnswer
from fleet_worker.protocol import Reason, WorkerState

_SHORTEST_SILENCE_SECONDS = 0.001


@dataclass(slots=True)
class _Entry:
    restarts: int = 0
    state: WorkerState | None = None
    answered_at: float = 0
    silent_since: float | None = None
    silence: str = ""
    call: str = ""
    task: asyncio.Task[None] | None = None
    asking: bool = False
    asked_at: float = 0
    called_at: float = 0
    refused: str = ""
    ready: bool = False
    stale: bool = True


@dataclass(slots=True)
class WorkerBook:
    """Entries by pod uid. Times are seconds of the event loop's clock."""

    _entries: dict[str, _Entry] = field(default_factory=dict)

    def view(self, pod: PodView, now: float) -> WorkerView:
        """The worker as known at `now`."""
        entry = self._entry(pod)
        silent = 0.0
        if entry.silent_since is not None:
            silent = max(now - entry.silent_since, _SHORTEST_SILENCE_SECONDS)
        return WorkerView(
            pod=pod,
            state=entry.state,
            state_age_seconds=max(now - entry.answered_at, 0) if entry.state else 0,
            silent_seconds=silent,
            silence=entry.silence,
            call=entry.call,
        )

    def is_due(self, pod: PodView, now: float, *, max_age_seconds: float) -> bool:
        """Whether a worker should be asked for its state: nothing known, or known too long."""
        if not pod.running or pod.ip is None or pod.deleting:
            return False
        entry = self._entry(pod)
        if entry.asking:
            return False
        return entry.stale or now - entry.answered_at > max_age_seconds

    def begin_question(self, pod: PodView, now: float) -> None:
        """Note that the worker is being asked for its state."""
        entry = self._entry(pod)
        entry.asking, entry.stale, entry.asked_at = True, False, now

    def end_question(self, pod: PodView, answer: WorkerAnswer, now: float) -> None:
        """Note what the worker said of itself; late words of an earlier process are dropped."""
        entry = self._entries.get(pod.uid)
        if entry is None or entry.restarts != pod.restarts:
            return
        entry.asking = False
        if entry.called_at < entry.asked_at:
            # Otherwise a call has ended since: its answer is the newer one.
            self._take(entry, answer, now)

    def instance(self, uid: str) -> str:
        """The process that answered last; empty if none has."""
        entry = self._entries.get(uid)
        return entry.state.instance if entry is not None and entry.state is not None else ""

    def call_in_flight(self, uid: str) -> str:
        """Key of the call that a worker is being asked, empty if none."""
        entry = self._entries.get(uid)
        return entry.call if entry else ""

    def was_refused(self, uid: str, key: str, *, since: float) -> bool:
        """Whether the worker's last call was this one, and was refused since then."""
        entry = self._entries.get(uid)
        return entry is not None and entry.refused == key and entry.called_at > since

    def begin_call(self, uid: str, key: str, task: asyncio.Task[None]) -> None:
        """Note a call; one that is in flight with another key is given up, its end unknown."""
        entry = self._entries.setdefault(uid, _Entry())
        if entry.task is not None and not entry.task.done():
            entry.task.cancel()
        entry.call, entry.task = key, task

    def end_call(self, uid: str, key: str, answer: WorkerAnswer, now: float) -> None:
        """Note the outcome of a call."""
        entry = self._entries.get(uid)
        if entry is None or entry.call != key:
            return
        entry.call, entry.task, entry.called_at = "", None, now
        entry.refused = "" if answer.reason is None else key
        if answer.silent:
            # Whether it took effect is not known: look before asking again.
            entry.stale = True
        if answer.reason is Reason.STALE_CALL:
            # Another process of the pod has answered: what is known is of the one before.
            entry.stale = True
        self._take(entry, answer, now)

    def forget_all_but(self, uids: set[str]) -> None:
        """Drop the entries of pods that are gone."""
        for uid in self._entries.keys() - uids:
            entry = self._entries.pop(uid)
            if entry.task is not None:
                entry.task.cancel()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Calls in flight."""
        return [e.task for e in self._entries.values() if e.task is not None]

    def _take(self, entry: _Entry, answer: WorkerAnswer, now: float) -> None:
        if answer.silent or answer.state is None:
            if entry.silent_since is None:
                entry.silent_since = now
            entry.silence = answer.message
            entry.answered_at = now
            return
        entry.silent_since, entry.silence = None, ""
        entry.state, entry.answered_at = answer.state, now

    def _entry(self, pod: PodView) -> _Entry:
        entry = self._entries.get(pod.uid)
        if entry is None or entry.restarts != pod.restarts:
            if entry is not None and entry.task is not None:
                entry.task.cancel()
            entry = self._entries[pod.uid] = _Entry(restarts=pod.restarts)
        if entry.ready != pod.ready:
            # The kubelet sees a change at the worker: ask what it was.
            entry.ready, entry.stale = pod.ready, True
        return entry
