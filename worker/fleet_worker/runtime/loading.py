"""Putting weights into the engine: the steps, in the only order that keeps labels honest."""

from __future__ import annotations

import asyncio

from fleet_worker.adapters.files import Roots
from fleet_worker.runtime.ports import Engine
from fleet_worker.runtime.staging import Weights


async def put_in(engine: Engine, weights: Weights, roots: Roots | None) -> None:
    """Load, probe, drop what the old weights left, and only then change the label.

    Args:
        engine: Paused.
        weights: What to put in.
        roots: To look whether the files are still those that were staged; None to skip this for
            weights that have been in the engine before.

    Errors:
        Refusal: the files were changed; the engine was not touched.
        EngineFailure: see its `touched`.
    """
    if roots is not None:
        await asyncio.to_thread(weights.checkpoint.check_same_on_disk, roots)
    await engine.load(weights.checkpoint)
    await engine.probe()
    # The pause dropped what requests held; this also drops what nobody holds, on every load from
    # `joining`, where the pause was long ago.
    await engine.reset_caches()
    await engine.set_version(weights.version)
