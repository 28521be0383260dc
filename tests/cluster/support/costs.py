"""Measures the costs of one tenant's attack for another tenant.

These are its rollouts or requests, alone and meanwhile, its leases, and the memory and starts of the processes that
both use. A test asserts these costs. `make isolation` runs the same tests, and writes the costs into the table of
docs/reliability.md (tools/isolation).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.support.admin import Json
from tests.cluster.support.flood import flooded
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

from bench_scale.processes import control_plane, cpu_seconds, forwarder, machine_seconds

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


WRITES = 6
"""Of the operator in a rollout: five statuses and an Event."""


class Script:
    """The requests of a rollout, without an operator: the publication, and as many writes one after the other, the
    last of which comes back in a watch.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._number = 0

    async def __call__(self) -> float:
        """Returns: the seconds until the last write has come back."""
        workspace, admin = self._workspace, self._workspace.admin
        path = f"{GROUP}/namespaces/{workspace.namespace}/weightversions"
        self._number += 1
        written = [f"{self._number}-{n}" for n in range(WRITES)]
        began = time.monotonic()
        await workspace.publish(f"s{self._number}")

        async def write() -> None:
            for version in written:
                await admin.merge(f"{path}/{FLEET}/status", {"status": {"appliedVersion": version}})

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            async for event in admin.watch(path, {"fieldSelector": f"metadata.name={FLEET}"}):
                if event["object"].get("status", {}).get("appliedVersion") == written[-1]:
                    break
        return time.monotonic() - began


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
        server_alone, server_attacked: the same for `Script`, without an operator.
        busy: cores that each process, and the whole machine, has used during the attack.
        lapsed: leases of the other tenant's paused workers that ended.
        ends: how processes ended that ended by themselves.
        operator_mib, rl_api_mib: the most memory; None if the process took no part.
    """

    attack: str
    alone: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    server_alone: list[float] = field(default_factory=list)
    server_attacked: list[float] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    lapsed: int = 0
    ends: list[str] = field(default_factory=list)
    operator_mib: float | None = None
    rl_api_mib: float | None = None

    async def measure_alone(self, one: Callable[[], Awaitable[float]]) -> None:
        """Measure some rounds without the attack. The first one, which warms up, does not count."""
        self.alone += await _rounds(one)

    async def measure(self, one: Callable[[], Awaitable[float]], rounds: int = ROUNDS) -> None:
        """Measure some rounds while the attack lasts."""
        self.attacked += [await one() for _ in range(rounds)]

    @contextlib.contextmanager
    def counting(self, workspace: Workspace, **processes: int) -> Iterator[None]:
        """Count the processor time of the API server, of etcd, of the way to them, of further processes, and of
        all together meanwhile.
        """
        run = workspace.cluster.folder
        found = processes | control_plane(run) | {"forwarder": forwarder(run)}

        def used() -> dict[str, float]:
            each = {name: cpu_seconds(pid) for name, pid in found.items()}
            return each | {"the machine": machine_seconds()}

        before, began = used(), time.monotonic()
        yield
        after, seconds = used(), time.monotonic() - began
        for name in before:
            self.busy[name] = (after[name] - before[name]) / seconds

    async def measure_server(
        self,
        workspace: Workspace,
        paths: Sequence[str],
        body: Json | None,
        *,
        number: int,
        changes: Sequence[Json] = ({},),
    ) -> None:
        """Play the attack again without an operator: what it costs when nothing of ours runs. Arguments as for
        `flooded`.
        """
        script = Script(workspace)
        self.server_alone += await _rounds(script)
        async with flooded(workspace, paths, body, number=number, changes=changes) as flood:
            for _ in range(2 * ROUNDS):
                if flood.returncode is None:
                    self.server_attacked.append(await script())

    def note(self, operator: OperatorProcess, workspace: Workspace) -> None:
        """Note what has become of the operator and of the leases."""
        self.operator_mib = max(self.operator_mib or 0, operator.peak_mib())
        self.ends += operator.ends
        self.lapsed += sum(w.lease_expiries for w in workspace.own_workers)

    def check(self) -> None:
        """Write the row, and assert what holds for each attack.

        The API server takes the requests of tenants itself, in its own order. So a rollout may take as many times
        longer as its requests do without an operator, and twice that, or as long as these requests take.
        """
        if WRITE_TO:
            file = Path(WRITE_TO, f"{self.attack}.json")
            limits = {"operator_mib": OPERATOR_MIB, "rl_api_mib": RL_API_MIB}
            file.write_text(json.dumps(asdict(self) | {"limits_mib": limits}))
        print(self)  # noqa: T201 - shown with a failure, or with -s
        assert self.ends == []
        assert self.lapsed == 0
        assert (self.operator_mib or 0) < OPERATOR_MIB
        assert (self.rl_api_mib or 0) < RL_API_MIB
        if self.attacked:
            alone, attacked = statistics.median(self.alone), statistics.median(self.attacked)
            of_the_server = statistics.median(self.server_attacked or [0.0])
            limit = max(TIMES_AS_LONG * alone * self._of_the_server(), of_the_server)
            assert attacked <= max(limit, NOISE_SECONDS)

    def _of_the_server(self) -> float:
        """How many times longer the API server takes for a rollout under the attack, without an operator."""
        if not self.server_attacked:
            return 1.0
        alone, attacked = map(statistics.median, (self.server_alone, self.server_attacked))
        return max(1.0, attacked / alone)


async def _rounds(one: Callable[[], Awaitable[float]]) -> list[float]:
    """The seconds of some rounds. The first one warms up, and does not count."""
    await one()
    return [await one() for _ in range(ROUNDS)]
