"""Reads a stored status as far as this release knows it, and writes the rest back as it was.

Another release may have written entries, values and fields that this one does not know, for example before
the operator was rolled back. Each entry of a list is read by itself. The rest stays in `Status.unread`, and
`Status.to_json` puts it back:

    an entry that cannot be read      in its order, before the entry that came after it
    a value that cannot be read       until this release has one of its own; a record of labels always
    an unknown field of the status    always
    an unknown field of an entry      while the entry is unchanged
    an unknown field of an object     while the object is about the same weights

A list that becomes longer than the CRD allows is cut at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from rlfleet_resources.base import Resource

Json = dict[str, Any]
ABOUT = ("version", "runID")
"""Fields that name the weights which an object is about."""


class UnreadEntry(Resource):
    """An entry of a list that cannot be read.

    Fields:
        within: the list.
        number: of the entry in the list, from 0.
        raw: as it is stored.
        before: the next entry that can be read, as this release writes it; None for the last ones.
    """

    within: str
    number: int
    raw: Any
    before: Any = None


class Extended(Resource):
    """An object, or an entry of a list, with more than this release knows.

    Fields:
        within: the field or the list.
        read: as this release writes it.
        raw: as it is stored.
        lost: its known fields whose values cannot be read.
    """

    within: str
    read: Json
    raw: Json
    lost: tuple[str, ...] = ()

    def is_about(self, value: Any) -> bool:
        """Whether a value of the field is about the same weights, as this release writes it or as an object."""
        found = value.to_json() if isinstance(value, Resource) else value
        return isinstance(found, dict) and all(found.get(n) == self.read.get(n) for n in ABOUT)


class Unread(Resource):
    """The parts of a status that cannot be read.

    Fields:
        fields: unknown fields as they are stored.
        values: likewise, known fields with a value that cannot be read. Fields that this release always sets
            are not among them.
        entries: in their order.
    """

    fields: Json = Field(default_factory=dict)
    values: Json = Field(default_factory=dict)
    entries: tuple[UnreadEntry, ...] = ()
    extended: tuple[Extended, ...] = ()

    def count_in(self, name: str) -> int:
        """The number of entries of a list that cannot be read."""
        return sum(entry.within == name for entry in self.entries)

    def over(self, made: Json, bounds: Mapping[str, int], kept: Iterable[str]) -> Json:
        """A status as this release writes it, with the unread parts.

        Args:
            made: The status without them.
            bounds: The most entries of each list.
            kept: The values that this release does not replace.
        """
        if self == NOTHING:
            return made
        found = dict(made)
        for name in {entry.within for entry in self.entries}:
            unread = [entry for entry in self.entries if entry.within == name]
            if name == "conditions":  # each of this release's says what is so now
                unread = unread[: bounds[name] - len(found.get(name, []))]
            found[name] = _with_entries(found.get(name, []), unread)
        for part in self.extended:
            value = found.get(part.within)
            if isinstance(value, list):
                found[part.within] = [part.raw if each == part.read else each for each in value]
            elif isinstance(value, dict):
                found[part.within] = _with_unknown(value, part)
        for name, most in bounds.items():
            if name in found:
                found[name] = found[name][:most]
        return self.fields | found | {name: self.values[name] for name in kept}


NOTHING = Unread()


def _with_entries(made: Sequence[Any], unread: Sequence[UnreadEntry]) -> list[Any]:
    """The list with the unread entries. Those whose next entry is gone come before the next unread one."""
    found, place = list(made), len(made)
    for entry in reversed(unread):
        if entry.before in found[:place]:
            place = found.index(entry.before)
        found.insert(place, entry.raw)
    return found


def _with_unknown(value: Json, part: Extended) -> Json:
    if value == part.read:
        return part.raw
    if not part.is_about(value):
        return value
    return {n: raw for n, raw in part.raw.items() if n not in part.read} | value
