"""The calls that one process of a worker got lately, with their outcomes.

A call is not sent again until its effect is seen, or until a wait is over that grows with each repetition.
That does not depend on the kind of call, nor on the outcome: success, a refusal or no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.call_effects import is_reported, missing_effect, shows_effect
from fleet_operator.core.work import COMPARISONS, Outcome, Unheeded, Work
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.attempts import Attempts
from fleet_worker.protocol import WorkerState

_LOADS = frozenset({"load", "apply"})
_PAUSE = Work("pause")
MAX_WHY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class _Failed:
    """The last end of a call without an effect."""

    call: WorkerCall
    outcome: Outcome
    why: str


_OfProcess = tuple[str, Attempts[Work], dict[Work, _Failed]]


class CallRecord:
    """The calls of one process, by the work that they ask for. Times are those of the caller's clock."""

    __slots__ = ("_attempts", "_earlier", "_failed", "_instance")

    def __init__(self, *, earlier: _OfProcess | None = None) -> None:
        """`earlier`: of a process that may have ended."""
        self._instance = ""
        self._earlier = earlier
        self._attempts: Attempts[Work] = Attempts()
        self._failed: dict[Work, _Failed] = {}

    def after_restart(self) -> CallRecord:
        """Returns the record to use after the news of a restart. The news may be late: if the process answers next that
        has answered before, its calls stay known.
        """
        own = self._instance, self._attempts, self._failed
        return CallRecord(earlier=own if self._instance else self._earlier)

    def wait_seconds(self, work: Work, now: float) -> float:
        """The time until a call for this work may be sent; 0 if it may be sent now."""
        return self._attempts.wait_seconds(work, now)

    def begin(self, work: Work, now: float) -> None:
        """Note that a call is sent."""
        self._attempts.begin(work, now)

    def end(self, call: WorkerCall, answer: WorkerAnswer, now: float) -> str:
        """Note the outcome of a call. Returns: the effect that an answer with success does not show."""
        work, missing = call.work, ""
        attempt = self._attempts.of(work)
        age_seconds = now - attempt.last_at if attempt is not None else 0.0
        failed: _Failed | None = None
        if answer.silent:
            failed = _Failed(call, Outcome.UNANSWERED, answer.message)
        elif answer.reason is not None:
            if not is_reported(call, answer.state, within_seconds=age_seconds):
                why = f"{answer.reason}: {answer.message}" if answer.message else answer.reason
                failed = _Failed(call, Outcome.REFUSED, why)
        elif answer.state is not None and (missing := missing_effect(call, answer.state)):
            failed = _Failed(call, Outcome.NO_EFFECT, missing)
        self._failed = {w: f for w, f in self._failed.items() if w != work and self._attempts.of(w)}
        if attempt is None:
            return missing
        attempt.last_at = now
        if failed is not None:
            self._failed[work], attempt.shown = failed, False
        elif answer.reason is not None:
            # The planners space the repetitions of reported refusals out.
            attempt.count, attempt.shown = 1, False
        else:
            attempt.note_shown()
            if call.kind in _LOADS:
                self._attempts.forget(_PAUSE)  # one pause for each load is not a repetition
        return missing

    def note_state(self, state: WorkerState) -> None:
        """Note a state that the process has reported: it may show what an answer did not."""
        if self._earlier is not None:
            instance, attempts, failed_calls = self._earlier
            self._earlier = None
            if instance == state.instance:
                self._attempts, self._failed = attempts, failed_calls
        self._instance = state.instance
        for work, failed in list(self._failed.items()):
            if work.kind in COMPARISONS or not shows_effect(failed.call, state):
                continue
            del self._failed[work]
            if (attempt := self._attempts.of(work)) is not None:
                attempt.note_shown()

    def unheeded(self, now: float) -> tuple[Unheeded, ...]:
        """The calls that the worker has not followed."""
        found = []
        for work, attempt in self._attempts.lately(now):
            failed = self._failed.get(work)
            if attempt.is_undone(now):
                outcome, why = Outcome.REVERTED, "its effect did not last"
            elif failed is not None:
                outcome, why = failed.outcome, failed.why[:MAX_WHY_CHARACTERS]
            else:
                continue
            age_seconds = max(now - attempt.last_at, 0.0)
            found.append(Unheeded(work, outcome, why, age_seconds, attempt.lasts))
        return tuple(found)
