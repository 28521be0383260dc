"""The base of all parts of an object: frozen, and with the field names of the CRDs."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

_ACRONYMS = re.compile(r"(?<=[a-z])Id(?=[A-Z]|$)")


def _field_name(name: str) -> str:
    return _ACRONYMS.sub("ID", to_camel(name))


class Resource(BaseModel):
    """Base of all parts of an object."""

    model_config = ConfigDict(frozen=True, alias_generator=_field_name, populate_by_name=True)
