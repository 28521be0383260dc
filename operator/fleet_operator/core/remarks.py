"""The remarks of workers on the files of the version that they serve: what they ignore or cast."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.observed import FleetObserved
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.reasons import ConditionType

_MOST = 8
"""More than there are kinds: workers are not trusted."""


def remarks_of(observed: FleetObserved, desired: Checkpoint, before: Iterable[Condition]) -> str:
    """Returns the remarks of all workers on the desired version, each once; may be empty.

    Workers may have different room in memory. While none has loaded the version, the remarks on the one
    before stay: the versions of a run have the same remarks, and each change is an event.
    """
    if not observed.workers.any(lambda f: f.has_loaded(desired)):
        said = condition_of(before, ConditionType.REMARKS)
        return said.message if said is not None else ""
    noted = observed.workers.where(lambda f: f.has_remarks and f.has_loaded(desired))
    states = (worker.state for worker in noted)
    texts = dict.fromkeys(r for state in states if state is not None for r in state.remarks)
    return ". ".join(islice(texts, _MOST))
