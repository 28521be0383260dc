"""`python -m fleet_operator`: run the operator."""

from __future__ import annotations

import asyncio
import gc
import sys

from fleet_operator.runtime.main import loop_factory, run
from fleet_operator.runtime.settings import parse_settings

# The API server accepts objects that are nested 10,000 levels deep. The parser needs one frame for each
# level, and a copy up to three. With Python's limit, one such fleet could end the operator for all fleets.
_NESTED = 60_000

# New objects before a garbage collection: more than a barrier of 10,000 calls holds at once. They are freed
# without the collector, since a call leaves no cycles behind. With 50,000, 68 collections of up to 0.28 s
# each found nothing, and took a sixth of the time of a call.
_NEW_OBJECTS = 500_000

if __name__ == "__main__":
    sys.setrecursionlimit(_NESTED)
    # Objects of the imports stay forever. Without this, each full collection in a rollout would scan them.
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        sys.exit(runner.run(run(parse_settings())))
