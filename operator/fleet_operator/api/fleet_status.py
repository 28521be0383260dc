"""See `rlfleet_resources.fleet_status`."""

from __future__ import annotations

from rlfleet_resources.fleet_status import *  # noqa: F403 - the same names
