"""Pictures of `rlfleet watch` and `rlfleet report`, drawn by their own code.

The situations are recordings of the simulator, which the tests of the command line read, too.
"""

from __future__ import annotations

import io
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from rlfleet.cli.live import Detail, WorkerRow
from rlfleet.cli.log_lines import log_line
from rlfleet.cli.page import subtitle
from rlfleet.cli.pods import pod_view
from rlfleet.cli.screen import FleetScreen
from rlfleet.cli.spans import spans
from rlfleet.cli.view import fleet_view, rollout_view
from rlfleet.cli.waterfall import picture, waterfall
from rlfleet.cli.worker_figures import Figures
from rlfleet.resources import InferenceFleet, WeightVersion

RECORDINGS = Path(__file__).parents[2] / "tests/unit/client/cli/recorded"
COLUMNS = 84
SHOWN = {
    "staging": "workers check version 3 and read it into memory, while they serve",
    "paused": "all workers hold their requests, and load",
    "applied": "after a rollout",
    "broken-fleet": "all workers serve, and the fleet needs attention",
    "external": "a fleet that a trainer drives",
}
"""Situation → its caption."""


def watch() -> str:
    """The screen of `rlfleet watch` in several situations."""
    paper = Console(record=True, width=COLUMNS, file=io.StringIO())
    for name, caption in SHOWN.items():
        now, fleet, weights, _ = _recorded(name)
        paper.print(Text(f"── {caption}", "dim"))
        detail = Detail(now, _rows(name, fleet, now), weights.status.history if weights else ())
        paper.print(FleetScreen(fleet_view(fleet, [weights] if weights else [], now), detail))
        paper.print()
    drawn = paper.export_svg(title="rlfleet watch policy", unique_id="rlfleet-watch")
    # The fonts are of another host; the reader's own monospaced one does.
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def _rows(situation: str, fleet: InferenceFleet, now: datetime) -> tuple[WorkerRow, ...]:
    """The recorded pods with figures of their metrics, which the recordings do not have: made up."""
    pods = [*yaml.safe_load_all((RECORDINGS / "pods.yaml").read_text())]
    holds, speeds = situation == "paused", (812, 798, 805, 790)
    phase = {"paused": "loading", "staging": "serving"}.get(situation, "serving")
    return tuple(
        WorkerRow(
            pod=pod_view(pod, fleet, now),
            figures=Figures(
                at=0, phase=phase, running=11 - number, held=7 + number if holds else 0,
                paused_seconds=2.2 if holds else 0,
            ),
            tokens_per_second=0 if holds else speed,
            last_pause_seconds=3.12,
        )
        for number, (pod, speed) in enumerate(zip(pods, speeds, strict=False))
    )  # fmt: skip


def report() -> str:
    """The picture that `rlfleet report --format svg` writes after a rollout."""
    now, _, weights, log = _recorded("applied")
    if weights is None:
        raise ValueError("the recording 'applied' has no WeightVersion; record it again")
    view = rollout_view(weights, now)
    calls = spans((log_line(raw, "operator") for raw in log), weights, now)
    title = f"{view.name}: version {view.desired}"
    found = waterfall(weights.status.started_at, view.phases, calls)
    return picture(title, subtitle(view, weights, now), found)


def _recorded(name: str) -> tuple[datetime, InferenceFleet, WeightVersion | None, list[str]]:
    found: dict[str, Any] = yaml.safe_load((RECORDINGS / f"{name}.yaml").read_text())
    weights = WeightVersion.model_validate(found["weights"]) if found["weights"] else None
    fleet = InferenceFleet.model_validate(found["fleet"])
    return datetime.fromisoformat(found["now"]), fleet, weights, found["log"]
