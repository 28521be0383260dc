"""A benchmark run in which the operator is killed reports every loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from bench_scale import __main__ as bench
from bench_scale.fleet import Rollout, Takeover
from bench_scale.killing import rollouts_with_a_kill

WORKERS = 8


class FakeBenchFleet:
    """Ends each rollout at once. `loads`: of each version; `pods`: before and after."""

    def __init__(self, loads: int = WORKERS, *, pods_after: set[str] | None = None) -> None:
        self.done: list[str] = []
        self.applied: float | None = 0.2
        self._loads = loads
        self._pods = [{"a", "b"}, pods_after or {"a", "b"}]

    def pods(self) -> set[str]:
        return self._pods.pop(0)

    def roll(self) -> Rollout:
        self.done.append("roll")
        return Rollout(
            seconds=0.1,
            phases={},
            applied_seconds=self.applied,
            writes=6,
            calls=4 * WORKERS,
            cpu_seconds=0.01,
            loads=self._loads,
        )

    def take_over(self, start: Callable[[], Any]) -> Takeover:
        self.done.append("kill")
        start()
        return Takeover(seconds=18.0, applied_seconds=self.applied, loads=self._loads)


def run(fleet: FakeBenchFleet, rounds: int = 5) -> dict[str, Any]:
    return rollouts_with_a_kill(
        cast("Any", fleet), workers=WORKERS, rounds=rounds, start=cast("Any", Mock()), say=print
    )


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_operator_is_killed_once_in_the_middle_and_rollouts_continue(rounds: int) -> None:
    fleet = FakeBenchFleet()
    found = run(fleet, rounds)

    assert fleet.done == ["roll"] * (rounds // 2) + ["kill"] + ["roll"] * ((rounds - 1) // 2)
    assert found["takeover"]["seconds"] == 18.0
    assert found["lost"] == []


def test_versions_that_were_not_loaded_by_all_are_losses() -> None:
    assert run(FakeBenchFleet(WORKERS - 1), 2)["lost"] == [
        "rollout 1 has 7 loads for 8 workers",
        "rollout 2 has 7 loads for 8 workers",
    ]


def test_a_load_that_the_successor_repeats_does_not_count_as_a_loss() -> None:
    assert run(FakeBenchFleet(WORKERS + 3))["lost"] == []


def test_a_status_that_never_becomes_applied_is_a_loss() -> None:
    fleet = FakeBenchFleet()
    fleet.applied = None
    assert run(fleet, 1)["lost"] == [
        "rollout 1 was served, but its status never became Applied",
    ]


def test_a_pod_that_was_replaced_is_a_loss() -> None:
    fleet = FakeBenchFleet(pods_after={"a", "c"})
    assert run(fleet)["lost"] == ["2 pods were made or deleted"]


def test_a_run_with_a_loss_fails(capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"sizes": [{"workers": WORKERS, "kill": {"lost": ["2 pods were made or deleted"]}}]}
    assert bench._report_problems(lost, [WORKERS]) == 1
    assert "bench-scale: 8: 2 pods were made or deleted" in capsys.readouterr().err
    assert (
        bench._report_problems({"sizes": [{"workers": WORKERS, "kill": {"lost": []}}]}, [WORKERS])
        == 0
    )
