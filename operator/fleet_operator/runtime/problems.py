"""Keeps the failures of the runtime by part, and turns them into a `Problem`, which `decide` reports as a
condition.

A refusal (`Terminal`) is a problem at once. A temporary error (`Retryable`, `Conflict`, `NotFound`)
is one after it has lasted for `PASSING_SECONDS`. Success of the same part ends it.

A failed list or watch is noted once, and is a problem of every fleet that it serves. So is a part of the
process that failed. An object that cannot be read is a problem of the fleet that it is labelled with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from fleet_operator.core.problems import Defect, Problem
from fleet_operator.errors import (
    FleetError,
    KindMissing,
    NameTaken,
    ObjectUnread,
    Terminal,
    TokenUnusable,
    TooLarge,
    WriteUndone,
)
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.reads import Read
from fleet_operator.runtime.unread_objects import UnreadObjects
from rlfleet_resources.reasons import ConditionReason

logger = logging.getLogger(__name__)

PASSING_SECONDS = 60.0
PODS = "pods"
EVENTS = "Events"
HEARTBEAT = "the heartbeat Lease"
STATUS = "status of "
"""Prefix of the parts that write statuses."""
_REASONS: dict[type[Exception], ConditionReason] = {
    NameTaken: ConditionReason.NAME_TAKEN,
    KindMissing: ConditionReason.KIND_NOT_INSTALLED,
    TokenUnusable: ConditionReason.ADMIN_TOKEN_UNUSABLE,
}
"""Errors whose messages name the remedy."""
ENDPOINT_READS = frozenset({"services", "poddisruptionbudgets"})
"""Resources that are watched so that a deleted object is recreated at once. Each sweep reads them, too."""


def status_part(kind: str, name: str) -> str:
    """The part that writes an object's status."""
    return f"{STATUS}{kind} {name}"


@dataclass(frozen=True, slots=True)
class _Failing:
    error: Exception
    since: float

    def counts(self, now: float) -> bool:
        """Whether it is a problem: it lasts."""
        return now - self.since >= PASSING_SECONDS or _is_lasting(self.error)


class Problems:
    """Failures that concern more than one fleet: of reads, of parts of the process, and of objects that cannot be read.

    Args:
        clock: Seconds; by default the event loop's.
        unread: Objects that could not be read; None for none.
    """

    def __init__(
        self, clock: Callable[[], float] | None = None, unread: UnreadObjects | None = None
    ) -> None:
        self._unread = unread or UnreadObjects(lambda _key: None)
        self._failing_parts: dict[str, Exception] = {}
        self.clock = clock or (lambda: asyncio.get_running_loop().time())
        self._failing_reads: dict[Read, _Failing] = {}
        self.of_all: Problem | None = None
        """A problem of every fleet."""

    def note_part(self, part: str, error: Exception | None) -> bool:
        """Note that a part of the process has failed, or works (None). Returns: whether that is new."""
        before = self._failing_parts.pop(part, None)
        if error is not None:
            self._failing_parts[part] = error
        return (before is None) is not (error is None)

    def note_read(self, read: Read, error: Exception | None) -> bool:
        """Note that a list or watch has failed, or has succeeded (None). Returns: whether that is new."""
        before = self._failing_reads.pop(read, None)
        if error is not None:
            since = before.since if before else self.clock()
            self._failing_reads[read] = _Failing(error, since)
        return (before is None) is not (error is None)

    def of(self, key: FleetKey) -> tuple[Problem, ...]:
        """Those that concern a fleet, in order of their parts."""
        reads = [
            (read, failing)
            for read, failing in sorted(self._failing_reads.items(), key=lambda each: str(each[0]))
            if read.namespace in {None, key[0]}
        ]
        return (
            *(read_problem(read, f.error) for read, f in reads if f.counts(self.clock())),
            *(problem_of(part, e) for part, e in sorted(self._unread.of(key).items())),
            *(_part_problem(part, e) for part, e in sorted(self._failing_parts.items())),
            *((self.of_all,) if self.of_all is not None else ()),
        )


