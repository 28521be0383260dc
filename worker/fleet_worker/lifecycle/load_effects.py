"""The change of the model by a load, which is compared when its pause has ended."""

from __future__ import annotations

import logging

from fleet_worker.engine.effect import Effect
from fleet_worker.engine.port import Engine
from fleet_worker.errors import EngineFailure
from fleet_worker.lifecycle.weights import Received, Weights
from fleet_worker.logs import fields
from fleet_worker.protocol import LoadEffect

_LOG = logging.getLogger(__name__)


def effect_to_compare(loaded: Weights | Received, previous: Weights | Received) -> LoadEffect:
    """Return the effect of a load that is not compared yet."""
    return LoadEffect(
        version=loaded.version,
        run_id=loaded.run_id,
        compared_with=previous.version,
        compared_with_run_id=previous.run_id,
        compared_with_digest=previous.digest,
        unchanged=False,
        compared_elements=0,
        elements=0,
        why_not="the worker compares the weights when the pause has ended",
    )


def effect_never_compared(effect: LoadEffect) -> LoadEffect:
    """Return the effect of a load that can be compared no more."""
    why_not = "the next change of weights came before the comparison"
    return effect.model_copy(update={"why_not": why_not})


async def compared(engine: Engine, effect: LoadEffect) -> LoadEffect:
    """Return the effect of the last load, once the engine has compared. Never fails."""
    try:
        found = await engine.compare()
    except EngineFailure as failure:
        found = Effect(why_not=f"the comparison failed: {failure.message}"[:500])
    if found.unchanged:
        _LOG.warning(
            "version %s and version %s have the same weights: the load changed no parameter",
            effect.compared_with,
            effect.version,
            extra=fields("weights_unchanged", version=effect.version),
        )
    return effect.model_copy(
        update={
            "changed_share": found.changed_share,
            "unchanged": found.unchanged,
            "compared_elements": found.compared_elements,
            "elements": found.elements,
            "why_not": found.why_not,
        }
    )
