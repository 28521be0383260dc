"""`python -m bench_bytes.peers`: how long workers take until all have staged a version, with and without peers.

The workers are processes of this machine without engines, with the stagers and the serving processes of real
ones. Each has a copy of the files, since nodes do not share a page cache. All copies are behind one limited
store. The bytes that workers send to each other go over loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import envs
from bench_bytes import generation
from bench_bytes.write import write_delta, write_plain
from bench_worker.report import REPOSITORY, RESULTS, machine, publish
from bench_worker.store import limited
from fleet_operator.core.peers import FAN_OUT

PARTS = ("staging", "generation")
GOAL, GOAL_OF_DELTAS = 1.3, 0.1
CHANGED_SHARE = 0.01
WAYS = {
    "store": ("the full version: all read the store", ""),
    "peers": ("the full version: one reads the store, the others read from peers", f"≤ {GOAL:g}"),
    "delta_store": ("a delta: all read the store", ""),
    "delta_whole": (
        "a delta: one reads the store, the others take the whole result from peers",
        "",
    ),
    "delta_peers": (
        "a delta: one reads the store, the others take the delta from peers",
        f"≤ {GOAL_OF_DELTAS:g}",
    ),
}


class Worker:
    """One process, and what it said last."""

    def __init__(self, number: int, said: queue.Queue[tuple[int, dict[str, Any]]]) -> None:
        self.number, self.uid, self.port = number, f"pod-{number}", 0
        script = str(Path(__file__).with_name("peer_worker.py"))
        self._process = subprocess.Popen(
            [str(envs.interpreter_of("worker")), script, self.uid],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{REPOSITORY}/client:{REPOSITORY}/worker"},
        )
        threading.Thread(target=self._read, args=(said,), daemon=True).start()

    def _read(self, said: queue.Queue[tuple[int, dict[str, Any]]]) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                said.put((self.number, json.loads(line)))
        said.put((self.number, {"ended": True}))

    def ask(self, **request: object) -> None:
        """Ask it to stage."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def processor_seconds(self) -> float:
        """Of all its processes so far."""
        return _seconds_of(self._process.pid)

    def end(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)


