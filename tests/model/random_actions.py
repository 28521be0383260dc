"""Actions of trainers and users, and faults, each at a random moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.model.brief_faults import BriefFaults
from tests.model.fake_pods import STRANGER, FakePod
from tests.model.fake_state import MODEL_SOURCE, digest_of
from tests.model.fake_worker import ALL
from tests.model.moments import Rule, draw_rules, moments_of
from tests.model.odd_one import OddOne
from tests.model.plays import Plays, Scene
from tests.model.random_adapters import RandomAdapters
from tests.model.simulator import Simulation
from tests.model.swarm import Swarm, random_rollout

Settings = dict[str, Any]

CLOCKS = (0.0, 0.0, -90.0, 90.0)
"""Seconds by which the wall clock of an operator's host is ahead."""
NO_END_SECONDS = 1000.0
KINDS = (
    *("stage", "pause", "load", "apply", "resume", "admit", "fence", "probe"),
    *("adapter", "stage-adapter", "remove-adapter"),
)
"""The kinds of calls, as workers name them."""
FOLDERS = ["/weights/step_{version}", "/weights/other/step_{version}"]

ABOUT_LATE_WORK, ABOUT_LEADERS, ABOUT_ADAPTERS = 0.2, 0.2, 0.2
"""The shares of histories in which things happen by rules only, and which are about one subject."""


