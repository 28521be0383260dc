"""Probing: prompts are run on the weights in the engine, behind the latch or beside the clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fleet_worker.core.probing import Continuation, Position, Run, report
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import Phase, ProbeReport, ProbeRequest, Reason
from fleet_worker.runtime import sleeping
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.ports import Engine
from fleet_worker.runtime.worker import Worker

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 300.0


async def probe(worker: Worker, request: ProbeRequest) -> None:
    """Run the prompts on a worker whose lock is held, and remember what came out.

    Errors:
        Refusal: `WrongPhase`, also if the worker is fenced meanwhile.
        EngineFailure: the engine failed at it, or took too long.
    """
    if worker.phase not in (Phase.SERVING, Phase.JOINING) or worker.version is None:
        raise Refusal(Reason.WRONG_PHASE, f"a worker that is {worker.phase} is not probed")
    closed = worker.phase is Phase.JOINING
    if closed and not worker.is_at_rest:
        await worker.come_to_rest()
    with worker.working("probe", worker.version):
        try:
            if closed:
                await sleeping.ensure_awake(worker)  # a fence leaves a sleeping engine asleep
                worker.enter(Event.NOT_AT_REST)
                await worker.engine.resume()
            found = await _unless_cut(worker, _run(worker, request))
        finally:
            if closed:
                # Nobody is served behind the latch; the engine goes back to rest.
                await worker.quiesce(Event.FENCE)
    worker.probes.report = found
    told = fields("probed", **found.model_dump())
    _LOG.info("%s was probed", worker.version, extra=told)


async def _run(worker: Worker, request: ProbeRequest) -> ProbeReport:
    sampled = [_sample(worker.engine, text, request.max_tokens) for text in request.prompts]
    continuations = tuple(await asyncio.gather(*sampled))
    good = worker.good
    run = Run(worker.version or "", continuations, run_id=good.run_id, digest=good.digest)
    worker.probes.note(run)
    baseline = worker.probes.baseline
    compared = baseline.continuations if baseline is not None else ()
    again = [_score(worker.engine, each.prompt, each.tokens) for each in compared]
    return report(run, baseline, await asyncio.gather(*again))


async def _sample(engine: Engine, text: str, max_tokens: int) -> Continuation:
    prompt, tokens = await engine.sample(text, max_tokens)
    # Scored like the baseline: what is reported while sampling depends on the engine's settings.
    return Continuation(tuple(prompt), await _score(engine, prompt, tokens))


async def _score(
    engine: Engine, prompt: Sequence[int], tokens: Sequence[int]
) -> tuple[Position, ...]:
    return await engine.score([*prompt, *tokens], first=len(prompt)) if tokens else ()


async def _unless_cut(worker: Worker, work: Awaitable[T]) -> T:
    """Await work; give it up when the latch closes, or when it takes too long."""
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
        raise Refusal(Reason.WRONG_PHASE, "the worker was fenced while it was probed")
    raise EngineFailure(
        f"the prompts did not end within {_PATIENCE_SECONDS:.0f} s",
        touched=False,
        reason=Reason.PROBE_FAILED,
    )
