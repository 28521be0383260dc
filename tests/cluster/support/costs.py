"""Measures the costs of one tenant's attack for another tenant.

These are its rollouts or requests, alone and meanwhile, its leases, and the memory and starts of the processes that
both use. A test asserts these costs. `make isolation` runs the same tests, and writes the costs into the table of
docs/reliability.md (tools/isolation).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.support.admin import Json
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

WRITE_TO = os.environ.get("RLFLEET_ISOLATION_RESULTS")
"""A folder. None: write nothing."""
ROUNDS = 7
TIMES_AS_LONG = 2.0
NOISE_SECONDS = 1.0
"""Under the load of other tests, a rollout that is alone may take as long."""
OPERATOR_MIB, RL_API_MIB = 512, 256
"""Limits of the chart (`resources`, `api.resources`)."""


ROLLOUT_SECONDS = 120.0


class Rollouts:
    """Rollouts of a workspace's fleet, one after the other."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._number = 0

    async def __call__(self) -> float:
        """Publish another version. Returns: the seconds until its status reports that it is applied."""
        workspace = self._workspace
        path = f"{GROUP}/namespaces/{workspace.namespace}/weightversions"
        self._number += 1
        version, began = f"r{self._number}", time.monotonic()
        await workspace.publish(version)
        events = workspace.admin.watch(path, {"fieldSelector": f"metadata.name={FLEET}"})
        try:
            async with asyncio.timeout(ROLLOUT_SECONDS):
                async for event in events:
                    if _is_applied(event["object"], version):
                        return time.monotonic() - began
        except TimeoutError:
            pass
        raise AssertionError(f"version {version} is not applied:\n{await workspace.story()}")


def _is_applied(weights: Json, version: str) -> bool:
    status, generation = weights.get("status", {}), weights["metadata"]["generation"]
    shown = (status.get("phase"), status.get("appliedVersion"), status.get("observedGeneration"))
    return shown == ("Applied", version, generation)


@dataclass(kw_only=True)
class Costs:
    """One attack. Times are seconds, memory is in MiB.

    Fields:
        attack: the name of the row (tools/isolation/rows.py).
        alone, attacked: each rollout, or each request, without the attack and meanwhile.
        lapsed: leases of the other tenant's paused workers that ended.
        ended: processes that ended by themselves.
        operator_mib, rl_api_mib: the most memory; None if the process took no part.
    """

    attack: str
    alone: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    lapsed: int = 0
    ended: int = 0
    operator_mib: float | None = None
    rl_api_mib: float | None = None

    async def measure_alone(self, one: Callable[[], Awaitable[float]]) -> None:
        """Measure some rounds without the attack. The first one, which warms up, does not count."""
        await one()
        self.alone += [await one() for _ in range(ROUNDS)]

    async def measure(self, one: Callable[[], Awaitable[float]], rounds: int = ROUNDS) -> None:
        """Measure some rounds while the attack lasts."""
        self.attacked += [await one() for _ in range(rounds)]

    def note(self, operator: OperatorProcess, workspace: Workspace) -> None:
        """Note what has become of the operator and of the leases."""
        self.operator_mib = max(self.operator_mib or 0, operator.peak_mib())
        self.ended += operator.starts - 1
        self.lapsed += sum(w.lease_expiries for w in workspace.own_workers)

    def check(self) -> None:
        """Write the row, and assert what holds for each attack."""
        if WRITE_TO:
            file = Path(WRITE_TO, f"{self.attack}.json")
            limits = {"operator_mib": OPERATOR_MIB, "rl_api_mib": RL_API_MIB}
            file.write_text(json.dumps(asdict(self) | {"limits_mib": limits}))
        print(self)  # noqa: T201 - shown with a failure, or with -s
        assert self.ended == 0
        assert self.lapsed == 0
        assert (self.operator_mib or 0) < OPERATOR_MIB
        assert (self.rl_api_mib or 0) < RL_API_MIB
        if self.attacked:
            alone, attacked = statistics.median(self.alone), statistics.median(self.attacked)
            assert attacked <= max(TIMES_AS_LONG * alone, NOISE_SECONDS)
