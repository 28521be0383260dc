"""`python -m fleet_operator`: run the operator."""

from __future__ import annotations

import asyncio
import sys

from fleet_operator.runtime.main import run
from fleet_operator.runtime.settings import parse_settings

if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse_settings())))
