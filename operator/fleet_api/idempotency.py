"""Idempotency keys, remembered in an annotation of the WeightVersion.

The same patch that changes the spec writes the key, so any replica knows it, and no key is known for
a change that was not made. Keys, requests, the weights that they name and `Stalled` before
them are stored as digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from http import HTTPStatus
from typing import Any

from fleet_api.problems import Problem, invalid
from rlfleet.patches import Patches
from rlfleet.ports import Changes, ConflictError, Json, Kind, Objects
from rlfleet.resources import WeightsSpec, WeightVersion
from rlfleet.rollout import trouble_of
from rlfleet_resources import names

HEADER = "Idempotency-Key"
MEANING = "Names the request: a repetition with the same key changes nothing."
MEANING_OF_CALLS = (
    f"{MEANING} A fleet of management External remembers no keys, since each call to its workers may be "
    "repeated: the key must only be well-formed."
)
ANNOTATION = f"{names.GROUP}/idempotency-keys"
MAX_KEYS = 20
MAX_CONFLICTS = 8
"""Conflicts in a row before an error is reported: the operator writes the status of the same object."""
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def check(text: str) -> None:
    """Check the form of a key. Errors: Problem 400."""
    if not _KEY.fullmatch(text):
        raise invalid(f"{HEADER} must have 1 to 255 visible ASCII characters")


class Key:
    """The key of one request.

    Args:
        text: The value of the header.
        caller: Name of the caller: two callers never share a key.
        request: Everything that the request asks for.
    """

    def __init__(self, text: str, caller: str, request: str) -> None:
        check(text)
        self._name = _digest(f"{caller}\n{text}")
        self._request = _digest(request)

    def has_been_used(self, weights: WeightVersion) -> bool:
        """Whether this request was carried out already. Errors: Problem 422 if another one was."""
        for name, request, *_ in _entries(weights):
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

    def is_still_asked_for(self, weights: WeightVersion) -> bool:
        """Whether the spec names the weights that it named after this request. Two runs may use one number."""
        named = _named(weights.spec)
        return any(n == self._name and asked == named for n, _, asked, _ in _entries(weights))

    def has_seen_trouble_of(self, weights: WeightVersion) -> bool:
        """Whether `Stalled` is as it was before this request."""
        now = _trouble(weights)
        return any(n == self._name and saw == now for n, _, _, saw in _entries(weights))

    def annotation(self, weights: WeightVersion, spec: Json) -> str:
        """The annotation with this key as the newest one. `spec`: what the request changes in the spec."""
        # A change of `source` names every kind of source, so fields need no deeper merge.
        changed = WeightsSpec.model_validate(weights.spec.model_dump(by_alias=True) | spec)
        made = (self._name, self._request, _named(changed), _trouble(weights))
        entries = [*_entries(weights), made]
        return json.dumps(entries[-MAX_KEYS:], separators=(",", ":"))


class RepeatedError(Exception):
    """Another replica has carried out the same request meanwhile. `seen`: the object after that."""

    def __init__(self, seen: WeightVersion) -> None:
        super().__init__()
        self.seen = seen


class _Remembered(Patches):
    """Changes that write the key even if they change nothing else.

    Without the key, a late repetition of such a request would count as its first, and change the object.
    """

    def __init__(self, objects: KeyedObjects, name: str) -> None:
        super().__init__(objects, name)
        self._keyed = objects

    async def rollback(
        self, version: str, path: str | None, deadline: float | None, *, digest: str | None = None
    ) -> Json:
        """See `Changes`."""
        now = await super().rollback(version, path, deadline, digest=digest)
        if not self._keyed.has_written:
            await self._patch({}, deadline)
        return now


class KeyedObjects:
    """Objects of a namespace, whose patches of a WeightVersion also write a key.

    Only `patch` differs, and so `changes`. Each patch names the resourceVersion in which the key was not found. So
    no patch drops a key that another replica writes at the same time.

    Fields:
        has_written: a patch has written the key.
    """

    def __init__(self, objects: Objects, key: Key, seen: WeightVersion) -> None:
        self._objects = objects
        self._key = key
        self._seen = seen
        self.has_written = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def changes(self, name: str) -> Changes:
        """See `Place`."""
        return _Remembered(self, name)

    async def patch(self, kind: Kind, name: str, body: Json) -> Json:
        """See `Objects`. Errors: also RepeatedError; ConflictError if the object keeps changing."""
        for _ in range(MAX_CONFLICTS):
            try:
                return await self._patch(kind, name, body)
            except ConflictError:
                self._seen = WeightVersion.model_validate(await self._objects.get(kind, name))
                if self._key.has_been_used(self._seen):
                    raise RepeatedError(self._seen) from None
        return await self._patch(kind, name, body)

    async def _patch(self, kind: Kind, name: str, body: Json) -> Json:
        made = await self._objects.patch(kind, name, self._with_key(body))
        self._seen = WeightVersion.model_validate(made)
        self.has_written = self._key.has_been_used(self._seen)
        return made

    def _with_key(self, body: Json) -> Json:
        seen = self._seen.metadata
        metadata = body.get("metadata", {}) | {"resourceVersion": seen.resource_version}
        spec = body.get("spec", {})
        # A patch that only clears `rollbackTo` is the first of two, and the key belongs to the second.
        if spec != {"rollbackTo": None}:
            keys = {ANNOTATION: self._key.annotation(self._seen, spec)}
            metadata["annotations"] = metadata.get("annotations", {}) | keys
        return body | {"metadata": metadata}


def _entries(weights: WeightVersion) -> list[tuple[str, str, str, str]]:
    """The remembered keys, their requests, the weights that these name, and the trouble that they saw.

    Empty if another writer has put something else there.
    """
    try:
        found = json.loads(weights.metadata.annotations.get(ANNOTATION, "[]"))
        return [
            (str(name), str(request), str(asked), str(saw)) for name, request, asked, saw in found
        ]
    except (ValueError, TypeError, RecursionError):
        return []


def _named(spec: WeightsSpec) -> str:
    return _digest(spec.model_dump_json(include={"version", "run_id", "digest", "source"}))


def _trouble(weights: WeightVersion) -> str:
    trouble = trouble_of(weights)
    return "" if trouble is None else _digest(trouble.model_dump_json())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
