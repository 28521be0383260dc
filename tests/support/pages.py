"""Commands of the documentation, read from its pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "README.md", ROOT / "charts/rlfleet/README.md", *DOCS.rglob("*.md"))
)
_COMMANDS = ("sh", "bash", "console")
"""Languages of the blocks that hold commands. In pages that tell readers what to do, a block that names
none holds commands, too; elsewhere such a block is a drawing or a wire format.
"""
_GUIDES = ("README.md", "docs/how-to/", "docs/tutorial/")


def blocks(page: str, *languages: str) -> Iterator[str]:
    """Code blocks of a page, in order. `page`: below the repository. `languages`: of the blocks; ""
    for one that names none.
    """
    block: list[str] = []
    language: str | None = None
    for line in (ROOT / page).read_text().splitlines():
        if not line.startswith("```"):
            block.append(line)
        elif language is None:
            language, block = line.removeprefix("```"), []
        else:
            if language in languages:
                yield "\n".join(block)
            language = None


def command_blocks() -> list[tuple[str, str]]:
    """All blocks of commands: page and text."""
    return [
        (page, block)
        for page in _PAGES
        for block in blocks(page, *_COMMANDS, *([""] if page.startswith(_GUIDES) else []))
    ]


def starting_with(*words: str, pages: str = "") -> list[tuple[str, str]]:
    """Blocks of commands that begin with one of these words. `pages`: of paths that begin so."""
    return [
        (page, block)
        for page, block in command_blocks()
        if block.startswith(words) and page.startswith(pages)
    ]


def in_namespace(text: str, namespace: str) -> str:
    """Commands of a page for another namespace than the page's `rl` or NAMESPACE."""
    for place in ("-n {}", "namespace: {}", "/namespaces/{}/"):
        text = text.replace(place.format("rl"), place.format(namespace))
    return text.replace("NAMESPACE", namespace)
