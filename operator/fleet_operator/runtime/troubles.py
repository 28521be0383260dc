"""What the runtime has failed at and has not done since, by fleet and part: the one place where an
error becomes a `Trouble`, which `decide` turns into a condition.

A refusal (`Terminal`) is a trouble at once. What passes by itself (`Retryable`, `Conflict`,
`NotFound`) is one after it has failed for `PASSING_SECONDS`. Success of the same part ends it.
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

logger = logging.getLogger(__name__)

PASSING_SECONDS = 60.0
PODS = "pods"
EVENTS = "Events"
STATUS = "status of "
"""Begins the parts that write statuses."""


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

    def note(self, key: FleetKey, part: str, error: Exception | None) -> None:
        """A part of a fleet's work has failed, or has succeeded (None)."""
        parts = self._failing.setdefault(key, {})
        before = parts.pop(part, None)
        if error is not None:
            now = self._clock()
            parts[part] = _Failing(error, before.since if before else now)
        elif not parts:
            del self._failing[key]

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
        now = self._clock()
        found = sorted(self._failing.get(key, {}).items())
        return tuple(
            trouble_of(part, failing.error)
            for part, failing in found
            if _is_lasting(failing.error) or now - failing.since >= PASSING_SECONDS
        )


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
