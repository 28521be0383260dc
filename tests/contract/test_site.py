"""The site shows every page. `make docs` builds it and finds broken links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "tools/site/mkdocs.yml").read_text())


def pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for section in entry.values():
                yield from pages(section if isinstance(section, list) else [section])


def test_the_navigation_has_every_page_once() -> None:
    """Decisions are listed by a hook."""
    docs = ROOT / "docs"
    files = [file.relative_to(docs).as_posix() for file in docs.rglob("*.md")]

    assert sorted(pages(CONFIG["nav"])) == sorted(
        f for f in files if not f.startswith("decisions/")
    )


def test_the_site_asks_no_other_server_for_fonts() -> None:
    assert CONFIG["theme"]["font"] is False
