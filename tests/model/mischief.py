"""Random histories: what trainers, people and bad luck do to a fleet, at any moment.

history(7)              one history; every failure prints its seed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model.fake_pods import STRANGER, FakePod
from tests.model.fake_state import MODEL_SOURCE, digest_of
from tests.model.faults import Faults
from tests.model.simulator import Simulation

Settings = dict[str, Any]

SHORT = {"timeouts": {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}}
STRATEGIES: list[Settings] = [
    {},
    SHORT | {"maxFailures": 1},
    {"pause": {"mode": "Wait", "drainTimeoutSeconds": 2}},
    SHORT | {"pause": {"mode": "Abort"}},
    {"strategy": "InFlight"},
    SHORT | {"strategy": "InFlight", "maxFailures": 1, "pause": {"mode": "Wait"}},
    {"strategy": "Rolling", "maxUnavailable": 1},
    SHORT | {"strategy": "Rolling", "onFailure": "Rollback"},
    {"strategy": "Canary"},
    SHORT | {"strategy": "Canary", "maxFailures": 1},
    {"strategy": "Canary", "canary": {"workers": 2, "then": "Rolling"}},
]
UPDATES: list[Settings] = [
    {},
    {"maxUnavailable": 0, "maxSurge": 1, "drainTimeoutSeconds": 2},
    {"maxUnavailable": "50%", "maxSurge": "50%"},
    {},
    {"type": "OnDelete", "maxSurge": 1, "drainTimeoutSeconds": 2},
    {"paused": True, "maxUnavailable": 0, "maxSurge": "50%"},
]
ROUGH = Faults(
    answer_lost=0.1,
    call_lost=0.08,
    answer_late=0.1,
    operator_dies=0.03,
    operator_freezes=0.02,
    stale_view=0.2,
    status_unwritten=0.2,
    api_refuses=0.1,
)
LONGER_THAN_A_LEASE = 35.0
"""Seconds that loads take in some fleets."""
CLOCKS = (0.0, 0.0, -90.0, 90.0)
"""Seconds by which the wall clock of an operator's host is ahead."""
FOLDERS = ["/weights/step_{version}", "/weights/other/step_{version}"]
ENDURES = 0.25
"""So many histories must come to a word while what is broken stays broken."""


