"""Loading new weights into a paused engine, and recovery when that fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine.port import Engine
from fleet_worker.engine.records import EngineAdapter
from fleet_worker.errors import EngineFailure, Fault, Refusal
from fleet_worker.lifecycle import closing, sleeping
from fleet_worker.lifecycle.in_place import base_in_place
from fleet_worker.lifecycle.load_effects import effect_to_compare
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.weights import Received, Weights, description_of
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.protocol import Reason, SwapTimings

_LOG = logging.getLogger(__name__)


async def load(worker: Worker, weights: Weights) -> None:
    """Load weights into the engine of a worker that has just entered `loading`.

    Errors:
        Refusal, EngineFailure (untouched): The old weights are intact, and the phase is the one
            before the load.
        EngineFailure (touched): The last good version is back behind a closed latch, or the
            process is about to end.
    """
    started = worker.clock()
    try:
        done = await put_into_engine(worker, weights)
    except Refusal as refusal:
        _note_refused(worker, weights, refusal)
        raise
    except EngineFailure as failure:
        if failure.touched:
            await recover(worker, weights, failure)
            worker.dispose(weights.checkpoint)
        else:
            _note_refused(worker, weights, failure)
        raise
    except Exception as error:
        # A defect in the worker: the engine may have a part of the weights.
        message = f"the load failed with an unexpected {type(error).__name__}"
        await recover(worker, weights, broken := EngineFailure(message, touched=True))
        worker.dispose(weights.checkpoint)
        raise broken from error
    note_loaded(worker, weights, worker.clock() - started, done)


async def ensure_quiet(worker: Worker) -> None:
    """Wake the engine and make sure that it does not generate, before weights change. Under the lock.

    Afterwards a joining worker has no requests; a paused one has only held requests.

    Errors:
        Refusal: `WrongPhase`; the engine of a closed worker still has requests.
        EngineFailure (untouched): See `closing.ensure_paused`.
    """
    await sleeping.ensure_awake(worker)
    await closing.silence(worker)


async def relabel(worker: Worker, label: str, before: str) -> None:
    """Change the engine's label. Under the lock, while nothing generates.

    Errors:
        EngineFailure: The label is unchanged. Or (touched) the last good weights are back behind a
            closed latch, or the process is about to end.
    """
    try:
        await worker.engine.set_version(label)
    except EngineFailure as failure:
        try:
            await worker.engine.set_version(before)
        except EngineFailure:
            worker.enter(Event.LOAD)  # the engine's label is unknown now
            await recover(worker, None, failure)
        raise


@dataclass(frozen=True, slots=True)
class Copied:
    """How bytes have come into the engine.

    Fields:
        seconds: until the device had all.
        why_full: why the load was a full one; empty without `loads_in_place`. None for one in place.
    """

    seconds: float
    why_full: str | None


async def put_into_engine(worker: Worker, weights: Weights) -> Copied:
    """Run the steps of a load, in the order that keeps labels true.

    Args:
        worker: Its engine does not generate (`ensure_quiet`).
        weights: The weights to load. Bytes in memory are sealed, so their files are not checked
            again.

    Errors:
        Refusal: The files have changed, or their store does not answer. The engine is untouched.
        EngineFailure: See its `touched`.
    """
    await check_unread(worker, weights.checkpoint)
    worker.held_by_engine.note(weights.checkpoint)
    copied = await _copied(worker, weights)
    await check_and_label(worker, weights)
    return copied


async def _copied(worker: Worker, weights: Weights) -> Copied:
    """Bring the bytes into the engine.

    Errors:
        Refusal, EngineFailure: Always touched after an attempt in place: some process may have the version by then,
            also if the full load itself has touched none.
    """
    engine, checkpoint, began = worker.engine, weights.checkpoint, worker.clock()
    base = base_in_place(worker, weights)
    why: str | None = base.why_not
    if base.checkpoint is not None:
        why = await engine.load_in_place(checkpoint, base.checkpoint)
        if why is None:
            return Copied(worker.clock() - began, None)
    if why:
        _LOG.info("the load of %s is a full one: %s", description_of(weights), why)
    # It fails if it reads other bytes than the stage.
    try:
        return Copied(await engine.load(checkpoint, again=base.checkpoint is not None), why)
    except (Refusal, EngineFailure) as error:
        if base.checkpoint is None:
            raise
        raise EngineFailure(error.message, touched=True, reason=error.reason) from error


async def check_unread(worker: Worker, checkpoint: Checkpoint) -> None:
    """Check in bounded time that the files of a load are unchanged since they were staged.

    Requests, a fence and the end of a lease wait meanwhile.

    Errors:
        Refusal: `CheckpointChanged`; `SourceUnreadable` if their store does not answer.
    """
    if checkpoint.is_held:
        return
    staging = worker.staging
    await staging.threads.run(
        checkpoint.check_unread,
        store=staging.rules.roots.root_of(checkpoint.path),
        within_seconds=worker.limits.files_seconds,
    )


async def check_and_label(worker: Worker, weights: Weights | Received) -> None:
    """Check weights that have just been loaded with a forward pass, and label them.

    Errors:
        EngineFailure: The weights must not be served.
    """
    engine = worker.engine
    await engine.probe()
    # The load has removed the LoRA adapters, and held requests need theirs.
    for adapter in worker.adapters.in_engine():
        await _add_again(engine, adapter)
    if not _keeps_cache(worker):
        # The pause dropped the cache of running requests. This drops the rest, such as prefixes
        # that were cached before a load from `joining`.
        await engine.reset_caches()
    # Last, because new tokens get this label.
    await engine.set_version(worker.label_of(weights))


def _keeps_cache(worker: Worker) -> bool:
    return worker.lease is not None and worker.lease.cache_kept


async def _add_again(engine: Engine, adapter: EngineAdapter) -> None:
    try:
        await engine.add_adapter(adapter)
    except EngineFailure as failure:
        message = f"LoRA adapter {adapter} could not be loaded again: {failure.message}"
        raise EngineFailure(message, touched=True) from failure


def note_loaded(
    worker: Worker, weights: Weights | Received, seconds: float, copied: Copied | None = None
) -> None:
    """Record a successful load and leave the phase `loading`.

    Args:
        worker: The worker, still in `loading`.
        weights: The weights in its engine now.
        seconds: How long the load took.
        copied: How the bytes have come into it; None if they came over a collective.
    """
    previous, worker.good = worker.good, weights
    worker.effect, worker.uncompared = effect_to_compare(weights, previous), True
    labels = worker.label_of(weights), worker.label_of(previous)
    worker.kept.loaded(*labels, cleared=not _keeps_cache(worker))
    worker.version = weights.version
    worker.note_in_engine(weights)
    worker.canary_history.note_loaded((weights.version, weights.run_id, weights.digest))
    if previous.checkpoint is not None and previous.checkpoint is not weights.checkpoint:
        worker.dispose(previous.checkpoint)
    worker.load_failure = None
    worker.may_rename = True
    worker.enter(Event.LOADED)
    worker.metrics.loaded.observe(seconds)
    timings = worker.timings or SwapTimings(version=weights.version)
    of_files = weights.checkpoint if isinstance(weights, Weights) else None
    worker.timings = timings.model_copy(
        update={
            "version": weights.version,
            "stage_seconds": weights.stage_seconds if isinstance(weights, Weights) else None,
            "read_bytes": weights.read_bytes if isinstance(weights, Weights) else None,
            "peer_bytes": weights.peer_bytes if isinstance(weights, Weights) else None,
            "published_bytes": of_files.published_bytes if of_files is not None else None,
            "size_bytes": of_files.size_bytes if of_files is not None else None,
            "load_seconds": seconds,
            "copy_seconds": copied.seconds if copied is not None else None,
            "in_place": None if copied is None else copied.why_full is None,
            "why_full": (copied.why_full or "")[:400] if copied is not None else "",
        }
    )
    log_fields = fields(
        "loaded",
        version=weights.version,
        run_id=weights.run_id,
        digest=weights.digest,
        seconds=round(seconds, 4),
    )
    _LOG.info("the engine has loaded %s", description_of(weights), extra=log_fields)


def _note_refused(worker: Worker, weights: Weights, error: Refusal | EngineFailure) -> None:
    if error.reason is Reason.CHECKPOINT_CHANGED:
        worker.dispose(weights.checkpoint)  # the next stage reads the new files
    elif not worker.staging.give_back(weights):
        worker.dispose(weights.checkpoint)
    worker.load_failure = _fault(worker, weights, error)
    worker.enter(Event.LOAD_REFUSED)


def _fault(worker: Worker, weights: Weights, error: Refusal | EngineFailure) -> Fault:
    source = str(weights.source)
    return worker.fault(weights.version, error, run_id=weights.run_id, source=source)


async def recover(worker: Worker, weights: Weights | None, failure: EngineFailure) -> None:
    """Close the latch and load the last good version again, after a load left a broken model.

    If that fails, the process ends.

    Args:
        worker: The worker, in `loading`.
        weights: The weights that failed to load; None if they came over a collective.
        failure: Why the load failed.
    """
    version = weights.version if weights is not None else None
    worker.load_failure = (
        _fault(worker, weights, failure) if weights is not None else worker.fault(None, failure)
    )
    worker.version = None
    worker.lease = None
    worker.may_rename = False
    worker.enter(Event.LOAD_FAILED)
    good = worker.good
    _LOG.error(
        "the load of %s failed inside the engine (%s); the worker loads version %s again",
        f"version {version}" if version is not None else "an update over a collective",
        failure.message,
        good.version,
        extra=fields("broken", version=version, reason=failure.reason),
    )
    if isinstance(good, Received):
        worker.end_process(
            f"{failure.message}; version {good.version} came over a collective and has no files to"
            " load again"
        )
        return
    try:
        await worker.quiescence.reach(worker.engine)
        await put_into_engine(worker, good)
    except Exception as error:  # noqa: BLE001 - whatever it is, no other call ends this state
        unexpected = f"unexpected {type(error).__name__}"
        why = error.message if isinstance(error, Refusal | EngineFailure) else unexpected
        worker.end_process(f"version {good.version} could not be loaded again: {why}")
        return
    worker.kept.clear()
    worker.version = good.version
    worker.enter(Event.RECOVERED)
    _LOG.warning(
        "the engine has version %s again; the latch is closed until the operator admits this worker",
        good.version,
        extra=fields("recovered", version=good.version),
    )
