"""A folder of versions on a volume: what is in it, and how a version leaves it.

A version leaves in three steps, each a rename within the folder, so that a kill between two leaves it whole:

```
step_40   →   .step_40.trash-1a2b3c4d      no worker can open it any more; it can come back
          →   .step_40.deleting-1a2b3c4d   decided: any collector deletes it
          →   gone
```

A name aside is used once, and a rename has one winner. So two collectors do not harm each other: one that comes
late finds nothing under the name that it knows.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from fleet_collector.plan import Content, Directory, OutsideError, Template, lease_of
from rlfleet.deltas.index import delta_versions
from rlfleet.errors import UnusableWeights
from rlfleet_resources.weight_files import INDEX_FILE, WEIGHTS_SUFFIX

_TRASH = re.compile(r"\.(.+)\.trash-[0-9a-f]{8}")
_DELETING = re.compile(r"\.(.+)\.deleting-[0-9a-f]{8}")
_INDEX_LIMIT = 16 * 1024 * 1024
_RIGHTS = os.R_OK | os.W_OK | os.X_OK
_NO_RIGHT = "this process may not delete in it; run the collector as the user that writes versions"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Folder:
    """An open folder. All names are relative to it, so that no later link leads elsewhere.

    Args:
        descriptor: Of the folder, which closes it.
        path: Its path.
        templates: Of the versions in it. No other directory is touched.
    """

    def __init__(self, descriptor: int, path: str, templates: Sequence[Template]) -> None:
        self._at = descriptor
        self._path = path
        self._templates = templates
        self._device = os.fstat(descriptor).st_dev

    @classmethod
    def open(cls, path: str, roots: Sequence[str], templates: Sequence[Template]) -> Self | None:
        """Open a folder; None if it does not exist. Errors: OutsideError, OSError."""
        if not any(f"{path}/".startswith(f"{os.path.realpath(root)}/") for root in roots):
            raise OutsideError(
                f"{path} is not below {' or '.join(roots)}, the roots of this collector"
            )
        try:
            descriptor = os.open(path, _OPEN)
        except FileNotFoundError:
            return None
        if (real := os.path.realpath(f"/proc/self/fd/{descriptor}")) != path:
            os.close(descriptor)
            raise OutsideError(f"{path} is a link to {real}: name that folder in spec.source")
        return cls(descriptor, path, templates)

    def close(self) -> None:
        """Close it."""
        os.close(self._at)

    def content(self) -> Content:
        """Read it. Errors: OSError."""
        return Content(self._directories(), self._others(), self._links())

    def _directories(self) -> list[Directory]:
        """The versions, by name; those that are aside come last. Errors: OSError."""
        names = self._names()
        places = [(name, name) for name in names if self._is_version(name)]
        places += [(found[1], name) for name in names if (found := self._aside(_TRASH, name))]
        leases = [name for name in names if ".keep" in name]
        there = (self._directory(name, place, leases) for name, place in places)
        return [each for each in there if each is not None]

    def _others(self) -> list[Directory]:
        """The other names in the folder, such as a copy of a version. A delta needs its base there, too. Errors: OSError."""
        names = [name for name in self._names() if not name.startswith(".")]
        others = [Directory(name=name, place=name) for name in names if not self._is_version(name)]
        return [self._with_base(each) for each in others]

    def _links(self) -> dict[str, str]:
        """Target → name, of the links in the folder. Errors: OSError."""
        with os.scandir(self._at) as entries:
            names = [entry.name for entry in entries if entry.is_symlink()]
        return {os.path.realpath(f"{self._path}/{name}"): name for name in names}

    def put_aside(self, directory: Directory) -> str:
        """Rename a version, so that no worker can open it. Returns: its place. Errors: OSError."""
        place = f".{directory.name}.trash-{secrets.token_hex(4)}"
        self._rename(directory.place, place)
        return place

    def bring_back(self, directory: Directory) -> bool:
        """Rename a version that is aside to its name. Returns: whether it is there. Errors: OSError."""
        if self._exists(directory.name):
            return False  # a newer one has its name
        self._rename(directory.place, directory.name)
        return True

    def delete(self, directory: Directory) -> None:
        """Delete a version that is aside. Errors: OSError; FileNotFoundError if another collector was faster."""
        place = directory.place.replace(".trash-", ".deleting-")
        self._rename(directory.place, place)
        self._remove(place)

    def finish(self) -> Iterator[tuple[str, OSError | None]]:
        """Delete what a collector that was killed had begun to delete. Yields: names, and errors."""
        for place in self._names():
            if (found := self._aside(_DELETING, place)) is not None:
                try:
                    self._remove(place)
                except OSError as error:
                    yield found[1], error
                else:
                    yield found[1], None

    def _names(self) -> list[str]:
        with os.scandir(self._at) as entries:
            return sorted(entry.name for entry in entries)

    def _is_version(self, name: str) -> bool:
        return any(template.label_of(name) for template in self._templates)

    def _aside(self, pattern: re.Pattern[str], place: str) -> re.Match[str] | None:
        found = pattern.fullmatch(place)
        return found if found is not None and self._is_version(found[1]) else None

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._at, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._at, dst_dir_fd=self._at)

    def _remove(self, place: str) -> None:
        try:
            shutil.rmtree(place, dir_fd=self._at)
        except FileNotFoundError:
            return  # another collector deletes it, too, and continues

    def _directory(self, name: str, place: str, leases: Sequence[str]) -> Directory | None:
        """A version; None if another collector has renamed it meanwhile."""
        try:
            mode = os.stat(place, dir_fd=self._at, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        found = Directory(
            name=name,
            place=place,
            lease=lease_of(name, leases),
            written_ns=None,
            obstacle="it is a link or a file, and no directory",
        )
        return self._with_base(self._measured(found) if stat.S_ISDIR(mode) else found)

    def _measured(self, found: Directory) -> Directory:
        """The directory with its size, its times, and why it cannot be deleted."""
        size_bytes, modified_ns, weights_ns, obstacle = 0, 0, 0, ""
        written_ns: int | None = None
        try:
            for path, _, files, at in os.fwalk(found.place, dir_fd=self._at, onerror=_raise):
                folder = os.fstat(at)
                modified_ns = max(modified_ns, folder.st_mtime_ns)
                for file in files:
                    state = os.stat(file, dir_fd=at, follow_symlinks=False)
                    size_bytes += state.st_size
                    modified_ns = max(modified_ns, state.st_mtime_ns)
                    if file.endswith(WEIGHTS_SUFFIX):
                        weights_ns = max(weights_ns, state.st_mtime_ns)
                if folder.st_dev != self._device:
                    obstacle = "another file system is mounted in it"
                elif not os.access(path, _RIGHTS, dir_fd=self._at, effective_ids=True):
                    obstacle = _NO_RIGHT
                if obstacle:
                    break
            written_ns = weights_ns or modified_ns
        except OSError as error:
            obstacle = f"it cannot be read ({error}): {_NO_RIGHT}"
        except RecursionError:
            obstacle = "its directories are nested too deeply: delete it by hand"
        return replace(
            found,
            size_bytes=size_bytes,
            modified_ns=modified_ns,
            written_ns=written_ns,
            obstacle=obstacle,
        )

    def _with_base(self, found: Directory) -> Directory:
        """The directory with the base of its delta. Workers read one that cannot be deleted, too."""
        try:
            version, base = self._delta_versions(found.place)
        except (OSError, UnusableWeights) as error:
            return replace(found, base_unknown=f"{error}. Repair or delete the directory")
        return replace(found, version=version, base=base)

    def _delta_versions(self, place: str) -> tuple[str, str]:
        """The version of a delta and that of its base; empty for another checkpoint. Errors: OSError, UnusableWeights."""
        try:
            index = os.open(f"{place}/{INDEX_FILE}", _READ, dir_fd=self._at)
        except (FileNotFoundError, NotADirectoryError):
            return "", ""
        with os.fdopen(index, "rb") as file:
            content = file.read(_INDEX_LIMIT + 1)
        if len(content) > _INDEX_LIMIT:
            raise UnusableWeights(f"{INDEX_FILE} has more than {_INDEX_LIMIT} bytes")
        return delta_versions(INDEX_FILE, content) or ("", "")


def _raise(error: OSError) -> None:
    raise error
