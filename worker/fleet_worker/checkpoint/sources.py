"""Sources of weights: the directory that they lead to, and whether it still has the same files."""

from __future__ import annotations

from fleet_worker.checkpoint import opening
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.completeness import states_of
from fleet_worker.checkpoint.files import FileState, OpenDirectory, Roots
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason, Source


def directory_of(source: Source) -> str:
    """The directory of a source. A repository must be in the local cache; nothing is downloaded."""
    if source.hugging_face is not None:
        return opening.snapshot(source.hugging_face.repo, source.hugging_face.revision)
    return str(source.path)


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


def resolved(source: Source) -> Source:
    """The source with the revision of a repository replaced by its commit in the local cache.

    A branch or tag may move later; a commit does not. Blocks on the file system.

    Errors:
        Refusal: `SourceNotFound` if the revision is not in the cache.
    """
    named = source.hugging_face
    if named is None:
        return source
    commit = opening.commit_of(named.repo, named.revision)
    return Source(hugging_face=named.model_copy(update={"revision": commit}))
