"""The files that versions name, as the status of a fleet records them."""

from __future__ import annotations

from rlfleet_resources.fleet_status import FleetStatus, PinnedWeights


def pins_of(status: FleetStatus, adapter: str) -> tuple[PinnedWeights, ...]:
    """Returns the pins of an adapter; with an empty name, those of the base weights."""
    if not adapter:
        return status.pinned
    return tuple(pin for pin in status.pinned_adapters if pin.adapter == adapter)
