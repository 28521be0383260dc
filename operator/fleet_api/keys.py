"""Keys of fleets, in folders of files `<namespace>.<fleet>`, as mounted Secrets have their entries.

A static key is for clients outside of the cluster. It permits everything on its fleet, and nothing else.
A public key is that of the workers' public port. The RL API sends it for clients that it has authorized.

Files are read at each use, so a changed Secret needs no restart. A file with the old and the new key on
two lines allows a rotation without a gap.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from fleet_operator.counts import counted

logger = logging.getLogger(__name__)

MIN_CHARACTERS = 16
MAX_BYTES = 16_384


class StaticKeys:
    """The keys in a folder. `folder`: None without static keys."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def allow(self, key: str, namespace: str, fleet: str) -> bool:
        """Whether this is a key of the fleet. Both names must have been checked before.

        The time does not depend on how many characters of a key are right.
        """
        given, found = key.encode(errors="replace"), False
        for known in self._of(f"{namespace}.{fleet}"):
            found |= hmac.compare_digest(known, given)
        return found

    def _of(self, name: str) -> list[bytes]:
        keys = _lines(self._folder, name)
        if short := [key for key in keys if len(key) < MIN_CHARACTERS]:
            logger.warning(
                "%s of %s ignored: a key needs at least %d characters",
                counted(len(short), "key"),
                name,
                MIN_CHARACTERS,
            )
        return [key for key in keys if len(key) >= MIN_CHARACTERS]


class PublicKeys:
    """The keys of public ports. `folder`: None without any."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def of(self, namespace: str, fleet: str) -> str | None:
        """The first line of the fleet's file; None without a usable one."""
        name = f"{namespace}.{fleet}"
        for line in _lines(self._folder, name)[:1]:
            key = line.decode("ascii", errors="replace")
            if key.isascii() and key.isprintable():
                return key
            logger.warning("the public key of %s has characters that a header cannot have", name)
        return None


def _lines(folder: Path | None, name: str) -> list[bytes]:
    """The lines of a file that are not empty; none if it cannot be read."""
    if folder is None:
        return []
    try:
        with (folder / name).open("rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("the keys of %s cannot be read: %s", name, error.strerror)
        return []
    return [line.strip() for line in lines if line.strip()]
