"""Open weights: a full checkpoint, or a delta together with the weights that it is applied to.

```
weight_v000043   delta   →   weight_v000042   delta   →   weight_v000040   full: the chain ends
```

A delta names its base by version. If the worker holds the base, its memory is read. Else a directory next to
the delta has this version. The base of the first delta of a run is the model that the fleet starts on. Nothing
of a chain is trusted: it may have holes, circles, and ten thousand deltas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_index import DeltaIndex, delta_index, is_same_version
from fleet_worker.checkpoint.deltas import Delta, delta_mismatch, delta_of
from fleet_worker.checkpoint.files import Directory, FileState, OpenFile, Roots, SmallFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.opening import checkpoint_in, open_checkpoint
from fleet_worker.checkpoint.peer_files import NotServed, PeerDirectory, of_delta, unreadable
from fleet_worker.checkpoint.places import beside, names_beside, open_directory, real_place
from fleet_worker.checkpoint.stager_messages import Place
from fleet_worker.checkpoint.weight_sets import INDEX_LIMIT, weights_among
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import INDEX_FILE

MOST_DELTAS = 64
"""Of a chain. A trainer publishes a full checkpoint from time to time."""
MOST_OF_A_DELTA = 0.1
"""Of the bytes of the weights, in a delta that peers pass on. It takes memory."""
_MOST_SIBLINGS = 256
_SIBLING_LIMIT = 16 * 1024 * 1024
"""Bytes of the index of a directory that may have the version of a base."""
_MOST_CHANGES = 1_000_000
"""Changed tensors of a chain, each about 300 bytes of memory."""
_MOST_FILES = 7 * 1024
"""Of the deltas of a chain, all open at once. A stager takes 8192, with those of the base."""
_NAMED_AT_EACH_END = 3
_RETRY_SECONDS = 30.0
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class HeldBase:
    """Weights that the worker holds, which may be the base of a delta.

    Fields:
        digest: of the weights.
        checkpoint: a duplicate of them, whose descriptors are its own.
        extra_bytes: memory that nothing but this duplicate keeps.
    """

    digest: str
    checkpoint: Checkpoint
    extra_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FirstBase:
    """The model that the fleet starts on: the base of the first delta of a run.

    Fields:
        directory: its directory.
        version: the label of its weights.
        digest: of its weights; None if they were not read.
    """

    directory: str
    version: str
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Bases:
    """The weights that need no directory next to a delta."""

    held: Sequence[HeldBase] = ()
    first: FirstBase | None = None

    def close(self) -> None:
        """Close the duplicates."""
        for each in self.held:
            each.checkpoint.close()


@dataclass(frozen=True, slots=True)
class _Link:
    """One delta of a chain. `states`: of the files in its directory."""

    path: str
    index: DeltaIndex
    delta: Delta
    states: dict[str, FileState]

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def base_paths(self) -> list[str]:
        """Where its base may be, the most likely path first."""
        index = self.index
        names = _base_names(self.name, index.version, index.base_version)
        return [beside(self.path, name) for name in names]

    def close(self) -> None:
        for file in self.delta.files:
            file.close()


def open_weights(path: str, roots: Roots | None, bases: Bases) -> Checkpoint:
    """Open a checkpoint, or a delta with its base. Checked without reading tensors.

    Args:
        path: Absolute path of a directory, or URI of a prefix.
        roots: The allowed roots. None for any directory.
        bases: The weights that need no directory next to a delta. They stay the caller's.

    Returns:
        The checkpoint. Its bytes are those of the base to which its `deltas` are applied when it is read.

    Errors:
        Refusal: any of the source and checkpoint reasons; `BaseMissing`, `DeltaMismatch`.
    """
    opened = _open(path, roots)
    if isinstance(opened, Checkpoint):
        return opened
    with ExitStack() as unless_opened:
        chain = _Chain(roots, bases, opened)
        unless_opened.callback(chain.close)
        checkpoint = chain.resolved()
        unless_opened.pop_all()
    return checkpoint


def open_delta_from_peer(place: Place, path: str, held: Sequence[HeldBase]) -> Checkpoint | None:
    """Open the delta by which a peer has read a version, on its base in this worker's memory.

    Args:
        place: The peer.
        path: Of the directory that the version was published in.
        held: Weights that this worker holds. They stay the caller's.

    Returns:
        As `open_weights`. None if the peer has no delta of the version, or this worker lacks the base.

    Errors:
        Refusal: `PeerUnreadable`, or any of the checkpoint reasons.
    """
    bases = {each.digest: each for each in held if each.checkpoint.is_of_memory}
    if not bases:
        return None
    try:
        directory = PeerDirectory(of_delta(place), path)
    except NotServed:
        return None
    file = directory.read(INDEX_FILE, limit=INDEX_LIMIT)
    index = delta_index(file.content) if file is not None else None
    base = bases.get(index.base_digest or "") if index is not None else None
    if file is None or index is None or base is None:
        return None
    with ExitStack() as unless_opened:
        chain = _Chain(None, Bases(), _link(directory, file, index, path))
        unless_opened.callback(chain.close)
        checkpoint = chain.on(base.checkpoint.duplicate(), extra_bytes=base.extra_bytes)
        unless_opened.pop_all()
    checkpoint.is_from_peer = True
    if checkpoint.peer_bytes > MOST_OF_A_DELTA * checkpoint.size_bytes:
        checkpoint.close()
        raise unreadable(place, "has a delta that is too large to be passed on")
    return checkpoint


def is_delta(path: str, roots: Roots | None) -> bool:
    """Return whether a directory has the index of a delta.

    Errors:
        Refusal: the directory or its index cannot be read.
    """
    directory = open_directory(path, roots)
    try:
        file = directory.read(INDEX_FILE, limit=INDEX_LIMIT)
        return file is not None and delta_index(file.content) is not None
    finally:
        directory.close()


class _Chain:
    """A chain of deltas, the newest first, until its base is found."""

    def __init__(self, roots: Roots | None, bases: Bases, newest: _Link) -> None:
        self._roots = roots
        self._bases = bases
        self._links = [newest]
        self._versions: dict[str, str] | None = None

    def close(self) -> None:
        for link in self._links:
            link.close()

    def resolved(self) -> Checkpoint:
        """Return the newest delta's weights: a base, and the deltas to apply to it."""
        while True:
            last = self._links[-1]
            if is_same_version(last.index.version, last.index.base_version):
                # A worker that holds such weights by chance would load it, and no other one ever.
                raise self._missing(f"{last.name} is its own base")
            if (held := self._held_base(last)) is not None:
                return self.on(held.checkpoint.duplicate(), extra_bytes=held.extra_bytes)
            base = self._beside(last)
            if isinstance(base, Checkpoint):
                return self.on(base)
            self._add(base)

    def _held_base(self, link: _Link) -> HeldBase | None:
        for held in self._bases.held:
            if link.index.base_digest is not None:
                if held.digest == link.index.base_digest:
                    return held
            elif held.checkpoint.path in link.base_paths and not held.checkpoint.is_from_peer:
                self._check_not_rewritten(held)
                return held
        return None

    def _check_not_rewritten(self, held: HeldBase) -> None:
        try:
            held.checkpoint.check_same_on_disk(self._roots)
        except Refusal as refusal:
            if refusal.reason is not Reason.CHECKPOINT_CHANGED:
                raise
            raise self._missing(
                f"{Path(held.checkpoint.path).name} was written to after this worker had read it, so it is"
                f" not the base any more ({refusal.message})"
            ) from refusal

    def _beside(self, link: _Link) -> Checkpoint | _Link:
        """Return the base of a delta, from a directory."""
        index = link.index
        for path in link.base_paths:
            found = self._opened_if_there(path)
            if isinstance(found, Checkpoint):
                return found
            if found is not None:
                if is_same_version(found.index.version, index.base_version):
                    return found
                found.close()
        if (sibling := self._named_by_its_index(link)) is not None:
            return sibling
        if (first := self._first_base(link)) is not None:
            return first
        looked_for = " or ".join(dict.fromkeys(Path(path).name for path in link.base_paths))
        raise self._missing(
            f"{link.name} is a delta against version {index.base_version}, and next to it there is not {looked_for}"
        )

    def _opened_if_there(self, path: str) -> Checkpoint | _Link | None:
        try:
            return _open(path, self._roots)
        except Refusal as refusal:
            if refusal.reason is Reason.SOURCE_ABSENT:
                return None
            raise self._missing(
                f"{Path(path).name} cannot be read ({refusal.reason}: {refusal.message})"
            ) from refusal

    def _named_by_its_index(self, link: _Link) -> _Link | None:
        """Return the delta next to another one that has the version of its base, by its index."""
        if self._versions is None:  # once: all links of a chain are in one folder
            self._versions = dict(_versions_beside(link.path, self._roots))
        found = [
            name
            for name, version in self._versions.items()
            if name != link.name and is_same_version(version, link.index.base_version)
        ]
        if len(found) > 1:
            raise self._missing(
                f"several directories have version {link.index.base_version}: {found[0]}, {found[1]}"
            )
        opened = self._opened_if_there(beside(link.path, found[0])) if found else None
        return opened if isinstance(opened, _Link) else None

    def _first_base(self, link: _Link) -> Checkpoint | None:
        first, index = self._bases.first, link.index
        if first is None:
            return None
        is_first = is_same_version(index.base_version, "0") or is_same_version(
            index.base_version, first.version
        )
        if index.base_digest is not None:
            # If the model's digest is not known, that of the result decides.
            is_first = first.digest in {None, index.base_digest}
        if not is_first:
            return None
        for held in self._bases.held:
            if held.checkpoint.path == real_place(first.directory):
                return held.checkpoint.duplicate()
        return open_checkpoint(first.directory, None)

    def _add(self, base: _Link) -> None:
        newer = self._links[-1]
        self._links.append(base)
        if str(Path(base.path).parent) != str(Path(self._links[0].path).parent):
            raise self._missing(f"{base.name} is a link into another directory, as of another run")
        if any(link.path == base.path for link in self._links[:-1]):
            raise self._missing(f"the chain comes back to {base.name}")
        if len(self._links) > MOST_DELTAS:
            raise self._missing(f"the chain has more than {MOST_DELTAS} deltas")
        if sum(len(link.delta.files) for link in self._links) > _MOST_FILES:
            raise self._missing(f"the deltas of the chain have more than {_MOST_FILES} files")
        if sum(len(link.delta.changes) for link in self._links) > _MOST_CHANGES:
            raise self._missing(f"the chain changes more than {_MOST_CHANGES} tensors")
        wanted, found = newer.index.base_digest, base.index.result_digest
        if None not in (wanted, found) and wanted != found:
            raise delta_mismatch(
                f"{newer.name} was made against weights with digest {wanted}, and {base.name} has {found}"
            )

    def on(self, base: Checkpoint, *, extra_bytes: int = 0) -> Checkpoint:
        """Return the newest delta's weights on a base, which they own then."""
        newest = self._links[0]
        deltas = tuple(link.delta for link in reversed(self._links))
        # These are read into memory first.
        extra_bytes += sum(delta.size_bytes for delta in deltas if delta.is_stored)
        try:
            for delta in deltas:
                _check_changes(delta, base.tensors)
        except BaseException:
            base.close()
            raise
        return base.changed_by(
            deltas,
            path=newest.path,
            states=newest.states,
            result_digest=newest.index.result_digest,
            extra_bytes=extra_bytes,
        )

    def _missing(self, problem: str) -> Refusal:
        names = [link.name for link in self._links]
        if len(names) > 2 * _NAMED_AT_EACH_END:
            names = [*names[:_NAMED_AT_EACH_END], "…", *names[-_NAMED_AT_EACH_END:]]
        return Refusal(
            Reason.BASE_MISSING,
            f"the base of a delta is missing: {problem}. Chain: {' → '.join(names)}. Publish the version"
            " in full, or restore the base",
            retry_after_seconds=_RETRY_SECONDS,
        )


