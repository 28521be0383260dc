"""Commands of the documentation, as they stand on its pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, *languages: str) -> Iterator[str]:
    """Code blocks of a page, in order. `page`: below docs/. `languages`: of the blocks; "" for one
    that names none.
    """
    block: list[str] = []
    language: str | None = None
    for line in (DOCS / page).read_text().splitlines():
        if not line.startswith("```"):
            block.append(line)
        elif language is None:
            language, block = line.removeprefix("```"), []
        else:
            if language in languages:
                yield "\n".join(block)
            language = None
