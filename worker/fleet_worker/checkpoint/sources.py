"""Sources of weights: the place that they lead to, and whether it still has the same files."""

from __future__ import annotations

import os
from functools import partial

from fleet_worker.checkpoint import opening
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.completeness import states_of
from fleet_worker.checkpoint.files import FileState, OpenDirectory, Roots, is_uri
from fleet_worker.checkpoint.store_threads import StoreThreads
from fleet_worker.errors import Refusal
from fleet_worker.protocol import HuggingFaceSource, Reason, Source

_HUB = "of the Hugging Face cache"


def named_source(name: str, revision: str | None) -> Source:
    """The source of a model: a directory, the URI of a prefix, or a repository in the local Hugging Face cache.

    Errors: Refusal for a repository that is not there.
    """
    if is_uri(name):
        return Source(uri=name)
    if os.path.isabs(name) or os.path.isdir(name):  # noqa: PTH112, PTH117 - raise no PermissionError
        return Source(path=os.path.realpath(name))
    # By its commit, because a branch may move before the next start.
    commit = opening.commit_of(name, revision or "main")
    return Source(hugging_face=HuggingFaceSource(repo=name, revision=commit))


def directory_of(source: Source) -> str:
    """The directory or URI of a source. A repository must be in the local cache; nothing is downloaded."""
    if source.hugging_face is not None:
        return opening.snapshot(source.hugging_face.repo, source.hugging_face.revision)
    return str(source.path or source.uri)


def store_of(source: Source, roots: Roots) -> str:
    """The store that holds a source, as `StoreThreads` names it: a root, or the Hugging Face cache."""
    return _HUB if source.hugging_face is not None else roots.root_of(directory_of(source))


def states_in(source: Source, roots: Roots) -> frozenset[tuple[str, FileState | None]]:
    """The states of a source's files. Empty if it cannot be opened, which a later step reports."""
    try:
        return states_of(directory_of(source), roots)
    except Refusal:
        return frozenset()


def check_same_source(source: Source, checkpoint: Checkpoint, roots: Roots) -> None:
    """Check that an open checkpoint has the files to which its source leads now.

    A deleted directory or link is not a change: see `Checkpoint.check_same_on_disk`.

    Errors:
        Refusal: `CheckpointChanged`, or the reason why the source cannot be opened.
    """
    if source.path is not None and not _leads_to(source.path, checkpoint.path, roots):
        raise Refusal(Reason.CHECKPOINT_CHANGED, "the source now leads to another directory")
    checkpoint.check_same_on_disk(roots)


def _leads_to(link: str, path: str, roots: Roots) -> bool:
    try:
        directory = OpenDirectory(link, roots)
    except Refusal as refusal:
        if refusal.reason is Reason.SOURCE_ABSENT:
            return True
        raise
    directory.close()
    return directory.path == path


async def resolved(source: Source, threads: StoreThreads) -> Source:
    """The source with the revision of a repository replaced by its commit in the local cache.

    A branch or tag may move later; a commit does not. A directory needs no look at any store.

    Errors:
        Refusal: `SourceNotFound` if the revision is not in the cache; `SourceUnreadable` if the
            cache does not answer or cannot be read.
    """
    named = source.hugging_face
    if named is None:
        return source
    commit = await threads.run(partial(opening.commit_of, named.repo, named.revision), store=_HUB)
    return Source(hugging_face=named.model_copy(update={"revision": commit}))
