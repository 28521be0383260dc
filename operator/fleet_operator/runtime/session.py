"""All that this process remembers about a fleet, and the one map that holds it.

Memory only: a new leader begins with nothing, and finds what it needs in the cluster and in the workers. A session
belongs to one InferenceFleet. Another one of the same name begins a new session, and to forget a fleet is to remove
its session from the map. A request in flight then keeps its own session, and so changes nothing of a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fleet_operator.ports import Kube
from fleet_operator.runtime.admin_token import AdminToken
from fleet_operator.runtime.background_writes import BackgroundWrites, WritesInFlight
from fleet_operator.runtime.defects import CallDefects, DefectLog
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.event_recorder import EventPoster, EventRecorder
from fleet_operator.runtime.in_flight import InBackground
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.kube_pods import KubePods
from fleet_operator.runtime.late_calls import LateCalls
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pauses import Pauses
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.pod_timers import PodTimers
from fleet_operator.runtime.pod_writer import PodWriter
from fleet_operator.runtime.problems import FleetProblems, Problems
from fleet_operator.runtime.rollout_timers import RolloutTimers
from fleet_operator.runtime.served_schemas import ServedSchemas
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.templates import Templates
from fleet_operator.runtime.traces import CallTrace
from fleet_operator.runtime.unowned_weights import UnownedWeights


@dataclass(frozen=True, slots=True)
class Driver:
    """The other operator that drives a fleet. `unknown`: why it has not been known for minutes whether this
    operator lives; empty if it does.
    """

    operator: str
    unknown: str = ""


@dataclass(slots=True, kw_only=True)
class FleetSession:
    """The memory that this process has of one fleet.

    Fields:
        key: its namespace and name.
        uid: of the InferenceFleet; empty while only WeightVersions name it.
        problems: parts of its work that fail.
        defects, call_defects: defects of the operator that are logged or noted already.
        epochs: of its calls.
        token: the admin token.
        template: of its pods.
        pods, children, statuses: its objects as this process writes them.
        writes: those to the API server.
        events: Events that are posted or wait.
        pauses: when its workers' pauses end.
        pod_waits, rollouts: for how long this process has watched its pods wait, and its rollouts.
        reads, calls: requests to workers in the background.
        late_calls: calls that workers have refused since they have other weights by now.
        unwritten_since: since when the next reconcile is to write the statuses; None if each writes its own.
        trace: of the last reconcile's calls; None without tracing.
        driver: the other operator that drives it; None if this one does.
        reported: generations that a status reports about while it is unknown whether the driver lives, by uid.
        unowned: WeightVersions that name it while it does not exist.
    """

    key: FleetKey
    uid: str = ""
    problems: FleetProblems
    defects: DefectLog
    call_defects: CallDefects
    epochs: Epochs
    token: AdminToken
    template: Templates
    pods: PodWriter
    children: KubeChildren
    statuses: StatusWriter
    writes: BackgroundWrites
    events: EventRecorder
    pauses: Pauses = field(default_factory=Pauses)
    pod_waits: PodTimers = field(default_factory=PodTimers)
    rollouts: RolloutTimers = field(default_factory=RolloutTimers)
    reads: InBackground = field(default_factory=InBackground)
    calls: InBackground = field(default_factory=InBackground)
    late_calls: LateCalls = field(default_factory=LateCalls)
    unwritten_since: float | None = None
    trace: CallTrace | None = None
    driver: Driver | None = None
    reported: dict[str, int] = field(default_factory=dict)
    unowned: UnownedWeights = field(default_factory=UnownedWeights)


class Sessions:
    """The sessions of all fleets.

    `problems`: what fails for more than one fleet. `schemas`: what the API server permits in statuses; None without checks.

    Fields:
        events: posts the Events of all fleets.
        writing: the writes of all fleets in flight, also of fleets that are gone.
        refused: set when a worker has refused a call, so that the Lease is read.
    """

    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        problems: Problems,
        *,
        instance: str,
        term: Callable[[], int],
        requeue: Callable[[FleetKey, float], None],
        default_image: str = "",
        schemas: ServedSchemas | None = None,
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._problems = problems
        self._term = term
        self._requeue = requeue
        self._default_image = default_image
        self._schemas = schemas
        self._pods = KubePods(kube, metrics)
        self.writing = WritesInFlight()
        self.events = EventPoster(kube, metrics, instance=instance)
        self.refused = asyncio.Event()
        self._known: dict[FleetKey, FleetSession] = {}

    def __iter__(self) -> Iterator[FleetSession]:
        """All sessions."""
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: FleetKey) -> FleetSession | None:
        """The session of a fleet; None without one."""
        return self._known.get(key)

    def of(self, key: FleetKey, uid: str = "") -> FleetSession:
        """The session of a fleet. It begins a missing one.

        `uid`: of the InferenceFleet; empty if it does not exist. Another one of this name has had another session. Of
        that one the statuses of the WeightVersions stay, since these objects do not go with their fleet. The epochs go
        on, since pods need not go with it either.
        """
        known = self._known.get(key)
        if known is None or known.uid not in {"", uid}:
            made = self._begin(key)
            if known is not None:
                made.statuses.take_over(known.statuses)
                made.epochs.follow(known.epochs)
            known = made
        known.uid = uid
        return known

    def _begin(self, key: FleetKey) -> FleetSession:
        metrics = self._metrics
        problems = FleetProblems(key, self._problems)
        events = EventRecorder(key, self.events, problems)
        writes = BackgroundWrites(key, problems, metrics, self._requeue, self.writing)
        made = self._known[key] = FleetSession(
            key=key,
            problems=problems,
            defects=DefectLog(key, metrics),
            call_defects=CallDefects(problems),
            epochs=Epochs(key, self._term, self.refused),
            token=AdminToken(self._kube, metrics.writes.labels("secret").inc),
            template=Templates(self._kube, self._default_image, metrics.writes.labels("child").inc),
            pods=PodWriter(self._pods, key[0]),
            children=KubeChildren(self._kube, metrics),
            statuses=StatusWriter(
                key, self._kube, metrics, events, writes, problems, self._schemas
            ),
            writes=writes,
            events=events,
        )
        return made

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._known.pop(key, None)