@dataclass
class Mischief:
    """What may happen to one simulation.

    Fields:
        newest: the number of the newest version of the run that publishes now.
        highest: the highest number of any run.
        began: how many runs have begun.
        waits_until: the trainer asks for nothing new before.
    """

    fleet: Simulation
    newest: int = 1
    highest: int = 1
    began: int = 0
    templates: int = 0
    waits_until: float = 0

    def __post_init__(self) -> None:
        self.chance = self.fleet.random
        # Some trainers are slow, and some fleets have little trouble.
        pace = self.chance.choice([0.03, 0.1, 0.2])
        self.trouble = self.chance.choice([0.2, 0.6, 1.0])
        if self.chance.random() < 0.5:
            self.fleet.control(runID="run")  # a trainer that says so from the start
        self.deeds: list[tuple[float, Callable[[], None]]] = [
            (pace / self.trouble, self.publish),
            (0.05, self.go_back),
            (0.03, self.break_version),
            (0.04, self.spoil_source),
            (0.05, self.kill),
            (0.05, self.hang),
            (0.04, self.cut_off),
            (0.03, self.cling),
            (0.02, self.slow_down),
            (0.03, self.lie),
            (0.03, self.scale),
            (0.02, self.change_template),
            (0.02, self.suspend),
            (0.02, self.change_strategy),
            (0.02, self.retry),
            (0.01, self.lose_node),
            (0.02, self.evict),
            (0.01, self.crash_loop),
            (0.01, self.delete_pod),
            (0.01, self.orphan),
            (0.03, self.lag),
            (0.02, self.be_away),
            (0.02, self.set_clock),
            (0.01, self.pause_machine),
            (0.005, self.delete_lease),
            (0.20, self.haunt),
            (0.03, self.publish_adapter),
            (0.03, self.move_address),
            (0.02, self.garble),
            (0.02, self.get_ahead),
            (0.02, self.rewrite),
            (0.1, self.rewrite_while_staging),
            (0.01, self.restart_on_rewritten),
            (0.01, self.delete_weights),
            (0.3, self.create_weights),
            (0.01, self.begin_run),
            (0.01, self.edit_source),
            (0.01, self.add_digest),
            (0.005, self.name_like_model),
        ]
        if self.fleet.wanted.fleet_spec.update.is_held:
            self.deeds += [(0.05, self.gate), (0.03, self.change_template)]

    def now_and_then(self, scale: float = 1.0) -> None:
        """Let happen what may."""
        for chance, deed in self.deeds:
            if self.chance.random() < chance * scale * self.trouble:
                deed()

    # --- trainers and people ----------------------------------------------------------------------

    def _waits(self) -> bool:
        """Some trainers let rollouts come to their end, for a while."""
        if self.fleet.now < self.waits_until:
            return True
        self.waits_until = self.fleet.now + self.chance.choice([0.0, 0.0, 15.0, 60.0])
        return False

    def publish(self) -> None:
        if self.is_deleted or self._waits():
            return
        self.newest += 1
        first = self.newest > self.highest
        self.highest = max(self.highest, self.newest)
        canary = self.fleet.promises.rollout.strategy == "Canary"
        if canary and first and self.chance.random() < 0.3:
            self.fleet.odd_versions.add(str(self.newest))
        self._ask_for(str(self.newest))

    def _ask_for(self, version: str, **fields: Any) -> None:
        spec = self.fleet.wanted.base_spec
        if spec is not None and spec.digest is not None:
            fields = {"digest": None} | fields  # that was of the version before
        named = "".join(f", {k}: {v}" for k, v in fields.items())
        told_as = f"asks for version {version}{named}"
        self.fleet.ask("trainer", told_as, {"version": version, **fields})

    def go_back(self) -> None:
        """To a version of before: within a run only if it is said."""
        if self.is_deleted or self.newest < 2 or self._waits():
            return
        older = str(self.chance.randint(1, self.newest - 1))
        if older in self.fleet.odd_versions:
            return
        permitted = older if self.chance.random() < 0.5 else None
        fields = {"rollbackTo": permitted, "version": older}
        if self.chance.random() < 0.2:
            fields["runID"] = self.chance.choice(["run", "another-run", None])
        self.fleet.ask("trainer", f"goes back to {older}, rollbackTo: {permitted}", fields)

    # --- what a version stands for ----------------------------------------------------------------

    @property
    def is_deleted(self) -> bool:
        """Whether there is no WeightVersion now."""
        return self.fleet.wanted.base is None

    def _path(self) -> str:
        """Where the wanted weights lie."""
        spec = self.fleet.wanted.base_spec
        return str(spec.source.resolve(spec.version)) if spec is not None else MODEL_SOURCE

    def rewrite(self) -> None:
        """Other files take the place of some version's, or the first ones come back."""
        older = f"/weights/step_{self.chance.randint(1, self.highest)}"
        path = self.chance.choice([self._path(), self._path(), older, MODEL_SOURCE])
        if self.fleet.is_rewritten(path):
            self.fleet.restore(path)
        else:
            self.fleet.rewrite(path)

    def rewrite_while_staging(self) -> None:
        """Some workers hold the wanted weights already, and others will find other files."""
        held = {w.staged == self.fleet.version for w in self.fleet.workers.values()}
        if len(held) == 2 and not self.fleet.is_rewritten(self._path()):
            self.fleet.rewrite(self._path())

    def restart_on_rewritten(self) -> None:
        """The files of what is served are rewritten, and workers restart on them."""
        applied = self.fleet.leader.fleet.applied
        path = str(applied.source) if applied is not None else MODEL_SOURCE
        if not self.fleet.is_rewritten(path):
            self.fleet.rewrite(path)
        for _ in range(self.chance.choice([1, 2, 5])):
            self.kill()

    def delete_weights(self) -> None:
        if self.is_deleted:
            return
        self.fleet.delete_weights()
        if self.chance.random() < 0.5:
            self.create_weights()

    def create_weights(self) -> None:
        """The WeightVersion is made again: the same, of another run, or with other files."""
        if not self.is_deleted:
            return
        fields: Settings = {"version": str(self.chance.randint(1, self.newest))}
        if self.chance.random() < 0.6:
            fields["version"] = str(self.newest)
        fields["runID"] = self.chance.choice([None, "run", "another-run", f"run-{self.began}"])
        if self.chance.random() < 0.3:
            fields["source"] = {"path": self.chance.choice(FOLDERS)}
        if fields["version"] in self.fleet.odd_versions:
            fields["version"] = str(self.highest + 1)
        self.fleet.create_weights(fields)
        if self.chance.random() < 0.3:
            self.rewrite()

    def begin_run(self) -> None:
        """Another run counts from a low number again: in a folder of its own, or over the files of
        the one before.
        """
        if self.is_deleted:
            return
        self.began += 1
        self.newest = self.chance.randint(1, 3)
        fields: Settings = {"runID": f"run-{self.began}"}
        if self.chance.random() < 0.6:
            fields["source"] = {"path": f"/weights/run-{self.began}/step_{{version}}"}
        elif str(self.newest) in self.fleet.odd_versions:
            return
        self._ask_for(str(self.newest), **fields)
        if self.chance.random() < 0.3:
            self.rewrite()

    def edit_source(self) -> None:
        """Another path is named for the same version."""
        if not self.is_deleted:
            self.fleet.control(source={"path": self.chance.choice(FOLDERS)})

    def add_digest(self) -> None:
        """A digest is named for a version later on: that of its files now, or of others."""
        if self.is_deleted:
            return
        there = self.fleet.files.at(self._path())
        weights = self.chance.choice([there, there, f"{there}~other", None])
        self.fleet.control(digest=weights and digest_of(weights))

    def name_like_model(self) -> None:
        """A version is named like the model's own weights."""
        if not self.is_deleted:
            self._ask_for("base", source={"path": FOLDERS[1]})

    def scale(self) -> None:
        self.fleet.scale(self.chance.choice([0, 1, 2, 3, 4, 5]))

    def change_template(self) -> None:
        self.templates += 1
        engine = {"args": [f"--seed={self.templates}"]}
        self.fleet.change_fleet(f"changes the template ({self.templates})", engine=engine)

    def suspend(self) -> None:
        spec = self.fleet.wanted.base_spec
        if spec is not None:
            self.fleet.control(suspend=not spec.suspend)

    def change_strategy(self) -> None:
        strategy = self.chance.choice(["Synchronized", "InFlight", "Rolling"])
        if self.is_deleted:
            return
        self.fleet.odd_versions.clear()  # nobody judges them any more
        self.fleet.control(rollout={"strategy": strategy})

    def retry(self) -> None:
        if self.is_deleted:
            return
        self.fleet.retry(f"at {self.fleet.now:.0f}")

    def publish_adapter(self) -> None:
        self.fleet.publish_adapter("lora", str(self.chance.randint(1, 9)))

    def delete_pod(self) -> None:
        if pod := self._some_pod():
            self.fleet.delete(pod)

    def orphan(self) -> None:
        if pod := self._some_pod():
            self.fleet.note("person", f"takes {pod.name} from its owner")
            pod.owner = ""

    # --- workers ----------------------------------------------------------------------------------

    def break_version(self) -> None:
        if pod := self._some_pod():
            self.fleet.will_break(self.fleet.version, pod)

    def spoil_source(self) -> None:
        if pod := self._some_pod():
            self.fleet.spoil(self.fleet.version, pod)

    def kill(self) -> None:
        if pod := self._some_pod():
            self.fleet.kill(pod)

    def hang(self) -> None:
        if pod := self._some_pod():
            self.fleet.hang(pod, hung=not pod.worker.hung)

    def cling(self) -> None:
        if pod := self._some_pod():
            self.fleet.cling(pod, self.chance.choice([2.0, 20.0, 100.0]))

    def cut_off(self) -> None:
        if pod := self._some_pod():
            self.fleet.cut_off(pod, cut=not pod.cut_off)

    def move_address(self) -> None:
        if pod := self._some_pod():
            others = [p.uid for p in self.fleet.pods.values() if p is not pod]
            self.fleet.move_address(pod, self.chance.choice(["", STRANGER, *others]))

    def garble(self) -> None:
        if pod := self._some_pod():
            self.fleet.garble(pod, garbled=not pod.garbled)

    def get_ahead(self) -> None:
        if pod := self._some_pod():
            self.fleet.get_ahead(pod, ahead=not pod.worker.ahead)

    def slow_down(self) -> None:
        if pod := self._some_pod(suspect=True):
            pod.worker.slow_seconds = self.chance.choice([0.0, 1.0, 10.0, 50.0])
            self.fleet.note("fault", f"{pod.name} takes {pod.worker.slow_seconds} s")

    def lie(self) -> None:
        if pod := self._some_pod(suspect=True):
            pod.worker.lie = self.chance.choice(["", "unmoved", "unmoved", "claims"])
            self.fleet.note("fault", f"{pod.name} lies: {pod.worker.lie or 'no more'}")

    # --- the cluster ------------------------------------------------------------------------------

    def lose_node(self) -> None:
        node = self.chance.choice(list(self.fleet.nodes))
        if self.fleet.nodes[node] is None:
            self.fleet.lose_node(node, power=self.chance.random() < 0.5)
        else:
            self.fleet.return_node(node)

    def evict(self) -> None:
        if pod := self._some_pod(suspect=True):
            self.fleet.evict(pod)

    def crash_loop(self) -> None:
        if pod := self._some_pod(suspect=True):
            self.fleet.crash_loop(pod, over=bool(pod.trouble))

    def gate(self) -> None:
        self.fleet.hold_new_pods(hold=not self.fleet.gating)

    def lag(self) -> None:
        self.fleet.lag_seconds = self.chance.choice([0.0, 0.5, 2.0, 10.0])
        self.fleet.note("fault", f"watches are {self.fleet.lag_seconds} s late")

    # --- operators --------------------------------------------------------------------------------

    def be_away(self) -> None:
        seconds = self.chance.choice([25.0, 35.0, 70.0, 130.0, 200.0])
        self.fleet.be_away(seconds, clock_ahead_seconds=self.chance.choice(CLOCKS))

    def set_clock(self) -> None:
        self.fleet.set_clock(self.chance.choice(CLOCKS))

    def pause_machine(self) -> None:
        self.fleet.suspend_operator(self.chance.choice([20.0, 60.0, 200.0]))

    def delete_lease(self) -> None:
        self.fleet.delete_lease()

    def haunt(self) -> None:
        if self.fleet.ghosts:
            self.fleet.haunt(self.chance.choice(self.fleet.ghosts))

    def _some_pod(self, *, suspect: bool = False) -> FakePod | None:
        pods = [p for p in self.fleet.pods.values() if p.deleted_at is None]
        if not pods:
            return None
        pod = self.chance.choice(pods)
        pod.suspect |= suspect
        return pod


