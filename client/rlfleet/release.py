"""The release of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version_of

_FROM_SOURCES = "0+sources"


def release() -> str:
    """The version of the installed distribution; `0+sources` where none is installed."""
    try:
        return _version_of("rlfleet")
    except PackageNotFoundError:
        return _FROM_SOURCES
