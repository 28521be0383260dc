"""Recoveries as a page of the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench_worker.report import fill
from chaos.recovery import Recovery

_HEAD = """How a fleet of real vLLM workers recovers from failures, measured on a real Kubernetes node.
`make reliability` injects every failure below and writes this page. `make chaos` injects them at
random. A stopped process keeps the rollout in a phase while the fault is injected (`tools/chaos`).
Clients generate through the Service all the time.

Workers read the checkpoints through a FUSE server, which simulates a network file system: *store
hangs* stops it. A partition between operators and workers lasts longer than the lease of a pause, so
that workers end their pauses themselves. *Leader frozen* continues after 60 s, when another leader has
rolled out a newer version. *Path rewritten* puts other weights under the path of the applied version
and kills a worker. The worker must not be admitted, and `VersionReused` must be reported, until the
files are restored.

Seconds count from the end of the fault until every desired worker served the desired version. In rows
that kill a worker, most of the time is the start of vLLM. *Retried* counts attempts of clients that met
a killed or fenced worker. *Lost* counts requests that failed after all retries. Every token of these
runs was recomputed offline with the checkpoint that its label names.

"""


_DELTAS = """## Deltas and peers

Three real workers under load, as above, of which one reads each delta from the store and two read the result from
a peer (`spec.weights.peers`). Deltas in the form of slime and in ours take turns. The rows are played in this
order, in one chain of ten deltas with two versions in full. In *store lost* all versions are gone from the volume
while a worker starts, and it takes the version from a peer. In *old versions deleted* the chart's collector
deletes the first chain, and then a worker starts. Every token was recomputed with the weights in full, from which
the deltas were made.

"""


def write(path: Path, recoveries: Sequence[Recovery], tokens: int) -> None:
    """Write the part of the page about each failure in each phase."""
    phases = list(dict.fromkeys(r.phase for r in recoveries))
    fill(path, "failures", _HEAD + _table(recoveries, phases) + _summary(recoveries, tokens))


def write_deltas(path: Path, recoveries: Sequence[Recovery], tokens: int) -> None:
    """Write the part about deltas and peers."""
    fill(path, "deltas", _DELTAS + _table(recoveries, ()) + _summary(recoveries, tokens))


def _table(recoveries: Sequence[Recovery], phases: Sequence[str]) -> str:
    """A row for each failure. `phases`: with a column for each; without any, one column has the seconds."""
    columns = phases or ("whole after",)
    lines = [
        f"| Failure | {' | '.join(columns)} | retried | lost |",
        f"| --- | {' | '.join('---:' for _ in columns)} | ---: | ---: |",
    ]
    for name in dict.fromkeys(r.row for r in recoveries):
        own = [r for r in recoveries if r.row == name]
        seconds = {r.phase if phases else columns[0]: f"{r.seconds:.1f} s" for r in own}
        cells = [seconds.get(column, "") for column in columns]
        retried, lost = sum(r.retried for r in own), sum(len(r.lost) for r in own)
        lines.append(f"| {name} | {' | '.join(cells)} | {retried} | {lost} |")
    return "\n".join(lines) + "\n"


def _summary(recoveries: Sequence[Recovery], tokens: int) -> str:
    sent = sum(r.sent for r in recoveries)
    # Seconds grow with what else runs on the machine: most of them are starts of vLLM.
    load = f"load average {os.getloadavg()[2]:.1f} over the last 15 minutes"
    made = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs ({load}), {platform.machine()}, no GPU"
    return f"\n{sent:,} requests, {tokens:,} tokens, all with the correct label. Measured {made}.\n"
