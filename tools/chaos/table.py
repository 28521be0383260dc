"""Recoveries as a page of the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from chaos.recovery import Recovery

_HEAD = """# Reliability

What happens to a fleet of real vLLM workers when something breaks, measured on a real Kubernetes
node. `make reliability` plays every failure below and writes this page; `make chaos` plays them at
random. A process that is stopped keeps the rollout in a phase while the fault is injected
(`tools/chaos`); clients generate through the Service all the time. Workers see the checkpoints
through a FUSE server, which stands for a network file system: *store hangs* stops it. A partition
between operators and workers lasts longer than the lease of a pause, so that workers end their
pauses by themselves. *Leader frozen* wakes up after 60 s, when another operator has led to a newer
version. *Path rewritten* puts other weights under the path of the applied version and kills a
worker: it must not be admitted, and `VersionReused` must be reported, until the files are restored.

Seconds are from the end of the fault until every desired worker served the version that was asked
for last. A worker that is killed must start vLLM again, which takes most of the time where it is
part of the row. *Asked again*: attempts of clients that met a killed or fenced worker; no request
was lost in the end where the last column says 0. Every token of these runs was recomputed offline
under the checkpoint that its label names.

"""


def page(recoveries: Sequence[Recovery], tokens: int) -> str:
    """The page, as Markdown."""
    phases = list(dict.fromkeys(r.phase for r in recoveries))
    lines = [
        f"| Failure | {' | '.join(phases)} | asked again | lost |",
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
    told = f"\n{sent:,} requests, {tokens:,} tokens, all labelled truly. Measured {made}.\n"
    return _HEAD + "\n".join(lines) + "\n" + told


def write(path: Path, recoveries: Sequence[Recovery], tokens: int) -> None:
    """Write the page."""
    path.write_text(page(recoveries, tokens), encoding="utf-8")
