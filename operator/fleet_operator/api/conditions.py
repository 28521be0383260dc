"""See `rlfleet_resources.conditions`."""

from __future__ import annotations

from rlfleet_resources.conditions import *  # noqa: F403 - the same names
from rlfleet_resources.reasons import ConditionReason, ConditionType  # noqa: F401 - the same names
