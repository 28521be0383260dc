"""One call to stage a version. Weights in the engine are not staged again, and refusals are kept."""

from __future__ import annotations

from fleet_worker.checkpoint.sources import resolved
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import settling
from fleet_worker.lifecycle.refused_stages import with_refusal, without_version
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import Reason, StageRequest


async def stage(worker: Worker, request: StageRequest, *, by_directory: bool = False) -> str:
    """Stage a version, unless the engine has it. Returns the digest. See `Agent.stage`."""
    try:
        # By its commit: a branch that has moved would look like the same source.
        source = await resolved(request.source, worker.staging.threads)
        request = request.model_copy(update={"source": source})
        digest = await _digest_if_in_engine(worker, request)
        if digest is None:
            staged = await worker.staging.stage(request, by_directory=by_directory)
            digest = staged.digest
            await settling.make_ready_or_log(worker)
    except Refusal as refusal:
        if refusal.reason is not Reason.SUPERSEDED:
            fault = worker.fault(
                request.version,
                refusal,
                run_id=request.run_id,
                source=str(request.source),
            )
            worker.refused_stages = with_refusal(worker.refused_stages, fault)
        raise
    worker.refused_stages = without_version(worker.refused_stages, request.version, request.run_id)
    return digest


async def _digest_if_in_engine(worker: Worker, request: StageRequest) -> str | None:
    """The digest of the engine's weights, if the request is for them.

    If the request has no digest, the files must be unchanged: rewritten files are staged again.
    """
    good = worker.good
    if worker.version is None or not isinstance(good, Weights) or not good.fulfils(request):
        return None
    return good.digest if await worker.staging.is_unchanged(good, request) else None