@dataclass
class RandomActions:
    """Everything that may happen to one simulation.

    Fields:
        newest: the number of the newest version of the run that publishes now.
        highest: the highest number of any run; an odd version is odd from its first publication on.
        began: how many runs have begun.
        waits_until: the trainer asks for nothing new before.
        rules: what happens at which moments.
        following: rules that hold once, after another one.
        true_before: the moments that have come already.
    """

    fleet: Simulation
    swarm: Swarm
    newest: int = 1
    highest: int = 1
    began: int = 0
    templates: int = 0
    waits_until: float = 0
    rules: list[Rule] = field(default_factory=list)
    following: list[Rule] = field(default_factory=list)
    true_before: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.chance = self.fleet.random
        # Some trainers are slow, and some fleets have little trouble.
        pace = self.chance.choice([0.03, 0.1, 0.2])
        self.trouble = self.chance.choice([0.2, 0.6, 1.0])
        if self.chance.random() < 0.5:
            self.fleet.control(runID="run")  # a trainer that says so from the start
        self.usual: list[tuple[float, Callable[[], None]]] = [
            (0.05, self.go_back),
            (0.03, self.suspend),
            (0.02, self.refuse_statuses),
            (0.01, self.kill_all),
            (0.03, self.be_uneven),
            (0.03, self.break_version),
            (0.04, self.spoil_source),
            (0.05, self.kill),
            (0.05, self.hang),
            (0.04, self.cut_off),
            (0.03, self.cling),
            (0.02, self.slow_down),
            (0.01, self.load_without_end),
            (0.03, self.lie),
            (0.03, self.scale),
            (0.02, self.change_template),
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
            (0.01, self.begin_run),
            (0.01, self.edit_source),
            (0.01, self.add_digest),
            (0.005, self.name_like_model),
            (0.02, self.gate),
            (0.02, self.queue_up),
            (0.02, self.refuse_templates),
        ]
        pace = 0.15 if self.swarm.is_focused else pace
        self.always = [(pace / self.trouble, self.publish), (0.3, self.create_weights)]
        if self.swarm.early:
            self.always.append((0.1, self.write_checkpoints))
        if self.fleet.desired.fleet_spec.update.is_held:
            self.always += [(0.03, self.gate), (0.03, self.change_template)]
        self.rollbacks, self.rewrites = self.swarm.factor(), self.swarm.factor()
        self.odd = OddOne(self.fleet, self.swarm.odd)
        self.adapters = RandomAdapters(self.fleet, self.odd)
        self.brief = BriefFaults(self.fleet, self.odd)
        self.themes = self.all_themes()
        # Random generators of their own, so that these choices change no other part of a history.
        self.clients = Random(self.fleet.seed)  # noqa: S311 - repeatable on purpose
        self.releases = Random(f"releases of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.canaries = Random(f"canaries of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.returns = Random(f"returns of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.copies = Random(f"copies of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.moments = Random(f"moments of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose
        if self.swarm.is_focused:
            self.themes = self._some_themes()
        self.play: list[Scene] = []
        self.scene_since = self.fleet.now
        if self.swarm.play:
            self.play, self.always = Plays(self).scenes_of(self.swarm.play), []
        self.draw()

    def _some_themes(self) -> list[list[Callable[[], None]]]:
        """Two or three themes that meet. Late work and leaders under changing requests, and adapters, need most of them."""
        requests, late, leaders, *others = self.themes
        about = self.moments.random()
        if about < ABOUT_LATE_WORK:
            return [requests, late]
        if about < ABOUT_LATE_WORK + ABOUT_LEADERS:
            return [requests, leaders]
        if about > 1 - ABOUT_ADAPTERS:
            self.adapters.act_often()
            return [others[-1], self.moments.choice(self.themes)]
        return [requests, *self.moments.sample(self.themes, 2)]

    def all_themes(self) -> list[list[Callable[[], None]]]:
        """Actions that belong together. Most mistakes show where a few of one or two themes meet."""
        brief, adapters = self.brief, self.adapters
        return [
            [
                *(
                    self.publish_now,
                    self.publish_now,
                    self.go_back_now,
                    self.suspend,
                    brief.suspend,
                ),
                *(self.change_strategy, self.change_strategy, self.retry, brief.change_roots),
            ],
            [
                *(
                    brief.linger,
                    self.be_late,
                    self.be_late,
                    self.be_late,
                    brief.hang,
                    brief.cut_off,
                    brief.spoil,
                ),
                *(
                    brief.break_engine,
                    brief.break_engine,
                    brief.be_away_for_long,
                    brief.ask_for_long,
                ),
                *(self.kill, self.kill_all, self.be_uneven, self.cling, self.slow_down),
            ],
            [
                *(brief.die_soon, brief.die_soon, brief.freeze, brief.refuse_statuses, self.lag),
                *(brief.delay, brief.delay, brief.lose_answer, self.be_away, self.set_clock),
                *(self.pause_machine, self.delete_lease, self.wake_former),
            ],
            [
                *(
                    self.rewrite,
                    self.rewrite_while_staging,
                    self.restart_on_rewritten,
                    brief.lose_files,
                ),
                *(self.kill, brief.publish_early, self.return_to_other_files),
                *(self.roll_back_operator, brief.refuse_statuses, self.begin_run),
            ],
            [
                *(self.create_again, self.create_again, self.create_again, self.delete_weights),
                *(self.name_other_path, self.name_other_path, self.edit_source, self.add_digest),
                *(self.name_like_model, brief.publish_early, brief.refuse_statuses),
            ],
            [
                *(self.scale, self.scale, self.change_template, self.change_template, self.gate),
                *(
                    brief.hold_pods,
                    brief.refuse_templates,
                    self.evict,
                    self.lose_node,
                    self.crash_loop,
                ),
                *(self.delete_pod, self.delete_pod, self.orphan, self.queue_up, brief.hang),
                *(brief.ask_for_long, brief.ask_for_long),
            ],
            [
                *(brief.disobey, brief.disobey, self.lie, self.garble, self.get_ahead),
                *(self.move_address, brief.cut_off, brief.lose_answer, brief.drive_by_hand),
                *(brief.take_address, brief.take_address),
            ],
            [
                *adapters.kinds,
                self.publish_adapter,
                self.rewrite_adapter,
                self.kill,
                brief.refuse_statuses,
            ],
        ]

    def draw(self) -> None:
        """Choose the kinds of events from now on, and the rules."""
        self.rules = draw_rules(self.moments, self.themes, self.swarm.rules)
        drawn = [(often * self.swarm.factor(), action) for often, action in self.usual]
        drawn = [] if self.swarm.is_focused else drawn
        self.actions = [*self.always, *((often, action) for often, action in drawn if often)]

    def follow_rules(self) -> None:
        """Act by the rules whose moment has come since the last time."""
        self.brief.end()
        true = frozenset(moments_of(self.fleet, self.odd))
        new, self.true_before = true - self.true_before, true
        self._play(true)
        due = [rule for rule in (*self.rules, *self.following) if rule.moment in new]
        self.following = [rule for rule in self.following if rule not in due]
        for rule in due:
            for action in rule.actions:
                action()
            self.following += [rule.then] if rule.then is not None else []

    def _play(self, true: frozenset[str]) -> None:
        """Let the next scene of the play happen, if it is time for it. `true`: the moments now."""
        if not self.play:
            return
        scene, waited = self.play[0], self.fleet.now - self.scene_since
        if scene.moment in true or waited >= scene.patience_seconds:
            self.scene_since = self.fleet.now
            self.play = self.play[1:]
            for action in scene.actions:
                action()

    def act_at_random(self, scale: float = 1.0) -> None:
        """Let happen what may, and more of it while workers hold their requests."""
        if not scale:
            return
        if any(w.lease is not None or w.work is not None for w in self.fleet.workers.values()):
            scale *= self.swarm.eager
        for worker in self.fleet.workers.values():
            if self.clients.random() < 0.1 * scale:
                worker.sessions = self.clients.choice([0, 0, 1, 2, 5])
        if self.swarm.play:
            return
        if self.releases.random() < 0.02 * self.rollbacks * scale * self.trouble:
            self.roll_back_operator()
        if self.returns.random() < 0.02 * self.rewrites * scale * self.trouble:
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

    def name(self, number: int) -> str:
        """The label of a version: its number, or a name that has no order."""
        return f"{number}{self.swarm.suffix}"

    def publish(self) -> None:
        if self.is_deleted or self._waits():
            return
        self.newest += 1
        first = self.newest > self.highest
        self.highest = max(self.highest, self.newest)
        version = self.name(self.newest)
        canary = self.fleet.promises.rollout.strategy == "Canary"
        if canary and first and self.chance.random() < 0.3:
            self.fleet.odd_versions.add(version)
        if first and self.copies.random() < 0.15:
            self._copy()
        self._ask_for(version)
        if first and self.copies.random() < self.swarm.early:
            self.fleet.leave_out(self._path())

    def publish_now(self) -> None:
        self.waits_until = 0
        self.publish()

    def go_back_now(self) -> None:
        """With the digest of the version no worker compares files first."""
        older = self.name(self.chance.randint(1, max(1, self.newest - 1)))
        spec = self.fleet.desired.base_spec
        if spec is not None and older not in self.fleet.odd_versions:
            there = self.fleet.files.at(str(spec.source.resolve(older)))
            self._ask_for(older, rollbackTo=older, digest=digest_of(there))

    def write_checkpoints(self) -> None:
        """The trainer comes to write what it has published before."""
        self.fleet.write_all()

    def _copy(self) -> None:
        """The new version gets the files of an earlier one, since its path is a fixed one, say, or those of
        the model.
        """
        spec = self.fleet.desired.base_spec
        earlier = self.copies.randint(0, self.newest - 1)
        if spec is None or not {self.name(earlier), self.name(self.newest)}.isdisjoint(
            self.fleet.odd_versions
        ):
            return
        source, path = (str(spec.source.resolve(self.name(n))) for n in (earlier, self.newest))
        source = source if earlier else MODEL_SOURCE
        if path not in self.fleet.files.copied and source != path:
            self.fleet.note("trainer", f"writes the files of version {earlier} to {path}")
            self.fleet.files.copy(source, path, self.fleet.now)

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
        older = self.name(self.chance.randint(1, self.newest - 1))
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
        older = self.name(chance.randint(1, self.newest - 1))
        if older in self.fleet.odd_versions:
            return
        path = f"/weights/step_{older}"
        if not self.fleet.is_rewritten(path):
            self.fleet.rewrite(path)
        self._restart_most(chance)
        fields = {"rollbackTo": older, "version": older}
        self.fleet.ask("trainer", f"starts over at {older}", fields)

    def _restart_most(self, chance: Random) -> None:
        """Most processes restart, and forget which files they have seen."""
        for pod in list(self.fleet.pods.values()):
            if pod.deleted_at is None and chance.random() < 0.8:
                self.fleet.kill(pod)

    def return_to_other_files(self) -> None:
        """The trainer wants an earlier version again, after its files were written over. Most processes have
        restarted, so only the status knows which files it named.
        """
        if self.is_deleted or self.newest < 2:
            return
        older = self.name(self.returns.randint(1, self.newest - 1))
        spec = self.fleet.desired.base_spec
        if spec is None or older in self.fleet.odd_versions:
            return
        path = str(spec.source.resolve(older))
        if not self.fleet.is_rewritten(path):
            self.fleet.rewrite(path)
        self._restart_most(self.returns)
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
        older = f"/weights/step_{self.name(self.chance.randint(1, self.highest))}"
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
        fields: Settings = {"version": self.name(self.chance.randint(1, self.newest))}
        if self.chance.random() < 0.6:
            fields["version"] = self.name(self.newest)
        fields["runID"] = self.chance.choice([None, "run", "another-run", f"run-{self.began}"])
        if self.chance.random() < 0.3:
            fields["source"] = {"path": self.chance.choice(FOLDERS)}
        if fields["version"] in self.fleet.odd_versions:
            self.newest = self.highest = self.highest + 1
            fields["version"] = self.name(self.newest)
        self.fleet.create_weights(fields)
        if self.fleet.promises.rollout.strategy != "Canary":
            self.fleet.odd_versions.clear()  # the new object may have lost the strategy
        if self.chance.random() < 0.3:
            self.rewrite()

    def create_again(self) -> None:
        """The WeightVersion is deleted and made again for what the fleet serves, say by a redeployment."""
        applied = self.fleet.leader.fleet.applied
        if self.is_deleted or applied is None or applied.version in self.fleet.odd_versions:
            return
        spec = self.fleet.desired.base_spec
        assert spec is not None
        fields: Settings = {"version": applied.version, "runID": applied.run_id}
        if str(spec.source.resolve(applied.version)) == str(applied.source):
            fields["source"] = {"path": spec.source.path}
        self.fleet.delete_weights()
        self.fleet.create_weights(fields)
        self._let_it_end()

    def name_other_path(self) -> None:
        """The WeightVersion names another path for its version, and then the first one again."""
        spec = self.fleet.desired.base_spec
        if spec is not None:
            others = [folder for folder in FOLDERS if folder != spec.source.path]
            first = {"path": spec.source.path}
            self.fleet.control(source={"path": self.chance.choice(others)})
            self.brief.later.append((self.fleet.now + 3.0, lambda: self._name_path(first)))
            self._let_it_end()

    def _name_path(self, source: Settings) -> None:
        if not self.is_deleted:
            self.fleet.control(source=source)

    def be_late(self) -> None:
        """The work of a worker lasts longer than it may, and the trainer waits for the outcome."""
        self.brief.linger()
        self.publish_now()
        self.waits_until = self.fleet.now + 200.0

    def _let_it_end(self) -> None:
        self.waits_until = self.fleet.now + self.chance.choice([0.0, 60.0, 120.0])

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
        elif self.name(self.newest) in self.fleet.odd_versions:
            return
        self._ask_for(self.name(self.newest), **fields)
        if self.chance.random() < 0.3:
            self.rewrite()

    def edit_source(self) -> None:
        """Another path is named for the same version."""
        spec = self.fleet.desired.base_spec
        if spec is not None:
            others = [folder for folder in FOLDERS if folder != spec.source.path]
            self.fleet.control(source={"path": self.chance.choice(others)})

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

    def refuse_statuses(self) -> None:
        """The API server takes no status for a while."""
        refused = self.fleet.faults.status_unwritten == 1.0
        usual = self.swarm.faults.status_unwritten
        self.fleet.faults.status_unwritten = usual if refused else 1.0
        self.fleet.note("cluster", f"{'takes' if refused else 'refuses'} statuses")

    def change_template(self) -> None:
        self.templates += 1
        engine = {"args": [f"--seed={self.templates}"]}
        self.fleet.change_fleet(f"changes the template ({self.templates})", engine=engine)

    def suspend(self) -> None:
        spec = self.fleet.desired.base_spec
        if spec is not None:
            self.fleet.control(suspend=not spec.suspend)

    def change_strategy(self) -> None:
        """Of the version, or of the fleet and of all versions that say nothing themselves."""
        if self.is_deleted:
            return
        settings = random_rollout(self.canaries, self.swarm.slow_seconds)
        if self.canaries.random() < 0.5:
            settings = {k: settings[k] for k in ("strategy", "canary") if k in settings}
        self.fleet.odd_versions.clear()  # no canary judged all of them
        if self.canaries.random() < 0.3:
            self.fleet.change_fleet(f"sets rollout to {settings}", rollout=settings)
        else:
            self.fleet.control(rollout={k: v for k, v in settings.items() if k != "canary"})

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

    def kill_all(self) -> None:
        """All processes end at once, say with their nodes' driver."""
        for pod in list(self.fleet.pods.values()):
            if pod.deleted_at is None:
                self.fleet.kill(pod)

    def be_uneven(self) -> None:
        """Each worker is as fast as luck wants it."""
        for pod in self.fleet.pods.values():
            pod.worker.slow_seconds = self.chance.choice([0.0, 0.1, 2.0, 6.5, 20.0, 45.0])
        self.fleet.note("fault", "workers are unevenly fast")

    def load_without_end(self) -> None:
        """A load or stage that begins now does not end for long."""
        if pod := self._some_pod():
            pod.worker.slow_seconds = NO_END_SECONDS
            self.fleet.note("fault", f"{pod.name} does not end what it begins")

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
        if pod := self._some_pod():
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

    def queue_up(self) -> None:
        """More replicas than a queue lets in. Behind it the template may change, and it lets all in later."""
        gated = any(p.gated for p in self.fleet.pods.values())
        if not gated:
            self.fleet.hold_new_pods()
            self.fleet.scale(min(5, self.fleet.replicas + 1))
        elif self.chance.random() < 0.5:
            self.change_template()
        else:
            self.fleet.hold_new_pods(hold=False)

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
        pod = self.odd.some_pod(self.chance)
        if pod is not None:
            pod.suspect |= suspect
        return pod
