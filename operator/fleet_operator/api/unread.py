"""See `rlfleet_resources.unread`."""

from __future__ import annotations

from rlfleet_resources.unread import *  # noqa: F403 - the same names
