"""Base of the resource models: camelCase in JSON, snake_case here, immutable.

Unknown keys are ignored on reading: the API server has pruned them already, and an object that a
newer release wrote must not stop an older operator.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel


def _parse_time(value: Any) -> Any:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value


def _format_time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


Timestamp = Annotated[
    datetime, BeforeValidator(_parse_time), PlainSerializer(_format_time, return_type=str)
]
"""RFC 3339 with microseconds: phases of small models last milliseconds."""


def printable(text: str) -> str:
    """A text in one line of printable characters: a space for white space, and the escapes of others. Parts of a text
    may be written by a pod, a worker or a user, and be made for the terminal that shows them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _shown(c) for c in text)


def _shown(character: str) -> str:
    return " " if character.isspace() else character.encode("unicode_escape").decode()


Message = Annotated[str, AfterValidator(printable)]
"""A sentence of a status."""

_ACRONYMS = re.compile(r"(?<=[a-z])(Id|Kl)(?=[A-Z]|$)")


def to_field_name(name: str) -> str:
    """The name of a field in JSON: camelCase, acronyms in capital letters (`runID`, `maxKLMillinats`).

    Source: Kubernetes API conventions, "Naming conventions".
    """
    return _ACRONYMS.sub(lambda found: found[1].upper(), to_camel(name))


def at_most(number: int) -> Any:
    """The default of a list in a status, which is empty, with the most entries that the CRD allows."""
    return Field(default=(), json_schema_extra={"maxItems": number})


class Word(StrEnum):
    """A word of a status. One of another release is a member, too, so that it is shown as it is."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        made = str.__new__(cls, value)
        made._name_ = made._value_ = value
        return made

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        """By its value: the class has no attribute for a word of another release."""
        return type(self), (str(self),)


R = TypeVar("R", bound="Resource")


def renewed(before: R, **fields: Any) -> R:
    """An object with these fields: the one before, if it has exactly these already.

    A status is computed at every reconcile and rarely changes. Comparing is cheaper than validating, and a
    later comparison with the stored status compares one object with itself.
    """
    for name in before.INHERITED:
        fields.setdefault(name, getattr(before, name))
    return before if before.__dict__ == fields else type(before)(**fields)


class Resource(BaseModel):
    """Base of all parts of a Kubernetes object."""

    READABLE_WITHOUT: ClassVar[frozenset[str]] = frozenset()
    """Fields in JSON that may be left out of a stored object, if their values cannot be read. Its field
    `unreadable` says so."""
    INHERITED: ClassVar[tuple[str, ...]] = ()
    """Fields that `renewed` takes over unless they are given."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_field_name, populate_by_name=True
    )

    def __str__(self) -> str:
        return repr(self)

    def to_json(self) -> dict[str, Any]:
        """The object as the API server stores it; absent fields are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
