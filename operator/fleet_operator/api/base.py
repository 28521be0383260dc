"""See `rlfleet_resources.base`."""

from __future__ import annotations

from rlfleet_resources.base import *  # noqa: F403 - the same names
