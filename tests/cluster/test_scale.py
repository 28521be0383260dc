"""A large fleet of fake workers under the real operator, as `make bench-scale` measures it.

Checks limits that must hold on every machine. No Lease is lost, and the writes stay within the budget.
The operator's work never delays the event loop by more than a second, without the time that the machine
gives to other processes. The next leader ends the rollout of a killed one. Durations are the benchmark's
subject.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench_scale.fakes import FakeFleet
from bench_scale.fleet import BenchFleet
from bench_scale.goals import write_budget
from bench_scale.operator import Operator
from bench_scale.place import place, prepare
from devcluster import Cluster
from free_ports import free_port

ROLLOUTS = 3
MAX_LAG_SECONDS = 1.0
BRING_UP_SECONDS = 600.0


@pytest.mark.timeout(1500)  # the fake fleet may have to be built first
@pytest.mark.parametrize("workers", [256, pytest.param(1000, marks=pytest.mark.long)])
def test_a_large_fleet_keeps_its_leader_writes_little_and_survives_the_loss_of_its_operator(
    devcluster_api_possible: None, tmp_path: Path, workers: int
) -> None:
    with ExitStack() as stack:
        # A cluster of its own: in the shared one, controllers and scheduler would work on the pods, too.
        cluster = stack.enter_context(Cluster.start(profile="api"))
        prepare(cluster, alone=True)
        at = stack.enter_context(place(cluster, tmp_path))
        fakes = stack.enter_context(
            FakeFleet.of_namespace(
                at.kubeconfig, at.namespace, log=tmp_path / "fakes.log", port=free_port()
            )
        )
        log = tmp_path / "operator.log"
        operator = stack.enter_context(Operator(at.kubeconfig, at.namespace, log))
        operator.wait_leading()
        fleet = BenchFleet(at, operator, fakes, workers)

        fleet.bring_up(seconds=BRING_UP_SECONDS, say=print)
        rollouts = [fleet.roll() for _ in range(ROLLOUTS)]
        operator.look()

        seen = f"{operator.worst_lag_seconds=} {operator.worst_busy_seconds=} {rollouts}"
        sys.stdout.write(f"{seen}\n")
        assert operator.leases_lost == 0, operator.said()
        for rollout in rollouts:
            assert rollout.applied_seconds is not None, seen
            assert rollout.writes <= write_budget(workers, rollout.applied_seconds), seen
        assert operator.worst_busy_seconds <= MAX_LAG_SECONDS, seen

        def another() -> Operator:
            return stack.enter_context(Operator(at.kubeconfig, at.namespace, log))

        taken = fleet.take_over(another)
        assert taken.applied_seconds is not None, taken
        assert taken.loads == workers, "a worker has loaded the version twice, or another one"
        assert "defect" not in log.read_text()
