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

    def note(self, uid: str, version: str) -> None:
        """Note that an object was read or written at this version.

        The later version wins: a watch may deliver an object from before our own write.
        """
        if not is_later(self._known.get(uid, ""), version):
            self._known[uid] = version

    def of(self, uid: str) -> str:
        """The version that a write must name; empty for any."""
        return self._known.get(uid, "")

    def forget(self, uid: str) -> None:
        """Forget an object that is gone."""
        self._known.pop(uid, None)
