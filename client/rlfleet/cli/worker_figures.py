"""The state of one worker by its metrics: pure. A worker is not trusted, so any text must do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rlfleet.words import bounded

_SERIES = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]{0,99})(?:\{([^\n]{0,2000})\})? ([^ \n]{1,40})")
_VALUE_OF = {
    name: re.compile(rf'(?:^|,){name}="([^"\\]{{0,63}})"') for name in ("phase", "version")
}
MAX_CHARACTERS = 4_000_000
"""Of the text of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One look at a worker. None where it does not say.

    Fields:
        at: when, on a monotonic clock, in seconds.
        tokens: generated since its start.
        pauses / pauses_seconds: that have ended since its start, and how long they were together.
        paused_seconds: of the present pause; 0 without one.
    """

    at: float
    phase: str | None = None
    version: str | None = None
    running: int | None = None
    held: int | None = None
    tokens: float | None = None
    pauses: float = 0.0
    pauses_seconds: float = 0.0
    paused_seconds: float = 0.0


def figures_of(text: str, at: float) -> Figures:
    """The figures in the metrics of a worker. Source: Prometheus text format 0.0.4; docs/reference/worker.md."""
    sums, words = dict[str, float](), dict[str, str]()
    for line in text[:MAX_CHARACTERS].splitlines():
        found = _SERIES.fullmatch(line)
        value = _number(found[3]) if found is not None else None
        if found is None or value is None:
            continue
        name, labels = found[1], found[2] or ""
        sums[name] = sums.get(name, 0.0) + value
        kind = {"rlfleet_worker_phase": "phase", "rlfleet_worker_version_info": "version"}.get(name)
        if kind is not None and value == 1 and (label := _VALUE_OF[kind].search(labels)):
            words[kind] = bounded(label[1])
    return Figures(
        at=at,
        phase=words.get("phase"),
        version=words.get("version"),
        running=_whole(sums.get("vllm:num_requests_running")),
        held=_whole(sums.get("rlfleet_worker_requests_held")),
        tokens=sums.get("vllm:generation_tokens_total"),
        pauses=sums.get("rlfleet_worker_pause_seconds_count", 0.0),
        pauses_seconds=sums.get("rlfleet_worker_pause_seconds_sum", 0.0),
        paused_seconds=sums.get("rlfleet_worker_paused_seconds", 0.0),
    )


def tokens_per_second(before: Figures | None, now: Figures) -> float | None:
    """Between two looks; None without two, or where the worker has restarted between them."""
    if before is None or before.tokens is None or now.tokens is None or now.at <= before.at:
        return None
    made = now.tokens - before.tokens
    return made / (now.at - before.at) if made >= 0 else None


def last_pause_seconds(before: Figures | None, now: Figures, known: float | None) -> float | None:
    """The pause that ended between two looks, on average if there were several; else the one known before."""
    if before is None or now.pauses <= before.pauses:
        return known
    return (now.pauses_seconds - before.pauses_seconds) / (now.pauses - before.pauses)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value)  # sums may overflow
