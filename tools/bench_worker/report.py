"""The figures as JSON, and as a table in docs/performance.md between two marks."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_worker import store

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "bench" / "results"
PAGE = REPOSITORY / "docs" / "performance.md"


def machine() -> dict[str, Any]:
    """The machine of the measurements."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 1024**2),
        "load_average_at_start": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def where(machine: Mapping[str, Any]) -> str:
    """A machine in words, with the load before the measurements."""
    m = machine
    size = f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB"
    return f"{size}, load average {m['load_average_at_start']} at the start"


def published() -> dict[str, Any]:
    """The figures of the last run."""
    found: dict[str, Any] = json.loads((RESULTS / "worker.json").read_text())
    return found


def write(results: dict[str, Any]) -> None:
    """Write both."""
    publish("worker", results, table(results))


def publish(name: str, results: dict[str, Any], text: str) -> None:
    """Write the figures of a benchmark to its file, and the text to its part of the page."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
    fill(PAGE, f"bench-{name}", text)


def fill(page: Path, part: str, text: str) -> None:
    """Write the part of a page between its two marks."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")


def table(results: dict[str, Any]) -> str:
    """The figures, in words and rows."""
    lines = _many_streams(results["streams"])
    lines += [_where(results)]
    lines += _rows("Public port", "stock `vllm serve`", "worker", "worker / stock", "goal")
    for row in results["public_port"]:
        lines += _public(row)
    swap, start = results["swap"], results["start"]
    size = f"{swap['size_bytes'] / 1e9:.2f} GB"
    rate = f"from a store that gives {store.BYTES_PER_SECOND / 1e6:.0f} MB/s"
    lines += _rows("Weights and start", "seconds", "ratio", "goal")
    lines += [
        _seconds(f"bare `reload_weights` of {size}, files cached", swap["bare_warm"]),
        _cells(
            "pause of a staged swap, from pause to resume",
            f"{swap['pause_warm']:.2f}",
            f"{swap['pause_over_bare']:.2f} of bare",
            "≤ 1.2",
        ),
    ]
    for name, origin in (("cold", "from this machine's disk"), ("slow", rate)):
        if f"bare_{name}" not in swap:
            continue
        lines += [
            _seconds(f"bare `reload_weights`, files not cached, {origin}", swap[f"bare_{name}"]),
            _cells(
                f"pause of a staged swap, files not cached any more, {origin}",
                f"{swap[f'pause_{name}']:.2f}",
                f"{swap[f'{name}_over_unstaged']:.2f} of unstaged",
                "≤ 0.5",
            ),
            _seconds(
                f"staging before it, while requests are served, {origin}", swap[f"stage_{name}"]
            ),
        ]
    lines += [
        _cells("process start to `/health` of stock vLLM", f"{start['stock']:.1f}", "", ""),
        _cells(
            "process start to `joining`",
            f"{start['joining']:.1f}",
            f"{start['joining'] / start['stock']:.2f} of stock",
            "",
        ),
        _cells("what the latch adds: `joining` to serving", f"{start['latch']:.3f}", "", ""),
    ]
    return "\n".join(lines) + "\n"


def _where(results: dict[str, Any]) -> str:
    return f"Measured on {where(results['machine'])}, vLLM {results['vllm']}."


def _many_streams(results: dict[str, Any]) -> list[str]:
    lines = [_where(results)]
    lines += _rows(
        "Processor seconds of the server for 10,000 tokens, 192 a request",
        "stock `vllm serve`",
        "worker",
        "worker / stock (middle half of the pairs)",
        "goal",
    )
    return [*lines, *(_many(row) for row in results["rows"]), ""]


def _many(row: dict[str, Any]) -> str:
    kind = "streamed" if row["streamed"] else "whole replies"
    key = "cpu_seconds_per_10000_tokens"
    low, high = row["cpu_ratio_quartiles"]
    return _cells(
        f"{row['kind']}, {row['streams']} at once, {kind}",
        f"{row['stock'][key]:.3f}",
        f"{row['worker'][key]:.3f}",
        f"{row['cpu_ratio']:.3f} ({low:.3f} to {high:.3f})",
        "≤ 1.05",
    )


def _public(row: dict[str, Any]) -> list[str]:
    kind = "streamed" if row["streamed"] else "whole replies"
    name = f"{row['streams']} at once, {kind}"
    key = "tokens_per_second"
    stock, ours = row["stock"], row["worker"]
    ratio = f"{row[f'{key}_ratio']:.3f}"
    made = [_cells(f"{name}: tokens/s", f"{stock[key]:.0f}", f"{ours[key]:.0f}", ratio, "≥ 0.98")]
    for share in ("p50", "p99"):
        times = [f"{1000 * each[share]:.0f} ms" for each in (stock, ours)]
        made.append(_cells(f"{name}: {share}", *times, f"{row[f'{share}_ratio']:.3f}", "≤ 1.05"))
    key = "cpu_seconds_per_10000_tokens"
    ratio = f"{row[f'{key}_ratio']:.3f}"
    name = f"{name}: processor seconds of the server for 10,000 tokens"
    return [*made, _cells(name, f"{stock[key]:.2f}", f"{ours[key]:.2f}", ratio, "")]


def _seconds(what: str, seconds: float) -> str:
    return _cells(what, f"{seconds:.2f}", "", "")


def _rows(*heads: str) -> list[str]:
    return ["", _cells(*heads), _cells(*("---" for _ in heads))]


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
