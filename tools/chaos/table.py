"""Recoveries as a page of the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from chaos.recovery import Recovery
from isolation.table import BEGIN

_HEAD = """# Reliability

How a fleet of real vLLM workers recovers from failures, measured on a real Kubernetes node.
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


def page(recoveries: Sequence[Recovery], tokens: int) -> str:
    """The page, as Markdown."""
    phases = list(dict.fromkeys(r.phase for r in recoveries))
    lines = [
        f"| Failure | {' | '.join(phases)} | retried | lost |",
        f"| --- | {' | '.join('---:' for _ in phases)} | ---: | ---: |",
    ]
    for name in dict.fromkeys(r.row for r in recoveries):
        own = {r.phase: r for r in recoveries if r.row == name}
        cells = [f"{own[p].seconds:.1f} s" if p in own else "" for p in phases]
        retried = sum(r.retried for r in own.values())
        lost = sum(len(r.lost) for r in own.values())
        lines.append(f"| {name} | {' | '.join(cells)} | {retried} | {lost} |")
    sent = sum(r.sent for r in recoveries)
    # Seconds grow with what else runs on the machine: most of them are starts of vLLM.
    load = f"load average {os.getloadavg()[2]:.1f} over the last 15 minutes"
    made = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs ({load}), {platform.machine()}, no GPU"
    summary = (
        f"\n{sent:,} requests, {tokens:,} tokens, all with the correct label. Measured {made}.\n"
    )
    return _HEAD + "\n".join(lines) + "\n" + summary


def write(path: Path, recoveries: Sequence[Recovery], tokens: int) -> None:
    """Write the page, except for the part of `make isolation` at its end."""
    _, mark, others = path.read_text(encoding="utf-8").partition(BEGIN)
    path.write_text(f"{page(recoveries, tokens)}\n{mark}{others}", encoding="utf-8")
