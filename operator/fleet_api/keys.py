"""Static keys of fleets, for clients outside of the cluster.

A key is a line of the file `<namespace>.<fleet>` in a mounted folder, as a Secret has its entries.
It permits everything on this one fleet, and nothing else. Files are read at each use, so a changed
Secret needs no restart, and two lines exchange a key without a gap.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

logger = logging.getLogger(__name__)

LEAST_CHARACTERS = 16
MOST_BYTES = 16_384


class StaticKeys:
    """The keys in a folder. `folder`: None without static keys."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def allow(self, key: str, namespace: str, fleet: str) -> bool:
        """Whether this is a key of the fleet. Both names must have been checked to be names.

        The time that this takes does not depend on how much of a key was right.
        """
        given, found = key.encode(errors="replace"), False
        for known in self._of(f"{namespace}.{fleet}"):
            found |= hmac.compare_digest(known, given)
        return found

    def _of(self, name: str) -> list[bytes]:
        if self._folder is None:
            return []
        try:
            with (self._folder / name).open("rb") as file:
                lines = file.read(MOST_BYTES).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            logger.warning("the keys of %s cannot be read: %s", name, error.strerror)
            return []
        keys = [line.strip() for line in lines if line.strip()]
        if short := [key for key in keys if len(key) < LEAST_CHARACTERS]:
            logger.warning(
                "%d of the keys of %s are ignored: each needs at least %d characters",
                len(short),
                name,
                LEAST_CHARACTERS,
            )
        return [key for key in keys if len(key) >= LEAST_CHARACTERS]
