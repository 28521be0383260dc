"""Measurements of a worker: times of the last swap, effect of the last load, last canary prompts.

They are parts of `WorkerState`, and bounded like all of it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fleet_worker.protocol.types import Count, Label, Measure, Message, Seconds, Share, Text


class SwapTimings(Message):
    """The last completed swap, in seconds. `paused` spans from pause to resume.

    Fields:
        read_bytes: that the stage has read from the store.
        peer_bytes: that it has read from a peer instead.
        published_bytes: of the version's weight files in the store: of a delta its own. None if a peer had them.
        size_bytes: of the whole weights.
        requests_held: how many requests waited when the pause ended.
        load_seconds: the copies, and all checks before and after them.
        copy_seconds: the copies alone; None if the weights came over a collective.
        in_place: the load has written only what differs from the version before; None as of `copy_seconds`.
        why_full: why not; empty if loads in place are off (`weights.loading`).
    """

    version: Label
    stage_seconds: Seconds | None = None
    read_bytes: Count | None = None
    peer_bytes: Count | None = None
    published_bytes: Count | None = None
    size_bytes: Count | None = None
    pause_seconds: Seconds | None = None
    load_seconds: Seconds | None = None
    copy_seconds: Seconds | None = None
    in_place: bool | None = None
    why_full: Text = ""
    resume_seconds: Seconds | None = None
    paused_seconds: Seconds | None = None
    requests_held: Count | None = None


class LoadEffect(Message):
    """Changes of the model by the last load, at the precision that the engine serves.

    Fields:
        version / run_id: the weights that were loaded.
        compared_with / compared_with_run_id / compared_with_digest: the weights before.
        changed_share: estimated share of the elements whose stored value changed, 0 to 1. None if
            they are not comparable, see `why_not`. 0 may also mean very few, see `unchanged`.
        unchanged: whether all of the model was compared and not one bit differs.
        compared_elements: number of elements read, in all processes of the engine together.
        elements: number of elements of the compared parameters.
        why_not: why parameters could not be compared; empty if all were.
    """

    version: Label
    run_id: Label | None = None
    compared_with: Label
    compared_with_run_id: Label | None = None
    compared_with_digest: Label | None = None
    changed_share: Share = None
    unchanged: bool = False
    compared_elements: Count = 0
    elements: Count = 0
    why_not: Text = ""


class PromptsReport(Message):
    """Results of the canary prompts of a `PromptsRequest`, with the weights in the engine.

    Fields:
        version, run_id, digest: the weights that ran the prompts.
        compared_with / compared_with_run_id / compared_with_digest: the weights of the baseline, whose
            continuations were scored again. None without a baseline.
        finite: whether all log-probabilities are numbers.
        repetition: largest share of a single 4-gram in a continuation, 0 to 1.
        logprob_drift: mean absolute difference of the log-probabilities of the baseline's tokens.
        kl: mean Kullback-Leibler divergence of this version from the baseline in nats, over the
            baseline's most probable tokens.
        tokens: number of compared tokens.
    """

    version: Label
    run_id: Label | None = None
    digest: Label | None = None
    compared_with: Label | None = None
    compared_with_run_id: Label | None = None
    compared_with_digest: Label | None = None
    finite: bool
    repetition: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    logprob_drift: Measure = None
    kl: Measure = None
    tokens: Count = 0
