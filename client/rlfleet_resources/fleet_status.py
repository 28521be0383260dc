"""The status of an InferenceFleet: what the operator observes, and what it must remember."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from rlfleet_resources.base import Message, Resource, Timestamp, at_most
from rlfleet_resources.conditions import MAX_CONDITIONS, Condition
from rlfleet_resources.source import ManifestDigest, WeightSource
from rlfleet_resources.status import Status

MAX_LAGGARDS = 20
MAX_RECYCLED = 20
MAX_PINNED = 100
MAX_PINNED_ADAPTERS = 200
"""More than three versions of each of 64 adapters: those in use stay."""
MAX_DROPPED_RUNS = 100
NAMES_BITS = 32_768
MAX_VERSIONS = 20
MAX_SOURCES_IN_USE = 100
TransitionStrategy = Literal["Synchronized", "InFlight", "Rolling"]


class RouterStatus(Resource):
    """The observed state of the router."""

    replicas: int = 0
    ready_replicas: int = 0
    endpoint: str = ""


class WorkerCounts(Resource):
    """Number of workers in each state; `total` counts pods that exist and are not being deleted."""

    total: int = 0
    serving: int = 0
    joining: int = 0
    staging: int = 0
    paused: int = 0
    loading: int = 0
    broken: int = 0
    quarantined: int = 0


class Laggard(Resource):
    """A worker that does not serve the desired version."""

    pod: str
    version: str | None = None
    state: str
    reason: str
    message: Message = ""


class RecycledWorker(Resource):
    """A worker whose pod was recreated because it failed.

    Fields:
        uid: of the last pod that was deleted for it.
        count: times within the window.
    """

    pod: str
    uid: str
    count: int
    last_at: Timestamp


class RecordedWeights(Resource):
    """Weights that the operator must find again.

    Fields:
        source: absent if they came over a collective: such weights cannot be loaded again.
        unreadable: another release has written a source or a digest that this one cannot read.
    """

    READABLE_WITHOUT: ClassVar[frozenset[str]] = frozenset({"source", "digest"})
    """Weights from a kind of source that this release does not know cannot be loaded by it."""

    version: str
    source: WeightSource | None = None
    digest: ManifestDigest | None = None
    run_id: str | None = None
    unreadable: SkipJsonSchema[bool] = Field(default=False, exclude=True)


class AppliedWeights(RecordedWeights):
    """The weights that all admitted workers held last; workers that join load these.

    Fields:
        applied_at: when the operator first saw all of them hold the weights; absent before that.
    """

    applied_at: Timestamp | None = None


class Transition(RecordedWeights):
    """The operation in progress, recorded before its first call: workers go from their weights to these.

    Fields:
        strategy: the one that ends it, whatever the spec names meanwhile. Canaries are not part of it.
        base: the weights that the fleet serves until a worker opens at the new ones.
        back: workers go back to `base`.
    """

    strategy: TransitionStrategy
    base: RecordedWeights
    back: bool = False
    started_at: Timestamp


class ServedVersion(Resource):
    """Weights that admitted workers hold, and the number of these workers."""

    version: str
    run_id: str | None = None
    digest: ManifestDigest | None = None
    workers: int


class SourceInUse(Resource):
    """Files that workers read or may read again, and their version."""

    version: str
    run_id: str | None = None
    source: WeightSource


class PinnedWeights(Resource):
    """The files that a version of a run names, from when the fleet first saw it.

    Fields:
        source: as the spec named it.
        commit: the commit of a revision that can move, at that time; empty if it cannot move.
        same_as: the version of the run that named these files already; absent if none did.
    """

    version: str
    run_id: str | None = None
    digest: ManifestDigest
    source: WeightSource
    commit: str = ""
    same_as: str | None = None


class PinnedAdapter(PinnedWeights):
    """The files that a version of an adapter names, from when the fleet first saw it."""

    adapter: str


class DroppedRun(Resource):
    """A run with dropped pins. `up_to`: the highest number among their versions."""

    adapter: str = ""
    run_id: str | None = None
    up_to: Annotated[int, Field(ge=0, lt=10**18)]


class DroppedPins(Resource):
    """The marks of pins that were dropped, since the status has room for the newest ones only.

    Fields:
        runs: those whose pins were dropped last come last.
        names: hexadecimal; bits of versions without a number, and of runs that have no place in `runs`.
    """

    runs: tuple[DroppedRun, ...] = at_most(MAX_DROPPED_RUNS)
    names: Annotated[str, Field(max_length=NAMES_BITS // 4, pattern="^[0-9a-f]*$")] = ""


class FleetStatus(Status):
    """The observed state of a fleet.

    Fields:
        operator: namespace and name of the Lease whose holder drives the fleet, as `ns/name`.
        waiting_for: the reason of `Ready` that named a wait of pods for the cluster, until no pod waits any more,
            also while `Ready` has another reason; empty without a wait.
    """

    LABEL_RECORDS: ClassVar[frozenset[str]] = frozenset({"pinned", "pinnedAdapters", "droppedPins"})

    observed_generation: int = 0
    operator: str = ""
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    selector: str = ""
    desired_version: str | None = None
    desired_run_id: str | None = None
    applied_version: str | None = None
    applied: AppliedWeights | None = None
    transition: Transition | None = None
    versions: tuple[ServedVersion, ...] = at_most(MAX_VERSIONS)
    sources_in_use: tuple[SourceInUse, ...] = at_most(MAX_SOURCES_IN_USE)
    pinned: tuple[PinnedWeights, ...] = at_most(MAX_PINNED)
    pinned_adapters: tuple[PinnedAdapter, ...] = at_most(MAX_PINNED_ADAPTERS)
    dropped_pins: DroppedPins | None = None
    workers: WorkerCounts = WorkerCounts()
    laggards: tuple[Laggard, ...] = at_most(MAX_LAGGARDS)
    recycled: tuple[RecycledWorker, ...] = at_most(MAX_RECYCLED)
    endpoint: str = ""
    router: RouterStatus | None = None
    waiting_for: str = ""
    conditions: tuple[Condition, ...] = at_most(MAX_CONDITIONS)

    def __repr__(self) -> str:
        served = ", ".join(f"{one.version} by {one.workers}" for one in self.versions)
        return f"<FleetStatus: {self.ready_replicas} of {self.replicas} workers ready, serve {served or None}>"


def pins_of(status: FleetStatus, adapter: str) -> tuple[PinnedWeights, ...]:
    """The pins of an adapter; with an empty name, those of the base weights."""
    if not adapter:
        return status.pinned
    return tuple(pin for pin in status.pinned_adapters if pin.adapter == adapter)
