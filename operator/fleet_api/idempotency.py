"""Idempotency keys, remembered in an annotation of the WeightVersion.

The same patch that changes the spec writes the key, so any replica knows it, and no key is known for
a change that was not made. Keys and requests are stored as digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from http import HTTPStatus
from typing import Any

from fleet_api.problems import Problem, invalid
from fleet_operator.api import names
from rlfleet.patches import Patches
from rlfleet.ports import Changes, Json, Kind, Objects
from rlfleet.resources import WeightVersion

HEADER = "Idempotency-Key"
MEANING = "Names the request: a repetition with the same key changes nothing."
ANNOTATION = f"{names.GROUP}/idempotency-keys"
MOST_KEYS = 20
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Key:
    """The key of one request.

    Args:
        text: Of the header.
        caller: Name of the caller: two callers never share a key.
        request: Everything that the request asks for.
    """

    def __init__(self, text: str, caller: str, request: str) -> None:
        if not _KEY.fullmatch(text):
            raise invalid(f"{HEADER} must have 1 to 255 visible ASCII characters")
        self._name = _digest(f"{caller}\n{text}")
        self._request = _digest(request)

    def has_been_used(self, weights: WeightVersion) -> bool:
        """Whether this request was carried out already. Errors: Problem 422 if another one was."""
        for name, request in _entries(weights):
            if name != self._name:
                continue
            if request != self._request:
                raise Problem(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    "IdempotencyKeyReused",
                    f"another request had this {HEADER}; send a new key with a new request",
                )
            return True
        return False

    def annotation(self, weights: WeightVersion) -> str:
        """The annotation with this key as the newest one."""
        entries = [*_entries(weights), (self._name, self._request)]
        return json.dumps(entries[-MOST_KEYS:], separators=(",", ":"))


class Marked:
    """Objects of a namespace, whose patches of WeightVersions also write an annotation.

    Only `patch` differs, and so `changes`. A patch that only clears `rollbackTo` is the first of two, and the key
    belongs to the second.
    """

    def __init__(self, objects: Objects, annotation: str) -> None:
        self._objects = objects
        self._annotation = annotation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def changes(self, name: str) -> Changes:
        """See `Place`."""
        return Patches(self, name)

    async def patch(self, kind: Kind, name: str, body: Json) -> Json:
        """See `Objects`."""
        if body != {"spec": {"rollbackTo": None}}:
            metadata = body.get("metadata", {})
            annotations = metadata.get("annotations", {}) | {ANNOTATION: self._annotation}
            body = body | {"metadata": metadata | {"annotations": annotations}}
        return await self._objects.patch(kind, name, body)


def _entries(weights: WeightVersion) -> list[tuple[str, str]]:
    """The remembered keys; none if another writer has put something else there."""
    try:
        found = json.loads(weights.metadata.annotations.get(ANNOTATION, "[]"))
        return [(str(name), str(request)) for name, request in found]
    except (ValueError, TypeError, RecursionError):
        return []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
