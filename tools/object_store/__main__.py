"""Build the server: `python -m object_store`."""

from __future__ import annotations

from devcluster.programs import ensure_part
from object_store.server import VERSITYGW

if __name__ == "__main__":
    ensure_part(VERSITYGW)
