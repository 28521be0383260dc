"""Namespaces to be alone in."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from devcluster import Cluster


@contextmanager
def scratch_namespace(cluster: Cluster, prefix: str = "test") -> Iterator[str]:
    """A namespace that is deleted afterwards, without waiting for its end."""
    name = f"{prefix}-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
