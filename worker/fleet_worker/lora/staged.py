"""LoRA adapters whose files the worker has checked and holds, without a slot of the engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fleet_worker.checkpoint.store_threads import StoreThreads
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import PrivateAdapter
from fleet_worker.protocol import AdapterRequest, Source, Staged

_LOG = logging.getLogger(__name__)
_CLOSE_SECONDS = 10.0
_THREADS = StoreThreads()


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """One version with its files."""

    version: str
    run_id: str | None
    source: Source
    files: PrivateAdapter

    def is_of(self, request: AdapterRequest) -> bool:
        """Whether a request names this version."""
        named = (self.version, self.run_id) == (request.version, request.run_id)
        alike = request.digest in (None, self.files.digest)
        return named and alike and self.source == request.source


class StagedAdapters:
    """At most one version of each name. Calls that change it need the worker's lock."""

    def __init__(self) -> None:
        """Start without any."""
        self._copies: dict[str, StagedCopy] = {}

    @property
    def names(self) -> set[str]:
        """The names with a staged version."""
        return set(self._copies)

    @property
    def size_bytes(self) -> int:
        """The memory that the copies take."""
        return sum(copy.files.size_bytes for copy in self._copies.values())

    def files_of(self, name: str, request: AdapterRequest) -> PrivateAdapter | None:
        """The files of a request, if the worker holds them."""
        copy = self._copies.get(name)
        return copy.files if copy is not None and copy.is_of(request) else None

    def state(self, name: str) -> Staged | None:
        """The staged version of a name for the state document; None without one."""
        copy = self._copies.get(name)
        if copy is None:
            return None
        return Staged(
            version=copy.version,
            run_id=copy.run_id,
            source=copy.source,
            digest=copy.files.digest,
            size_bytes=copy.files.size_bytes,
            in_memory=True,
        )

    async def put(self, name: str, request: AdapterRequest, files: PrivateAdapter) -> None:
        """Hold the files of a version in place of those that were staged under this name."""
        await self.drop(name)
        self._copies[name] = StagedCopy(request.version, request.run_id, request.source, files)

    def put_back(self, name: str, request: AdapterRequest, files: PrivateAdapter) -> bool:
        """Hold the files of a version that could not be served yet.

        Returns:
            False if another version has been staged under the name meanwhile; the files stay the
            caller's then.
        """
        if name in self._copies:
            return False
        self._copies[name] = StagedCopy(request.version, request.run_id, request.source, files)
        return True

    def take(self, name: str, request: AdapterRequest) -> PrivateAdapter | None:
        """Return the files of a request, which belong to the caller from now on."""
        files = self.files_of(name, request)
        if files is not None:
            del self._copies[name]
        return files

    async def drop(self, name: str) -> None:
        """Delete the files of a name, if there are any."""
        copy = self._copies.pop(name, None)
        if copy is not None:
            await delete(copy.files, f"{name} at {copy.version}")

    def close(self) -> None:
        """Delete all files. Called when the process ends."""
        for copy in self._copies.values():
            copy.files.close()


async def delete(files: PrivateAdapter, name: str) -> None:
    """Delete the files of an adapter, within 10 s. `name`: for the log."""
    try:
        await _THREADS.run(files.close, store="of adapters", within_seconds=_CLOSE_SECONDS)
    except Refusal as refusal:
        _LOG.error("the files of LoRA adapter %s were not deleted: %s", name, refusal.message)