def new_fleet(seed: int, *, rollout: Settings | None = None) -> Simulation:
    """A fleet whose settings hang on the seed, settled on version 1."""
    settings = STRATEGIES[seed % len(STRATEGIES)] if rollout is None else rollout
    rest = seed // len(STRATEGIES)
    fleet = Simulation(
        seed=seed,
        replicas=1 + rest % 4,
        rollout=settings,
        slow_seconds=[0.0, 0.0, 2.5, LONGER_THAN_A_LEASE][rest % 4],
        update=UPDATES[rest % len(UPDATES)],
    )
    fleet.settle()
    return fleet


def history(
    seed: int,
    *,
    rollout: Settings | None = None,
    reconciles: int = 120,
    watch: Callable[[Simulation], None] | None = None,
) -> Simulation:
    """One random history, to its end: repaired and converged, or stalled with a reason; quiet.

    `watch`: is given the simulation before anything happens to it.
    """
    fleet = new_fleet(seed, rollout=rollout)
    if watch is not None:
        watch(fleet)
    mischief, chance = Mischief(fleet), fleet.random
    # Some histories have but one kind of fault: what many hide from each other shows there.
    rough = chance.random() < 0.7
    fleet.faults = Faults(**vars(ROUGH)) if rough else Faults()
    fleet.between = lambda: mischief.now_and_then(0.05)
    for _ in range(reconciles):
        fleet.reconcile()
        fleet.tick(chance.choice([0.0, 0.1, 1.0, 5.0, 20.0]))
        mischief.now_and_then()
    mischief.create_weights()
    if chance.random() < ENDURES:
        fleet.endure()
    if fleet.wanted.fleet_spec.update.is_held:
        # No worker may stay for an update that is not going to come.
        mischief.change_template()
        fleet.scale(max(1, fleet.replicas - 1))
    ending = chance.random()
    if ending < 0.5:
        fleet.repair()
        fleet.scale(max(1, fleet.replicas))
        version = str(mischief.highest + 2)
        fleet.control(suspend=False, rollbackTo=version, version=version, digest=None)
        fleet.settle()
    elif ending < 0.7:
        fleet.scale(max(1, fleet.replicas))
        fleet.control(suspend=False)
        fleet.settle_or_say_reused()
    else:
        fleet.settle_or_say()
    at_rest = fleet.converged()
    writes = fleet.run_quietly()
    # What is stalled is tried again and again, and two statuses tell of it, once a second at most.
    if writes > (0 if at_rest else 20):
        fleet.fail(7, f"{writes} writes of a fleet at rest")
    return fleet
