"""Writes the statuses of one fleet's objects, and posts an Event for each change.

Changes of conditions are written at once, and progress at most once a second. So a rollout costs few
writes for any number of workers, and an idle fleet none. Planners see the last computed status, written
or not, so that a delayed write does not restart the times in it.

The status of a fleet records its applied weights. It is written only over the resourceVersion that this
process knows, so that a late write of a former leader cannot undo the record. Nor does this process undo
what a former leader has recorded late: see `foreign_status`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from fleet_operator.core.events import NewEvent, fleet_events, is_urgent, weights_events
from fleet_operator.core.foreign_status import with_record_of
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.errors import (
    Conflict,
    FleetError,
    NotFound,
    Retryable,
    Terminal,
    Unknown,
    WriteUndone,
)
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.background_writes import BackgroundWrites
from fleet_operator.runtime.event_recorder import EventRecorder, Subject
from fleet_operator.runtime.managed_fields import is_edited
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import STATUS, FleetProblems, status_part
from fleet_operator.runtime.repeated_writes import RepeatedWrites
from fleet_operator.runtime.resource_versions import KnownVersion, is_later
from fleet_operator.runtime.served_schemas import ServedSchemas
from fleet_operator.runtime.status_metrics import Shown, ShownFleet, ShownWeights
from fleet_operator.runtime.store import FleetRecord
from fleet_operator.runtime.stored_views import status_in
from rlfleet_resources import names
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import WeightsStatus

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
NEVER = float("inf")

S = TypeVar("S", FleetStatus, WeightsStatus)
W = TypeVar("W", bound=WeightsView | UnreadWeights)


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The status of a fleet at a resourceVersion. `edited`: see `is_edited`."""

    status: FleetStatus
    version: str
    edited: bool


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """A status as it was written. `version`: the new resourceVersion; empty if the object is gone."""

    status: Json
    version: str


@dataclass(slots=True)
class KnownStatus(Generic[S]):
    """One object's status as this process knows it.

    Fields:
        computed: the last status, written or not.
        written: the stored one, as far as this process knows.
        intended: the whole status of the last write. An older CRD does not permit all of it.
        written_at: the time of the last write.
        sending: the status of a write without an answer yet.
        due_at: when a delayed status is due.
        version: the resourceVersion of `written`. "0" is earlier than all.
        lost: the status of the last write if it got no answer. It can take effect late.
        stored: the status of the last write that was answered with success.
    """

    subject: Subject
    computed: S
    written: S
    intended: S
    written_at: float = -NEVER
    adapter: str = ""
    sending: S | None = None
    due_at: float = NEVER
    version: str = "0"
    lost: S | None = None
    stored: S | None = None

    @property
    def part(self) -> str:
        """The part of the fleet's work that writes it."""
        return status_part(self.subject.kind, self.subject.name)

    def note_answer(self, sent: S, made: WrittenStatus) -> None:
        """Note a write that was answered with success."""
        whole = made.status == sent.to_json()
        self.written = sent if whole else type(sent).read(made.status)
        self.intended, self.lost, self.stored = sent, None, sent
        if is_later(made.version, self.version):
            self.version = made.version

    def note_stored(self, status: S, version: str) -> bool:
        """Note a status that was stored after the last write of this process: another writer has written, or
        a write without an answer took effect late. If it differs, the next reconcile writes again.

        Returns: whether it was stored after the last write.
        """
        if self.sending is not None or not is_later(version, self.version):
            return False
        if status != self.written:  # a change of metadata leaves what an older CRD has cut as it is
            self.written = self.intended = status
        self.version = version
        if self.computed.unread != status.unread:
            self.computed = self.computed.model_copy(update={"unread": status.unread})
        return True

    def write_again(self) -> None:
        """Let the next reconcile write the status whole: other CRDs are installed."""
        self.intended, self.stored = self.written, None


