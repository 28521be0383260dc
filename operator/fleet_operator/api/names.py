"""See `rlfleet_resources.names`."""

from __future__ import annotations

from rlfleet_resources.names import *  # noqa: F403 - the same names
