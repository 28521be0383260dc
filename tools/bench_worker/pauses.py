"""`python -m bench_worker.pauses`: the pause of a swap and its parts, against bare `reload_weights`.

Both servers run at once and take turns, so what the machine does meanwhile, it does to both. On a GPU,
`RLFLEET_BENCH_PYTHON` names a Python with vLLM for it, in an environment without our packages, and both models
must fit:

    RLFLEET_BENCH_PYTHON=/opt/vllm/bin/python make bench-pause ARGS="--hidden 4096 --layers 36 --swaps 5"
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_worker import servers, swaps

_CACHE_BYTES = 64 * 1024 * 1024
SCRIPT = Path(__file__).resolve().parents[1] / "checkpoints.py"


def main() -> int:
    """Measure, and print a table and the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench_worker.pauses", description=__doc__)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6, help="of 0.2 GB each, by default")
    parser.add_argument("--swaps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-pause-") as name:
        found = _measured(Path(name), arguments)
    sys.stdout.write(_table(found) + json.dumps(found) + "\n")
    return 0


def _measured(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    steps = [folder / f"step_{number}" for number in (1, 2)]
    for seed, step in enumerate(steps):
        shape = [f"--hidden={arguments.hidden}", f"--layers={arguments.layers}", f"--seed={seed}"]
        command = [servers.interpreter(), str(SCRIPT), str(step), *shape]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    options = {"threads": arguments.threads, "cache_bytes": _CACHE_BYTES}
    with (
        servers.stock(folder, steps[0], **options) as stock,
        servers.worker(folder, steps[0], [folder], **options) as worker,
    ):
        swaps.admit(worker)
        return measured(stock, worker, steps, arguments.swaps)


def measured(
    stock: servers.Server, worker: servers.Server, steps: Sequence[Path], count: int
) -> dict[str, object]:
    """Swap and reload in turn.

    Args:
        stock: Stock vLLM on the first version.
        worker: A worker that serves it.
        steps: Directories of two versions.
        count: How often.
    """
    bare, found, copies = list[float](), list[dict[str, float]](), ""
    for number in range(count + 1):
        path, version = steps[(number + 1) % 2], f"step-{number}"
        copies = swaps.stage(worker, version, path)
        reloaded = swaps.bare_reload(stock, path)
        swapped = swaps.swap(worker, version, path, drop_cache=False)
        if number:  # the first one warms up
            bare.append(reloaded)
            found.append(swapped)
    parts = {key: statistics.median(each[key] for each in found) for key in found[0]}
    ratios = [each["paused_seconds"] / other for each, other in zip(found, bare, strict=True)]
    size = swaps.size_of(steps[0])
    return {
        "size_bytes": size,
        "copies": copies,
        "bare_seconds": statistics.median(bare),
        "paused_over_bare": statistics.median(ratios),
        "copied_bytes_per_second": size / parts["copy_seconds"],
        **parts,
    }


def _table(found: dict[str, object]) -> str:
    number = {key: value for key, value in found.items() if isinstance(value, float | int)}
    checks = number["load_seconds"] - number["copy_seconds"]
    calls = number["paused_seconds"] - number["load_seconds"]
    rows = (
        ("bare `reload_weights` in stock vLLM", f"{number['bare_seconds']:.3f} s"),
        ("pause of a staged swap", f"{number['paused_seconds']:.3f} s"),
        ("pause / bare", f"{number['paused_over_bare']:.2f}"),
        ("of the pause: copies", f"{number['copy_seconds']:.3f} s"),
        ("of the pause: checks before and after them", f"{checks:.3f} s"),
        ("of the pause: the calls between", f"{calls:.3f} s"),
        ("bytes", f"{number['size_bytes'] / 1e9:.2f} GB"),
        ("copies", f"{number['copied_bytes_per_second'] / 1e9:.1f} GB/s"),
        ("how", str(found["copies"])),
    )
    return "".join(f"| {name} | {value} |\n" for name, value in rows)


if __name__ == "__main__":
    sys.exit(main())
