"""Strangers that read the operator's ports without an end slow no rollout and no probe."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.cluster.support.costs import Costs, Rollouts
from tests.cluster.support.workspace import Workspace

FLOOD = """
import asyncio, sys
async def one(port, path):
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                writer.write(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
                await reader.readuntil(b"\\r\\n\\r\\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await asyncio.sleep(0.1)
async def main():
    metrics, probes, each = map(int, sys.argv[1:])
    flood = [(metrics, "/metrics"), (probes, "/livez")] * each
    await asyncio.gather(*(one(*place) for place in flood))
asyncio.run(main())
"""


@asynccontextmanager
async def flooded(*ports: int, each: int) -> AsyncIterator[None]:
    flood = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FLOOD, *map(str, ports), str(each))
    )
    try:
        yield
    finally:
        flood.kill()
        await flood.wait()


@pytest.mark.attack
@pytest.mark.long
async def test_512_connections_that_read_without_an_end_slow_no_rollout(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1", replicas=3)
    costs, rollout = Costs(attack="512 connections to each port"), Rollouts(workspace)
    await costs.measure_alone(rollout)
    probes = []
    async with flooded(operator.metrics_port, operator.probe_port, each=512):
        for _ in range(5):
            await costs.measure(rollout, 1)
            probes.append(await probe(operator.probe_port))

    costs.note(operator, workspace)
    costs.check()
    assert max(costs.attacked) < 5
    assert max(probes) < 5, "a kubelet waits so long"


async def probe(port: int) -> float:
    """Seconds until `/livez` answers a client with another address than the flood, as a kubelet has it."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    status = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    assert b" 200 " in status
    return time.monotonic() - began
