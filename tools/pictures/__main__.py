"""Write the diagrams of the documents, and the pictures of commands.

python3 -m pictures            write docs/images/NAME-light.svg and NAME-dark.svg, watch.svg, report.svg
python3 -m pictures --check    exit 1 if a file is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from pictures import architecture, commands, race, way_of_a_rollout
from pictures.shapes import DARK, LIGHT

FOLDER = Path(__file__).parents[2] / "docs/images"


def main() -> None:
    """Write or check."""
    drawings = {
        "architecture": architecture.draw,
        "race": race.draw,
        "way-of-a-rollout": way_of_a_rollout.draw,
    }
    texts = {
        FOLDER / f"{name}-{theme.name}.svg": draw(theme)
        for name, draw in drawings.items()
        for theme in (LIGHT, DARK)
    }
    texts |= {FOLDER / "watch.svg": commands.watch(), FOLDER / "report.svg": commands.report()}
    stale = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    if "--check" in sys.argv:
        if stale:
            names = ", ".join(file.name for file in stale)
            sys.exit(f"out of date, run `make generate`: {names}")
        return
    for file in stale:
        file.write_text(texts[file])


if __name__ == "__main__":
    main()
