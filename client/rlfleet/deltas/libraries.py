"""The libraries of the extra `delta`: numpy, xxhash and zstandard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlfleet.errors import NotConfigured


@contextmanager
def libraries() -> Iterator[None]:
    """Around the import of what needs them. Errors: NotConfigured if one is not installed."""
    try:
        yield
    except ImportError as error:
        raise NotConfigured(
            f"writing versions needs {error.name}, which is not installed: install the client with its extra"
            " delta, in a checkout with pip install './client[delta]'"
        ) from error
