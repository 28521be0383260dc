"""Where things are. Outside of the repository, everything is below one cache folder.

<cache>/programs/<part>-<key>/   what was built, keyed by what it was built from
<cache>/go/                      Go's own caches while a build lasts
<cache>/clusters/<id>/           one running cluster; gone after `down`
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from devcluster.errors import DevclusterError

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "build"
TOOLS = PACKAGE.parent

_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")


def cache_folder() -> Path:
    """`$RLFLEET_CACHE`, or `rlfleet` in the user's cache folder."""
    chosen = os.environ.get("RLFLEET_CACHE")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "rlfleet"


def programs_folder() -> Path:
    """Finished programs."""
    return cache_folder() / "programs"


def clusters_folder() -> Path:
    """Running clusters."""
    return cache_folder() / "clusters"


def run_folder(cluster_id: str) -> Path:
    """The folder of one cluster, which need not exist.

    Errors:
        DevclusterError: the id is not fit for file names and control-group names.
    """
    if not _ID.fullmatch(cluster_id):
        raise DevclusterError(
            f"{cluster_id!r} cannot be the id of a cluster",
            remedy="use up to 32 lower-case letters, digits and dashes",
        )
    return clusters_folder() / cluster_id
