"""Posts Kubernetes Events, deduplicated and rate-limited, until the API server has them.

kopf's events are not used: they need a handler's context, and are neither deduplicated nor limited.

Source: Kubernetes core/v1 Event.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from fleet_operator.core.events import NewEvent
from fleet_operator.errors import Conflict, FleetError
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import EVENTS, FleetProblems
from rlfleet_resources import names
from rlfleet_resources.conditions import shortened

logger = logging.getLogger(__name__)

REPEAT_AFTER_SECONDS = 120.0
BURST = 25
REFILL_PER_SECOND = 0.5
AGAIN_AFTER_SECONDS = 10.0
"""The first reconcile after this time posts again what could not be posted."""
MAX_WAITING = 100
"""Of the Events of a fleet that could not be posted, the newest are kept."""
KEPT_SECONDS = 3600.0
"""As the API server keeps an Event by default."""

K = TypeVar("K")
V = TypeVar("V")
_Said = tuple[str, str, str]
"""Uid of the object, reason and message: what makes two Events the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object that an Event is about. `fleet`: name of the fleet that it belongs to."""

    kind: str
    namespace: str
    name: str
    uid: str
    fleet: str


@dataclass(frozen=True, slots=True)
class _Budget:
    tokens: float
    counted_at: float

    def left(self, now: float) -> float:
        """Events that may be posted now."""
        return min(self.tokens + (now - self.counted_at) * REFILL_PER_SECOND, BURST)


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: Json
    since: float


class EventPoster:
    """Posts the Events of all fleets. `instance`: the name of this process."""

    def __init__(self, kube: Kube, metrics: Metrics, *, instance: str) -> None:
        self._kube = kube
        self._metrics = metrics
        self.instance = instance
        self._sending: set[asyncio.Task[None]] = set()

    async def post(self, body: Json) -> None:
        """Post an Event. Errors: those of the API."""
        self._metrics.writes.labels("event").inc()
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        with suppress(Conflict):  # an attempt without an answer has posted it
            await self._kube.create(path, body)

    def begin(self, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Send a fleet's Events in the background."""
        task = asyncio.create_task(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def flush(self) -> None:
        """Wait for Events in flight."""
        await asyncio.gather(*self._sending, return_exceptions=True)


class EventRecorder:
    """Posts the Events of one fleet in the background. A failure is never an error of the caller.

    The Events wait in a queue, in the order in which they are sent, and one leaves it when the API server has it.
    After a failure the next reconcile of the fleet or the next sweep continues, and the Event that failed comes
    last, so that it does not hold up the others. A name that is made once keeps an Event from being posted twice
    after a lost answer. Failures that last are a problem of the fleet.
    """

    def __init__(self, key: FleetKey, poster: EventPoster, problems: FleetProblems) -> None:
        self._key = key
        self._poster = poster
        self._problems = problems
        self._waiting: dict[_Said, _Waiting] = {}
        self._failed_at = float("-inf")
        """When the last attempt failed, in seconds of the event loop's clock."""
        self._sending: asyncio.Task[None] | None = None
        self._posted_at: dict[_Said, float] = {}
        """In order of time, as the budgets. So an Event costs the same after any number of others."""
        # By object, as in client-go: many Events of one object must not suppress those of others.
        self._budgets: dict[str, _Budget] = {}

    def record(self, subject: Subject, event: NewEvent) -> None:
        """Post an Event, unless the same one or too many of the object were posted recently."""
        now = asyncio.get_running_loop().time()
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        subject_and_reason = (subject.kind, subject.namespace, subject.name, event.reason)
        about = fleet_fields(
            "posted",
            self._key,
            weightversion=subject.name if subject.kind == names.WEIGHTS_KIND else None,
            reason=event.reason,
        )
        logger.log(level, "%s %s/%s: %s: %s", *subject_and_reason, event.message, extra=about)
        _drop_first(self._posted_at, lambda at: now - at >= REPEAT_AFTER_SECONDS)
        said = (subject.uid, event.reason, event.message)
        known = said in self._posted_at or said in self._waiting
        if not known and self._may_post(subject.uid, now):
            self._waiting[said] = _Waiting(_body(subject, event, self._poster.instance), now)
        self._begin()

    @property
    def waiting(self) -> int:
        """How many Events the API server does not have yet."""
        return len(self._waiting)

    def post_waiting(self) -> None:
        """Post again what could not be posted, if that is long enough ago."""
        now = asyncio.get_running_loop().time()
        if now - self._failed_at >= AGAIN_AFTER_SECONDS:
            self._begin()

    def _begin(self) -> None:
        if self._waiting and (self._sending is None or self._sending.done()):
            self._sending = self._poster.begin(self._send())

    async def _send(self) -> None:
        while self._waiting:
            said, event = next(iter(self._waiting.items()))
            try:
                await self._poster.post(event.body)
            except FleetError as error:
                logger.warning("an Event could not be posted: %s", error)
                now = self._failed_at = asyncio.get_running_loop().time()
                self._waiting[said] = self._waiting.pop(said)
                newest = list(self._waiting.items())[-MAX_WAITING:]
                self._waiting = {s: e for s, e in newest if now - e.since < KEPT_SECONDS}
                self._problems.note(EVENTS, error if self._waiting else None)
                return
            del self._waiting[said]
            self._posted_at.pop(said, None)
            self._posted_at[said] = asyncio.get_running_loop().time()
            self._problems.note(EVENTS, None)

    def _may_post(self, uid: str, now: float) -> bool:
        _drop_first(self._budgets, lambda budget: budget.left(now) >= BURST)
        budget = self._budgets.get(uid) or _Budget(BURST, now)
        left = budget.left(now)
        if left < 1:
            return False
        self._budgets.pop(uid, None)
        self._budgets[uid] = _Budget(left - 1, now)
        return True


def _body(subject: Subject, event: NewEvent, instance: str) -> Json:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{subject.name}.{secrets.token_hex(8)}",
            "namespace": subject.namespace,
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": subject.kind,
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": shortened(event.message),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": names.FIELD_MANAGER, "host": instance},
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": instance,
    }


def _drop_first(known: dict[K, V], is_over: Callable[[V], bool]) -> None:
    """Drop the first entries that are over."""
    while known and is_over(known[first := next(iter(known))]):
        del known[first]
