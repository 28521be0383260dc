"""What the runtime has failed at and has not done since, by fleet and part: the one place where an
error becomes a `Trouble`, which `decide` turns into a condition.

A refusal (`Terminal`) is a trouble at once. What passes by itself (`Retryable`, `Conflict`,
`NotFound`) is one after it has failed for `PASSING_SECONDS`. Success of the same part ends it.

Lists and watches serve all fleets of a namespace, or all fleets: they are noted once, and each of
these fleets has the trouble.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.troubles import Defect, Trouble
from fleet_operator.errors import FleetError, NameTaken, Terminal, TokenUnusable
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.list_watch import Read

logger = logging.getLogger(__name__)

PASSING_SECONDS = 60.0
PODS = "pods"
EVENTS = "Events"
STATUS = "status of "
"""Begins the parts that write statuses."""
ENDPOINT_READS = frozenset({"services", "poddisruptionbudgets"})
"""These are followed only so that what is deleted is made again at once; each sweep looks at them, too."""


def status_part(kind: str, name: str) -> str:
    """The part that writes an object's status."""
    return f"{STATUS}{kind} {name}"


@dataclass(frozen=True, slots=True)
class _Failing:
    error: Exception
    since: float


class Troubles:
    """Failing parts of all fleets. `clock`: seconds; by default the event loop's."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._failing: dict[FleetKey, dict[str, _Failing]] = {}
        self._failing_reads: dict[Read, _Failing] = {}

    def note(self, key: FleetKey, part: str, error: Exception | None) -> None:
        """A part of a fleet's work has failed, or has succeeded (None)."""
        parts = self._failing.setdefault(key, {})
        before = parts.pop(part, None)
        if error is not None:
            now = self._clock()
            parts[part] = _Failing(error, before.since if before else now)
        elif not parts:
            del self._failing[key]

    def note_read(self, read: Read, error: FleetError | None) -> bool:
        """A list or a watch has failed, or has succeeded (None). Returns: whether that is new."""
        before = self._failing_reads.pop(read, None)
        if error is not None:
            since = before.since if before else self._clock()
            self._failing_reads[read] = _Failing(error, since)
        return (before is None) is not (error is None)

    def forget_all_but(self, key: FleetKey, prefix: str, parts: set[str]) -> None:
        """End the troubles of parts with this prefix that there are no more."""
        known = self._failing.get(key, {})
        for part in [p for p in known if p.startswith(prefix) and p not in parts]:
            self.note(key, part, None)

    def has(self, key: FleetKey, part: str) -> bool:
        """Whether a part has failed, and has not succeeded since."""
        return part in self._failing.get(key, {})

    def forget_fleet(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._failing.pop(key, None)

    def of(self, key: FleetKey) -> tuple[Trouble, ...]:
        """The troubles of a fleet, in order of their parts."""
        parts = sorted(self._failing.get(key, {}).items())
        reads = [
            (read, failing)
            for read, failing in sorted(self._failing_reads.items(), key=lambda each: str(each[0]))
            if read.namespace in {None, key[0]}
        ]
        return (
            *(trouble_of(part, f.error) for part, f in parts if self._counts(f)),
            *(read_trouble(read, f.error) for read, f in reads if self._counts(f)),
        )

    def _counts(self, failing: _Failing) -> bool:
        lasts = self._clock() - failing.since >= PASSING_SECONDS
        return lasts or _is_lasting(failing.error)


def _is_lasting(error: Exception) -> bool:
    if isinstance(error, NameTaken) and error.may_pass:
        return False
    return isinstance(error, Terminal) or not isinstance(error, FleetError)


def trouble_of(part: str, error: Exception) -> Trouble:
    """An error as a trouble: its reason, and what can be done about it."""
    if not isinstance(error, FleetError):
        return Defect(part=part, error=error).trouble()
    if isinstance(error, NameTaken):
        return Trouble(part=part, reason=ConditionReason.NAME_TAKEN, message=str(error))
    if isinstance(error, TokenUnusable):
        return Trouble(
            part=part,
            reason=ConditionReason.ADMIN_TOKEN_UNUSABLE,
            message=str(error),
            concerns_weights=True,
        )
    if part == PODS:
        return Trouble(
            part=part,
            reason=ConditionReason.WORKERS_FAILING,
            message=f"a pod cannot be created: {error}",
        )
    what = "is refused by the API server" if isinstance(error, Terminal) else "cannot be written"
    return Trouble(
        part=part,
        reason=ConditionReason.WRITE_REFUSED,
        message=(
            f"{part} {what}: {error}. It is tried again by itself; check the operator's rights "
            "(docs/reference/rbac.md) and admission policies"
        ),
        leaves_ready=part == EVENTS or part.startswith(STATUS),
        concerns_weights=part.startswith(STATUS),
    )


def read_trouble(read: Read, error: Exception) -> Trouble:
    """A list or a watch that fails, as a trouble."""
    fails = "is refused by the API server" if isinstance(error, Terminal) else "fails"
    is_vital = read.resource not in ENDPOINT_READS
    return Trouble(
        part=str(read),
        reason=ConditionReason.READ_REFUSED,
        message=(
            f"{read} {fails}: {error}. The operator goes on with what it has read before, which may "
            f"be outdated, and leaves fleets alone whose pods it has not read yet. It is tried again by itself; grant the verb {read.verb} on {read.resource} to "
            "the operator's service account (the chart's ClusterRole or Role, docs/reference/rbac.md)"
        ),
        leaves_ready=not is_vital,
        concerns_weights=is_vital,
    )
