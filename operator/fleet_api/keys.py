"""Keys of fleets, in folders of files `<namespace>.<fleet>`, as mounted Secrets have their entries.

A static key is for clients outside of the cluster. It permits everything on its fleet, and nothing else.
A public key is that of the workers' public port. The RL API sends it for clients that it has authorized.

A changed Secret needs no restart: a file is read again after a second. A file with the old and the new key on
two lines allows a rotation without a gap.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet_operator.counts import counted

logger = logging.getLogger(__name__)

MIN_CHARACTERS = 16
MAX_BYTES = 16_384
READ_SECONDS = 1.0
"""How long the content of a file counts."""
MAX_FILES = 4096
"""Files that are kept. The one that came first is forgotten first."""


class StaticKeys:
    """The keys in a folder.

    `folder`: None without static keys.
    """

    def __init__(
        self, folder: Path | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = _Files(folder, _long_keys, monotonic)

    def allow(self, key: str, namespace: str, fleet: str) -> bool:
        """Whether this is a key of the fleet. Both names must have been checked before.

        The time does not depend on how many characters of a key are right.
        """
        given, found = key.encode(errors="replace"), False
        for known in self._files.keys_in(f"{namespace}.{fleet}"):
            found |= hmac.compare_digest(known, given)
        return found


class PublicKeys:
    """The keys of public ports. Arguments: see `StaticKeys`."""

    def __init__(
        self, folder: Path | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = _Files(folder, _first_key, monotonic)

    def of(self, namespace: str, fleet: str) -> str | None:
        """The first line of the fleet's file; None without a usable one."""
        keys = self._files.keys_in(f"{namespace}.{fleet}")
        return keys[0].decode("ascii") if keys else None


def _long_keys(name: str, lines: Sequence[bytes]) -> Sequence[bytes]:
    if short := [key for key in lines if len(key) < MIN_CHARACTERS]:
        logger.warning(
            "%s of %s ignored: a key needs at least %d characters",
            counted(len(short), "key"),
            name,
            MIN_CHARACTERS,
        )
    return [key for key in lines if len(key) >= MIN_CHARACTERS]


def _first_key(name: str, lines: Sequence[bytes]) -> Sequence[bytes]:
    first = lines[:1]
    if all(key.isascii() and key.decode("ascii").isprintable() for key in first):
        return first
    logger.warning("the public key of %s has characters that a header cannot have", name)
    return ()


@dataclass(slots=True)
class _File:
    """A file as last read. `content`: why it could not be read, if it is a text."""

    content: bytes | str
    keys: Sequence[bytes]
    read_at: float


class _Files:
    """The keys in the files of a folder.

    Any client may name any fleet at any rate. So a file is read at most once in `READ_SECONDS`, and what is wrong
    with its content is logged once. A name without a file takes no memory.

    Args:
        folder: None without any.
        usable: Returns which of the lines of a file with this name are keys, and logs what is wrong with the others.
        monotonic: Seconds of a clock that only grows.
    """

    def __init__(
        self,
        folder: Path | None,
        usable: Callable[[str, Sequence[bytes]], Sequence[bytes]],
        monotonic: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._usable = usable
        self._monotonic = monotonic
        self._files: dict[str, _File] = {}

    def keys_in(self, name: str) -> Sequence[bytes]:
        """The keys in a file; none if it cannot be read."""
        if self._folder is None:
            return ()
        now, known = self._monotonic(), self._files.get(name)
        if known is not None and now - known.read_at < READ_SECONDS:
            return known.keys
        content = _read(self._folder / name)
        if content is None:
            self._files.pop(name, None)
            return ()
        if known is None or known.content != content:
            known = _File(content, self._keys_of(name, content), now)
            self._files[name] = known
            if len(self._files) > MAX_FILES:
                del self._files[next(iter(self._files))]
        known.read_at = now
        return known.keys

    def _keys_of(self, name: str, content: bytes | str) -> Sequence[bytes]:
        if isinstance(content, str):
            logger.warning("the keys of %s cannot be read: %s", name, content)
            return ()
        return self._usable(name, [line.strip() for line in content.splitlines() if line.strip()])


def _read(path: Path) -> bytes | str | None:
    """The first bytes of a file; None without one, and why it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or type(error).__name__
