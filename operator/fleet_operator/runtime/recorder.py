"""Writes Kubernetes Events, deduplicated and limited.

kopf's own are not used: they need the context of a handler, and are neither.

Source: Kubernetes core/v1 Event.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet_operator.api import names
from fleet_operator.core.transitions import Transition
from fleet_operator.errors import FleetError, Terminal
from fleet_operator.ports import Kube
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.troubles import EVENTS, Troubles

logger = logging.getLogger(__name__)

REPEAT_AFTER_SECONDS = 120.0
MAX_MESSAGE_CHARACTERS = 1024
BURST = 25
REFILL_PER_SECOND = 0.5
REFUSED_SECONDS = 10.0
"""An Event that was refused is posted again at the first reconcile after this time."""


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
    """An Event that the API server refused. `at`: seconds of the event loop's clock."""

    subject: Subject
    transition: Transition
    at: float


class Recorder:
    """Posts Events in the background; losing one is never an error.

    An Event that the API server refuses is a trouble of its fleet, and is posted again by a later
    reconcile of the fleet.
    """

    def __init__(self, kube: Kube, metrics: Metrics, troubles: Troubles, *, instance: str) -> None:
        self._troubles = troubles
        self._refused: dict[FleetKey, _Refused] = {}
        self._kube = kube
        self._metrics = metrics
        self._instance = instance
        self._said: dict[tuple[str, str, str], float] = {}
        # By object, as in client-go: a storm about one must not silence the others.
        self._budgets: dict[str, _Budget] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def record(self, subject: Subject, transition: Transition) -> None:
        """Post an Event unless the same, or too much, was said of the object lately."""
        now = asyncio.get_running_loop().time()
        level = logging.WARNING if transition.type == "Warning" else logging.INFO
        told = (subject.kind, subject.namespace, subject.name, transition.reason)
        logger.log(level, "%s %s/%s: %s: %s", *told, transition.message)
        self._said = {k: t for k, t in self._said.items() if now - t < REPEAT_AFTER_SECONDS}
        key = (subject.uid, transition.reason, transition.message)
        if key in self._said or not self._may_post(subject.uid, now):
            return
        self._said[key] = now
        self._send(subject, transition)

    def post_refused(self, key: FleetKey) -> None:
        """Post again what was refused last for a fleet, if that is long enough ago."""
        refused = self._refused.get(key)
        now = asyncio.get_running_loop().time()
        if refused is not None and now - refused.at >= REFUSED_SECONDS:
            del self._refused[key]
            self._send(refused.subject, refused.transition)

    def forget_all_but(self, fleets: set[FleetKey]) -> None:
        """Forget what was refused for fleets that are gone."""
        self._refused = {key: each for key, each in self._refused.items() if key in fleets}

    async def flush(self) -> None:
        """Wait for Events on their way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, subject: Subject, transition: Transition) -> None:
        task = asyncio.create_task(self._post(subject, transition))
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

    async def _post(self, subject: Subject, transition: Transition) -> None:
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
            "type": transition.type,
            "reason": transition.reason,
            "message": transition.message[:MAX_MESSAGE_CHARACTERS],
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
            logger.warning("an event could not be posted: %s", error)
            if isinstance(error, Terminal):
                now_seconds = asyncio.get_running_loop().time()
                self._refused[key] = _Refused(subject, transition, now_seconds)
                self._troubles.note(key, EVENTS, error)
        else:
            self._troubles.note(key, EVENTS, None)
