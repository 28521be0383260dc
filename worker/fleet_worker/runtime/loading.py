"""Loading: new weights into a paused engine, and the way back when that fails."""

from __future__ import annotations

import logging

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.core.engine_adapter import EngineAdapter
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import LoadEffect, Phase, Reason, SwapTimings
from fleet_worker.runtime import sleeping
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.ports import Engine
from fleet_worker.runtime.weights import Received, Weights, in_words
from fleet_worker.runtime.worker import Fault, Worker

_LOG = logging.getLogger(__name__)


async def load(worker: Worker, weights: Weights) -> None:
    """Put weights into the engine of a worker that has just entered `loading`.

    Errors:
        Refusal, EngineFailure (untouched): the old weights are intact, the phase is as before.
        EngineFailure (touched): the last good version is back behind a closed latch, or the
            process is about to end.
    """
    started = worker.clock()
    try:
        await put_in(worker, weights)
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
        # A mistake of ours, somewhere between the steps: the engine may be half-way.
        words = f"the load broke off: {type(error).__name__}"
        await recover(worker, weights, broken := EngineFailure(words, touched=True))
        worker.dispose(weights.checkpoint)
        raise broken from error
    note_loaded(worker, weights, worker.clock() - started)


async def hold_still(worker: Worker) -> None:
    """Before weights change: wake the engine, and see to it that nothing generates. Under the lock.

    From joining, all requests have ended then; from paused, they are held or have ended.

    Errors:
        Refusal: `WrongPhase`; the engine of a closed worker has not come to rest.
        EngineFailure (untouched): the engine failed; see `Worker.hold`.
    """
    await sleeping.ensure_awake(worker)
    if worker.phase is Phase.JOINING:
        await worker.come_to_rest()
    else:
        await worker.hold()


async def relabel(worker: Worker, label: str, before: str) -> None:
    """Call the engine's weights by another label. Under the lock, while nothing generates.

    Errors:
        EngineFailure: the label is as it was; or (touched) the last good weights are back behind
            a closed latch, or the process is about to end.
    """
    try:
        await worker.engine.set_version(label)
    except EngineFailure as failure:
        try:
            await worker.engine.set_version(before)
        except EngineFailure:
            worker.enter(Event.LOAD)  # no label that the engine has is to be trusted
            await recover(worker, None, failure)
        raise


async def put_in(worker: Worker, weights: Weights) -> None:
    """The steps of a load, in the only order that keeps labels honest.

    Args:
        worker: Its engine is held still (`hold_still`).
        weights: What to put in. Of bytes in memory nothing is asked of any file system: they are
            sealed and have their digest, whatever their directory holds by now.

    Errors:
        Refusal: files that the engine is to read were written to, or their store does not answer;
            the engine was not touched.
        EngineFailure: see its `touched`.
    """
    engine, checkpoint = worker.engine, weights.checkpoint
    await check_unread(worker, checkpoint)
    await engine.load(checkpoint)
    try:
        await check_unread(worker, checkpoint)
    except Refusal as refusal:
        # Written to while the engine read it: nobody knows what is in the model now.
        raise EngineFailure(refusal.message, touched=True, reason=refusal.reason) from refusal
    await settle_in(worker, weights)


