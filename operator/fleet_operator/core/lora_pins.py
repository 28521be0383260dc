"""Pins of LoRA adapters: the digest of each version of a run of each adapter. See `pins`.

An adapter has no barrier, so each worker gets it in two calls. The first call stages its files, and the
worker reports their digest. After the pin is stored, the second call serves them, with this digest.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pins import Pins
from fleet_operator.core.unread_pins import unread_pins_of
from rlfleet_resources.fleet_status import FleetStatus


def with_pins_of_lora(observed: FleetObserved, name: str) -> FleetObserved:
    """Returns the fleet with the pins of one adapter in place of those of the base weights."""
    stored = observed.stored
    return replace(
        observed,
        status=_as_seen_by(observed.status, name),
        stored=None if stored is None else _as_seen_by(stored, name),
    )


def known_pins(observed: FleetObserved, name: str) -> Pins:
    """Returns the pins of one adapter that the status names. New reports of workers do not count."""
    pinned = _as_seen_by(observed.stored_status, name).pinned
    digests = {(e.version, e.run_id): e.digest for e in reversed(pinned)}
    entries = _as_seen_by(observed.status, name).pinned
    unread = unread_pins_of(observed.status, name)
    memory = observed.status.dropped_pins
    return Pins(entries=entries, stored=digests, unread=unread, memory=memory, adapter=name)


def _as_seen_by(status: FleetStatus, name: str) -> FleetStatus:
    pinned = tuple(e for e in status.pinned_adapters if e.adapter == name)
    return status.model_copy(update={"pinned": pinned})
