"""Find a Hugging Face repository in the local cache, without downloads.

Source: cache layout of huggingface_hub (`models--ORG--NAME/{refs,snapshots,blobs}`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory of huggingface_hub."""
    if named := environment.get("HF_HUB_CACHE"):
        return Path(named)
    home = environment.get("HF_HOME")
    return Path(home) / "hub" if home else Path("~/.cache/huggingface/hub").expanduser()


def snapshot(repository: str, revision: str, *, cache: Path | None = None) -> str:
    """Return the directory of a cached repository at a revision (branch, tag or commit).

    Errors:
        Refusal: `SourceNotFound` if it is not in the cache.
    """
    commit = commit_of(repository, revision, cache=cache)
    return str(_folder(repository, cache) / "snapshots" / commit)


def commit_of(repository: str, revision: str, *, cache: Path | None = None) -> str:
    """Return the commit (40 hex digits) that the cache has of a repository's revision.

    A download may move a branch. A commit always names the same files.

    Errors:
        Refusal: `SourceNotFound` if it is not in the cache.
    """
    for text, pattern in ((repository, _REPOSITORY), (revision, _REVISION)):
        if not pattern.fullmatch(text) or ".." in text:
            raise Refusal(Reason.SOURCE_NOT_FOUND, "invalid name of a repository or revision")
    folder = _folder(repository, cache)
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (folder / "refs" / revision).read_text().strip()
        except OSError:
            commit = ""
    path = folder / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not path.is_dir():
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{repository}@{revision} is not in the local Hugging Face cache; download it first,"
            " because the worker downloads nothing",
        )
    return commit


def _folder(repository: str, cache: Path | None) -> Path:
    return (cache or cache_directory()) / f"models--{repository.replace('/', '--')}"