async def check_unread(worker: Worker, checkpoint: Checkpoint) -> None:
    """Look whether files that a load reads are as they were staged, in bounded time.

    Requests wait meanwhile, and a fence and the end of a lease wait for this lock.

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


async def settle_in(worker: Worker, weights: Weights | Received) -> None:
    """Look at weights that have just gone into the engine, and label them.

    Errors:
        EngineFailure: they are not to be served.
    """
    engine = worker.engine
    await engine.probe()
    # vLLM has thrown them out; requests that are held need theirs.
    for adapter in worker.adapters.in_engine():
        await _put_back(engine, adapter)
    if not _keeps_cache(worker):
        # The pause dropped what requests held; this also drops what nobody holds, on every load
        # from `joining`, where the pause was long ago.
        await engine.reset_caches()
    # Last: from here on tokens are labelled with it.
    await engine.set_version(worker.label_of(weights))


def _keeps_cache(worker: Worker) -> bool:
    return worker.lease is not None and worker.lease.cache_kept


async def _put_back(engine: Engine, adapter: EngineAdapter) -> None:
    try:
        await engine.add_adapter(adapter)
    except EngineFailure as failure:
        words = f"{adapter} could not be put back: {failure.message}"
        raise EngineFailure(words, touched=True) from failure


def note_loaded(worker: Worker, weights: Weights | Received, seconds: float) -> None:
    """New weights are in the engine, and labelled.

    Args:
        worker: Still loading.
        weights: What is in it now.
        seconds: How long it took.
    """
    previous, worker.good = worker.good, weights
    worker.effect = _effect(worker, previous)
    labels = worker.label_of(weights), worker.label_of(previous)
    worker.kept.loaded(*labels, cleared=not _keeps_cache(worker))
    worker.version = weights.version
    worker.note_in_engine(weights)
    if previous.version == weights.version and previous.name != weights.name:
        worker.probes.report = None  # it would pass for one of these weights
    if previous.checkpoint is not None and previous.checkpoint is not weights.checkpoint:
        worker.dispose(previous.checkpoint)
    worker.load_failure = None
    worker.may_rename = True
    worker.enter(Event.LOADED)
    worker.metrics.loaded(seconds)
    timings = worker.timings or SwapTimings(version=weights.version)
    worker.timings = timings.model_copy(
        update={
            "version": weights.version,
            "stage_seconds": weights.stage_seconds if isinstance(weights, Weights) else None,
            "load_seconds": seconds,
        }
    )
    line = fields(
        "loaded",
        version=weights.version,
        run_id=weights.run_id,
        digest=weights.digest,
        seconds=round(seconds, 4),
    )
    _LOG.info("%s is in the engine", in_words(weights), extra=line)


def _effect(worker: Worker, previous: Weights | Received) -> LoadEffect:
    effect, loaded = worker.engine.effect, worker.good
    if effect.unchanged:
        _LOG.warning(
            "no parameter of the model has changed from %s to %s",
            previous.version,
            loaded.version,
            extra=fields("weights_unchanged", version=loaded.version),
        )
    return LoadEffect(
        version=loaded.version,
        run_id=loaded.run_id,
        compared_with=previous.version,
        compared_with_run_id=previous.run_id,
        compared_with_digest=previous.digest,
        changed_share=effect.changed_share,
        unchanged=effect.unchanged,
        compared_elements=effect.compared_elements,
        elements=effect.elements,
        why_not=effect.why_not,
    )


def _note_refused(worker: Worker, weights: Weights, why: Refusal | EngineFailure) -> None:
    if why.reason is Reason.CHECKPOINT_CHANGED:
        worker.dispose(weights.checkpoint)  # staging it again reads what is there now
    elif not worker.staging.give_back(weights):
        worker.dispose(weights.checkpoint)
    worker.load_failure = _fault(worker, weights, why)
    worker.enter(Event.LOAD_REFUSED)


def _fault(worker: Worker, weights: Weights, why: Refusal | EngineFailure) -> Fault:
    source = str(weights.source)
    return worker.fault(weights.version, why, run_id=weights.run_id, source=source)


async def recover(worker: Worker, weights: Weights | None, failure: EngineFailure) -> None:
    """The model is neither old nor new: close, put the last good version back, or end.

    Args:
        worker: Loading.
        weights: What could not be loaded; None for what came over a collective.
        failure: Why.
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
        "loading %s failed inside the engine (%s); putting %s back",
        version or "an update",
        failure.message,
        good.version,
        extra=fields("broken", version=version, reason=failure.reason),
    )
    if isinstance(good, Received):
        why = f"{good.version} came over a collective, no file could put it back"
        worker.end_process(f"{failure.message}; {why}")
        return
    try:
        await worker.quiescence.reach(worker.engine)
        await put_in(worker, good)
    except (Refusal, EngineFailure) as error:
        worker.end_process(f"{good.version} could not be put back: {error.message}")
        return
    worker.kept.clear()
    worker.version = good.version
    worker.enter(Event.RECOVERED)
    _LOG.warning(
        "%s is in the engine again; the latch stays closed until the operator admits it",
        good.version,
        extra=fields("recovered", version=good.version),
    )
