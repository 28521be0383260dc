"""Build the servers: `python -m object_store`."""

from __future__ import annotations

from devcluster.programs import ensure_part
from object_store.server import FAKE_GCS, VERSITYGW

if __name__ == "__main__":
    ensure_part(VERSITYGW)
    ensure_part(FAKE_GCS)
