"""Records of the engine port: LoRA adapters, scored tokens, checksums, and bytes that are held for a load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_worker.checkpoint.identity import WeightName

FIRST_NUMBER = 1001
"""First number of ours. The engine's warm-up adapters have the numbers from 1 to that of its slots."""

_SEPARATOR = "@"  # cannot occur in names and labels


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """A version of an adapter in the engine.

    Fields:
        name: result of `engine_name`.
        number: the engine's identity of an adapter.
        path: directory of our copy, which nothing else changes.
    """

    name: str
    number: int
    path: str

    def __str__(self) -> str:
        name, version, *_ = self.name.split(_SEPARATOR)
        return f"adapter {name} at version {version}"


def engine_name(name: str, version: str, mark: str, run_id: str | None = None) -> str:
    """Return the engine's name of a version of an adapter. The engine's outputs carry it.

    Args:
        name: Adapter name in requests.
        version: Version of the adapter.
        mark: The first 12 hex digits of its digest, because two runs may use the same numbers.
        run_id: The run that the version belongs to, if the request named one.
    """
    parts = (name, version, mark) if run_id is None else (name, version, mark, run_id)
    return _SEPARATOR.join(parts)


def weight_name_of(name: str) -> WeightName:
    """Return the weights of an adapter from the name in an output of the engine."""
    _, version, *more = name.split(_SEPARATOR)
    digest, run_id = (*more, None, None)[:2]
    return WeightName(version, run_id, digest)


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum of the engine's weights.

    Fields:
        text: hexadecimal digits.
        is_complete: it includes all values. Other weights may have an incomplete checksum, too.
    """

    text: str
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Position:
    """The model's log-probabilities at one position of a text.

    Fields:
        token: id of the token at this position.
        known: id → log-probability in nats of the most probable tokens and of `token` itself.
    """

    token: int
    known: Mapping[int, float]

    @property
    def logprob(self) -> float:
        """Log-probability of the token at this position. NaN if it is not known."""
        return self.known.get(self.token, math.nan)


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """The bytes of a staged version that the engine's processes hold, outside of any pause.

    Fields:
        is_done: no process still works on it.
        line: one sentence without a full stop: how a load will copy the bytes, and why. Empty for nothing.
        changes_bytes: host's memory of what differs from the version in the engine, with a load's copy of it.
    """

    is_done: bool
    line: str
    changes_bytes: int = 0


def held_bytes(answers: Iterable[Mapping[str, Any]]) -> HeldBytes:
    """Combine the answers of all processes (`engine.held.Held.want`)."""
    parts = list(answers)
    sums = {key: sum(int(part[key]) for part in parts) for key in ("bytes", "registered", "huge")}
    is_done = all(bool(part["done"]) for part in parts)
    changes = [int(part["changes"]) for part in parts]
    changes_bytes = sum(changes) + max(changes, default=0)
    if sums["bytes"] == 0:
        return HeldBytes(is_done, "", changes_bytes)
    if sums["registered"] == sums["bytes"]:
        way = "pinned: the device reads the bytes where they are"
    else:
        buffers = all(bool(part["buffers"]) for part in parts)
        why = next((str(part["why_not"]) for part in parts if part["why_not"]), "not ready yet")
        way = f"{'through pinned buffers' if buffers else 'pageable'}: {why}"
    huge = sums["huge"] / sums["bytes"]
    return HeldBytes(is_done, f"{way}; {huge:.0%} of the memory in huge pages", changes_bytes)
