"""The files of the commit that is released, in a folder of their own."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import release_addresses
from envs import REPOSITORY
from release.programs import ReleaseError, run

_VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "client/pyproject.toml": r'^version = "(.+)"$',
    "charts/rlfleet/Chart.yaml": r"^version: (.+)$",
}
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A commit.

    Fields:
        folder: its files.
        seconds: since 1970, when it was made.
        is_clean: the working tree had no other changes.
    """

    folder: Path
    version: str
    commit: str
    seconds: int
    is_clean: bool

    @property
    def notes(self) -> str:
        """The part of the changelog that this version has; the unreleased one until it has its own."""
        text = (self.folder / "CHANGELOG.md").read_text()
        found = list(_SECTION.finditer(text))
        ends = [*(each.start() for each in found[1:]), len(text)]
        parts = {
            each[1].split()[0]: text[each.end() : e].strip()
            for each, e in zip(found, ends, strict=True)
        }
        if self.version not in parts and "Unreleased" not in parts:
            raise ReleaseError(f"CHANGELOG.md has no section {self.version}: add it")
        return parts.get(self.version) or parts["Unreleased"]


def check_out(folder: Path, version: str, *, dirty: bool = False) -> Source:
    """Write the files of the present commit into a folder.

    Args:
        folder: Is made.
        version: That the files must have.
        dirty: Take uncommitted changes of tracked files, too.

    Errors: ReleaseError for other changes than committed ones, and for another version.
    """
    changes = _git("stash", "create")
    if changes and not dirty:
        raise ReleaseError("the working tree has changes: commit them, or publish none of it")
    commit = changes or _git("rev-parse", "HEAD")
    archive = folder.with_suffix(".tar")
    _git("archive", "--format=tar", f"--output={archive}", commit)
    folder.mkdir()
    run(["tar", "-xf", archive, "-C", folder], cwd=folder)
    archive.unlink()
    for name, pattern in _VERSIONS.items():
        found = re.search(pattern, (folder / name).read_text(), re.MULTILINE)
        if found is None or found[1] != version:
            said = found[1] if found else "none"
            raise ReleaseError(f"{name} has the version {said}: set it to {version}, and commit it")
    seconds = int(_git("show", "--no-patch", "--format=%ct", commit))
    return Source(
        folder=folder, version=version, commit=commit, seconds=seconds, is_clean=not changes
    )


def write_addresses(source: Source, repository: str, registry: str) -> None:
    """Write the addresses of the release into the files. Without a repository they stay as they are."""
    if repository:
        release = release_addresses.Release(repository.rstrip("/"), f"v{source.version}")
        release_addresses.write(release, registry, source.folder)


def _git(*arguments: str) -> str:
    try:
        return run(["git", *arguments], cwd=REPOSITORY).strip()
    except (ReleaseError, subprocess.SubprocessError, OSError) as error:
        raise ReleaseError(f"a release needs git and a clone of the repository: {error}") from error
