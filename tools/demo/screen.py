"""Shows the story: live in a terminal, as plain lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demo.sampler import Samples
from demo.watch import Snapshot
from rlfleet.cli.screen import FleetScreen

REFRESH_SECONDS = 0.25
LINES_KEPT = 14
RECORDED_COLUMNS = 116
_PHASE_STYLES = {
    "serving": "green",
    "paused": "yellow",
    "pausing": "yellow",
    "loading": "yellow",
    "joining": "cyan",
    "starting": "cyan",
    "broken": "red",
    "away": "red",
}


class Screen:
    """Prints what happens, and draws the state next to it on a terminal."""

    def __init__(self) -> None:
        self.console = Console()
        self._started = time.monotonic()
        self._lines: deque[tuple[str, str]] = deque(maxlen=LINES_KEPT)
        self._story: list[tuple[str, str]] = []
        self._live: Live | None = None
        self.snapshot: Snapshot | None = None
        self.samples: Samples | None = None

    def say(self, text: str, style: str = "") -> None:
        """Tell one thing."""
        stamp = f"{time.monotonic() - self._started:6.1f}s"
        for lines in (self._lines, self._story):
            lines.append((f"{stamp}  {text}", style))
        if self._live is None:
            print(f"{stamp}  {text}", flush=True)

    def act(self, title: str) -> None:
        """Begin a part of the story."""
        self.say(f"── {title}", "bold")
        if self.samples is not None:
            self.samples.act = title

    async def run(self) -> None:
        """Draw until cancelled; without a terminal only the printed lines are shown."""
        if not sys.stdout.isatty():
            return
        with Live(self._draw(), console=self.console, auto_refresh=False) as live:
            self._live = live
            try:
                while True:
                    live.update(self._draw(), refresh=True)
                    await asyncio.sleep(REFRESH_SECONDS)
            finally:
                live.update(self._draw(), refresh=True)
                self._live = None

    def save(self, target: Path, verdict: Sequence[str]) -> None:
        """Write the whole story, the last state and the verdict as an SVG."""
        paper = Console(record=True, width=RECORDED_COLUMNS, file=io.StringIO())
        for line, style in self._story:
            paper.print(Text(line, style))
        if self.snapshot is not None:
            paper.print("", *self._state(self.snapshot), "")
        for line in verdict:
            paper.print(Text(line))
        drawn = paper.export_svg(title="make demo")
        # The fonts are of another host; the reader's own monospaced one does.
        target.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))

    def _draw(self) -> Group:
        parts: list[Table | Panel | FleetScreen] = []
        if self.snapshot is not None:
            parts += self._state(self.snapshot)
        if self.samples is not None and self.samples.tokens:
            parts.append(self._tokens(self.samples))
        story = Text("\n").join(Text(text, style=style) for text, style in self._lines)
        parts.append(Panel(story, title="rlfleet demo", title_align="left"))
        return Group(*parts)

    def _state(self, snapshot: Snapshot) -> list[Table | FleetScreen]:
        """The fleet as `rlfleet watch` draws it, and what only its workers show."""
        fleet = [] if snapshot.view is None else [FleetScreen(snapshot.view)]
        return [*fleet, self._workers(snapshot)]

    @staticmethod
    def _workers(snapshot: Snapshot) -> Table:
        table = Table(box=None, padding=(0, 2))
        for column in ("worker", "phase", "version", "held requests", "restarts"):
            table.add_column(column)
        for name, worker in sorted(snapshot.workers.items()):
            phase = Text(worker.phase, _PHASE_STYLES.get(worker.phase, ""))
            row = (worker.version or "-", str(worker.held), str(worker.restarts))
            table.add_row(name, phase, *row)
        return table

    @staticmethod
    def _tokens(samples: Samples) -> Table:
        table = Table.grid(padding=(0, 2))
        most = max(samples.tokens.values())
        for version, tokens in list(samples.tokens.items())[-6:]:
            bar = "█" * max(1, round(40 * tokens / most))
            table.add_row(f"tokens by {version}", Text(bar, "blue"), f"{tokens:,}")
        table.add_row("requests", f"{samples.sent} sent, {samples.answered} answered", "")
        return table
