"""Hooks of MkDocs for the site of docs/.

Source: MkDocs 1.6, "Events" (on_config, on_files, on_page_markdown) and `File.generated`; Material for
MkDocs, "Site search" (`search.exclude`, `search.boost`).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_DIAGRAM = re.compile(r"(!\[[^\]]*\]\([^)\s]+)-light\.svg\)")
_TITLE = re.compile(r"# (.+)")
_BUTTON = re.compile(r"\*\*(\[[^\]]*\]\([^)]*\))\*\*")
_NAME = re.compile(r"(<tr>\s*<td[^>]*>)(.*?)(</td>)", re.DOTALL)
_CODE = re.compile(r"<code>[^<]*</code>")
_FIELDS = ("inferencefleet", "weightversion", "values", "metrics")
_LANGUAGES = {".yaml": "yaml", ".py": "python", ".lua": "lua"}

SEARCH: dict[str, dict[str, Any]] = {
    "decisions/": {"exclude": True},
    "how-to/dev-cluster.md": {"exclude": True},
    "how-to/release.md": {"exclude": True},
    "reference/rollout-service-contract.md": {"boost": 0.3},
    "reference/troubleshooting.md": {"boost": 8},
    "explanation/faq.md": {"boost": 8},
}
"""Users look for pages about their work, not for decisions or the work of maintainers."""


def on_config(config: Any) -> Any:
    """Add the sections of the examples and of all decisions, which need no order of their own."""
    folders = sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())
    pages = sorted(Path(config.docs_dir, "decisions").glob("*.md"))
    config.nav.insert(
        3, {"Examples": ["examples/index.md", *(f"examples/{name}.md" for name in folders)]}
    )
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in pages]})
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the site's style, and a page for each folder of examples, with its files."""
    style = Path(__file__).with_name("site.css").read_text()
    files.append(File.generated(config, "site.css", content=style))
    overview = EXAMPLES / "README.md"
    files.append(
        File.generated(config, "examples/index.md", content=_linked(overview.read_text(), overview))
    )
    for folder in EXAMPLES.iterdir():
        if folder.is_dir():
            content = _example(folder)
            files.append(File.generated(config, f"examples/{folder.name}.md", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Prepare a page for the site.

    Links to examples lead to their pages. Links to other files outside docs/, such as sources, become
    their text. A diagram in light colours gets its dark version added, and the theme shows one of the two.
    Bold links of the front page become buttons. Tables of fields fit a phone.
    """
    address = page.file.src_uri
    for place, rule in SEARCH.items():
        if address.startswith(place):
            page.meta["search"] = rule
    if address.startswith("examples/"):
        return markdown
    text = _DIAGRAM.sub(r"\1-light.svg#only-light)\n\1-dark.svg#only-dark)", markdown)
    text = _linked(text, DOCS / address)
    if address == "index.md":
        return _BUTTON.sub(r"\1{ .md-button }", text)
    if address not in {f"reference/{name}.md" for name in _FIELDS}:
        return text
    title, rest = text.split("\n", 1)
    return f'{title}\n<div class="fields" markdown>\n{rest}\n</div>'


def on_page_content(html: str, **_: Any) -> str:
    """Let names in the first column of a table break after dots, commas and brackets, and nowhere else."""
    return _NAME.sub(lambda cell: cell[1] + _CODE.sub(_breakable, cell[2]) + cell[3], html)


def _breakable(code: re.Match[str]) -> str:
    return re.sub(r"(\.|,|\{)(?=\w)", r"\1<wbr>", code[0])


def _example(folder: Path) -> str:
    """The page of a folder: its README, and its other files as blocks of code."""
    readme = folder / "README.md"
    text = _linked(readme.read_text(), readme) if readme.exists() else f"# {folder.name}\n"
    for file in sorted(folder.iterdir()):
        if language := _LANGUAGES.get(file.suffix):
            text += f"\n## `{file.name}` {{ #{_anchor(file)} }}\n\n"
            text += f"```{language}\n{file.read_text().rstrip()}\n```\n"
    return text


def _anchor(file: Path) -> str:
    return file.name.replace(".", "-")


def _linked(markdown: str, file: Path) -> str:
    """The text of a file of the repository, with its links as they are on the site."""
    here = posixpath.dirname(_page_of(file) or "")

    def kept(link: re.Match[str]) -> str:
        target, _, anchor = link[2].partition("#")
        if not target or ":" in target:
            return link[0]
        page = _page_of((file.parent / target).resolve())
        if page is None:
            return link[1]
        page, _, part = page.partition("#")
        where = part or anchor
        return f"[{link[1]}]({posixpath.relpath(page, here or '.')}{'#' if where else ''}{where})"

    return _LINK.sub(kept, markdown)


def _page_of(file: Path) -> str | None:
    """The page of the site that shows a file of the repository; None without one."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    if not file.is_relative_to(EXAMPLES) or not file.exists():
        return None
    parts = file.relative_to(EXAMPLES).parts
    if parts in {(), ("README.md",)}:
        return "examples/index.md"
    page = f"examples/{parts[0]}.md"
    is_shown = file.is_file() and file.suffix in _LANGUAGES
    return f"{page}#{_anchor(file)}" if is_shown else page
