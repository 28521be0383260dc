"""The names of weights in a trainer's body, in any spelling: version, run and digest.

Bodies of trainers have keys for other servers, which are ignored. A name of weights is never one of
them: ignored, it would give weights another name than the trainer did.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_FIELDS = {
    "version": "version",
    "weightversion": "version",
    "runid": "run_id",
    "weightrun": "run_id",
    "weightrunid": "run_id",
    "digest": "digest",
    "weightdigest": "digest",
}
"""Spelling without case, `_` and `-` → the field of the body."""


def with_plain_names(body: Any, fields: Collection[str]) -> Any:
    """Return a body with `version`, `run_id` and `digest` for every spelling of them.

    Args:
        body: As it came; only an object has names.
        fields: The fields that have an effect.

    Errors:
        ValueError: a name that has no effect, or two that differ.
    """
    if not isinstance(body, dict):
        return body
    plain: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for key, value in body.items():
        field = _FIELDS.get(key.replace("_", "").replace("-", "").lower())
        if field is None:
            plain[key] = value
        elif value is None:
            continue
        elif field not in fields:
            raise ValueError(f"{field} has no effect here; leave it out")
        elif names.setdefault(field, value) != value:
            raise ValueError(f"{field} has two values; send one")
    return plain | names
