"""Whether a directory still has the files that were opened there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fleet_worker.checkpoint.files import Directory, FileState, Roots
from fleet_worker.checkpoint.places import open_directory
from fleet_worker.checkpoint.weight_sets import INDEX_LIMIT, has_other_weights, parse_index
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import CONFIG_FILE, INDEX_FILE


def check_same_files(
    path: str, roots: Roots | None, opened: Mapping[str, FileState], weights: Collection[str]
) -> None:
    """Refuse with `CheckpointChanged` if a directory now has other files than those that were opened.

    A deleted directory is not a change. Its files are open, and trainers delete old versions at any time.

    Args:
        path: Real place of the directory.
        roots: The allowed roots.
        opened: Name → state of each file when it was opened.
        weights: Those of them that hold weights.
    """
    try:
        directory = open_directory(path, roots)
    except Refusal as refusal:
        if refusal.reason is Reason.SOURCE_ABSENT:
            return
        raise
    try:
        for name, state in opened.items():
            now = directory.state_of(name)
            if now is not None and now != state:
                raise Refusal(
                    Reason.CHECKPOINT_CHANGED,
                    f"{name} changed after it was staged; publish the new files as another version",
                )
        # The files of adapters have fixed names. A delta has an index, and no configuration.
        if not opened.keys().isdisjoint((CONFIG_FILE, INDEX_FILE)) and _are_elsewhere(
            directory, opened, weights
        ):
            raise Refusal(
                Reason.CHECKPOINT_CHANGED,
                "the directory has its weights in other files than when it was staged",
            )
    finally:
        directory.close()


def _are_elsewhere(directory: Directory, opened: Collection[str], weights: Collection[str]) -> bool:
    """Whether a set of weights in a directory has other files now."""
    indexed: Collection[str] | None = None
    if INDEX_FILE in opened and INDEX_FILE in directory.names:
        indexed = weights
    elif INDEX_FILE in directory.names:
        try:
            index = directory.read(INDEX_FILE, limit=INDEX_LIMIT)
            indexed = parse_index(index.content).values() if index is not None else None
        except Refusal as refusal:
            if refusal.reason is Reason.SOURCE_UNREADABLE:
                raise
            if refusal.reason is not Reason.SOURCE_NOT_FOUND:  # then it has just been deleted
                return True
    return has_other_weights(directory.names, indexed, opened)
