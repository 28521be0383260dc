"""LoRA adapters: several versions in the engine, one of each name served.

A version lives in a slot of the engine under a name that is its own. New requests get the version
that is served when they reach the engine; those that run keep theirs to the end, and the version
leaves the engine with the last of them. The engine reads adapters from a directory of our own over
sealed bytes in memory, whenever it likes: what becomes of the trainer's directory cannot touch it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet_worker.adapters.private import PrivateAdapter
from fleet_worker.core.engine_adapter import FIRST_NUMBER, EngineAdapter, engine_name
from fleet_worker.core.labels import Label, Labels
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.weight_names import short_digest
from fleet_worker.protocol import (
    AdapterRequest,
    AdapterSlots,
    AdapterState,
    Reason,
    RetiringAdapter,
    Source,
)
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.ports import Engine
from fleet_worker.runtime.store_threads import StoreThreads

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0
_CLOSE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class Loaded:
    """A version in a slot of the engine.

    Fields:
        requests: that use it now.
        leaving: it is not served any more.
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


class Adapters:
    """All adapters of a worker. Calls that change the engine come under the worker's lock."""

    def __init__(self, engine: Engine, *, slots: int, max_rank: int) -> None:
        """Make an empty one; without slots, every call is refused.

        The worker puts its own engine in, whose calls have time limits.
        """
        self.engine = engine
        self._slots = slots
        self.max_rank = max_rank
        self._served: dict[str, Loaded] = {}
        self._loaded: list[Loaded] = []
        self._numbers = itertools.count(FIRST_NUMBER)
        self.labels = Labels()
        self._threads = StoreThreads()
        self.on_idle: Callable[[], None] = lambda: None
        """Called when a version that is not served any more has lost its last request."""

    # --- what there is -------------------------------------------------------------------------

    @property
    def slots(self) -> AdapterSlots | None:
        """Room in the engine, for the state document."""
        if self._slots == 0:
            return None
        return AdapterSlots(total=self._slots, used=len(self._loaded), max_rank=self.max_rank)

    def states(self) -> tuple[AdapterState, ...]:
        """All names, for the state document."""
        return tuple(self._state(name) for name in sorted({each.name for each in self._loaded}))

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may name as their model."""
        return tuple(self._served)

    def number_of(self, name: str) -> int | None:
        """The engine's number of the version that is served under a name."""
        held = self._served.get(name)
        return held.engine.number if held is not None else None

    def held_files(self, name: str) -> PrivateAdapter | None:
        """What is held of the version that is served under a name."""
        held = self._served.get(name)
        return held.files if held is not None else None

    @property
    def size_bytes(self) -> int:
        """How much memory the adapters take."""
        return sum(each.files.size_bytes for each in self._loaded)

    def in_engine(self) -> list[EngineAdapter]:
        """What must be in the engine, also after it was emptied by a load."""
        return [each.engine for each in self._loaded]

    def check_on(self) -> None:
        """Refuse with `AdaptersOff` if the engine was started without room for adapters."""
        if self._slots == 0:
            raise Refusal(
                Reason.ADAPTERS_OFF,
                "this worker was started without adapters; set --max-loras"
                " (spec.adapters.max of the fleet)",
            )

    def serves(self, name: str, request: AdapterRequest) -> bool:
        """Whether putting this would change nothing."""
        held = self._served.get(name)
        return (
            held is not None
            and (held.version, held.run_id) == (request.version, request.run_id)
            and held.source == request.source
            and request.digest in (None, held.digest)
        )

    # --- requests ------------------------------------------------------------------------------

    @contextmanager
    def using(self, name: str) -> Iterator[EngineAdapter]:
        """The version that a request gets, kept in the engine until the request has ended.

        Errors:
            Refusal: `SourceNotFound`, if the name was removed meanwhile.
        """
        held = self._served.get(name)
        if held is None:
            raise Refusal(Reason.SOURCE_NOT_FOUND, f"the adapter {name} is not served any more")
        held.requests += 1
        try:
            yield held.engine
        finally:
            held.requests -= 1
            if held.leaving and held.requests == 0:
                self.on_idle()

    # --- changes, under the worker's lock ------------------------------------------------------

    async def put(
        self, name: str, request: AdapterRequest, files: PrivateAdapter, label: Label
    ) -> None:
        """Put a version into a slot and serve it.

        Args:
            name: What requests call it.
            request: What was asked for.
            files: What is held of it.
            label: What no other bytes may be called from now on.

        Errors:
            Refusal: `NoAdapterSlot`; the version before is served on.
            EngineFailure: the engine does not take it; the version before is served on.
        """
        await self.clear_out()
        self._check_slot(name)
        adapter = EngineAdapter(
            name=engine_name(name, request.version, short_digest(files.digest), request.run_id),
            number=next(self._numbers),
            path=files.path,
        )
        try:
            await self.engine.add_adapter(adapter)
        except EngineFailure:
            await self.engine.remove_adapter(adapter)  # whatever is left of it
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
            "adapter %s is served at %s",
            name,
            request.version,
            extra=fields("adapter_served", adapter=name, version=request.version),
        )
        if before is not None:
            before.leaving = True
            await self.clear_out()

    async def remove(self, name: str) -> None:
        """Serve a name no more. Safe to call again."""
        held = self._served.pop(name, None)
        if held is None:
            return
        self.engine.serve_adapter(name, None)
        held.leaving = True
        await self.clear_out()

    async def clear_out(self) -> None:
        """Take what is not served and not used any more out of the engine; its files go last.

        A version that the engine does not let go keeps its slot and its files: the engine may
        still read them. It is tried again the next time.
        """
        for held in [each for each in self._loaded if each.leaving and each.requests == 0]:
            try:
                await self.engine.remove_adapter(held.engine)
            except EngineFailure as failure:
                _LOG.error("%s does not leave the engine: %s", held.engine.name, failure.message)
                continue
            self._loaded.remove(held)
            try:
                await self._threads.run(
                    held.files.close, store="of adapters", within_seconds=_CLOSE_SECONDS
                )
            except Refusal as refusal:
                _LOG.error("files of %s are not removed: %s", held.engine.name, refusal.message)

    def close(self) -> None:
        """Remove all files; the engine is at its end."""
        for held in self._loaded:
            held.files.close()

    def _check_slot(self, name: str) -> None:
        if len(self._loaded) < self._slots:
            return
        held = ", ".join(
            f"{each.name} at {each.version}"
            + (f" ({each.requests} requests)" if each.leaving else "")
            for each in self._loaded
        )
        waits = any(each.leaving for each in self._loaded)
        raise Refusal(
            Reason.NO_ADAPTER_SLOT,
            f"all {self._slots} slots for adapters are taken: {held}. {name} needs one more;"
            " raise --max-loras (spec.adapters.max of the fleet) or remove an adapter",
            retry_after_seconds=_RETRY_SECONDS if waits else None,
        )

    def _state(self, name: str) -> AdapterState:
        served = self._served.get(name)
        retiring = tuple(
            RetiringAdapter(version=each.version, requests=each.requests)
            for each in self._loaded
            if each.name == name and each.leaving
        )
        if served is None:
            return AdapterState(name=name, version=None, retiring=retiring)
        return AdapterState(
            name=name,
            version=served.version,
            run_id=served.run_id,
            source=served.source,
            digest=served.digest,
            size_bytes=served.files.size_bytes,
            requests=served.requests,
            retiring=retiring,
        )
