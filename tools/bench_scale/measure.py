"""Everything that is measured of one size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_scale import deciding, place
from bench_scale.contender import Contender
from bench_scale.fakes import FakeFleet
from bench_scale.fleet import BenchFleet
from bench_scale.killing import rollouts_with_a_kill
from bench_scale.operator import Operator
from bench_scale.profile import Profile, flame_graph_of
from devcluster import Cluster
from free_ports import free_port

STRATEGIES = ("Synchronized", "InFlight", "Rolling", "Canary")
SLOW_MS = 250
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of one size.

    Fields:
        rounds: rollouts of each contender, in turn.
        rest_seconds: how long the fleet is left alone; longer than a resync.
        bring_up_seconds: a fleet that does not serve by then is a failure.
        clients: contenders by hand.
        strategies / faults / takeover: whether these are measured, too.
        kill: only the bring-up and the rollouts, with the operator killed in the middle one.
        profile: only the bring-up and the rollouts, with a flame graph of the operator in them.
        decisions: repetitions of each decision; 0 leaves them out.
    """

    rounds: int = 5
    rest_seconds: float = 35.0
    bring_up_seconds: float = 600.0
    clients: Sequence[str] = ("aiohttp", "httpx")
    strategies: bool = False
    faults: bool = False
    takeover: bool = False
    kill: bool = False
    profile: bool = False
    decisions: int = 3


def size(cluster: Cluster, workers: int, plan: Plan, *, folder: Path, say: Say) -> dict[str, Any]:
    """Measure one size. `failed` names a failure. Earlier measurements stay.
    `load_averages`: of the machine (one minute) before and after.
    """
    found: dict[str, Any] = {"workers": workers, "load_averages": [os.getloadavg()[0]]}
    with ExitStack() as stack:
        try:
            run = _Run(cluster, workers, plan, folder, say, stack.enter_context)
            run.all(found)
        except (TimeoutError, RuntimeError, OSError) as error:
            found["failed"] = str(error)
            say(f"failed: {error}")
    if plan.decisions and "failed" not in found:
        say("decisions")
        try:
            found["decide"] = deciding.measure(
                workers, repetitions=plan.decisions, log=folder / "decide.log"
            )
        except (RuntimeError, OSError) as error:
            found["failed"] = f"decisions: {error}"
            say(found["failed"])
    found["load_averages"].append(os.getloadavg()[0])
    return found


