"""Promise 10 on a simulated fleet: the API server refuses writes, lists and watches, names are taken,
objects cannot be read, and the operator has defects.

10. The operator reports each of these faults. After `LOOKS` looks `Stalled` is True on the fleet or
    the WeightVersion, as stored, as long as one of the two can be written. Pauses are renewed
    meanwhile (promise 8 holds).

`decide`, `runtime.kube_pods`, `runtime.kube_children` and `runtime.problems` are real. The API server is
simulated here, without waiting.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn
from unittest import mock

from tests.model.desired import BASE_UID
from tests.model.fake_revisions import at_once
from tests.model.leader import Doing, Leader, WriteApplied, WriteFleet, WriteWeights
from tests.model.simulator import Simulation

from fleet_operator.core import decision as decisions
from fleet_operator.core.decision import Decision
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import CreatePod
from fleet_operator.errors import Conflict, NotFound, Terminal
from fleet_operator.ports import Json
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.kube_pods import KubePods
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.problems import PODS, FleetProblems, Problems, status_part
from fleet_operator.runtime.reads import Read
from fleet_operator.runtime.templates import TEMPLATE
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.weights_status import RolloutPhase

KEY = ("rl", "policy")
LOOKS = 4
"""Number of reconciles after the first refusal in which it must be reported."""
BOTH = 2
FOREIGN = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "other", "controller": True}
RAISING = ("plan_rollout", "plan_fleet", "fleet_status", "weights_status")
OVERLAYS: tuple[Any, ...] = ({"spec": None}, {"spec": {"tolerations": None}}, {"metadata": 3})
READS = (
    Read("list", "pods", "rl"),
    Read("watch", "pods", None),
    Read("watch", "inferencefleets", "rl"),
    Read("list", "services", None),
)
"""How old what was read before may be is played by the other histories."""
CHILDREN = ("services/policy", "services/policy-workers", "poddisruptionbudgets/policy")


@dataclass
class FakeApi:
    """An API server that answers at once. Implements the part of `ports.Kube` that `Objects` uses.

    Fields:
        refused: kinds of writes that are refused: `pods`, `children`.
        taken: paths of objects that belong to something else.
    """

    refused: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    objects: dict[str, Json] = field(default_factory=dict)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        if path.endswith("/inferencefleets/policy"):
            return {"metadata": {"uid": "fleet"}}
        foreign = {"metadata": {"uid": "foreign", "ownerReferences": [FOREIGN]}}
        if params is not None:
            name = params["fieldSelector"].removeprefix("metadata.name=")
            return {"items": [foreign] if self._is_taken(f"{path}/{name}") else []}
        if self._is_taken(path):
            return foreign
        if path not in self.objects:
            raise NotFound(path)
        return self.objects[path]

    async def create(self, path: str, body: Json) -> Json:
        if "pods" in self.refused:
            raise Terminal("403 exceeded quota")
        if self._is_taken(f"{path}/{body['metadata']['name']}"):
            raise Conflict(path)
        return body

    async def apply(self, path: str, body: Json) -> Json:
        if "children" in self.refused:
            raise Terminal("403 forbidden")
        if self._is_taken(path):
            raise Conflict(path)
        stored = body | {"metadata": body["metadata"] | {"uid": f"uid-{path}"}}
        self.objects[path] = stored
        return stored

    def _is_taken(self, path: str) -> bool:
        return any(path.endswith(f"/{t}") for t in self.taken)


@dataclass
class RefusedLeader(Leader):
    """A leader that knows its problems, and which objects cannot be read."""

    problems: FleetProblems = field(default_factory=lambda: FleetProblems(KEY, Problems()))
    shared: Problems = field(default_factory=Problems)
    odd: set[str] = field(default_factory=set)

    def _observe(self, now: float) -> FleetObserved:
        observed = super()._observe(now)
        unreadable = "spec.replicas: too many" if "fleet" in self.odd else ""
        why = "spec.source: too long" if "weights" in self.odd else ""
        weights = tuple(replace(w, unreadable=why) for w in observed.weights)
        return replace(
            observed, problems=self.problems.all(), unreadable=unreadable, weights=weights
        )

    def note_template(self, error: Exception | None) -> None:
        """The reason why the template is not recorded; None if it is."""
        self.problems.note(TEMPLATE, error)


class RefusingSimulation(Simulation):
    """Fields:

    api: what it refuses.
    refused_reads: lists and watches that are refused.
    refused_statuses: `fleet`, `weights`.
    odd: objects that cannot be read: `fleet`, `weights`.
    raising: parts of `decide` that raise.
    looks: causes that have been met, and how often the leader has looked since.
    """

    def __init__(self, **given: Any) -> None:
        self.api = FakeApi()
        self.refused_reads: set[Read] = set()
        self.refused_statuses: set[str] = set()
        self.odd: set[str] = set()
        self.raising: set[str] = set()
        self.looks: dict[str, int] = {}
        self.met: set[str] = set()
        super().__init__(**given)

    def start_operator(self) -> None:
        """A new leader, which knows of no problem."""
        super().start_operator()
        self.looks.clear()
        self.child_objects = KubeChildren(
            self.api, Metrics(), clock=lambda: self.now
        )  # what it uses
        self.pod_objects = KubePods(self.api, Metrics())  # what it uses
        shared = Problems(lambda: self.now)
        problems = FleetProblems(KEY, shared)
        given = {f.name: getattr(self.leader, f.name) for f in fields(self.leader) if f.init}
        self.leader = RefusedLeader(**given, problems=problems, shared=shared, odd=self.odd)

    def decide(self) -> Decision:
        """Decide with the parts that raise, write the children, and check that all is reported."""
        self._check_said()
        self.met = {f"{each} cannot be read" for each in self.odd}
        self.met |= {f"{each} is refused" for each in self.refused_reads}
        assert isinstance(self.leader, RefusedLeader)
        for read in READS:
            error = Terminal("403 forbidden") if read in self.refused_reads else None
            self.leader.shared.note_read(read, error)
        with ExitStack() as stack:
            for part in self.raising:
                stack.enter_context(mock.patch.object(decisions, part, _raise))
            decision = super().decide()
        self.met |= {f"{d.part} raised" for d in decision.defects}
        if self.leader.problems.has(TEMPLATE):
            self.met.add(f"{TEMPLATE} cannot be recorded")
        assert self.leader.observed is not None
        for part, write in self.child_objects.due(self.leader.observed, None).items():
            self._attempt(part, write())
        if not any(isinstance(a, CreatePod) for a in decision.pod_actions):
            self._note(PODS, None)
        return decision

    def do(self, action: Doing, leader: Leader) -> None:
        """Carry an action out, if the API server lets it."""
        match action:
            case CreatePod():
                made = self._attempt(PODS, self.pod_objects.change("rl", action))
                if f"pods/{action.pod_name}" in self.api.taken:
                    self.met.add(f"{action.pod_name} is taken")
                elif made:
                    super().do(action, leader)
            case WriteFleet():
                self._write_status("fleet", "InferenceFleet", action, leader)
            case WriteWeights():
                self._write_status("weights", "WeightVersion", action, leader)
            case WriteApplied():
                if leader.decision is None or leader.decision.is_planned:
                    super().do(action, leader)
            case _:
                super().do(action, leader)

    def heal(self) -> None:
        """Everything is allowed, free, readable and sound again."""
        self.note("user", "heals everything")
        for causes in (self.api.refused, self.api.taken, self.refused_statuses, self.odd):
            causes.clear()
        self.refused_reads.clear()
        self.raising.clear()
        self.revisions.refused = False
        self.change_fleet("repairs the overlay", podOverlay={})
        self.looks.clear()

    def _write_status(self, whose: str, kind: str, action: Doing, leader: Leader) -> None:
        error = Terminal("403 status") if whose in self.refused_statuses else None
        self._note(status_part(kind, "policy"), error)
        if error is None:
            super().do(action, leader)
        else:
            self.met.add(f"the status of the {whose} is refused")

    def _attempt(self, part: str, work: Coroutine[Any, Any, None]) -> bool:
        try:
            at_once(work)
        except (Terminal, Conflict) as error:
            self._note(part, error)
            if isinstance(error, Terminal):
                self.met.add(f"{part} is refused")
            return False
        self._note(part, None)
        return True

    def _note(self, part: str, error: Exception | None) -> None:
        assert isinstance(self.leader, RefusedLeader)
        self.leader.problems.note(part, error)

    def _check_said(self) -> None:
        """Promise 10."""
        self.looks = {cause: self.looks.get(cause, 0) + 1 for cause in self.met}
        stored = (self.fleet_stored, self.weights_stored.get(BASE_UID))
        said = any(condition_of(s.conditions, ConditionType.STALLED) for s in stored if s)
        late = sorted(cause for cause, looks in self.looks.items() if looks > LOOKS)
        if late and not said and len(self.refused_statuses) < BOTH:
            self.fail(10, f"{late[0]}, and nothing says so")


def _raise(*_: Any, **__: Any) -> NoReturn:
    raise KeyError


def refused_history(seed: int) -> RefusingSimulation:
    """One history of refusals in the middle of rollouts, which heals in the end."""
    fleet = RefusingSimulation(seed=seed, replicas=1 + seed % 3, slow_seconds=[0.0, 35.0][seed % 2])
    chance = fleet.random
    fleet.settle()
    for version in range(2, 6):
        fleet.publish(str(version))
        for _ in range(chance.randint(0, 6)):
            fleet.reconcile()
            fleet.tick(chance.choice([0.1, 1.0]))
        _break_something(fleet)
        for _ in range(25):
            fleet.reconcile()
            fleet.tick(chance.choice([0.1, 1.0, 5.0]))
        if chance.random() < 0.3:
            fleet.start_operator()
        if chance.random() < 0.7:
            fleet.heal()
    fleet.heal()
    fleet.scale(max(1, fleet.replicas))
    fleet.settle()
    if fleet.stalled:
        fleet.fail(10, f"it is well again, and still says {fleet.stalled.reason}")
    a_problem_after_a_halt(seed)
    return fleet


def a_problem_after_a_halt(seed: int) -> RefusingSimulation:
    """Something is refused while a version is abandoned, and the reason of the halt outlives it."""
    fleet = RefusingSimulation(seed=seed, replicas=2)
    fleet.settle()
    fleet.will_break("2", fleet.pod(0))
    fleet.publish("2")
    fleet.look(60)
    reason = _why_halted(fleet)
    what = fleet.random.choice(["read", "odd", "raise", "status"])
    _break_something(fleet, what)
    fleet.look(5)
    if fleet.random.random() < 0.5:
        fleet.start_operator()
        fleet.look(5)
    fleet.heal()
    fleet.look(10)
    if _why_halted(fleet) != reason:
        fleet.fail(10, f"{what} is well again, and the reason of the halt was {reason}")
    return fleet


def _why_halted(fleet: RefusingSimulation) -> tuple[str, str]:
    status = fleet.weights_stored[BASE_UID]
    stalled = condition_of(status.conditions, ConditionType.STALLED)
    if status.phase is not RolloutPhase.HALTED or stalled is None:
        fleet.fail(10, "an engine breaks on a version, and it is not abandoned")
    return stalled.reason, stalled.message


BREAKS = (
    *("pods", "children", "child", "pod", "read", "status", "odd", "raise", "overlay"),
    "template",
)


def _break_something(fleet: RefusingSimulation, what: str = "") -> None:
    chance = fleet.random
    what = what or chance.choice(BREAKS)
    fleet.note("fault", f"breaks: {what}")
    ordinal = chance.randrange(max(1, fleet.replicas))
    match what:
        case "pods" | "children":
            fleet.api.refused.add(what)
            fleet.start_operator()
            fleet.scale(fleet.replicas + 1)
            if what == "children":
                fleet.api.objects.clear()
        case "child":
            fleet.api.objects.clear()
            fleet.api.taken.add(chance.choice(CHILDREN))
            fleet.start_operator()
        case "pod":
            fleet.api.taken.add(f"pods/policy-{ordinal}")
            for pod in [p for p in fleet.pods.values() if p.ordinal == ordinal]:
                fleet.delete(pod)
        case "read":
            fleet.refused_reads.add(chance.choice(READS))
        case "status":
            fleet.refused_statuses.add(chance.choice(["fleet", "weights"]))
        case "odd":
            fleet.odd.add(chance.choice(["fleet", "weights"]))
        case "raise":
            fleet.raising.add(chance.choice(RAISING))
        case _:
            _change_template(fleet, odd=what == "overlay")


def _change_template(fleet: RefusingSimulation, *, odd: bool) -> None:
    if odd:
        fleet.change_fleet("breaks the overlay", podOverlay=fleet.random.choice(OVERLAYS))
        fleet.met.add("the overlay is odd")
    else:
        fleet.refuse_templates()
        fleet.change_fleet("changes the template", engine={"args": [f"--seed={fleet.now}"]})
