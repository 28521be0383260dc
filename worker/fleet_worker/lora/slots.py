"""LoRA adapters in the engine: several versions loaded, one version of each name served.

Each version has a slot of the engine and an engine name of its own. A new request gets the served
version and keeps it to its end. A retired version leaves the engine with its last request. The
engine reads adapters at any time, so it reads from our own directory over sealed memory: changes in
the trainer's directory cannot reach it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet_worker.checkpoint.identity import Label, Labels, WeightName, scope_of, short_digest
from fleet_worker.engine.port import Engine
from fleet_worker.engine.records import FIRST_NUMBER, EngineAdapter, engine_name, weight_name_of
from fleet_worker.errors import EngineFailure, Refusal, counted
from fleet_worker.logs import fields
from fleet_worker.lora.files import PrivateAdapter
from fleet_worker.lora.staged import StagedAdapters, delete
from fleet_worker.protocol import (
    AdapterRequest,
    AdapterSlots,
    AdapterState,
    Reason,
    RetiringAdapter,
    Source,
)

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Loaded:
    """A version in a slot of the engine.

    Fields:
        requests: number of requests that use it.
        leaving: it is retired: not served, and removed after its last request.
    """

    name: str
    version: str
    run_id: str | None
    source: Source
    digest: str
    files: PrivateAdapter
    engine: EngineAdapter
    requests: int = 0
    leaving: bool = False

    @property
    def weights(self) -> WeightName:
        """The name of its weights in the spans of replies."""
        scope = scope_of(self.files.identity.source) if self.run_id is None else None
        return WeightName(self.version, self.run_id, short_digest(self.digest), scope)


class Adapters:
    """All LoRA adapters of a worker. Calls that change the engine need the worker's lock."""

    def __init__(self, engine: Engine, *, slots: int, max_rank: int) -> None:
        """Start without adapters; with 0 slots, every call is refused.

        The worker replaces the engine with its own, whose calls have time limits.
        """
        self.engine = engine
        self._slots = slots
        self.max_rank = max_rank
        self._served: dict[str, Loaded] = {}
        self._loaded: list[Loaded] = []
        self._numbers = itertools.count(FIRST_NUMBER)
        self.labels = Labels()
        self.staged = StagedAdapters()
        self.on_idle: Callable[[], None] = lambda: None
        """Called when the last request of a retired version has ended."""

    # --- state ---------------------------------------------------------------------------------

    @property
    def slots(self) -> AdapterSlots | None:
        """The slots for the state document; None for an engine without slots."""
        if self._slots == 0:
            return None
        return AdapterSlots(total=self._slots, used=len(self._loaded), max_rank=self.max_rank)

    def states(self) -> tuple[AdapterState, ...]:
        """All adapters for the state document, sorted by name."""
        names = {each.name for each in self._loaded} | self.staged.names
        return tuple(self._state(name) for name in sorted(names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the served adapters, which requests may use as their model."""
        return tuple(self._served)

    def number_of(self, name: str) -> int | None:
        """The engine's number of the served version."""
        served = self._served.get(name)
        return served.engine.number if served is not None else None

    def served_files(self, name: str) -> PrivateAdapter | None:
        """The worker's copy of the files of the served version."""
        served = self._served.get(name)
        return served.files if served is not None else None

    def has(self, name: str) -> bool:
        """Whether an adapter has this name, also if no version of it is served yet."""
        return name in self._served or name in self.staged.names

    def served_weights(self, name: str) -> WeightName | None:
        """The weights of the served version; None without one."""
        served = self._served.get(name)
        return served.weights if served is not None else None

    def weights_of(self, engine_name: str) -> WeightName:
        """The weights of an adapter from the name in an output of the engine."""
        # The newest first: the same version may have been loaded from two directories.
        for each in reversed(self._loaded):
            if each.engine.name == engine_name:
                return each.weights
        return weight_name_of(engine_name)

    @property
    def size_bytes(self) -> int:
        """The memory that the copies of all adapters take."""
        return self.staged.size_bytes + sum(each.files.size_bytes for each in self._loaded)

    def in_engine(self) -> list[EngineAdapter]:
        """The adapters that must be in the engine, and must be added again after a load."""
        return [each.engine for each in self._loaded]

    def check_enabled(self) -> None:
        """Refuse with `AdaptersOff` if the engine was started without slots for adapters."""
        if self._slots == 0:
            raise Refusal(
                Reason.ADAPTERS_OFF,
                "this worker has no slots for LoRA adapters; set --max-loras"
                " (spec.adapters.max of the fleet)",
            )

    def serves(self, name: str, request: AdapterRequest) -> bool:
        """Whether the adapter of a request is already served."""
        served = self._served.get(name)
        return (
            served is not None
            and (served.version, served.run_id) == (request.version, request.run_id)
            and served.source == request.source
            and request.digest in (None, served.digest)
        )

    # --- requests ------------------------------------------------------------------------------

    @contextmanager
    def using(self, name: str) -> Iterator[EngineAdapter]:
        """Keep the served version in the engine while a request uses it.

        Errors:
            Refusal: `SourceNotFound`, if the name was removed meanwhile.
        """
        served = self._served.get(name)
        if served is None:
            raise Refusal(Reason.SOURCE_NOT_FOUND, f"the LoRA adapter {name} was removed")
        served.requests += 1
        try:
            yield served.engine
        finally:
            served.requests -= 1
            if served.leaving and served.requests == 0:
                self.on_idle()

    # --- changes, under the worker's lock ------------------------------------------------------

    async def put(
        self, name: str, request: AdapterRequest, files: PrivateAdapter, label: Label
    ) -> None:
        """Load a version into a slot and serve it.

        After an error the worker still serves the previous version.

        Args:
            name: The model name in requests.
            request: Version and source.
            files: The worker's copy of the files.
            label: The label that other bytes cannot have from now on.

        Errors:
            Refusal: `NoAdapterSlot`.
            EngineFailure: the engine cannot load it.
        """
        await self.remove_retired()
        self._check_slot(name)
        adapter = EngineAdapter(
            name=engine_name(name, request.version, short_digest(files.digest), request.run_id),
            number=next(self._numbers),
            path=files.path,
        )
        try:
            await self.engine.add_adapter(adapter)
        except EngineFailure:
            await self.engine.remove_adapter(adapter)  # the engine may have loaded a part of it
            raise
        before = self._served.get(name)
        new = Loaded(
            name, request.version, request.run_id, request.source, files.digest, files, adapter
        )
        self._loaded.append(new)
        self._served[name] = new
        self.labels.remember(label, files.digest, files.identity.source)
        self.engine.serve_adapter(name, str(request.source))
        _LOG.info(
            "LoRA adapter %s is served at version %s",
            name,
            request.version,
            extra=fields("adapter_served", adapter=name, version=request.version),
        )
        await self.staged.drop(name)
        if before is not None:
            before.leaving = True
            await self.remove_retired()

    async def remove(self, name: str) -> None:
        """Stop serving a name. Idempotent."""
        await self.staged.drop(name)
        served = self._served.pop(name, None)
        if served is None:
            return
        self.engine.serve_adapter(name, None)
        served.leaving = True
        await self.remove_retired()

    async def remove_retired(self) -> None:
        """Remove retired versions without requests from the engine, then their files.

        If the engine does not remove a version, the version keeps its slot and its files, because
        the engine may still read them. The next call tries again.
        """
        for retired in [each for each in self._loaded if each.leaving and each.requests == 0]:
            try:
                await self.engine.remove_adapter(retired.engine)
            except EngineFailure as failure:
                _LOG.error(
                    "the engine did not remove LoRA adapter %s, which keeps its slot: %s",
                    retired.engine.name,
                    failure.message,
                )
                continue
            self._loaded.remove(retired)
            await delete(retired.files, retired.engine.name)

    def close(self) -> None:
        """Remove all files. Called when the process ends."""
        for each in self._loaded:
            each.files.close()
        self.staged.close()

    def _check_slot(self, name: str) -> None:
        if len(self._loaded) < self._slots:
            return
        loaded = ", ".join(
            f"{each.name} at {each.version}"
            + (f" ({counted(each.requests, 'request')})" if each.leaving else "")
            for each in self._loaded
        )
        retires = any(each.leaving for each in self._loaded)
        raise Refusal(
            Reason.NO_ADAPTER_SLOT,
            f"no slot is free for LoRA adapter {name}: {len(self._loaded)} of {self._slots} in use"
            f" ({loaded}); raise --max-loras (spec.adapters.max of the fleet) or remove a LoRA"
            " adapter",
            retry_after_seconds=_RETRY_SECONDS if retires else None,
        )

    def _state(self, name: str) -> AdapterState:
        served, staged = self._served.get(name), self.staged.state(name)
        retiring = tuple(
            RetiringAdapter(version=each.version, requests=each.requests)
            for each in self._loaded
            if each.name == name and each.leaving
        )
        if served is None:
            return AdapterState(name=name, version=None, staged=staged, retiring=retiring)
        return AdapterState(
            name=name,
            version=served.version,
            run_id=served.run_id,
            source=served.source,
            digest=served.digest,
            size_bytes=served.files.size_bytes,
            requests=served.requests,
            staged=staged,
            retiring=retiring,
        )
