"""Hooks of MkDocs for the site of docs/.

Source: MkDocs 1.6, "Events" (on_config, on_page_markdown).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_DIAGRAM = re.compile(r"(!\[[^\]]*\]\([^)\s]+)-light\.svg\)")


def on_config(config: Any) -> Any:
    """Add a section with all decisions, which need no order of their own."""
    pages = sorted(Path(config.docs_dir, "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in pages]})
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Prepare a page for the site.

    Links to files outside docs/, such as sources and examples, become their text. A diagram in light
    colours gets its dark version added, and the theme shows one of the two.
    """
    docs, folder = Path(config.docs_dir).resolve(), Path(page.file.abs_src_path).parent

    def kept(link: re.Match[str]) -> str:
        target = link[2].partition("#")[0]
        on_site = not target or ":" in target or (folder / target).resolve().is_relative_to(docs)
        return link[0] if on_site else link[1]

    both = _DIAGRAM.sub(r"\1-light.svg#only-light)\n\1-dark.svg#only-dark)", markdown)
    return _LINK.sub(kept, both)
