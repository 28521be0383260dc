"""`python -m fleet_collector`: delete old versions once."""

from __future__ import annotations

import sys

from fleet_collector.main import run
from fleet_collector.settings import parse_settings

if __name__ == "__main__":
    sys.exit(run(parse_settings()))
