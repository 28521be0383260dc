"""Actions of trainers and users, and faults, each at a random moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.model.fake_pods import STRANGER, FakePod
from tests.model.fake_state import MODEL_SOURCE, digest_of
from tests.model.fake_worker import ALL
from tests.model.random_adapters import RandomAdapters
from tests.model.simulator import Simulation

Settings = dict[str, Any]

CLOCKS = (0.0, 0.0, -90.0, 90.0)
"""Seconds by which the wall clock of an operator's host is ahead."""
KINDS = (
    *("stage", "pause", "load", "apply", "resume", "admit", "fence", "probe"),
    *("adapter", "stage-adapter", "remove-adapter"),
)
"""The kinds of calls, as workers name them."""
FOLDERS = ["/weights/step_{version}", "/weights/other/step_{version}"]


@dataclass
class RandomActions:
    """Everything that may happen to one simulation.

    Fields:
        newest: the number of the newest version of the run that publishes now.
        highest: the highest number of any run; an odd version is odd from its first publication on.
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
        self.actions: list[tuple[float, Callable[[], None]]] = [
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
            (0.20, self.wake_former),
            (0.03, self.publish_adapter),
            (0.02, self.rewrite_adapter),
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
            (0.02, self.gate),
            (0.02, self.refuse_templates),
        ]
        self.adapters = RandomAdapters(self.fleet)
        # Random generators of their own, so that these choices change no other part of a history.
        self.clients = Random(self.fleet.seed)  # noqa: S311 - repeatable on purpose
        self.releases = Random(f"releases of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.canaries = Random(f"canaries of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.returns = Random(f"returns of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.copies = Random(f"copies of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        if self.fleet.desired.fleet_spec.update.is_held:
            self.actions += [(0.03, self.gate), (0.03, self.change_template)]

    def act_at_random(self, scale: float = 1.0) -> None:
        """Let happen what may."""
        for worker in self.fleet.workers.values():
            if self.clients.random() < 0.1 * scale:
                worker.sessions = self.clients.choice([None, 0, 1, 2, 5])
        if self.releases.random() < 0.01 * scale * self.trouble:
            self.roll_back_operator()
        if self.returns.random() < 0.02 * scale * self.trouble:
            self.return_to_other_files()
        self.adapters.act_at_random(scale * self.trouble)
        for chance, action in self.actions:
            if self.chance.random() < chance * scale * self.trouble:
                action()

    # --- trainers and users -----------------------------------------------------------------------

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
        if first and self.copies.random() < 0.15:
            self._copy()
        self._ask_for(str(self.newest))

    def _copy(self) -> None:
        """The new version gets the files of an earlier one, since its path is a fixed one, say, or those of
        the model.
        """
        spec = self.fleet.desired.base_spec
        earlier = self.copies.randint(0, self.newest - 1)
        if spec is None or not {str(earlier), str(self.newest)}.isdisjoint(self.fleet.odd_versions):
            return
        source, path = (str(spec.source.resolve(str(n))) for n in (earlier, self.newest))
        source = source if earlier else MODEL_SOURCE
        if path not in self.fleet.files.copied and source != path:
            self.fleet.note("trainer", f"writes the files of version {earlier} to {path}")
            self.fleet.files.copy(source, path)

    def _ask_for(self, version: str, **fields: Any) -> None:
        spec = self.fleet.desired.base_spec
        if spec is not None and spec.digest is not None:
            fields = {"digest": None} | fields  # that was of the version before
        named = "".join(f", {k}: {v}" for k, v in fields.items())
        what = f"asks for version {version}{named}"
        self.fleet.ask("trainer", what, {"version": version, **fields})

    def go_back(self) -> None:
        """To an earlier version: within a run only if the trainer allows it."""
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

    def roll_back_operator(self) -> None:
        """To the release before, which cannot read all pins. Some trainers start over at that time, and write
        other files under an earlier version.
        """
        chance = self.releases
        self.fleet.roll_back_operator(chance)
        if self.is_deleted or self.newest < 2 or chance.random() < 0.5:
            return
        older = str(chance.randint(1, self.newest - 1))
        if older in self.fleet.odd_versions:
            return
        path = f"/weights/step_{older}"
        if not self.fleet.is_rewritten(path):
            self.fleet.rewrite(path)
        fields = {"rollbackTo": older, "version": older}
        self.fleet.ask("trainer", f"starts over at {older}", fields)

    def return_to_other_files(self) -> None:
        """The trainer wants an earlier version again, after its files were written over. Most processes have
        restarted, so only the status knows which files it named.
        """
        if self.is_deleted or self.newest < 2:
            return
        older = str(self.returns.randint(1, self.newest - 1))
        spec = self.fleet.desired.base_spec
        if spec is None or older in self.fleet.odd_versions:
            return
        path = str(spec.source.resolve(older))
        if not self.fleet.is_rewritten(path):
            self.fleet.rewrite(path)
        for pod in list(self.fleet.pods.values()):
            if pod.deleted_at is None and self.returns.random() < 0.8:
                self.fleet.kill(pod)
        self._ask_for(older, rollbackTo=older)

    # --- digests of versions ------------------------------------------------------------------------

    @property
    def is_deleted(self) -> bool:
        """Whether there is no WeightVersion now."""
        return self.fleet.desired.base is None

    def _path(self) -> str:
        """Where the desired weights lie."""
        spec = self.fleet.desired.base_spec
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
        """Some workers hold the desired weights already, and others will find other files."""
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
            self.newest = self.highest = self.highest + 1
            fields["version"] = str(self.newest)
        self.fleet.create_weights(fields)
        if self.fleet.promises.rollout.strategy != "Canary":
            self.fleet.odd_versions.clear()  # the new object may have lost the strategy
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
        self.highest = max(self.highest, self.newest)
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
        spec = self.fleet.desired.base_spec
        if spec is not None:
            self.fleet.control(suspend=not spec.suspend)

    def change_strategy(self) -> None:
        rollout: Settings = {
            "strategy": self.chance.choice(["Synchronized", "InFlight", "Rolling"])
        }
        if self.is_deleted:
            return
        if self.canaries.random() < 0.25:
            rollout = {"strategy": "Canary"}
        self.fleet.odd_versions.clear()  # no canary judged all of them
        self.fleet.control(rollout=rollout)

    def retry(self) -> None:
        if self.is_deleted:
            return
        self.fleet.retry(f"at {self.fleet.now:.0f}")

    def publish_adapter(self) -> None:
        fields: Settings = {}
        if self.chance.random() < 0.2:
            fields["runID"] = self.chance.choice([None, "run", "another-run"])
        self.fleet.publish_adapter("lora", str(self.chance.randint(1, 9)), **fields)
        if self.chance.random() < 0.1:
            self.rewrite_adapter()

    def rewrite_adapter(self) -> None:
        """Other files take the place of some version's of the adapter, and workers may restart."""
        path = f"/weights/lora/step_{self.chance.randint(1, 9)}"
        for worker in self.fleet.workers.values():
            for held in (*worker.adapters.values(), *worker.staged_adapters.values()):
                path = held.source
        if self.fleet.is_rewritten(path):
            self.fleet.restore(path)
        else:
            self.fleet.rewrite(path)
        if self.chance.random() < 0.5:
            self.kill()

    def delete_pod(self) -> None:
        if pod := self._some_pod():
            self.fleet.delete(pod)

    def orphan(self) -> None:
        if pod := self._some_pod():
            self.fleet.note("user", f"takes {pod.name} from its owner")
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
        if (pod := self._some_pod()) is None:
            return
        lie = self.chance.choice(["obey", "ignore", "ignore", "claim", "reject", "reset"])
        chosen = self.chance.choice([[ALL], ["load", "apply"], [self.chance.choice(KINDS)]])
        match lie:
            case "obey":
                self.fleet.obey(pod)
            case "claim":
                self.fleet.ignore(pod, "load", "apply", claims=True)
            case "ignore":
                self.fleet.ignore(pod, *chosen)
            case "reject":
                self.fleet.reject(pod, *chosen)
            case _:
                self.fleet.reset(pod, *chosen)

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
            self.fleet.crash_loop(pod, over=bool(pod.problem))

    def gate(self) -> None:
        if self.fleet.room is not None:
            self.fleet.hold_new_pods(hold=False)
        elif self.chance.random() < 0.5:
            self.fleet.hold_new_pods()
        else:
            self.fleet.leave_room_for(self.chance.randint(1, 4))

    def refuse_templates(self) -> None:
        self.fleet.refuse_templates(refuse=not self.fleet.revisions.refused)

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

    def wake_former(self) -> None:
        if self.fleet.former_leaders:
            self.fleet.wake_former(self.chance.choice(self.fleet.former_leaders))

    def _some_pod(self, *, suspect: bool = False) -> FakePod | None:
        pods = [p for p in self.fleet.pods.values() if p.deleted_at is None]
        if not pods:
            return None
        pod = self.chance.choice(pods)
        pod.suspect |= suspect
        return pod
