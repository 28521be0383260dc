"""`python -m fleet_api`: serve the RL API."""

from __future__ import annotations

import asyncio
import sys

from fleet_api.main import run
from fleet_api.settings import parse_settings

if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse_settings())))
