"""Publish weights to an inference fleet, and read which weights made a token.

    from rlfleet import Weights

    with Weights("policy", namespace="rl") as weights:
        weights.publish("43", path="/weights/run-7/step_43")

docs/how-to/publish-from-python.md has the rest.
"""

from rlfleet.async_weights import AsyncWeights
from rlfleet.callback import publish_every
from rlfleet.checkpoints import make_readable, run_of
from rlfleet.deltas.options import Deltas
from rlfleet.deltas.written import Written
from rlfleet.demands import AsyncDemandTransport, DemandTransport
from rlfleet.errors import (
    Forbidden,
    IncompleteReply,
    NotConfigured,
    NotFound,
    NotWritten,
    Refused,
    RlfleetError,
    Superseded,
    TimedOut,
    Unavailable,
    UnusableWeights,
)
from rlfleet.follow import Event
from rlfleet.release import release
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Rollout
from rlfleet.sampling import (
    Label,
    Sampling,
    WeightSpan,
    labels_of,
    record,
    weight_versions,
)
from rlfleet.weights import Weights
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import HistoryEntry, RolloutTimings

__version__ = release()

__all__ = [
    "AsyncDemandTransport",
    "AsyncWeights",
    "Deltas",
    "DemandTransport",
    "Event",
    "FleetStatus",
    "Forbidden",
    "HistoryEntry",
    "IncompleteReply",
    "Label",
    "NotConfigured",
    "NotFound",
    "NotWritten",
    "Refused",
    "RlfleetError",
    "Rollout",
    "RolloutTimings",
    "Sampling",
    "Superseded",
    "TimedOut",
    "Unavailable",
    "UnusableWeights",
    "WeightSpan",
    "WeightVersion",
    "Weights",
    "Written",
    "labels_of",
    "make_readable",
    "publish_every",
    "record",
    "run_of",
    "weight_versions",
]
