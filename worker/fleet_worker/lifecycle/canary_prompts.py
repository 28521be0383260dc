"""Running canary prompts on a worker, behind the latch or along with client requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fleet_worker.engine.port import Engine
from fleet_worker.engine.records import Position
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle import closing, sleeping
from fleet_worker.lifecycle.canary_report import Answers, Continuation, History, report
from fleet_worker.lifecycle.states import Event
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.protocol import Named, Phase, PromptsReport, PromptsRequest, Reason

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 300.0


async def run(worker: Worker, request: PromptsRequest) -> None:
    """Run the prompts of a request under the worker's lock, and keep the report.

    Errors:
        Refusal: `WrongPhase`, also if the worker is fenced meanwhile.
        EngineFailure: The engine failed, or the prompts took too long.
    """
    if worker.phase not in (Phase.SERVING, Phase.JOINING) or worker.version is None:
        raise Refusal(Reason.WRONG_PHASE, f"the worker is {worker.phase} and cannot run prompts")
    closed = worker.phase is Phase.JOINING
    if closed and not worker.is_idle:
        await closing.end_requests(worker)
    with worker.working("probe", worker.version):
        try:
            if closed:
                await sleeping.ensure_awake(worker)  # a fence leaves a sleeping engine asleep
                worker.enter(Event.NOT_IDLE)
                await worker.engine.resume()
            found = await _unless_cut(
                worker, _report_on(worker.engine, worker.good, worker.canary_history, request)
            )
        finally:
            if closed:
                # Behind a closed latch the engine must be idle again.
                await closing.quiesce(worker, Event.FENCE)
    worker.canary_history.report = found
    log_fields = fields("probed", **found.model_dump())
    _LOG.info("canary prompts were run on version %s", worker.version, extra=log_fields)


async def _unless_cut(worker: Worker, work: Awaitable[T]) -> T:
    """Await work; cancel it when the latch closes, or when it takes too long."""
    working = asyncio.ensure_future(work)
    cutting = asyncio.ensure_future(worker.cut.wait())
    try:
        await asyncio.wait(
            {working, cutting}, timeout=_PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if working.done():
            return working.result()
    finally:
        cutting.cancel()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    if worker.cut.is_set():
        raise Refusal(Reason.WRONG_PHASE, "the worker was fenced while it ran the prompts")
    raise EngineFailure(
        f"the prompts took longer than {_PATIENCE_SECONDS:.0f} s",
        touched=False,
        reason=Reason.PROBE_FAILED,
    )


async def _report_on(
    engine: Engine, weights: Named, history: History, request: PromptsRequest
) -> PromptsReport:
    """Run the prompts, and keep the replies: they may be the baseline of a later version.

    Errors: Refusal `BadRequest`, if a prompt does not fit into the context; EngineFailure.
    """
    sampled = [_sample(engine, text, request.max_tokens) for text in request.prompts]
    continuations = tuple(await asyncio.gather(*sampled))
    answers = Answers(weights.version, continuations, run_id=weights.run_id, digest=weights.digest)
    named = request.compare_with, request.compare_with_run_id, request.compare_with_digest
    baseline = history.note(answers, named)
    compared = baseline.continuations if baseline is not None else ()
    scores = [_score(engine, each.prompt, each.tokens) for each in compared]
    return report(answers, baseline, await asyncio.gather(*scores))


async def _sample(engine: Engine, text: str, max_tokens: int) -> Continuation:
    prompt, tokens = await engine.sample(text, max_tokens)
    # Scored like the baseline: scores from sampling depend on the engine's settings.
    return Continuation(tuple(prompt), await _score(engine, prompt, tokens))


async def _score(
    engine: Engine, prompt: Sequence[int], tokens: Sequence[int]
) -> tuple[Position, ...]:
    return await engine.score([*prompt, *tokens], first=len(prompt)) if tokens else ()
