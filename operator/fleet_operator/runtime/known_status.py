"""One object's status as this process knows it: computed, sent, and stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet_operator.api.fleet_status import FleetStatus
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.foreign_status import with_record_of
from fleet_operator.runtime.event_recorder import Subject
from fleet_operator.runtime.kube_statuses import StoredStatus, WrittenStatus
from fleet_operator.runtime.resource_versions import is_later
from fleet_operator.runtime.store import FleetRecord

NEVER = float("inf")

S = TypeVar("S", FleetStatus, WeightsStatus)


@dataclass(slots=True)
class KnownStatus(Generic[S]):
    """Fields:
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


def note_record(known: KnownStatus[FleetStatus], found: FleetRecord | StoredStatus) -> None:
    """Note a stored status of a fleet, and what another process has recorded in it."""
    before, status = known.written, found.status
    is_new = known.note_stored(status, found.version)
    if is_new and not found.edited and status not in (before, known.lost):
        known.computed = with_record_of(status, ours=known.computed, base=before)
