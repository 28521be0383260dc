"""The base of both statuses: read entry by entry, as far as this release knows them. See `unread`."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.json_schema import SkipJsonSchema

from rlfleet_resources.base import Resource
from rlfleet_resources.conditions import Condition
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.unread import ABOUT, NOTHING, Extended, Json, Unread, UnreadEntry


class Status(Resource):
    """The status of an object: an operator of this release writes it, and those of others may have.

    Fields:
        unread: the parts of the stored status that cannot be read, for `to_json`.
    """

    LABEL_RECORDS: ClassVar[frozenset[str]] = frozenset()
    """Fields in JSON that keep labels from naming other weights."""
    INHERITED: ClassVar[tuple[str, ...]] = ("unread",)

    unread: SkipJsonSchema[Unread] = Field(default=NOTHING, exclude=True)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The status, as far as it can be read."""
        known = _kinds_of(cls)
        if stored.keys() <= known.keys():
            try:
                status = cls.model_validate(stored)
            except ValidationError:
                pass
            else:
                if not _has_more(stored, status.to_json()):
                    return status
        fields = {name: raw for name, raw in stored.items() if name not in known}
        readable, values = Json(), Json()
        entries, extended = list[UnreadEntry](), list[Extended]()
        for name, kind in known.items():
            raw = stored.get(name)
            if raw is None:
                continue
            if kind.is_list and isinstance(raw, list):
                parts = [kind.read(each) for each in raw]
                readable[name] = tuple(part.value for part in parts if part.is_read)
                entries += _unread_entries(name, kind, raw, parts)
                extended += _extended(name, raw, parts)
                continue
            part = _Part() if kind.is_list else kind.read(raw)
            if part.is_read:
                readable[name] = part.value
                extended += _extended(name, [raw], [part])
            elif kind.is_optional or name in cls.LABEL_RECORDS:
                values[name] = raw
        unread = Unread(
            fields=fields, values=values, entries=tuple(entries), extended=tuple(extended)
        )
        return cls(**readable, unread=NOTHING if unread == NOTHING else unread)

    def to_json(self) -> Json:
        """The status as the API server stores it, with what cannot be read."""
        return self.unread.over(super().to_json(), bounds_of(type(self)), self._unread_values())

    @property
    def unread_parts(self) -> tuple[str, ...]:
        """Names of the values and entries that cannot be read. This release does without unknown fields, and
        without conditions of unknown types.
        """
        unread = self.unread
        entries = (
            f"{e.within}[{e.number}]{_named(e.raw)}"
            for e in unread.entries
            if e.within != "conditions"
        )
        lost = (
            f"{e.within}.{field}{_named(e.raw)}"
            for e in unread.extended
            for field in e.lost
            if e.is_about(self._value(e.within))
        )
        return (*self._unread_values(), *entries, *lost)

    def _unread_values(self) -> list[str]:
        """The values that this release does not replace."""
        names = self.unread.values
        return [n for n in names if n in self.LABEL_RECORDS or self._value(n) is None]

    def _value(self, name: str) -> Any:
        """The value of a field by its name in JSON."""
        fields = type(self).model_fields.items()
        return next((getattr(self, n) for n, field in fields if field.alias == name), None)


@dataclass(frozen=True, slots=True)
class _Part:
    """A value or an entry, as it was read. `lost`: its fields that had to be left out for that."""

    value: Any = None
    is_read: bool = False
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of a field, or of the entries of a list.

    Fields:
        is_optional: the field may be absent.
        model: the class of an object.
    """

    adapter: TypeAdapter[Any]
    is_list: bool
    is_optional: bool
    model: type[Resource] | None

    def read(self, raw: Any) -> _Part:
        """Read a value or an entry."""
        try:
            return _Part(self.adapter.validate_python(raw), is_read=True)
        except ValidationError as error:
            wrong = {str(each["loc"][0]) if each["loc"] else "" for each in error.errors()}
        spared = self.model.READABLE_WITHOUT if self.model is not None else frozenset()
        if not wrong <= spared:
            return _Part()
        left = {name: value for name, value in raw.items() if name not in wrong}
        found = self.read(left | {"unreadable": True})
        return _Part(found.value, is_read=found.is_read, lost=tuple(sorted(wrong)))


@cache
def _kinds_of(status: type[Status]) -> dict[str, _Kind]:
    """The kinds of the fields of a status, by name in JSON."""
    found = {}
    for field in status.model_fields.values():
        if field.exclude:
            continue
        kind: Any = field.annotation
        is_list = get_origin(kind) is tuple
        if is_list:
            kind = get_args(kind)[0]
        whole: Any = Annotated[(kind, *field.metadata)] if field.metadata and not is_list else kind
        optional = field.default is None
        found[str(field.alias)] = _Kind(TypeAdapter(whole), is_list, optional, _model_of(kind))
    return found


def _model_of(kind: Any) -> type[Resource] | None:
    """The class of an object; None for another kind."""
    if get_origin(kind) in {Union, types.UnionType}:
        (kind,) = (k for k in get_args(kind) if k is not type(None))
    return kind if isinstance(kind, type) and issubclass(kind, Resource) else None


@cache
def bounds_of(status: type[Status]) -> dict[str, int]:
    """The most entries of each list of a status, by name in JSON (`at_most`)."""
    found = {}
    for field in status.model_fields.values():
        extra = field.json_schema_extra
        most = extra.get("maxItems") if isinstance(extra, dict) else None
        if isinstance(most, int):
            found[str(field.alias)] = most
    return found


def _unread_entries(
    name: str, kind: _Kind, raw: Sequence[Any], parts: Sequence[_Part]
) -> list[UnreadEntry]:
    found, before = list[UnreadEntry](), None
    for number in reversed(range(len(raw))):
        part = parts[number]
        if part.is_read:
            before = part.value.to_json() if isinstance(part.value, Resource) else part.value
        elif not _is_decided_here(kind, raw[number]):
            found.append(UnreadEntry(within=name, number=number, raw=raw[number], before=before))
    return found[::-1]


def _is_decided_here(kind: _Kind, raw: Any) -> bool:
    """Whether this release sets or removes the entry: a condition that it knows, with a new reason."""
    if kind.model is not Condition or not isinstance(raw, dict):
        return False
    return raw.get("type") in set(ConditionType)


def _extended(name: str, raw: Sequence[Any], parts: Sequence[_Part]) -> Iterator[Extended]:
    for stored, part in zip(raw, parts, strict=True):
        if isinstance(part.value, Resource) and isinstance(stored, dict):
            read = part.value.to_json()
            if part.lost or _has_more(stored, read):
                yield Extended(within=name, read=read, raw=stored, lost=part.lost)


def _has_more(stored: Any, read: Any) -> bool:
    """Whether a stored value has a field that it lost when it was read."""
    if isinstance(stored, dict) and isinstance(read, dict):
        return any(
            value is not None and (name not in read or _has_more(value, read[name]))
            for name, value in stored.items()
        )
    if isinstance(stored, list) and isinstance(read, list):
        return any(_has_more(*pair) for pair in zip(stored, read, strict=False))
    return False


def _named(raw: Any) -> str:
    """The name of an entry, for messages."""
    if not isinstance(raw, dict):
        return ""
    words = [f"{n} {raw[n]}" for n in ("adapter", *ABOUT, "pod", "type") if _is_word(raw.get(n))]
    return f" ({', '.join(words)})" if words else ""


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and len(value) <= 63 and value.isprintable()
