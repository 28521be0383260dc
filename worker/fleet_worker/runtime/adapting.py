"""Bringing an adapter to a worker: check it and hold its bytes, then put it into the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from fleet_worker.adapters.opening import open_adapter
from fleet_worker.adapters.private import PrivateAdapter, make_private
from fleet_worker.adapters.settling import files_of, open_settled
from fleet_worker.core.adapter_layout import check_adapter_config, check_adapter_tensors
from fleet_worker.core.digests import check_digest
from fleet_worker.core.labels import Label
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import AdapterRequest, Phase, Reason
from fleet_worker.runtime.reference import directory_of
from fleet_worker.runtime.store_threads import Pulse
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


def label_of(
    name: str, request: AdapterRequest, files: PrivateAdapter, *, by_directory: bool
) -> Label:
    """What no other bytes may be called.

    Args:
        name: What requests call the adapter.
        request: Names its version and its run.
        files: What is held of it.
        by_directory: A trainer names directories and no runs: another directory is another run's.
    """
    scope = f"adapter {name}"
    if request.run_id is not None:
        scope += f" of run {request.run_id}"
    elif by_directory:
        scope += f" from {files.identity.source}"
    return Label(request.version, scope)


async def is_unchanged(worker: Worker, name: str, request: AdapterRequest) -> bool:
    """Whether the files of an adapter that is served are still those that were read.

    Not asked where the request names the digest: that was compared with the bytes that are held.
    """
    held = worker.adapters.held_files(name)
    if held is None or request.digest is not None:
        return True
    path, roots = directory_of(request.source), worker.staging.rules.roots
    try:
        now = await worker.staging.threads.run(
            partial(files_of, path, roots), store=roots.root_of(path)
        )
    except Refusal:
        return True
    # Neither a file nor a directory that is gone is a change: trainers delete old versions.
    return all(now.get(f, (size, time)) == (size, time) for f, size, _, time in held.identity.files)


async def prepare(
    worker: Worker, name: str, request: AdapterRequest, *, by_directory: bool
) -> PrivateAdapter:
    """Check an adapter and hold its bytes; without the lock, it disturbs nobody.

    Errors:
        Refusal: any of the source and checkpoint reasons, `VersionReused`, `NoAdapterSlot`.
    """
    worker.preparing = Work("adapter", request.version, worker.clock(), run_id=request.run_id)
    try:
        pulse = Pulse()
        staging = worker.staging
        files = await staging.threads.run(
            partial(_prepare, worker, request, pulse.beat),
            store=staging.rules.roots.root_of(str(request.source)),
            pulse=pulse,
            late=PrivateAdapter.close,
        )
    finally:
        worker.preparing = None
    try:
        label = label_of(name, request, files, by_directory=by_directory)
        worker.adapters.labels.check(label, files.digest, files.identity.source)
    except Refusal:
        await asyncio.to_thread(files.close)
        raise
    return files


def fault_of(
    worker: Worker, name: str, request: AdapterRequest, why: Refusal | EngineFailure
) -> AdapterFault:
    """A refusal or failure as the state document remembers it."""
    return AdapterFault(
        request.version,
        why.reason,
        why.message,
        worker.clock(),
        run_id=request.run_id,
        source=str(request.source),
        name=name,
    )


def _prepare(worker: Worker, request: AdapterRequest, go_on: Callable[[], None]) -> PrivateAdapter:
    rules = worker.staging.rules
    path = directory_of(request.source)
    adapter = open_settled(path, rules.roots, lambda: open_adapter(path, rules.roots))
    try:
        check_adapter_config(adapter.config, max_rank=worker.adapters.max_rank)
        check_adapter_tensors(rules.reference.tensors, adapter.tensors, adapter.config)
        files = make_private(
            adapter, rules.inspector.read, budget=worker.memory_left(), go_on=go_on
        )
    except BaseException:
        adapter.close()
        raise
    try:
        check_digest(request.digest, files.digest, "the files")
        adapter.check_same_on_disk(rules.roots)
    except BaseException:
        files.close()
        raise
    return files
