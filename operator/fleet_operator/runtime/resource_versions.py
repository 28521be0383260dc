"""The resourceVersions of objects that this process may write over.

The API server refuses a write that names an outdated version. Nothing else stops a leader that was
frozen between its last read of the Lease and its write.
"""

from __future__ import annotations


def is_later(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another one. False if one of them is not a number."""
    return version.isdecimal() and than.isdecimal() and int(version) > int(than)


class ResourceVersions:
    """The latest resourceVersions that this process knows, by uid."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    def note(self, uid: str, version: str) -> None:
        """Note that an object was read or written at this version.

        The later version wins: a watch may deliver an object from before our own write.
        """
        if not is_later(self._known.get(uid, ""), version):
            self._known[uid] = version

    def note_lower(self, uid: str) -> None:
        """Note that the API server refused the known version and has a lower one: it was restored from a
        backup. Writes name no version until it has a later one than before.
        """
        self._refused[uid] = self._known.get(uid, "")

    def of(self, uid: str) -> str:
        """The version that a write must name; empty for any."""
        known = self._known.get(uid, "")
        return "" if known == self._refused.get(uid) else known

    def forget(self, uid: str) -> None:
        """Forget an object that is gone."""
        self._known.pop(uid, None)
        self._refused.pop(uid, None)
