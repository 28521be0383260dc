"""Strangers that read the operator's ports without an end slow no rollout and no probe."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
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


@pytest.mark.long
async def test_512_connections_that_read_without_an_end_slow_no_rollout(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator(again=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1", replicas=3)
    alone = [await rollout(workspace, f"a{n}") for n in range(3)]
    seconds, probes = [], []
    async with flooded(operator.metrics_port, operator.probe_port, each=512):
        for n in range(5):
            seconds.append(await rollout(workspace, f"b{n}"))
            probes.append(await probe(operator.probe_port))
    print(f"rollouts alone {alone}, with the flood {seconds}, probes {probes}")  # noqa: T201 - with -s, the times

    assert operator.starts == 1
    assert sorted(seconds)[2] <= max(2 * sorted(alone)[1], 1.0)
    assert max(seconds) < 5
    assert max(probes) < 5, "a kubelet waits so long"


async def rollout(workspace: Workspace, version: str) -> float:
    """Seconds from a publication until it serves."""
    began = time.monotonic()
    await workspace.publish(version)
    await workspace.applied(version, replicas=3, seconds=40)
    return time.monotonic() - began


async def probe(port: int) -> float:
    """Seconds until `/livez` answers a client with another address than the flood, as a kubelet has it."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    status = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    assert b" 200 " in status
    return time.monotonic() - began
