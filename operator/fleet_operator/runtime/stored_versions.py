"""The resourceVersions of objects that this process may write over.

A write that names one is refused by the API server once another process has written. A leader that
was frozen between its last look at the Lease and its write is stopped by nothing else.
"""

from __future__ import annotations


class StoredVersions:
    """The latest resourceVersions that this process knows, by uid."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    def note(self, uid: str, version: str) -> None:
        """An object has been seen, or written, at this version.

        The later one is kept: a watch may bring an object of before our own write.
        """
        before = self._known.get(uid, "")
        if before.isdecimal() and version.isdecimal() and int(version) < int(before):
            return
        self._known[uid] = version

    def note_conflict(self, uid: str) -> None:
        """A write over the known version was refused: another process has written.

        The next write is for any version. A process that leads no more does not get that far: it
        looks at its Lease before each write. A watch that is late, or broken, delays none.
        """
        self._refused[uid] = self._known.get(uid, "")

    def of(self, uid: str) -> str:
        """The version to write over; empty for any."""
        known = self._known.get(uid, "")
        return "" if known == self._refused.get(uid) else known

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._known.pop(uid, None)
        self._refused.pop(uid, None)
