"""The version of weights that a trainer names only by a directory, or not at all.

The number of a step is the version (`protocol.steps`). A trainer may overwrite any other folder, so its
version is its name with a hash of its files. All workers that see the same files give it the same
version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = 40
_MARK = 8
_RECEIVED_MARK = 12  # longer, because the label has no folder name


def label_of(path: str, files: Mapping[str, tuple[int, int]]) -> str:
    """Return the version of a directory whose name has no step.

    `files`: name → size and modification time in ns, of all its files.
    """
    last = path.rstrip("/").rpartition("/")[2]
    name = _FORBIDDEN.sub("-", last)[:_NAME].strip("._-") or "weights"
    mark = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:_MARK]
    return f"{name}-{mark}"


def label_of_received(checksum: str) -> str:
    """Return the version of weights that came without a name, e.g. `update-3fa9c1d04b2e`."""
    return f"update-{checksum[:_RECEIVED_MARK]}"
