"""`python -m bench_bytes.publish`: how long a trainer takes to write a version, in full and as a delta.

The model has the shapes of Qwen3-0.6B, in bfloat16 and in the host's memory. It is written to a folder of this
machine, so the figures are those of the processor and of its disk.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_bytes.write import shapes
from bench_worker.report import machine, publish
from rlfleet import Deltas
from rlfleet.deltas.options import Given
from rlfleet.deltas.publisher import Order, Publisher
from rlfleet.deltas.written import Written

_SEED = 74
State = dict[str, npt.NDArray[Any]]


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_bytes.publish", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each way, in turn")
    parser.add_argument("--layers", type=int, default=28, help="of the model")
    parser.add_argument("--folder", type=Path, help="on the disk to write to; by default a new one")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "rounds": arguments.rounds}
    with tempfile.TemporaryDirectory(prefix="bench-publish-", dir=arguments.folder) as made:
        results |= _measured(Path(made), arguments.rounds, arguments.layers)
    table = _table(results)
    publish("publish", results, table)
    sys.stdout.write(table)
    return 0


def _measured(folder: Path, rounds: int, layers: int) -> dict[str, Any]:
    (folder / "config.json").write_text("{}")
    chosen = np.random.default_rng(_SEED)
    state = dict(_tensors(chosen, layers))
    publisher, versions = Publisher(), iter(range(1, 1000))

    def written_by(deltas: Deltas | None) -> Written:
        version = str(next(versions))
        target = folder / f"step_{version}"
        order = Order(
            version=version,
            run_id=None,
            path=str(target),
            target=target,
            deltas=deltas,
            left_base=lambda _: "",
        )
        return publisher.write(order, Given(state_dict=state, config_from=folder))

    ways: dict[str, Callable[[], Written]] = {
        "full": lambda: written_by(Deltas(anchor_every=1)),  # it also keeps the copy
        "delta_0": lambda: written_by(Deltas(anchor_every=64)),
        "delta_1": lambda: _after(state, chosen, 0.01, lambda: written_by(Deltas(anchor_every=64))),
        "delta_10": lambda: _after(state, chosen, 0.1, lambda: written_by(Deltas(anchor_every=64))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", "digest", *ways)}
    written: dict[str, Written] = {}
    for _ in range(rounds):
        seconds["plain"].append(_plain_seconds(state, folder / "plain"))
        seconds["digest"].append(_digest_seconds(state))
        for name, way in ways.items():
            written[name] = way()
            seconds[name].append(written[name].seconds)
    return {
        "seconds": seconds,
        "full_bytes": written["full"].full_bytes,
        "written_bytes": {name: one.written_bytes for name, one in written.items()},
        "changed_share": {name: one.changed_share for name, one in written.items()},
    }


def _tensors(chosen: np.random.Generator, layers: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Weights whose 16 bits are those of bfloat16; numpy has no name for it, so they are called U16."""
    for name, shape in shapes(layers):
        values = chosen.standard_normal(shape, np.float32) * np.float32(0.02)
        yield name, (values.view(np.uint32) >> 16).astype(np.uint16)


def _after(
    state: State, chosen: np.random.Generator, share: float, publish: Callable[[], Written]
) -> Written:
    """Change a share of the elements by one unit in the last place, as an update does, and publish."""
    for tensor in state.values():
        flat = tensor.reshape(-1)
        where = np.flatnonzero(chosen.random(flat.size, np.float32) < share)
        flat[where] += chosen.choice(np.array([1, 2**16 - 1], np.uint16), len(where))
    return publish()


def _plain_seconds(state: State, file: Path) -> float:
    """Write all bytes to one file, without a digest."""
    begun = time.monotonic()
    with file.open("wb") as out:
        for tensor in state.values():
            out.write(tensor.data)
        out.flush()
        os.fsync(out.fileno())
    return time.monotonic() - begun


def _digest_seconds(state: State) -> float:
    """Compute the SHA-256 of all bytes, which the digest of every version needs."""
    begun, sha = time.monotonic(), hashlib.sha256()
    for tensor in state.values():
        sha.update(tensor.data)
    return time.monotonic() - begun


def _table(results: dict[str, Any]) -> str:
    found, size = results["machine"], results["full_bytes"]
    where = f"{found['cores']} cores of {found['cpu']}, {found['memory_gib']} GiB"
    load = f"load average {found['load_average_at_start']} at the start"
    lines = [
        f"Measured on {where}, {load}. A model of {size / 1e9:.2f} GB, medians of {results['rounds']} rounds.",
        "",
        "| A trainer writes one version | seconds | bytes | of the full checkpoint |",
        "| --- | --- | --- | --- |",
        _row("all bytes to one file, nothing else", results, "plain"),
        _row("SHA-256 of all bytes, nothing written", results, "digest"),
        _row("in full, with the digest and the copy in memory", results, "full"),
        _row("as a delta, nothing changed", results, "delta_0"),
        _row("as a delta, 1 % of the elements changed", results, "delta_1"),
        _row("as a delta, 10 % of the elements changed", results, "delta_10"),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, results: dict[str, Any], way: str) -> str:
    median = statistics.median(results["seconds"][way])
    written = results["written_bytes"].get(way)
    if way == "plain":
        written = results["full_bytes"]
    cells = ["", ""]
    if written is not None:
        cells = [f"{written / 1e6:,.1f} MB", f"{written / results['full_bytes']:.1%}"]
    return f"| {name} | {median:.2f} | {cells[0]} | {cells[1]} |"


if __name__ == "__main__":
    sys.exit(main())