class _Run:
    """One size with its processes."""

    def __init__(
        self,
        cluster: Cluster,
        workers: int,
        plan: Plan,
        folder: Path,
        say: Say,
        enter: Callable[[AbstractContextManager[Any]], Any],
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._say = say
        self._enter = enter
        self._workers = workers
        self._folder = folder
        self._place: place.Place = enter(place.place(cluster, folder))
        self._fakes: FakeFleet = enter(
            FakeFleet.of_namespace(
                cluster.kubeconfig,
                self._place.namespace,
                log=folder / "fakes.log",
                port=free_port(),
            )
        )
        self._operator: Operator = enter(self._start())
        self._contenders: list[Contender] = []
        self._fleet = BenchFleet(self._place, self._operator, self._fakes, workers)

    def all(self, found: dict[str, Any]) -> None:
        """In this order: what disturbs the fleet comes last."""
        self._operator.wait_leading()
        self._say(f"bring-up of {self._workers} workers")
        before = self._fleet.used()
        try:
            found["bring_up"] = self._fleet.bring_up(
                seconds=self._plan.bring_up_seconds, say=self._say
            )
            self._say(f"all serve after {found['bring_up']['seconds']:.2f} s")
            found["bring_up"]["process_seconds"] = self._since(before)
            if self._plan.kill:
                found["kill"] = self._killed()
                return
            self._rollouts(found)
            if self._plan.profile:
                return
            self._say(f"rest of {self._plan.rest_seconds:.0f} s")
            found["rest"] = self._fleet.rest(self._plan.rest_seconds)
            self._note(found)
            if self._plan.strategies:
                found["strategies"] = self._strategies()
            if self._plan.faults:
                found["faults"] = self._faulty()
        finally:
            self._note(found)
        if self._plan.takeover:
            found["takeover"] = self._takeover()

    def _note(self, found: dict[str, Any]) -> None:
        """Figures of the whole life of the operator so far."""
        self._operator.look()
        found["worst_lag_seconds"] = self._operator.worst_lag_seconds
        found["worst_busy_seconds"] = self._operator.worst_busy_seconds
        found["leases_lost"] = self._operator.leases_lost
        if not found["leases_lost"]:
            found["peak_memory_bytes"] = self._operator.peak_memory_bytes()

    def _since(self, before: dict[str, float]) -> dict[str, float]:
        return {name: used - before[name] for name, used in self._fleet.used().items()}

    def _rollouts(self, found: dict[str, Any]) -> None:
        self._contenders = contenders = [self._contender(c) for c in self._plan.clients]
        before = self._fleet.used()
        found["rollouts"] = rollouts = []
        found["contenders"] = {c.client: [] for c in contenders}
        with self._sampled():
            for number in range(self._plan.rounds):
                rolled = self._fleet.roll()
                rollouts.append(rolled.as_row())
                shown = [f"operator {rolled.seconds:.3f} s, {rolled.writes} writes"]
                for contender in contenders:
                    row = contender.roll()
                    found["contenders"][contender.client].append(row)
                    shown.append(f"{contender.client} {row['seconds']:.3f} s")
                self._say(f"rollout {number + 1} of {self._plan.rounds}: {', '.join(shown)}")
        found["rollout_process_seconds"] = self._since(before)
        found["contender_memory_bytes"] = {c.client: c.peak_memory_bytes() for c in contenders}

    def _sampled(self) -> AbstractContextManager[object]:
        """Samples the operator meanwhile, if that is planned."""
        if not self._plan.profile:
            return nullcontext()
        target = flame_graph_of(self._workers)
        self._say(f"the flame graph will be {target}")
        title = f"The operator in {self._plan.rounds} rollouts of {self._workers:,} workers"
        return Profile(self._operator.pid, target, title=title)

    def _killed(self) -> dict[str, Any]:
        def start() -> Operator:
            self._operator = self._enter(self._start())
            return self._operator

        return rollouts_with_a_kill(
            self._fleet, workers=self._workers, rounds=self._plan.rounds, start=start, say=self._say
        )

    def _contender(self, client: str) -> Contender:
        self._say(f"the fan-out by hand with {client} makes its connections")
        made: Contender = self._enter(
            Contender(client, self._workers, log=self._folder / f"{client}.log")
        )
        return made

    def _strategies(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for strategy in STRATEGIES:
            self._fleet.set_strategy(strategy)
            time.sleep(1)  # the fleet's status follows; it is not part of a rollout
            rows = [self._fleet.roll().as_row() for _ in range(3)]
            found[strategy] = rows
            shown = ", ".join(f"{row['seconds']:.3f} s" for row in rows)
            self._say(f"{strategy}: {shown}")
        self._fleet.set_strategy(STRATEGIES[0])
        time.sleep(1)
        return found

    def _takeover(self) -> dict[str, Any]:
        """The last thing that is measured: the operator does not live to see more."""
        self._fleet.set_faults(dead_percent=0, slow_percent=0, slow_ms=0)
        taken = self._fleet.take_over(lambda: self._enter(self._start()))
        self._say(f"operator killed in a rollout: all serve {taken.seconds:.2f} s later")
        return taken.as_row()

    def _start(self) -> Operator:
        log = self._folder / f"operator-{self._workers}.log"
        return Operator(self._cluster.kubeconfig, self._place.namespace, log)

    def _faulty(self) -> dict[str, Any]:
        """One worker of a hundred is dead, and one is slow."""
        faults = {"dead_percent": 1, "slow_percent": 1, "slow_ms": SLOW_MS}
        alive = self._fleet.set_faults(**faults)
        for contender in self._contenders:
            contender.fakes.set_faults(**faults)
        self._say(f"{alive} workers are alive, 1 % are slow")
        rollouts: list[dict[str, Any]] = []
        by_hand: dict[str, list[dict[str, Any]]] = {c.client: [] for c in self._contenders}
        for _ in range(3):
            rolled = self._fleet.roll(serving=alive)
            rollouts.append(rolled.as_row())
            for contender in self._contenders:
                by_hand[contender.client].append(contender.roll())
            self._say(f"with faults: operator {rolled.seconds:.3f} s, {rolled.writes} writes")
        return {"alive": alive, **faults, "rollouts": rollouts, "contenders": by_hand}
