"""Admits specs by their size before they are kept.

A tenant may write specs of 1.5 MB, and as many as its quota allows. So one spec has a limit, and those that
are not small have one together for each namespace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fleet_operator.ports import SPEC_BYTES, UNREAD_BYTES

SMALL_BYTES = 8 * 2**10
"""A spec of at most this size does not count: nearly every one is small."""
NAMESPACE_BYTES = 4 * 2**20


class SpecTooLarge(ValueError):
    """A spec that is not kept."""


class SpecBudget:
    """The bytes of the kept specs, by namespace and uid. `on_room`: called if a refused spec may fit now."""

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self.on_room = on_room
        self._kept: dict[str, dict[str, int]] = {}
        self._refused: dict[str, set[str]] = {}

    def admit(self, body: Mapping[str, Any]) -> None:
        """Charge the spec of an object in place of its former one. Errors: SpecTooLarge; KeyError without a
        spec.
        """
        metadata = body["metadata"]
        namespace, uid = metadata["namespace"], metadata["uid"]
        if UNREAD_BYTES in body and "spec" not in body:
            raise SpecTooLarge(f"the spec has more than {SPEC_BYTES // 2**10} KiB as compact JSON")
        text = json.dumps(body["spec"], separators=(",", ":"), ensure_ascii=False)
        size_bytes = len(text.encode(errors="replace"))
        if size_bytes > SPEC_BYTES:
            raise SpecTooLarge(
                f"the spec has {size_bytes / 2**10:.0f} KiB as compact JSON, and at most "
                f"{SPEC_BYTES // 2**10} KiB are read"
            )
        kept = self._kept.setdefault(namespace, {})
        others_bytes = sum(kept.values()) - kept.get(uid, 0)
        if size_bytes <= SMALL_BYTES:
            size_bytes = 0
        elif others_bytes + size_bytes > NAMESPACE_BYTES:
            self._refused.setdefault(namespace, set()).add(uid)
            raise SpecTooLarge(
                f"the specs above {SMALL_BYTES // 2**10} KiB in namespace {namespace} have together more "
                f"than {NAMESPACE_BYTES // 2**20} MiB, and this one does not fit"
            )
        self._charge(namespace, uid, size_bytes)

    def release(self, namespace: str, uid: str) -> None:
        """Forget an object that is gone."""
        self._charge(namespace, uid, 0)
        if not self._kept[namespace]:
            del self._kept[namespace]

    def _charge(self, namespace: str, uid: str, size_bytes: int) -> None:
        kept, refused = self._kept.setdefault(namespace, {}), self._refused.get(namespace, set())
        refused.discard(uid)
        before = kept.pop(uid, 0)
        if size_bytes:
            kept[uid] = size_bytes
        if size_bytes < before and refused:
            self.on_room()
        if not refused:
            self._refused.pop(namespace, None)
