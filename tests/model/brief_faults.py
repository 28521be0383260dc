"""Faults that end by themselves: a worker hangs for ten seconds, a call comes late, a load lingers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.model.fake_pods import FakePod
from tests.model.fake_state import MODEL_SOURCE
from tests.model.fake_worker import ALL
from tests.model.odd_one import OddOne
from tests.model.simulator import Simulation
from tests.model.wire import GRACE_AFTER_A_LIE

from fleet_worker.protocol import Phase

SECONDS = (3.0, 10.0, 30.0, 60.0)
LINGERS_SECONDS = (3.0, 10.0, 30.0, 60.0, 1000.0)
AWAY_SECONDS = (5.0, 20.0, 120.0)
WITHOUT_WRITES_SECONDS = (3.0, 30.0, 150.0)
KINDS = ("stage", "pause", "load", "apply", "resume", "resume", "admit", "admit", "fence")
NEXT_KINDS = {
    Phase.STARTING: ("admit", "admit", "load"),
    Phase.JOINING: ("stage", "load", "admit", "admit", "admit"),
    Phase.SERVING: ("stage", "pause", "pause", "apply", "fence"),
    Phase.PAUSED: ("load", "load", "resume", "resume", "fence"),
    Phase.LOADING: ("resume", "resume", "pause", "fence"),
}


class BriefFaults:
    """Its random numbers are its own. `later`: what ends when."""

    def __init__(self, fleet: Simulation, odd: OddOne) -> None:
        self.fleet, self.odd = fleet, odd
        self.chance = Random(f"brief faults of {fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.later: list[tuple[float, Callable[[], None]]] = []

    def end(self) -> None:
        """End what is over."""
        over = [what for at, what in self.later if at <= self.fleet.now]
        self.later = [(at, what) for at, what in self.later if at > self.fleet.now]
        for what in over:
            what()

    def end_all(self) -> None:
        """End everything."""
        for _, what in self.later:
            what()
        self.later = []

    def linger(self) -> None:
        """The next load, stage or prompts of a worker take longer than usual, or do not end for long."""
        if pod := self._some_pod():
            step = self.chance.choice(["load", "load", "load", "stage", "probe"])
            timeouts = self.fleet.promises.rollout.timeouts
            limit_seconds = timeouts.stage_seconds if step == "stage" else timeouts.load_seconds
            seconds = self.chance.choice((*LINGERS_SECONDS, limit_seconds + 2.0))
            self.fleet.note("fault", f"the next {step} of {pod.name} takes {seconds:.0f} s longer")
            pod.worker.lingers, pod.suspect = (step, seconds), True

    def break_engine(self) -> None:
        """The engine of a worker refuses this version and the next one, for a while."""
        if pod := self._some_pod():
            worker, pod.suspect = pod.worker, True
            following = {self.fleet.version, self.following()}
            self.fleet.note("fault", f"{following} will break the engine of {pod.name}")
            worker.breaking_versions |= following
            self._after(lambda: worker.breaking_versions.difference_update(following))

    def spoil(self) -> None:
        """Some workers cannot read this version and the next one, for a while."""
        pods = [p for p in self.fleet.pods.values() if self.chance.random() < 0.5]
        for version in {self.fleet.version, self.following()}:
            self.fleet.spoil(version, *pods)

        def repair() -> None:
            for pod in pods:
                pod.worker.bad_sources.clear()

        self._after(repair)

    def following(self) -> str:
        """The version after the desired one."""
        number, dash, suffix = self.fleet.version.partition("-")
        return f"{int(number) + 1}{dash}{suffix}" if number.isdigit() else number

    def drive_by_hand(self) -> None:
        """A client of a worker's own port makes it serve the model's weights."""
        pod = self._some_pod()
        if pod is None or pod.worker.phase is not Phase.SERVING or pod.worker.work is not None:
            return
        worker, pod.suspect, pod.grace = pod.worker, True, GRACE_AFTER_A_LIE
        self.fleet.note("user", f"makes {pod.name} serve the model's weights")
        worker.label, worker.run_id, worker.source = "base", None, MODEL_SOURCE
        worker.weights = pod.by_hand = self.fleet.files.first_at(MODEL_SOURCE)

    def hang(self) -> None:
        if pod := self._some_pod():
            self.fleet.hang(pod)
            self._after(lambda: self.fleet.hang(pod, hung=False))

    def cut_off(self) -> None:
        if pod := self._some_pod():
            self.fleet.cut_off(pod)
            self._after(lambda: self.fleet.cut_off(pod, cut=False))

    def disobey(self) -> None:
        """A worker refuses or ignores calls of one kind, or all."""
        if pod := self._some_pod():
            disobey = self.chance.choice([self.fleet.reject, self.fleet.ignore, self.fleet.reset])
            disobey(pod, self.chance.choice([*KINDS, ALL]))
            self._after(lambda: self.fleet.obey(pod))

    def delay(self) -> None:
        """The next call of one kind to a worker comes late."""
        if pod := self._some_pod():
            kind, seconds = self.chance.choice(_next_kinds(pod)), self.chance.choice(SECONDS)
            self.fleet.note("fault", f"the next {kind} comes to {pod.name} {seconds:.0f} s late")
            pod.delays, pod.suspect = (kind, seconds), True

    def take_address(self) -> None:
        """The next call to a worker is on its way while another pod of the fleet gets its address."""
        pods = [p for p in self.fleet.pods.values() if p.deleted_at is None]
        if len(pods) < 2:
            return
        pod, other = self.chance.sample(pods, 2)
        pod.delays, pod.suspect = (self.chance.choice(_next_kinds(pod)), 5.0), True

        def take(looks: int = 30) -> None:
            calls = (f for f in self.fleet.wire.flights() if f.action.pod_uid == pod.uid)
            if looks and all(f.ticket is not None for f in calls):
                self.later.append((self.fleet.now + 1.0, lambda: take(looks - 1)))
                return
            self.fleet.move_address(pod, other.uid)
            self._after(lambda: self.fleet.move_address(pod, ""))

        self.later.append((self.fleet.now + 1.0, take))

    def lose_answer(self) -> None:
        if pod := self._some_pod():
            self.fleet.note("fault", f"the next answer of {pod.name} is lost")
            pod.loses_answer = pod.suspect = True

    def be_away_for_long(self) -> None:
        if pod := self._some_pod():
            self.fleet.kill(pod, back_after_seconds=self.chance.choice(AWAY_SECONDS))

    def ask_for_long(self) -> None:
        """The request of a worker's client takes long. A worker that drains takes no new one."""
        pod = self._some_pod()
        if pod is None or not pod.worker.generates or pod.worker.work is not None:
            return
        if pod.worker.requests.left_seconds:
            self.fleet.note("client", f"asks {pod.name} for long")
            pod.worker.requests.left_seconds = self.chance.choice(SECONDS)

    def refuse_statuses(self) -> None:
        """The API server takes no status."""
        usual = self.fleet.faults.status_unwritten

        def take() -> None:
            self.fleet.faults.status_unwritten = usual if usual < 1.0 else 0.0
            self.fleet.note("cluster", "takes statuses")

        self.fleet.faults.status_unwritten = 1.0
        self.fleet.note("cluster", "refuses statuses")
        self.later.append((self.fleet.now + self.chance.choice(WITHOUT_WRITES_SECONDS), take))

    def lose_files(self) -> None:
        """Other files lie under the path of the applied weights, and workers restart on them."""
        applied = self.fleet.leader.fleet.applied
        if applied is None or self.fleet.is_rewritten(path := str(applied.source)):
            return
        self.fleet.rewrite(path)
        for pod in list(self.fleet.pods.values()):
            if pod.deleted_at is None and self.chance.random() < 0.8:
                self.fleet.kill(pod)
        self._after(lambda: self.fleet.restore(path))

    def die_soon(self) -> None:
        """The leader ends after one of its next actions."""
        self.fleet.faults.operator_dies_after = self.chance.choice([0, 1, 2, 3])

    def freeze(self) -> None:
        """The leader freezes, and continues slowly when another one leads: it hears what workers answer."""
        former = self.fleet.leader
        self.fleet.freeze_operator()

        def wake() -> None:
            if former in self.fleet.former_leaders:
                self.fleet.wake_former(former)
                self.later.append((self.fleet.now + 1.0, wake))

        self._after(wake)

    def change_roots(self) -> None:
        """The weights lie outside the roots of the fleet for a while."""
        self._set_roots("/other")
        self._after(lambda: self._set_roots("/weights"))

    def publish_early(self) -> None:
        """The files of the desired version are written later."""
        spec = self.fleet.desired.base_spec
        if spec is not None:
            path = str(spec.source.resolve(spec.version))
            self.fleet.leave_out(path)
            self.later.append(
                (self.fleet.now + self.chance.choice(AWAY_SECONDS), self.fleet.write_all)
            )

    def refuse_templates(self) -> None:
        """The API server takes no record of a template."""
        self.fleet.refuse_templates()
        self._after(lambda: self.fleet.refuse_templates(refuse=False))

    def hold_pods(self) -> None:
        """A queue lets no pod in."""
        self.fleet.hold_new_pods()
        self._after(lambda: self.fleet.hold_new_pods(hold=False))

    def suspend(self) -> None:
        if self.fleet.desired.base_spec is not None:
            self.fleet.control(suspend=True)
            self._after(self._resume)

    def _resume(self) -> None:
        spec = self.fleet.desired.base_spec
        if spec is not None and spec.suspend:
            self.fleet.control(suspend=False)

    def _set_roots(self, root: str) -> None:
        weights: dict[str, Any] = {"roots": [root], "management": "Operator"}
        self.fleet.change_fleet(f"changes the roots to {root}", weights=weights)

    def _after(self, what: Callable[[], None]) -> None:
        self.later.append((self.fleet.now + self.chance.choice(SECONDS), what))

    def _some_pod(self) -> FakePod | None:
        return self.odd.some_pod(self.chance)


def _next_kinds(pod: FakePod) -> tuple[str, ...]:
    """The calls that may come to a worker next."""
    return NEXT_KINDS.get(pod.worker.phase, KINDS)