def _check_changes(delta: Delta, tensors: dict[str, TensorSpec]) -> None:
    for name in delta.changes:
        if name not in tensors or tensors[name].end == tensors[name].begin:
            raise delta_mismatch(
                f"{delta.name} changes tensor {name[:200]!r}, which its base does not have. A delta changes"
                " values only"
            )


def _open(path: str, roots: Roots | None) -> Checkpoint | _Link:
    directory = open_directory(path, roots)
    try:
        index_file = directory.read(INDEX_FILE, limit=INDEX_LIMIT)
        index = delta_index(index_file.content) if index_file is not None else None
        if index_file is None or index is None:
            return checkpoint_in(directory, index_file)
        return _link(directory, index_file, index, real_place(directory.path))
    finally:
        directory.close()


def _link(directory: Directory, index_file: SmallFile, index: DeltaIndex, path: str) -> _Link:
    """Open the delta in an open directory. `path`: see `_Link`."""
    files = _opened_files(directory, index)
    with ExitStack() as unless_read:
        for file in files:
            unless_read.callback(file.close)
        delta = delta_of(Path(path).name, index.encoding, index.checksums, files)
        if dict(index.places) != {name: c.file.name for name, c in delta.changes.items()}:
            raise Refusal(
                Reason.CHECKPOINT_MALFORMED,
                f"{INDEX_FILE} of a delta does not match the tensors in its files",
            )
        unless_read.pop_all()
    if index.base_digest is not None:
        delta = replace(delta, index=index_file.content)
    states = {INDEX_FILE: index_file.state} | {file.name: file.state for file in files}
    return _Link(path, index, delta, states)