class FleetProblems:
    """Failing parts of one fleet's work. `shared`: those that concern more than one fleet."""

    def __init__(self, key: FleetKey, shared: Problems) -> None:
        self._key = key
        self._shared = shared
        self._failing: dict[str, _Failing] = {}

    def note(self, part: str, error: Exception | None) -> None:
        """Note that a part of the fleet's work has failed, or has succeeded (None)."""
        before = self._failing.pop(part, None)
        if error is not None:
            since = before.since if before else self._shared.clock()
            self._failing[part] = _Failing(error, since)

    def note_gone(self, parts: Collection[str]) -> None:
        """Forget the failures of parts that the fleet does not have any more."""
        for part in parts:
            self._failing.pop(part, None)

    def forget_all_but(self, prefix: str, parts: Collection[str]) -> None:
        """End the problems of parts with this prefix that there are no more."""
        self.note_gone([p for p in self._failing if p.startswith(prefix) and p not in parts])

    def has(self, part: str) -> bool:
        """Whether a part has failed, and has not succeeded since."""
        return part in self._failing

    def all(self) -> tuple[Problem, ...]:
        """All problems of the fleet, its own ones first, in order of their parts."""
        now = self._shared.clock()
        own = [(part, f.error) for part, f in sorted(self._failing.items()) if f.counts(now)]
        return (*(problem_of(part, error) for part, error in own), *self._shared.of(self._key))


def _is_lasting(error: Exception) -> bool:
    if isinstance(error, NameTaken) and error.may_pass:
        return False
    return isinstance(error, Terminal) or not isinstance(error, FleetError)


def problem_of(part: str, error: Exception) -> Problem:
    """An error as a problem: its reason, and what can be done about it."""
    if not isinstance(error, FleetError):
        return Defect(part=part, error=error).problem()
    if (reason := _REASONS.get(type(error))) is not None:
        return Problem(
            part=part,
            reason=reason,
            message=str(error),
            concerns_weights=isinstance(error, TokenUnusable),
        )
    if isinstance(error, ObjectUnread):
        return Problem(
            part=part,
            reason=ConditionReason.OBJECT_UNREAD,
            message=str(error),
            leaves_ready=True,
        )
    if isinstance(error, WriteUndone):
        return Problem(
            part=part,
            reason=ConditionReason.WRITE_WITHOUT_EFFECT,
            message=(
                f"{error}. The operator repeats it every few seconds. Find the other writer in the object's "
                "managedFields, or the webhook, and keep it from the operator's fields"
            ),
            leaves_ready=part.startswith(STATUS),
        )
    if part == PODS:
        return Problem(
            part=part,
            reason=ConditionReason.WORKERS_FAILING,
            message=(
                f"a pod cannot be created, changed or deleted: {error}. The operator tries again. "
                "Check quotas, admission policies and its permissions (docs/reference/rbac.md)"
            ),
        )
    what = "is refused by the API server" if isinstance(error, Terminal) else "cannot be written"
    return Problem(
        part=part,
        reason=ConditionReason.WRITE_REFUSED,
        message=(
            f"{part} {what}: {error}. The operator tries again. Check its permissions "
            "(docs/reference/rbac.md) and admission policies"
        ),
        leaves_ready=part in {EVENTS, HEARTBEAT} or part.startswith(STATUS),
        concerns_weights=part.startswith(STATUS),
    )


def _part_problem(part: str, error: Exception) -> Problem:
    """A part of the process that failed, as a problem. It is begun again, and fleets keep their workers."""
    return replace(
        Defect(part=f"the operator's part {part}", error=error).problem(), leaves_ready=True
    )


def read_problem(read: Read, error: Exception) -> Problem:
    """A list or a watch that fails, as a problem."""
    refused = isinstance(error, Terminal) and not isinstance(error, TooLarge)
    fails = "is refused by the API server" if refused else "fails"
    what = str(error) if isinstance(error, FleetError) else type(error).__name__
    remedy = (
        f"Grant the verb {read.verb} on {read.resource} to "
        "the operator's service account (the chart's ClusterRole or Role, docs/reference/rbac.md)"
        if refused
        else "See the operator's log for what it cannot read"
    )
    is_vital = read.resource not in ENDPOINT_READS
    return Problem(
        part=str(read),
        reason=ConditionReason.READ_REFUSED,
        message=(
            f"{read} {fails}: {what}. The operator keeps its last state, which may be outdated, "
            f"leaves fleets alone whose pods it has not read yet, and tries again. {remedy}"
        ),
        leaves_ready=not is_vital,
        concerns_weights=is_vital,
    )
