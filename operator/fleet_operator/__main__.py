"""`python -m fleet_operator`: run the operator."""

from __future__ import annotations

import asyncio
import sys

from fleet_operator.runtime.main import run
from fleet_operator.runtime.settings import parse_settings

# The API server takes objects that are nested 10,000 levels deep, and the parser needs a level for
# each, copies up to three: whoever may create a fleet could end the operator for everybody.
_NESTED = 60_000

if __name__ == "__main__":
    sys.setrecursionlimit(_NESTED)
    sys.exit(asyncio.run(run(parse_settings())))