def _opened_files(directory: Directory, index: DeltaIndex) -> list[OpenFile]:
    named = frozenset(index.places.values())
    if others := weights_among(directory.names) - named:
        raise Refusal(
            Reason.CHECKPOINT_AMBIGUOUS,
            f"{INDEX_FILE} is that of a delta, and does not name {min(others)}, which is in the directory too."
            " Save each version into a directory of its own",
        )
    if len(named) > _MOST_FILES:
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} of a delta names {len(named)} files, and the most are {_MOST_FILES}",
        )
    with ExitStack() as unless_opened:
        files = []
        for name in sorted(named):
            file = directory.open(name)
            unless_opened.callback(file.close)
            files.append(file)
        unless_opened.pop_all()
    return files


def _versions_beside(path: str, roots: Roots | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the version of each delta in the folder of one, sorted by name."""
    try:
        names = names_beside(path, _MOST_SIBLINGS)
    except (OSError, Refusal):
        return
    for name in sorted(names):
        if not name.startswith(".") and (index := _index_in(beside(path, name), roots)) is not None:
            yield name, index.version


def _index_in(path: str, roots: Roots | None) -> DeltaIndex | None:
    try:
        directory = open_directory(path, roots)
    except Refusal:
        return None
    try:
        file = directory.read(INDEX_FILE, limit=_SIBLING_LIMIT)
        return delta_index(file.content) if file is not None else None
    except Refusal:
        return None
    finally:
        directory.close()


def _base_names(name: str, version: str, base: str) -> Iterator[str]:
    """Yield the names that the directory of a base may have, by the name of its delta's.

    Args:
        name: Name of the delta's directory: `weight_v000043`, `step_43`.
        version: Its version.
        base: The version of its base.
    """
    numbers = [m for m in _NUMBER.finditer(name) if is_same_version(m[0], version)]
    if numbers and base.isascii() and base.isdigit():
        number = numbers[-1]
        plain, padded = str(int(base)), str(int(base)).zfill(len(number[0]))
        for each in dict.fromkeys([padded, plain] if number[0][0] == "0" else [plain, padded]):
            yield name[: number.start()] + each + name[number.end() :]
    before, found, after = name.rpartition(version)
    if found:
        yield f"{before}{base}{after}"
