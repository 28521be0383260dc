"""Write the addresses of a release into the working tree, before its chart and wheels are built.

    python3 tools/release_addresses.py --repository https://github.com/OWNER/NAME --tag v0.1.0 \
        [--registry registry.example]

The tree does not know where it is published. The index of packages and chart browsers follow no relative
link, so the links of each README become absolute. So do those of the changelog, whose sections are the notes
of releases. The distributions and the chart get the address of the repository, and CONTRIBUTING.md that of
its clone. READMEs install the client by its name in the index, which has it from the release on, and the
server's distribution needs it there. With a registry, the chart gets that of its images and its own.

It needs the standard library alone, and runs once in a fresh checkout.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "client/README.md", "charts/rlfleet/README.md", "CHANGELOG.md")
PROJECTS = ("pyproject.toml", "client/pyproject.toml")
CONTRIBUTING = "CONTRIBUTING.md"
CLONE = "git clone …"
_CLIENT = re.compile(r"(?<=pip install )(['\"]?)\./client(?=[\[\s])")
"""The client of a checkout, in a command of a README."""
CHART = "charts/rlfleet/Chart.yaml"
VALUES = "charts/rlfleet/values.yaml"
CHART_README = "charts/rlfleet/README.md"
ICON = "docs/images/icon.svg"
_BLOCK = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r'(?<=\]\()[^)\s]+(?=\))|(?<=src=")[^"]+(?=")|(?<=srcset=")[^"]+(?=")')
_ABSOLUTE = re.compile(r"[a-z]+:|#")
_PICTURES = (".svg", ".png")


class UnknownPlaceError(Exception):
    """A text does not have what it should have. The message names both."""


@dataclass(frozen=True, slots=True)
class Release:
    """A tag of a repository on a forge that has GitHub's paths."""

    repository: str
    tag: str

    def address(self, path: str) -> str:
        """Where a file or folder of this release is: pictures as they are, all others as a page."""
        kind = "raw" if path.endswith(_PICTURES) else "blob"
        return f"{self.repository}/{kind}/{self.tag}/{path}"

    @property
    def owner(self) -> str:
        """The account that has the repository."""
        return self.repository.rsplit("/", 2)[-2]


def absolute_links(text: str, page: str, release: Release, root: Path = REPOSITORY) -> str:
    """A page with the address of the release in each relative link. Blocks of code stay.

    Args:
        text: The page's Markdown.
        page: Its path in the repository.
        release: Where links lead to.
        root: The folder that holds the repository.

    Raises:
        UnknownPlaceError: A link leads to nothing.
    """

    def absolute(found: re.Match[str]) -> str:
        link = found[0]
        if _ABSOLUTE.match(link):
            return link
        path, mark, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if not (root / target).exists():
            raise UnknownPlaceError(f"{page} links to {link}, which does not exist")
        return f"{release.address(target)}{mark}{anchor}"

    parts = _BLOCK.split(text)
    # The parts at odd places are the blocks.
    return "".join(
        part if number % 2 else _TARGET.sub(absolute, part) for number, part in enumerate(parts)
    )


def project_urls(release: Release) -> str:
    """The table of a pyproject.toml with the links of its page on the index."""
    links = {
        "Repository": release.repository,
        "Documentation": release.address("docs"),
        "Changelog": release.address("CHANGELOG.md"),
        "Issues": f"{release.repository}/issues",
    }
    return "\n[project.urls]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in links.items())


def chart_fields(release: Release) -> str:
    """The fields of Chart.yaml that name the owner and the addresses."""
    owner = {"name": release.owner, "url": release.repository.rsplit("/", 1)[0]}
    fields = {
        "home": release.repository,
        "sources": [release.repository],
        "icon": release.address(ICON),
        "maintainers": [owner],
    }
    # JSON is YAML, too.
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())


def write(release: Release, registry: str, root: Path = REPOSITORY) -> None:
    """Change the files of a working tree.

    Raises:
        UnknownPlaceError: A file does not have the place to change. Files before it are changed.
    """
    for page in PAGES:
        file = root / page
        text = absolute_links(file.read_text(), page, release, root)
        file.write_text(_CLIENT.sub(r"\1rlfleet", text))
    for project in PROJECTS:
        file = root / project
        file.write_text(file.read_text() + project_urls(release))
    client = f"rlfleet=={release.tag.removeprefix('v')}"
    _replace(root / PROJECTS[0], r"^dependencies = \[", f'dependencies = ["{client}", ')
    _replace(root / CONTRIBUTING, re.escape(CLONE), f"git clone {release.repository}")
    file = root / CHART
    file.write_text(file.read_text() + chart_fields(release))
    if registry:
        _replace(root / VALUES, r"^  registry: .*$", f"  registry: {registry}")
        _replace(root / CHART_README, r"oci://registry\.example/", f"oci://{registry}/")


def _replace(file: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, lambda _: text, file.read_text(), flags=re.MULTILINE)
    if not count:
        raise UnknownPlaceError(f"{file.name} has no place for {text}")
    file.write_text(changed)


def main() -> None:
    """Read the command line, and write."""
    parser = argparse.ArgumentParser(description="Write the addresses of a release.")
    parser.add_argument("--repository", required=True, help="its address on the forge")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--registry", default="", help="of the images and of the chart")
    given = parser.parse_args()
    try:
        write(Release(given.repository.rstrip("/"), given.tag), given.registry)
    except UnknownPlaceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
