"""How much of its throughput a real worker keeps while it serves a version to peers.

The readers take the bytes off the connections and drop them unread (`MSG_TRUNC`), since real ones are other machines.
Engine, server, clients and the process that serves share the processors of this machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import envs
from bench_worker import load, servers, swaps
from bench_worker.servers import Server
from fleet_operator.core.peers import FAN_OUT
from fleet_worker.checkpoint.peers import authorization
from fleet_worker.protocol import PEER_PATH
from free_ports import free_port

GOAL = 0.98
RATES = (100_000_000, 0)
"""Bytes per second that the worker may send; 0 for no limit."""
_SHAPE = {"hidden": 1024, "layers": 6}
_STREAMS, _REQUESTS = 16, 1
_CACHE = 64 * 1024 * 1024
_POD = "of-the-bench"
_PIECE = 1 << 20
_IDLE_SECONDS = 0.01


def measured(rounds: int) -> list[dict[str, Any]]:
    """Return a row for each rate: medians over the rounds, each with and without readers."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-generation-") as name:
        folder = Path(name)
        for seed, step in enumerate(("base", "step_1")):
            _write(folder / step, seed)
        for rate in RATES:
            port = free_port()
            options = [f"--peer-port={port}"] + [f"--peer-bytes-per-second={rate}"] * (rate > 0)
            with servers.worker(
                folder,
                folder / "base",
                [folder],
                threads=1,
                cache_bytes=_CACHE,
                options=options,
                more_environment={"RLFLEET_POD_UID": _POD},
            ) as worker:
                swaps.admit(worker)
                staged = swaps.call(
                    worker, "stage", version="1", source={"path": str(folder / "step_1")}
                )["staged"]
                with _readers(port, staged["digest"]) as readers:
                    found = asyncio.run(_rounds(worker, readers, rounds))
            rows.append({"bytes_per_second": rate, "bytes": staged["size_bytes"]} | found)
    return rows


class _Readers:
    """Readers in a process of their own, as many as the operator lets read from one worker."""

    def __init__(self, reads: Event, count: Synchronized[int]) -> None:
        self.reads = reads
        self._count = count

    @property
    def read_bytes(self) -> int:
        """Bytes that they have read so far."""
        return self._count.value


@contextmanager
def _readers(port: int, digest: str) -> Iterator[_Readers]:
    spawning = multiprocessing.get_context("spawn")
    readers = _Readers(spawning.Event(), spawning.Value("q", 0))
    given = (port, digest, readers.reads, readers._count)  # noqa: SLF001 - its own module
    processes = [spawning.Process(target=_read, args=given, daemon=True) for _ in range(FAN_OUT)]
    for process in processes:
        process.start()
    try:
        yield readers
    finally:
        for process in processes:
            process.kill()
            process.join()


def _read(port: int, digest: str, reads: Event, count: Synchronized[int]) -> None:
    """Read the largest file repeatedly, while it may."""
    head = "\r\n".join(
        [
            f"GET {PEER_PATH}{digest}/0 HTTP/1.1",
            "Host: peer",
            "Range: bytes=0-",
            f"Authorization: {authorization(servers.TOKEN, _POD, digest)}",
            "",
            "",
        ]
    )
    buffer = bytearray(_PIECE)
    while reads.wait():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode())
            while reads.is_set() and (got := connection.recv_into(buffer, 0, socket.MSG_TRUNC)):
                with count.get_lock():
                    count.value += got


async def _rounds(worker: Server, readers: _Readers, rounds: int) -> dict[str, Any]:
    """Rounds alone, with readers, and alone again: a disturbance of the machine affects all of them."""
    serving = _serving_process(worker)
    rates: dict[str, list[float]] = {"alone": [], "serving": [], "again": []}
    used, sent, seconds = 0.0, 0, 0.0
    async with worker.client() as client:
        for number in range(rounds + 1):
            for way, found in rates.items():
                before = (_cpu_seconds(serving), readers.read_bytes, time.perf_counter())
                if way == "serving":
                    readers.reads.set()
                took = await load.generate(
                    worker, client, streams=_STREAMS, requests=_REQUESTS, streamed=True
                )
                readers.reads.clear()
                if not number:  # the first one warms up
                    continue
                found.append(took.tokens_per_second)
                if way == "serving":
                    used += _cpu_seconds(serving) - before[0]
                    sent += readers.read_bytes - before[1]
                    seconds += time.perf_counter() - before[2]
                await asyncio.sleep(_IDLE_SECONDS)
    pairs = list(zip(rates["serving"], rates["alone"], rates["again"], strict=True))
    return {
        "tokens_per_second": {way: statistics.median(found) for way, found in rates.items()},
        "ratio": statistics.median(2 * s / (one + other) for s, one, other in pairs),
        "noise": statistics.median(other / one for _, one, other in pairs),
        "rounds": rounds,
        "sent_bytes_per_second": sent / seconds,
        "cpu_seconds_per_gb": used / (sent / 1e9),
    }


def _serving_process(worker: Server) -> int:
    """The process that serves peers: the worker has started it."""
    for listing in Path(f"/proc/{worker.pid}/task").glob("*/children"):
        for child in listing.read_text().split():
            if b"peer_server" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise SystemExit("the worker serves no peers")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write(target: Path, seed: int) -> None:
    script = Path(__file__).resolve().parents[1] / "checkpoints.py"
    flags = [f"--{key}={value}" for key, value in _SHAPE.items()]
    command = [str(envs.interpreter_of("worker")), str(script), str(target), f"--seed={seed}"]
    subprocess.run([*command, *flags], check=True, stdout=subprocess.DEVNULL)


def table(found: dict[str, Any]) -> list[str]:
    """Return the rows, with the load of the machine."""
    m, rows = found["machine"], found["rows"]
    columns = (
        "sent",
        "tokens/s",
        "alone",
        "ratio",
        "goal",
        "alone / alone before",
        "processor time",
    )
    measured_on = (
        f"Measured with a load average of {m['load_average_at_start']} at the start; a model of"
        f" {rows[0]['bytes'] / 1e6:.0f} MB, {_STREAMS} streams, {FAN_OUT} readers;"
        f" medians of {rows[0]['rounds']} rounds."
    )
    heading = f"| One worker, real engine on CPUs | {' | '.join(columns)} |"
    lines = [measured_on, "", heading, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        limit = row["bytes_per_second"]
        name = f"serves peers with at most {limit / 1e6:.0f} MB/s" if limit else "without a limit"
        made = row["tokens_per_second"]
        lines.append(
            f"| {name} | {row['sent_bytes_per_second'] / 1e6:.0f} MB/s | {made['serving']:.0f}"
            f" | {made['alone']:.0f} | {row['ratio']:.3f} | {f'≥ {GOAL}' if limit else ''}"
            f" | {row['noise']:.3f} | {row['cpu_seconds_per_gb']:.2f} s for each GB |"
        )
    return lines