class Fleet:
    """All workers, and the copies of the version."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.peer_bytes, self.processor_seconds = folder, 0, 0.0
        self._said: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.workers = [Worker(number, self._said) for number in range(count)]
        for _ in self.workers:
            number, said = self.next()
            self.workers[number].port = int(said["ready"])

    def next(self) -> tuple[int, dict[str, Any]]:
        """The next thing that a worker says, and its number."""
        number, said = self._said.get(timeout=600)
        if "ended" in said:
            raise SystemExit(f"worker {number} has ended")
        return number, said

    def hold(self, path: Path) -> None:
        """Let all hold a version in memory, as if their engines had it."""
        for worker in self.workers:
            worker.ask(hold=str(path))
        for _ in self.workers:
            self.next()

    def seconds(self, count: int, version: str, digest: str, *, peers: bool, whole: bool) -> float:
        """Seconds until the first `count` workers have staged.

        Args:
            count: Number of workers.
            version: Name of its directory below that of each worker.
            digest: Of the whole weights.
            peers: Only one of them reads the store.
            whole: The others take no delta.
        """
        for number in range(count):
            _forget(self.folder / str(number) / version)
        used = self._processor_seconds()
        began = time.perf_counter()
        tree = _Tree(self, count, version, digest, peers=peers, whole=whole)
        while tree.left:
            tree.note(*self.next())
        seconds = time.perf_counter() - began
        self.peer_bytes = tree.peer_bytes
        self.processor_seconds = self._processor_seconds() - used
        return seconds

    def _processor_seconds(self) -> float:
        return sum(worker.processor_seconds() for worker in self.workers)


class _Tree:
    """The reads, as the operator plans them (`fleet_operator.core.peers`), without nodes."""

    def __init__(
        self, fleet: Fleet, count: int, version: str, digest: str, *, peers: bool, whole: bool
    ) -> None:
        self.left, self.peer_bytes = count, 0
        self._fleet, self._version, self._digest = fleet, version, digest
        self._peers, self._whole = peers, whole
        self._waiting = list(range(count))
        self._serving: list[int] = []
        self._readers: Counter[int] = Counter()
        self._parents: dict[int, int] = {}
        for _ in range(1 if peers else count):
            self._ask(None)

    def _ask(self, parent: int | None) -> None:
        number, peer = self._waiting.pop(0), None
        if parent is not None:
            served = self._fleet.workers[parent]
            peer = {"host": "127.0.0.1", "port": served.port, "pod_uid": served.uid}
            self._readers[parent] += 1
            self._parents[number] = parent
        self._fleet.workers[number].ask(
            path=str(self._fleet.folder / str(number) / self._version),
            digest=self._digest,
            peer=peer,
            serves=self._peers,
            whole=self._whole,
        )

    def note(self, number: int, said: dict[str, Any]) -> None:
        """Take what a worker says, and ask others."""
        if said.get("serves"):
            self._serving.append(number)
        if (found := said.get("staged")) is not None:
            if found != self._digest:
                raise SystemExit(f"worker {number} has staged {found} instead of {self._digest}")
            self.left -= 1
            self.peer_bytes += int(said["peer_bytes"])
            if number in self._parents:
                self._readers[self._parents.pop(number)] -= 1
        while self._waiting:
            free = [n for n in self._serving if self._readers[n] < FAN_OUT]
            if not free:
                return
            self._ask(min(free, key=lambda n: (self._readers[n], n)))


def _seconds_of(process: int) -> float:
    """Processor time of a process, its children, and those that have ended."""
    folder = Path(f"/proc/{process}")
    words = (folder / "stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    children = (each.read_text().split() for each in (folder / "task").glob("*/children"))
    return own + sum(_seconds_of(int(child)) for each in children for child in each)


def _forget(directory: Path) -> None:
    for file in directory.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def fleet_of(folder: Path, count: int) -> Iterator[Fleet]:
    """Start the workers, and end them after the block."""
    fleet = Fleet(folder, count)
    try:
        yield fleet
    finally:
        for worker in fleet.workers:
            worker.end()


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_bytes.peers", description=__doc__)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--megabytes", type=int, default=64, help="of the version")
    parser.add_argument("--megabytes-per-second", type=int, default=8, help="of the store")
    parser.add_argument("--rounds", type=int, default=3, help="of each way, in turn")
    parser.add_argument(
        "--generation-rounds", type=int, default=20, help="of a real engine, next to readers"
    )
    parser.add_argument(
        "--without-peers", action="store_true", help="measure full versions so, too: slow"
    )
    parser.add_argument(
        "--folder", type=Path, help="on the disk to read from; by default a new one"
    )
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help="the others keep their published figures; default: %(default)s",
    )
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    results: dict[str, Any] = json.loads((RESULTS / "peers.json").read_text())
    if "staging" in parts:
        results["staging"] = _staged(arguments)
    if "generation" in parts:
        results["generation"] = {
            "machine": machine(),
            "rows": generation.measured(arguments.generation_rounds),
        }
    text = _table(results["staging"])
    if "generation" in results:
        text += "\n" + "\n".join(generation.table(results["generation"])) + "\n"
    publish("peers", results, text)
    sys.stdout.write(text)
    return 0


def _staged(arguments: argparse.Namespace) -> dict[str, Any]:
    """The time until all workers have staged, in each way."""
    count, rate = arguments.workers, arguments.megabytes_per_second
    found: dict[str, Any] = {
        "machine": machine(),
        "workers": count,
        "store_bytes_per_second": rate * 1_000_000,
        "seconds": {},
        "processor_seconds": {},
        "peer_bytes": {},
    }
    with ExitStack() as stack:
        made = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-peers-", dir=arguments.folder)
        )
        folder = Path(made)
        digest, found["bytes"] = _write(folder, count, arguments.megabytes * 1_000_000)
        fleet = stack.enter_context(fleet_of(folder, count))
        fleet.hold(folder / "base")
        os.sync()  # only clean pages leave the page cache
        is_limited = stack.enter_context(limited(os.getpid(), folder, rate * 1_000_000))
        if not is_limited:
            raise SystemExit("the kernel does not limit reads here (cgroup blkio)")

        def take(way: str, readers: int = count) -> None:
            version = "delta" if way.startswith("delta") else "full"
            has_peers = way in ("peers", "delta_whole", "delta_peers")
            is_whole = way == "delta_whole"
            seconds = fleet.seconds(readers, version, digest, peers=has_peers, whole=is_whole)
            found["seconds"].setdefault(way, []).append(seconds)
            found["processor_seconds"].setdefault(way, []).append(fleet.processor_seconds)
            found["peer_bytes"][way] = fleet.peer_bytes

        fleet.seconds(1, "full", digest, peers=True, whole=False)  # starts what starts then
        for _ in range(arguments.rounds):
            take("alone", 1)
            for way in ("peers", "delta_store", "delta_whole", "delta_peers"):
                take(way)
        if arguments.without_peers:
            take("store")
    return found


def _write(folder: Path, count: int, size: int) -> tuple[str, int]:
    """Write the base, and for each worker the next version in full and as a delta.

    Returns: the digest of the version, and the bytes of its file.
    """
    write_plain(folder / "base", size)
    digest, written = write_plain(folder / "full", size, changed_share=CHANGED_SHARE)
    write_delta(folder)
    for number in range(count):
        for name in ("full", "delta"):
            shutil.copytree(folder / name, folder / str(number) / name)
    return digest, written


def _table(results: dict[str, Any]) -> str:
    m, count = results["machine"], results["workers"]
    alone = statistics.median(results["seconds"]["alone"])
    where = f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB"
    load = f"load average {m['load_average_at_start']} at the start"
    store = f"a store of {results['store_bytes_per_second'] / 1e6:.0f} MB/s"
    size = (
        f"{results['bytes'] / 1e6:.0f} MB in one file, {CHANGED_SHARE:.0%} of the elements changed"
    )
    lines = [
        f"Measured on {where}, {load}; {size}, {store}; medians of {len(results['seconds']['alone'])} rounds.",
        "",
        f"| Until all have staged | {count} workers | one worker, in full | ratio | goal | between workers | processor time ÷ {m['cores']} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, (name, goal) in WAYS.items():
        if seconds := results["seconds"].get(way):
            found = statistics.median(seconds)
            passed = f"{results['peer_bytes'][way] / 1e6:,.1f} MB"
            used = results["processor_seconds"].get(way)
            floor = f"{statistics.median(used) / m['cores']:.2f} s" if used else "not measured"
            ratio = f"{found / alone:.2f} | {goal} | {passed} | {floor}"
            lines.append(f"| {name} | {found:.2f} s | {alone:.2f} s | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
