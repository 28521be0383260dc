"""Places of versions: directories of file systems, and prefixes in object stores (`s3://bucket/runs/step_43`)."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from fleet_worker.checkpoint.files import Directory, OpenDirectory, Roots, is_uri
from fleet_worker.checkpoint.objects import StoredDirectory
from fleet_worker.checkpoint.store_calls import folders_in
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_URI = re.compile(
    r"(s3|gs|az)://[a-z0-9][a-z0-9._-]*[a-z0-9](/(?!\.{1,2}(/|\Z))[A-Za-z0-9._=,+@:-]+)+"
)
"""A bucket, and the names of its key. Nothing in it can name a host."""


def open_directory(place: str, roots: Roots | None) -> Directory:
    """Open a directory, or list the objects of a prefix.

    Args:
        place: Absolute path, or URI.
        roots: The allowed roots. None for the model's own directory or prefix.

    Errors:
        Refusal: `SourceOutsideRoots`, `SourceAbsent`, `SourceNotFound`, `SourceUnreadable`.
    """
    if not is_uri(place):
        return OpenDirectory(place, roots)
    if not _URI.fullmatch(place):
        raise Refusal(
            Reason.SOURCE_OUTSIDE_ROOTS, "the source is not the URI of a prefix in a store"
        )
    if roots is not None:
        roots.check_name(place)
    return StoredDirectory(place)


def real_place(place: str) -> str:
    """Return a place with its links followed. Stores have none."""
    return place if is_uri(place) else os.path.realpath(place)


def beside(place: str, name: str) -> str:
    """Return the place of another name in the same folder."""
    if is_uri(place):
        return f"{place.rpartition('/')[0]}/{name}"
    return os.path.realpath(Path(place).parent / name)


def names_beside(place: str, most: int) -> list[str]:
    """Return the names in the folder of a place that is allowed, not more than `most`.

    Errors:
        OSError: The folder cannot be read.
        Refusal: The store cannot be read.
    """
    if is_uri(place):
        return folders_in(place.rpartition("/")[0])[:most]
    with os.scandir(Path(place).parent) as entries:
        return [entry.name for entry in islice(entries, most)]
