"""The resourceVersion of an object that this process may write over.

The API server refuses a write that names an outdated version. Nothing else stops a leader that was
frozen between its last read of the Lease and its write.
"""

from __future__ import annotations


def is_later(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another one. False if one of them is not a number."""
    return version.isdecimal() and than.isdecimal() and int(version) > int(than)


class KnownVersion:
    """The latest resourceVersion of one object that this process knows."""

    def __init__(self) -> None:
        self._known = ""
        self._refused: str | None = None

    def note(self, version: str) -> None:
        """Note that the object was read or written at this version.

        The later version wins: a watch may deliver an object from before our own write.
        """
        if not is_later(self._known, version):
            self._known = version

    def note_lower(self) -> None:
        """Note that the API server refused the known version and has a lower one: it was restored from a
        backup. Writes name no version until it has a later one than before.
        """
        self._refused = self._known

    @property
    def guard(self) -> str:
        """The version that a write must name; empty for any."""
        return "" if self._known == self._refused else self._known
