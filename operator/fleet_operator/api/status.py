"""See `rlfleet_resources.status`."""

from __future__ import annotations

from rlfleet_resources.status import *  # noqa: F403 - the same names
