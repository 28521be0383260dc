"""Posts Kubernetes Events, deduplicated and rate-limited.

kopf's events are not used: they need a handler's context, and are neither deduplicated nor limited.

Source: Kubernetes core/v1 Event.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet_operator.api import names
from fleet_operator.api.conditions import shortened
from fleet_operator.core.events import NewEvent
from fleet_operator.errors import FleetError, Terminal
from fleet_operator.ports import Kube
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import EVENTS, Problems

logger = logging.getLogger(__name__)

REPEAT_AFTER_SECONDS = 120.0
BURST = 25
REFILL_PER_SECOND = 0.5
REFUSED_SECONDS = 10.0
"""The first reconcile after this time posts a refused Event again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object that an Event is about. `fleet`: name of the fleet that it belongs to."""

    kind: str
    namespace: str
    name: str
    uid: str
    fleet: str


@dataclass(slots=True)
class _Budget:
    tokens: float
    counted_at: float

    def left(self, now: float) -> float:
        """Events that may be posted now."""
        return min(self.tokens + (now - self.counted_at) * REFILL_PER_SECOND, BURST)


@dataclass(frozen=True, slots=True)
class _Refused:
    """An Event that the API server refused, or that failed while the fleet's Events are refused.

    `at`: seconds of the event loop's clock.
    """

    subject: Subject
    event: NewEvent
    at: float


class EventRecorder:
    """Posts Events in the background. A lost Event is never an error.

    An Event that the API server refuses is a problem of its fleet until an Event is posted. A later
    reconcile of the fleet posts the refused one again.
    """

    def __init__(self, kube: Kube, metrics: Metrics, problems: Problems, *, instance: str) -> None:
        self._problems = problems
        self._refused: dict[FleetKey, _Refused] = {}
        self._kube = kube
        self._metrics = metrics
        self._instance = instance
        self._posted_at: dict[tuple[str, str, str], float] = {}
        # By object, as in client-go: many Events of one object must not suppress those of others.
        self._budgets: dict[str, _Budget] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def record(self, subject: Subject, event: NewEvent) -> None:
        """Post an Event, unless the same one or too many of the object were posted recently."""
        now = asyncio.get_running_loop().time()
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        subject_and_reason = (subject.kind, subject.namespace, subject.name, event.reason)
        about = fleet_fields(
            "posted",
            (subject.namespace, subject.fleet),
            weightversion=subject.name if subject.kind == names.WEIGHTS_KIND else None,
            reason=event.reason,
        )
        logger.log(level, "%s %s/%s: %s: %s", *subject_and_reason, event.message, extra=about)
        self._posted_at = {
            k: t for k, t in self._posted_at.items() if now - t < REPEAT_AFTER_SECONDS
        }
        key = (subject.uid, event.reason, event.message)
        if key in self._posted_at or not self._may_post(subject.uid, now):
            return
        self._posted_at[key] = now
        self._send(subject, event)

    def post_refused(self, key: FleetKey) -> None:
        """Post the last refused Event of a fleet again, if the refusal is long enough ago."""
        refused = self._refused.get(key)
        now = asyncio.get_running_loop().time()
        if refused is not None and now - refused.at >= REFUSED_SECONDS:
            del self._refused[key]
            self._send(refused.subject, refused.event)

    def forget_all_but(self, fleets: set[FleetKey]) -> None:
        """Forget the refused Events of fleets that are gone."""
        self._refused = {key: each for key, each in self._refused.items() if key in fleets}

    async def flush(self) -> None:
        """Wait for Events in flight."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, subject: Subject, event: NewEvent) -> None:
        task = asyncio.create_task(self._post(subject, event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _may_post(self, uid: str, now: float) -> bool:
        self._budgets = {u: b for u, b in self._budgets.items() if b.left(now) < BURST}
        budget = self._budgets.setdefault(uid, _Budget(BURST, now))
        left = budget.left(now)
        if left < 1:
            return False
        budget.tokens, budget.counted_at = left - 1, now
        return True

    async def _post(self, subject: Subject, event: NewEvent) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{subject.name}.",
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
            "source": {"component": names.FIELD_MANAGER, "host": self._instance},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._instance,
        }
        self._metrics.writes.labels("event").inc()
        key = (subject.namespace, subject.fleet)
        try:
            await self._kube.create(f"/api/v1/namespaces/{subject.namespace}/events", body)
        except FleetError as error:
            logger.warning("an Event could not be posted: %s", error)
            if isinstance(error, Terminal):
                self._problems.note(key, EVENTS, error)
            if self._problems.has(key, EVENTS):  # only a posted Event ends it
                now_seconds = asyncio.get_running_loop().time()
                self._refused[key] = _Refused(subject, event, now_seconds)
        else:
            self._problems.note(key, EVENTS, None)