class StatusWriter:
    """The statuses of a fleet and of the WeightVersions that name it.

    `schemas`: what the API server permits; None without checks.
    """

    def __init__(
        self,
        key: FleetKey,
        kube: Kube,
        metrics: Metrics,
        events: EventRecorder,
        writes: BackgroundWrites,
        problems: FleetProblems,
        schemas: ServedSchemas | None = None,
    ) -> None:
        self._key = key
        self._kube = kube
        self._count = metrics.writes
        self._events = events
        self._writes = writes
        self._problems = problems
        self._schemas = schemas
        self._fleet: KnownStatus[FleetStatus] | None = None
        self._over = KnownVersion()
        """The version of the fleet that its status is written over."""
        self._weights: dict[str, KnownStatus[WeightsStatus]] = {}
        self._repeated: RepeatedWrites[str] = RepeatedWrites()

    def fleet(self, record: FleetRecord) -> FleetStatus:
        """The fleet's last status: the last computed one, or else the stored one."""
        known = self._fleet
        if known is None or known.sending is None:
            self._over.note(record.version)  # only with what it has recorded
        if known is None:
            return record.status
        _note_record(known, record)
        return known.computed

    def stored(self, record: FleetRecord) -> FleetStatus:
        """The fleet's status that is certainly stored, in contrast to the one computed."""
        return record.status if self._fleet is None else self._fleet.written

    def weights(self, view: W, version: str) -> W:
        """The WeightVersion with its last status. `version`: the resourceVersion of the view."""
        known = self._weights.get(view.uid)
        if known is None:
            return view
        known.note_stored(view.status, version)
        return replace(view, status=known.computed)

    def take_fleet(self, uid: str, before: FleetStatus, status: FleetStatus) -> None:
        """Take over the fleet's new status: Events for what changed.

        `before`: the one from which it was computed, as `fleet` returned it.
        """
        if self._fleet is None:
            self._fleet = KnownStatus(self._subject(uid), before, before, before)
        known = self._fleet
        if known.computed != before:  # another process has recorded something in the meantime
            status = with_record_of(known.computed, ours=status, base=before)
        self._events.post_waiting()
        for event in fleet_events(known.computed, status):
            self._events.record(known.subject, event)
        known.computed = status

    def take_weights(self, weights: WeightsView | UnreadWeights, status: WeightsStatus) -> None:
        """Take over the new status of a WeightVersion, as `take_fleet`."""
        known = self._weights.get(weights.uid)
        if known is None:
            subject = Subject(
                kind=names.WEIGHTS_KIND,
                namespace=weights.namespace,
                name=weights.name,
                uid=weights.uid,
                fleet=self._key[1],
            )
            before = weights.status
            known = self._weights[weights.uid] = KnownStatus(subject, before, before, before)
        known.adapter = adapter_of(weights)
        if status is not known.computed:  # most statuses are not computed again
            for event in weights_events(known.computed, status):
                self._events.record(known.subject, event)
            known.computed = status

    def begin_due(self, *, awaited: bool = False) -> None:
        """Begin to write the statuses that are due, and those whose last write has failed.

        `awaited`: calls wait for the fleet's status, so it is due now, whatever has changed. The others wait for it,
        too, unless its last write failed: on a busy API server they would delay it.
        """
        known: Collection[KnownStatus[Any]] = self._all()
        first = {self._fleet.part} if awaited and self._fleet is not None else set[str]()
        if self._fleet is not None and first and not self._problems.has(self._fleet.part):
            known = [self._fleet]
        due = {
            each.part: partial(self.write, each.subject.uid)
            for each in known
            if self._is_due(each, awaited=each.part in first) or self._problems.has(each.part)
        }
        self._writes.begin(due, awaited=first)

    def take_over(self, before: StatusWriter) -> None:
        """Take the statuses of the WeightVersions from the writer of the fleet before this one: a watch may not have
        delivered them yet.
        """
        self._weights = before._weights

    def write_again(self) -> None:
        """Write all statuses again that are not stored as they were intended: other CRDs are installed."""
        for known in self._all():
            known.write_again()

    async def write(self, uid: str) -> None:
        """Write the status that was taken over last for this uid, unless it is stored already.

        Errors: those of the API; WriteUndone while another writer changes it back.
        """
        known = next((k for k in self._all() if k.subject.uid == uid), None)
        if known is None:
            return
        if known.computed != known.intended and not self._repeated_in_seconds(known):
            await self._send(known)
        if isinstance(error := self._repeated.error_of(uid), WriteUndone):
            raise error

    def is_due(self, uid: str) -> bool:
        """Whether the status that was taken over last for this uid should be written now.

        A delayed status is due later: see `held_back_seconds`.
        """
        return any(self._is_due(k) for k in self._all() if k.subject.uid == uid)

    def report(self, uid: str, event: NewEvent) -> None:
        """Post an Event on a fleet whose status another operator writes."""
        self._events.record(self._subject(uid), event)

    def held_back_seconds(self) -> float:
        """Seconds until a delayed status is due; infinite without one."""
        now = asyncio.get_running_loop().time()
        return max(min((k.due_at - now for k in self._all()), default=NEVER), 0)

    def shown(self) -> Iterator[Shown]:
        """The last status of each object, for the metrics."""
        if self._fleet is not None:
            yield ShownFleet(self._key, self._fleet.computed)
        for each in self._weights.values():
            yield ShownWeights(self._key, each.subject.name, each.adapter, each.computed)

    def forget_all_but(self, uids: Iterable[str]) -> None:
        """Forget WeightVersions that are gone. `uids`: those that are there."""
        there = set(uids)
        for uid in self._weights.keys() - there:
            del self._weights[uid]
            self._repeated.forget(uid)
        self._problems.forget_all_but(STATUS, {k.part for k in self._all()})

    async def put(
        self, kind: str, name: str, uid: str, status: FleetStatus | WeightsStatus, version: str = ""
    ) -> WrittenStatus:
        """Replace the operator's fields of a status in the API server. Does nothing if the object is gone.

        `version`: the resourceVersion that the object must have; empty for any.

        Errors: Conflict if the object was recreated or has another resourceVersion.
        """
        plural, written = names.PLURALS[kind], status.to_json()
        if self._schemas is not None:
            written = self._schemas.fitting(plural, written)
        self._count.labels(plural).inc()
        metadata = {"name": name, "namespace": self._key[0], "uid": uid}
        if version:
            metadata["resourceVersion"] = version
        body = {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "metadata": metadata,
            "status": written,
        }
        try:
            stored = await self._kube.apply(f"{self._root(plural)}/{name}/status", body)
        except NotFound as error:
            logger.debug("status not written: %s", error)
            return WrittenStatus(written, "")
        except (Terminal, Retryable):
            if self._schemas is not None:
                self._schemas.look_soon()
            raise
        return WrittenStatus(written, str(stored["metadata"]["resourceVersion"]))

    async def _send(self, known: KnownStatus[S]) -> None:
        status, subject = known.computed, known.subject
        is_fleet = subject.kind == names.FLEET_KIND
        known.sending, known.written_at = status, asyncio.get_running_loop().time()
        try:
            over = self._over.guard if is_fleet else ""
            made = await self.put(subject.kind, subject.name, subject.uid, status, over)
        except Conflict:
            known.written_at = -NEVER
            if is_fleet:
                await self._read_again()
            raise
        except BaseException as error:
            known.written_at = -NEVER
            if isinstance(error, Unknown) or not isinstance(error, FleetError):
                known.lost = status
            raise
        finally:
            known.sending = None
        if status == known.stored:
            self._repeated.note(subject.uid, known.part)
        known.note_answer(status, made)
        if is_fleet:
            self._over.note(made.version)

    def _is_due(self, known: KnownStatus[Any], *, awaited: bool = False) -> bool:
        now = asyncio.get_running_loop().time()
        stored = known.intended if known.sending is None else known.sending
        known.due_at = NEVER
        if known.computed == stored:
            return False
        folded = not awaited and not is_urgent(stored, known.computed)
        progress_seconds = known.written_at + PROGRESS_SECONDS - now if folded else 0
        wait_seconds = max(progress_seconds, self._repeated_in_seconds(known))
        if wait_seconds > 0:
            known.due_at = now + wait_seconds
        return wait_seconds <= 0

    def _repeated_in_seconds(self, known: KnownStatus[Any]) -> float:
        """The time until a status may be written that another writer has changed back; 0 for another one."""
        if known.computed != known.stored:
            return 0.0
        return self._repeated.wait_seconds(known.subject.uid)

    async def _read_again(self) -> None:
        """Read the status of the fleet, which another process has written. A watch can be late or broken, and
        must delay no write.
        """
        known = self._fleet
        if known is None:
            return
        known.sending = None
        refused = self._over.guard
        found = await self._read(known.subject)
        if found is None:
            return
        if is_later(refused, found.version):
            self._over.note_lower()
            known.written = known.intended = found.status
            return
        self._over.note(found.version)
        _note_record(known, found)

    async def _read(self, fleet: Subject) -> StoredStatus | None:
        """The stored status of the fleet; None if it is gone."""
        try:
            found = await self._kube.get(f"{self._root(names.FLEET_PLURAL)}/{fleet.name}")
        except NotFound:
            return None
        metadata = found["metadata"]
        if metadata["uid"] != fleet.uid:
            return None
        return StoredStatus(
            status=status_in(found, FleetStatus),
            version=str(metadata["resourceVersion"]),
            edited=is_edited(found),
        )

    def _all(self) -> list[KnownStatus[Any]]:
        fleet: list[KnownStatus[Any]] = [] if self._fleet is None else [self._fleet]
        return [*fleet, *self._weights.values()]

    def _subject(self, uid: str) -> Subject:
        namespace, name = self._key
        return Subject(kind=names.FLEET_KIND, namespace=namespace, name=name, uid=uid, fleet=name)

    def _root(self, plural: str) -> str:
        return f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{self._key[0]}/{plural}"


def _note_record(known: KnownStatus[FleetStatus], found: FleetRecord | StoredStatus) -> None:
    """Note a stored status of a fleet, and what another process has recorded in it."""
    before, status = known.written, found.status
    is_new = known.note_stored(status, found.version)
    if is_new and not found.edited and status not in (before, known.lost):
        known.computed = with_record_of(status, ours=known.computed, base=before)


def adapter_of(weights: WeightsView | UnreadWeights) -> str:
    """The adapter that a WeightVersion names; empty for base weights, and while unknown."""
    return (weights.adapter if isinstance(weights, UnreadWeights) else weights.spec.adapter) or ""
