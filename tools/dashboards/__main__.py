"""Write the dashboards into the chart.

    python -m dashboards            write charts/rlfleet/files/dashboards/*.json
    python -m dashboards --check    exit 1 if a file is out of date

Runs in the environment `dashboards`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.fleets import fleets
from dashboards.operator_and_workers import operator_and_workers

FOLDER = Path(__file__).parents[2] / "charts/rlfleet/files/dashboards"


def main() -> None:
    """Write or check."""
    pages = [builder.build() for builder in (fleets(), operator_and_workers())]
    texts = {
        FOLDER / f"{page.uid}.json": json.dumps(page, cls=JSONEncoder, sort_keys=True, indent=1)
        + "\n"
        for page in pages
    }
    stale = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    left_over = sorted(set(FOLDER.glob("*.json")) - set(texts))
    if "--check" in sys.argv:
        if stale or left_over:
            names = ", ".join(file.name for file in [*stale, *left_over])
            sys.exit(f"out of date, run `make generate`: {names}")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file in stale:
        file.write_text(texts[file])
    for file in left_over:
        file.unlink()


if __name__ == "__main__":
    main()
