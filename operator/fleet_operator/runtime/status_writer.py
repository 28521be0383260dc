"""Writes statuses, and posts an Event for each change.

Changes of conditions are written at once, and progress at most once a second. So a rollout costs few
writes for any number of workers, and an idle fleet none. Planners see the last computed status, written
or not, so that a delayed write does not restart the times in it.

The status of a fleet records its applied weights. It is written only over the resourceVersion that this
process knows, so that a late write of a former leader cannot undo the record. Nor does this process undo
what a former leader has recorded late: see `foreign_status`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from fleet_operator.api import names
from fleet_operator.api.fleet_status import FleetStatus
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.events import (
    NewEvent,
    fleet_events,
    is_urgent,
    weights_events,
)
from fleet_operator.core.foreign_status import with_record_of
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.errors import Conflict, FleetError, Unknown, WriteUndone
from fleet_operator.runtime.event_recorder import EventRecorder, Subject
from fleet_operator.runtime.known_status import NEVER, KnownStatus, S, note_record
from fleet_operator.runtime.kube_statuses import KubeStatuses
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import status_part
from fleet_operator.runtime.repeated_writes import RepeatedWrites
from fleet_operator.runtime.resource_versions import ResourceVersions, is_later
from fleet_operator.runtime.status_metrics import Shown, ShownFleet, ShownWeights
from fleet_operator.runtime.store import FleetRecord

PROGRESS_SECONDS = 1.0
W = TypeVar("W", bound=WeightsView | UnreadWeights)


class StatusWriter:
    """Statuses of all objects, by uid."""

    def __init__(self, objects: KubeStatuses, recorder: EventRecorder) -> None:
        self._objects = objects
        self._recorder = recorder
        self._fleets: dict[str, KnownStatus[FleetStatus]] = {}
        self._weights: dict[str, KnownStatus[WeightsStatus]] = {}
        self._keys: dict[FleetKey, set[str]] = {}
        self._versions = ResourceVersions()
        self._repeated: RepeatedWrites[str] = RepeatedWrites()

    def fleet(self, record: FleetRecord) -> FleetStatus:
        """The fleet's last status: the last computed one, or else the stored one."""
        known = self._fleets.get(record.uid)
        if known is None or known.sending is None:
            self._versions.note(record.uid, record.version)  # only with what it has recorded
        if known is not None:
            note_record(known, record)
        return known.computed if known else record.status

    def stored(self, record: FleetRecord) -> FleetStatus:
        """The fleet's status that is certainly stored, in contrast to the one computed."""
        known = self._fleets.get(record.uid)
        return known.written if known else record.status

    def weights(self, view: W, version: str) -> W:
        """The WeightVersion with its last status. `version`: the resourceVersion of the view."""
        known = self._weights.get(view.uid)
        if known is not None:
            known.note_stored(view.status, version)
        return replace(view, status=known.computed) if known else view

    def take_fleet(self, key: FleetKey, uid: str, before: FleetStatus, status: FleetStatus) -> str:
        """Take over a fleet's new status: Events for what changed. Returns: the uid, for `write`.

        `before`: the one from which it was computed, as `fleet` returned it.
        """
        namespace, name = key
        subject = Subject(
            kind=names.FLEET_KIND, namespace=namespace, name=name, uid=uid, fleet=name
        )
        known = self._fleets.setdefault(uid, KnownStatus(subject, before, before, before))
        if known.computed != before:  # another process has recorded something in the meantime
            status = with_record_of(known.computed, ours=status, base=before)
        self._recorder.post_waiting(key)
        for event in fleet_events(known.computed, status):
            self._recorder.record(subject, event)
        known.computed = status
        self._keys.setdefault(key, set()).add(uid)
        return uid

    def take_weights(
        self, key: FleetKey, weights: WeightsView | UnreadWeights, status: WeightsStatus
    ) -> str:
        """Take over the new status of a WeightVersion, as `take_fleet`. `key`: the fleet that it names."""
        known = self._weights.get(weights.uid)
        if known is None:
            subject = Subject(
                kind=names.WEIGHTS_KIND,
                namespace=weights.namespace,
                name=weights.name,
                uid=weights.uid,
                fleet=key[1],
            )
            before = weights.status
            known = KnownStatus(subject, before, before, before)
            self._weights[weights.uid] = known
            self._keys.setdefault(key, set()).add(weights.uid)
        known.adapter = _adapter_of(weights)
        if status is not known.computed:  # most statuses are not computed again
            for event in weights_events(known.computed, status):
                self._recorder.record(known.subject, event)
            known.computed = status
        return weights.uid

    def is_due(self, uid: str) -> bool:
        """Whether the status that was taken over last for this uid should be written now.

        A delayed status is due later: see `held_back_seconds`.
        """
        known = self._fleets.get(uid) or self._weights.get(uid)
        return known is not None and self._is_due(known)

    def write_again(self) -> None:
        """Write all statuses again that are not stored as they were intended: other CRDs are installed."""
        for fleet in self._fleets.values():
            fleet.write_again()
        for weights in self._weights.values():
            weights.write_again()

    async def write(self, uid: str) -> None:
        """Write the status that was taken over last for this uid, unless it is stored already.

        Errors: those of the API; WriteUndone while another writer changes it back.
        """
        if (fleet := self._fleets.get(uid)) is not None:
            await self._write(fleet, names.FLEET_PLURAL)
        elif (weights := self._weights.get(uid)) is not None:
            await self._write(weights, names.WEIGHTS_PLURAL)

    def report(self, key: FleetKey, uid: str, event: NewEvent) -> None:
        """Post an Event on a fleet whose status another operator writes."""
        namespace, name = key
        subject = Subject(
            kind=names.FLEET_KIND, namespace=namespace, name=name, uid=uid, fleet=name
        )
        self._recorder.record(subject, event)

    def held_back_seconds(self, key: FleetKey) -> float:
        """Seconds until a delayed status of this fleet is due; infinite without one."""
        now = asyncio.get_running_loop().time()
        uids = self._keys.get(key, set())
        known = [k for uid in uids for k in (self._fleets.get(uid), self._weights.get(uid))]
        return max(min((k.due_at - now for k in known if k is not None), default=NEVER), 0)

    def shown(self) -> Iterator[Shown]:
        """The last status of each object, for the metrics."""
        for fleet in self._fleets.values():
            subject = fleet.subject
            yield ShownFleet((subject.namespace, subject.fleet), fleet.computed)
        for weights in self._weights.values():
            subject = weights.subject
            key = (subject.namespace, subject.fleet)
            yield ShownWeights(key, subject.name, weights.adapter, weights.computed)

    def forget_all_but(self, key: FleetKey, uids: set[str]) -> None:
        """Forget objects of this fleet that are gone."""
        known = self._keys.get(key, set())
        for uid in known - uids:
            self._fleets.pop(uid, None)
            self._weights.pop(uid, None)
            self._versions.forget(uid)
            self._repeated.forget(uid)
        self._keys[key] = known & uids
        if not self._keys[key]:
            del self._keys[key]

    async def _write(self, known: KnownStatus[S], plural: str) -> None:
        subject = known.subject
        if known.computed != known.intended and not self._repeated_in_seconds(known):
            await self._send(known, plural)
        if isinstance(error := self._repeated.error_of(subject.uid), WriteUndone):
            raise error

    async def _send(self, known: KnownStatus[S], plural: str) -> None:
        now = asyncio.get_running_loop().time()
        status, subject = known.computed, known.subject
        known.sending, known.written_at = status, now
        try:
            made = await self._objects.write(
                plural,
                namespace=subject.namespace,
                name=subject.name,
                uid=subject.uid,
                status=status.to_json(),
                version=self._versions.of(subject.uid),
            )
        except Conflict:
            known.written_at = -NEVER
            await self._read_again(subject)
            raise
        except BaseException as error:
            known.written_at = -NEVER
            if isinstance(error, Unknown) or not isinstance(error, FleetError):
                known.lost = status
            raise
        finally:
            known.sending = None
        if status == known.stored:
            self._repeated.note(subject.uid, status_part(subject.kind, subject.name))
        known.note_answer(status, made)
        if subject.kind == names.FLEET_KIND:
            self._versions.note(subject.uid, made.version)

    def _is_due(self, known: KnownStatus[Any]) -> bool:
        now = asyncio.get_running_loop().time()
        stored = known.intended if known.sending is None else known.sending
        known.due_at = NEVER
        if known.computed == stored:
            return False
        folded = not is_urgent(stored, known.computed)
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

    async def _read_again(self, subject: Subject) -> None:
        """Read the status of a fleet that another process has written. A watch can be late or broken, and
        must delay no write.
        """
        known = self._fleets.get(subject.uid)
        if known is None:
            return
        known.sending = None
        refused = self._versions.of(subject.uid)
        found = await self._objects.read(
            namespace=subject.namespace, name=subject.name, uid=subject.uid
        )
        if found is None:
            return
        if is_later(refused, found.version):
            self._versions.note_lower(subject.uid)
            known.written = known.intended = found.status
            return
        self._versions.note(subject.uid, found.version)
        note_record(known, found)


def _adapter_of(weights: WeightsView | UnreadWeights) -> str:
    return (weights.adapter if isinstance(weights, UnreadWeights) else weights.spec.adapter) or ""
