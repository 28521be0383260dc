"""Open, check and read the weights that a process may start on, before the engine starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import is_delta
from fleet_worker.checkpoint.identity import check_digest
from fleet_worker.checkpoint.inspector import Inspector
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import StageRules
from fleet_worker.checkpoint.sources import directory_of, named_source
from fleet_worker.checkpoint.store_threads import SILENCE_SECONDS, Pulse, StoreThreads
from fleet_worker.checkpoint.tied import check_tied
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.process.start import Wanted
from fleet_worker.protocol import Reason, Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """The model's own weights. All else comes from its directory, or URI, for every version."""

    source: Source
    directory: str
    checkpoint: Checkpoint


def in_time(
    store: str,
    work: Callable[[Callable[[], None]], T],
    *,
    late: Callable[[T], object] = lambda _: None,
) -> T:
    """Do work on a file system, which may never answer.

    Args:
        store: The directory that the work reads, for messages.
        work: The function. It gets a callback, and calls it at each answer of the store.
        late: Called with the result of work that was left behind.

    Errors:
        Refusal: any refusal of the work; `SourceUnreadable` if the store has not answered for 60 s.
    """
    pulse = Pulse()
    threads = StoreThreads()
    return asyncio.run(
        threads.run(
            partial(work, pulse.beat),
            store=store,
            within_seconds=SILENCE_SECONDS,
            pulse=pulse,
            late=late,
        )
    )


def open_model(name: str, revision: str | None) -> Model:
    """Open a model: a directory, the URI of a prefix, or a repository in the local Hugging Face cache.

    Errors: Refusal.
    """
    source = named_source(name, revision)
    directory = directory_of(source)
    return Model(source, directory, open_checkpoint(directory, None))


def read_start(
    path: str, wanted: Wanted, rules: StageRules, check_cancelled: Callable[[], None]
) -> Weights | str:
    """Open, check and digest the version of the environment. Blocks; closes files that are not used.

    Returns: the version, or why only a load can bring its weights into the engine.
    """
    if is_delta(path, rules.roots):
        return "it is a delta, whose weights no file has"
    checkpoint = open_checkpoint(path, rules.roots)
    try:
        rules.reference.check(checkpoint, rules.inspector)
        if checkpoint.casts:
            checkpoint.close()
            return "a load casts its tensors to the types of the model"
        if wanted.digest is None:
            rules.reference.check_written(checkpoint)
        rules.inspector.read(checkpoint, budget=0, check_cancelled=check_cancelled)
        digest = checkpoint.digest(check_cancelled)
        check_digest(wanted.digest, digest, f"the files in {path}")
        check_tied(rules.reference.copy, checkpoint)
    except BaseException:
        checkpoint.close()
        raise
    source = Source(path=path)
    return Weights(wanted.version or "", source, digest, checkpoint, run_id=wanted.run_id)


def read_model(checkpoint: Checkpoint, inspector: Inspector, budget: int | None = None) -> str:
    """The digest of the model's own weights. Infinities and NaNs are accepted in the files of a directory.

    `budget`: for weights that only memory can have, as those of a store, which are kept; None to keep none.
    """
    is_kept = budget is not None and checkpoint.is_only_in_memory
    room = max(1, budget or 0) if is_kept else 0

    def read(check_cancelled: Callable[[], None]) -> str:
        try:
            if checkpoint.zero_blocks is None:
                inspector.read(checkpoint, budget=room, check_cancelled=check_cancelled)
        except Refusal as refusal:
            if refusal.reason is not Reason.CHECKPOINT_NOT_FINITE or is_kept:
                raise
        return checkpoint.digest(check_cancelled)

    return in_time(f"of {checkpoint.path}", read)
