"""Two replicas: the standby finishes the rollout of a leader that freezes."""

from __future__ import annotations

import asyncio
import signal

from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import Workspace

from fleet_operator.runtime.operator_process import EXIT_LOST_LEASE

TAKEOVER_SECONDS = 40.0
"""From the end of a leader to the first call of the next one. Twice the promise, for busy machines.
tests/model/runtime/test_leading.py holds the promise on virtual time."""


async def _two(workspace: Workspace) -> tuple[OperatorProcess, OperatorProcess]:
    """A leader and a standby."""
    leader = await workspace.start_operator()
    standby = await workspace.start_operator(leading=False)

    async def stands_by() -> bool:
        return (await standby.page("/readyz"))[0] == 200

    await workspace.until(stands_by, "the standby is ready")
    assert not await standby.leads()
    return leader, standby


def _terms(workspace: Workspace) -> list[int]:
    """Terms of all calls that workers took, in order."""
    calls = [c for port in workspace.kubelet.ports.values() for c in port.calls if c.taken]
    return [c.epoch.term for c in sorted(calls, key=lambda c: c.at)]


def _took_over_after(workspace: Workspace, since: float) -> float:
    """Seconds from a moment to the first call of the second term that a worker took."""
    calls = [c for port in workspace.kubelet.ports.values() for c in port.calls]
    return min(c.at for c in calls if c.taken and c.epoch.term == 2) - since


async def _in_phase(workspace: Workspace, phase: str, seconds: float) -> None:
    """Begin the rollout of version 2 on slow workers, and wait for a phase of it."""
    for worker in workspace.kubelet.workers:
        worker.slow_seconds = seconds
    await workspace.publish("2")

    async def is_it() -> bool:
        return await workspace.phase() == phase

    await workspace.until(is_it, f"the rollout is {phase}")


async def test_a_former_leader_that_was_frozen_changes_nothing_and_ends(
    workspace: Workspace,
) -> None:
    leader, standby = await _two(workspace)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    await _in_phase(workspace, "Staging", seconds=1)
    leader.send(signal.SIGSTOP)
    frozen_at = asyncio.get_running_loop().time()

    await standby.leading()
    writes = len(leader.proxy.writes)  # the proxy may note those from before the freeze late
    await workspace.applied("2")
    assert _took_over_after(workspace, frozen_at) < TAKEOVER_SECONDS
    await workspace.publish("3")
    await workspace.applied("3")
    terms = len(_terms(workspace))
    leader.send(signal.SIGCONT)

    assert await leader.ended() == EXIT_LOST_LEASE
    assert "leadership is lost" in leader.said()
    assert leader.proxy.writes[writes:] == []
    assert set(_terms(workspace)[terms:]) <= {2}
    assert {w.epoch.term for w in workspace.kubelet.workers} == {2}
    await workspace.publish("4")
    await workspace.applied("4")
