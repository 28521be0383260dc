"""Bringing an adapter to a worker: check it and hold its bytes, then put it into the engine."""

from __future__ import annotations

import asyncio

from fleet_worker.adapters.opening import open_adapter
from fleet_worker.adapters.private import PrivateAdapter, make_private
from fleet_worker.adapters.settling import open_settled
from fleet_worker.core.adapter_layout import check_adapter_config, check_adapter_tensors
from fleet_worker.core.engine_adapter import engine_name
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import AdapterRequest, Phase, Reason
from fleet_worker.runtime.reference import directory_of
from fleet_worker.runtime.worker import AdapterFault, Work, Worker

_PHASES = (Phase.JOINING, Phase.SERVING, Phase.PAUSED)


def check_fits(worker: Worker, name: str) -> None:
    """Refuse what cannot be done now, before any file is looked at."""
    worker.adapters.check_on()
    if name == worker.engine.info.model:
        raise Refusal(Reason.BAD_REQUEST, f"{name} is the name of the model itself")
    if worker.phase not in _PHASES:
        reason = Reason.BROKEN if worker.phase is Phase.BROKEN else Reason.WRONG_PHASE
        raise Refusal(reason, f"a worker that is {worker.phase} changes no adapters")
    if worker.asleep:
        raise Refusal(
            Reason.WRONG_PHASE,
            "a sleeping engine takes no adapter: its memory is away; wake the worker first",
        )


async def prepare(worker: Worker, name: str, request: AdapterRequest) -> PrivateAdapter:
    """Check an adapter and hold its bytes; without the lock, it disturbs nobody.

    Errors:
        Refusal: any of the source and checkpoint reasons, `VersionReused`, `NoAdapterSlot`.
    """
    worker.preparing = Work("adapter", request.version, worker.clock())
    try:
        return await asyncio.to_thread(_prepare, worker, name, request)
    finally:
        worker.preparing = None


def fault_of(
    worker: Worker, name: str, request: AdapterRequest, why: Refusal | EngineFailure
) -> AdapterFault:
    """A refusal or failure as the state document remembers it."""
    return AdapterFault(request.version, why.reason, why.message, worker.clock(), name)


def _prepare(worker: Worker, name: str, request: AdapterRequest) -> PrivateAdapter:
    rules = worker.staging.rules
    path = directory_of(request.source)
    adapter = open_settled(path, rules.roots, lambda: open_adapter(path, rules.roots))
    try:
        check_adapter_config(adapter.config, max_rank=worker.adapters.max_rank)
        check_adapter_tensors(rules.reference.tensors, adapter.tensors, adapter.config)
        worker.adapters.labels.check(engine_name(name, request.version), adapter.identity)
        files = make_private(
            adapter, rules.inspector.read, budget=worker.memory_left(), go_on=lambda: None
        )
    except BaseException:
        adapter.close()
        raise
    try:
        _check_digest(request.digest, files.digest)
        adapter.check_same_on_disk(rules.roots)
    except BaseException:
        files.close()
        raise
    return files


def _check_digest(wanted: str | None, found: str) -> None:
    if wanted not in (None, found):
        raise Refusal(
            Reason.DIGEST_MISMATCH, f"the files' digest is {found}, {wanted} was asked for"
        )
