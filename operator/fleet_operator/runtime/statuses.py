"""Statuses: what was last written, what is held back, and what each difference says to the world.

A verdict is written at once; mere progress at most once a second, so that a rollout over any
number of workers costs a handful of writes, and a quiet fleet none. What was computed last is what
the planners see, written or not: times in it must not start over because a write was held back.

The status of a fleet records which weights it served last. It is written only over the resourceVersion
that this process knows, so that a write of a deposed leader, sent late, cannot take that record back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from fleet_operator.api import names
from fleet_operator.api.fleet import FleetStatus, PinnedWeights
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.core.transitions import (
    Transition,
    fleet_transitions,
    is_urgent,
    weights_transitions,
)
from fleet_operator.errors import Conflict, FleetError
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.objects import Objects
from fleet_operator.runtime.recorder import Recorder, Subject
from fleet_operator.runtime.store import FleetRecord
from fleet_operator.runtime.stored_versions import StoredVersions

PROGRESS_SECONDS = 1.0
NEVER = float("inf")

S = TypeVar("S", FleetStatus, WeightsStatus)
W = TypeVar("W", WeightsView, UnreadWeights)


@dataclass(slots=True)
class _Written(Generic[S]):
    subject: Subject
    computed: S
    written: S
    written_at: float
    due: bool = False


class Statuses:
    """Statuses of all objects, by uid."""

    def __init__(self, objects: Objects, recorder: Recorder) -> None:
        self._objects = objects
        self._recorder = recorder
        self._fleets: dict[str, _Written[FleetStatus]] = {}
        self._weights: dict[str, _Written[WeightsStatus]] = {}
        self._keys: dict[FleetKey, set[str]] = {}
        self._versions = StoredVersions()

    def fleet(self, record: FleetRecord) -> FleetStatus:
        """The fleet's last status: our own if we computed one, else the stored one."""
        known = self._fleets.get(record.uid)
        self._versions.note(record.uid, record.version)
        return known.computed if known else record.status

    def stored_pins(self, record: FleetRecord) -> tuple[PinnedWeights, ...]:
        """What is known to be stored of the fleet's pins, in contrast to what was computed."""
        known = self._fleets.get(record.uid)
        return known.written.pinned if known else record.status.pinned

    def weights(self, view: W) -> W:
        """The WeightVersion with its last status."""
        known = self._weights.get(view.uid)
        return replace(view, status=known.computed) if known else view

    def take_fleet(self, key: FleetKey, uid: str, stored: FleetStatus, status: FleetStatus) -> str:
        """Take over a fleet's new status: Events for what changed. Returns: the uid, for `write`.

        `stored`: what was written before this process looked.
        """
        namespace, name = key
        subject = Subject(
            kind=names.FLEET_KIND, namespace=namespace, name=name, uid=uid, fleet=name
        )
        known = self._fleets.setdefault(uid, _Written(subject, stored, stored, -NEVER))
        self._recorder.post_refused(key)
        for transition in fleet_transitions(known.computed, status):
            self._recorder.record(subject, transition)
        known.computed = status
        self._keys.setdefault(key, set()).add(uid)
        return uid

    def take_weights(
        self, key: FleetKey, weights: WeightsView | UnreadWeights, status: WeightsStatus
    ) -> str:
        """The same for a WeightVersion. `key`: of the fleet that it names."""
        subject = Subject(
            kind=names.WEIGHTS_KIND,
            namespace=weights.namespace,
            name=weights.name,
            uid=weights.uid,
            fleet=key[1],
        )
        stored = _Written(subject, weights.status, weights.status, -NEVER)
        known = self._weights.setdefault(weights.uid, stored)
        for transition in weights_transitions(known.computed, status):
            self._recorder.record(subject, transition)
        known.computed = status
        self._keys.setdefault(key, set()).add(weights.uid)
        return weights.uid

    async def write(self, uid: str) -> None:
        """Write the status that was taken over last for this uid, if it is due.

        Errors: those of the API.
        """
        if (fleet := self._fleets.get(uid)) is not None:
            await self._write(fleet, names.FLEET_PLURAL)
        elif (weights := self._weights.get(uid)) is not None:
            await self._write(weights, names.WEIGHTS_PLURAL)

    def is_written(self, uid: str) -> bool:
        """Whether the API server has a fleet's status as it was computed last."""
        known = self._fleets.get(uid)
        return known is not None and known.computed == known.written

    def report(self, key: FleetKey, uid: str, transition: Transition) -> None:
        """Post an Event on a fleet whose status is not ours to write."""
        namespace, name = key
        subject = Subject(
            kind=names.FLEET_KIND, namespace=namespace, name=name, uid=uid, fleet=name
        )
        self._recorder.record(subject, transition)

    def held_back_seconds(self, key: FleetKey) -> float:
        """Seconds until a status of this fleet that was held back is due; infinite if none is."""
        now = asyncio.get_running_loop().time()
        uids = self._keys.get(key, set())
        known = [k for uid in uids for k in (self._fleets.get(uid), self._weights.get(uid))]
        due = (k.written_at + PROGRESS_SECONDS - now for k in known if k is not None and k.due)
        return max(min(due, default=NEVER), 0)

    def forget_all_but(self, key: FleetKey, uids: set[str]) -> None:
        """Drop what is known of objects of this fleet that are gone."""
        known = self._keys.get(key, set())
        for uid in known - uids:
            self._fleets.pop(uid, None)
            self._weights.pop(uid, None)
            self._versions.forget(uid)
        self._keys[key] = known & uids
        if not self._keys[key]:
            del self._keys[key]

    async def _write(self, known: _Written[S], plural: str) -> None:
        now = asyncio.get_running_loop().time()
        if known.computed == known.written:
            known.due = False
            return
        if not is_urgent(known.written, known.computed) and now - known.written_at < (
            PROGRESS_SECONDS
        ):
            known.due = True
            return
        status, subject = known.computed, known.subject
        due, known.due = known.due, False  # nothing is to be waited for while it is on its way
        try:
            version = await self._objects.write_status(
                plural,
                namespace=subject.namespace,
                name=subject.name,
                uid=subject.uid,
                status=status.to_json(),
                version=self._versions.of(subject.uid),
            )
        except FleetError as error:
            known.due = due
            if isinstance(error, Conflict):
                self._versions.note_conflict(subject.uid)
            raise
        known.written, known.written_at = status, now
        if subject.kind == names.FLEET_KIND:
            self._versions.note(subject.uid, version)
